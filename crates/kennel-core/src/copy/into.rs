//! Copies from the host to a sandbox.

use super::host::HostDir;
use super::{Inside, Tally, cannot, join, last_name};
use crate::{Error, Fence, Files, HostPath, LastLink, Result, WriteOptions};
use kennel_types::{ErrorCode, NextStep};
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio::io::AsyncRead;

/// Copies a file or directory of the host to a path inside.
pub(super) async fn copy_in(
    inside: &Inside,
    source: &Path,
    target: &[u8],
    fences: &[Fence],
    tally: &mut Tally,
) -> Result<()> {
    let what = |error| cannot("read", source, error);
    // A symlink that the user named is followed as far as it may lead. Symlinks below it are not followed. Opening a
    // FIFO does not block.
    let file = HostPath::resolve(source, fences, LastLink::Follow)
        .and_then(|path| path.open(OFlags::RDONLY | OFlags::NONBLOCK))
        .map_err(what)?;
    let file = File::from(file);
    let meta = file.metadata().map_err(what)?;
    let name = last_name(source.as_os_str().as_bytes());
    let target = match name {
        Some(name) if target.ends_with(b"/") || inside.is_dir(target).await? => join(target, name),
        _ => target.to_vec(),
    };
    if meta.is_dir() {
        return copy_tree(inside, HostDir::new(file.into()), target, tally).await;
    }
    if !meta.is_file() {
        return Err(Error::new(ErrorCode::Unsupported, format!("{} is not a file or directory", source.display()))
            .suggest(NextStep::CopyFromStream));
    }
    copy_file(&inside.files, file, meta.permissions().mode() & 0o777, &target, tally).await
}

/// Copies a stream to a file inside.
pub(super) async fn copy_stream_in(
    inside: &Inside,
    from: impl AsyncRead + Send + Unpin,
    title: &str,
    target: &[u8],
) -> Result<()> {
    if target.ends_with(b"/") || inside.is_dir(target).await? {
        let message = format!("{} is a directory: {title} needs a file name", String::from_utf8_lossy(target));
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    inside.files.write_from(target, from, WriteOptions::default()).await
}

/// A directory that is still to be copied.
struct Waiting {
    parent: Arc<HostDir>,
    name: Vec<u8>,
    target: Vec<u8>,
}

async fn copy_tree(inside: &Inside, from: HostDir, to: Vec<u8>, tally: &mut Tally) -> Result<()> {
    let mut waiting = Vec::new();
    copy_entries(inside, from, &to, &mut waiting, tally).await?;
    while let Some(Waiting { parent, name, target }) = waiting.pop() {
        match parent.dir(&name) {
            Ok(dir) => copy_entries(inside, dir, &target, &mut waiting, tally).await?,
            Err(error) => tally.skip(&target, &error.to_string()),
        }
    }
    Ok(())
}

async fn copy_entries(
    inside: &Inside,
    from: HostDir,
    to: &[u8],
    waiting: &mut Vec<Waiting>,
    tally: &mut Tally,
) -> Result<()> {
    inside.files.mkdir(to, true).await?;
    let entries = from.entries().map_err(|error| {
        Error::io(format!("read the directory that is copied to {}", String::from_utf8_lossy(to)), error)
    })?;
    let from = Arc::new(from);
    for (name, kind, _) in entries {
        let target = join(to, &name);
        match kind {
            FileType::Directory => waiting.push(Waiting { parent: from.clone(), name, target }),
            FileType::RegularFile => match from.read_file(&name) {
                Ok((file, mode)) => copy_file(&inside.files, file, mode, &target, tally).await?,
                Err(error) => tally.skip(&target, &error.to_string()),
            },
            FileType::Symlink => match from.read_link(&name) {
                Ok(link) => copy_link(inside, &link, &target, tally).await?,
                Err(error) => tally.skip(&target, &error.to_string()),
            },
            _ => tally.skip(&target, "it is a FIFO, socket or device"),
        }
    }
    Ok(())
}

async fn copy_link(inside: &Inside, link: &[u8], target: &[u8], tally: &mut Tally) -> Result<()> {
    match inside.make_link(link, target).await? {
        Ok(()) => tally.file(),
        Err(why) => tally.skip(target, &why),
    }
    Ok(())
}

async fn copy_file(files: &Files, file: File, mode: u32, target: &[u8], tally: &mut Tally) -> Result<()> {
    let options = WriteOptions { mode: Some(mode), parents: true };
    files.write_file(target, &file, options, |count| tally.copied(count)).await?;
    tally.file();
    Ok(())
}
