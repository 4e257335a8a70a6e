//! From a sandbox to the host.

use super::host::HostDir;
use super::{Tally, join, last_name};
use crate::output::Stream;
use kennel_core::{Error, Files, Result};
use kennel_types::{DirEntry, ErrorCode, FileKind};
use rustix::io::Errno;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

/// Copies a file or directory to a path on the host.
pub(crate) async fn copy_out(files: &Files, source: &[u8], target: &Path, tally: &mut Tally) -> Result<()> {
    let stat = files.stat(source, true).await?;
    let what = |error| Error::io(format!("write {}", target.display()), error);
    let (parent, name) = if target.is_dir() {
        (target, last_name(source))
    } else {
        let (parent, name) = new_place(target)?;
        (parent, Some(name))
    };
    let parent = HostDir::open(parent).map_err(what)?;
    match (stat.kind, name) {
        (FileKind::Directory, Some(name)) => {
            let dir = parent.make_dir(name, stat.mode).map_err(what)?;
            copy_tree(files, source.to_vec(), dir, tally).await
        }
        (FileKind::Directory, None) => copy_tree(files, source.to_vec(), parent, tally).await,
        (FileKind::File, Some(name)) => copy_file(files, source, &parent, name, stat.mode, tally).await,
        _ => Err(Error::new(
            ErrorCode::Unsupported,
            format!("{} is no file or directory", String::from_utf8_lossy(source)),
        )),
    }
}

/// The directory and the name of a path that is to be written. A link there is not written through.
pub(super) fn new_place(target: &Path) -> Result<(&Path, &[u8])> {
    if target.is_symlink() {
        let message = format!("{} is a symbolic link, and is not written through", target.display());
        return Err(Error::new(ErrorCode::PermissionDenied, message).hint("name the file that it points at"));
    }
    let name = target
        .file_name()
        .ok_or_else(|| Error::new(ErrorCode::InvalidConfig, format!("{} is no place for a file", target.display())))?;
    Ok((target.parent().unwrap_or(Path::new(".")), name.as_bytes()))
}

/// Copies a file to our standard output.
pub(crate) async fn copy_stream_out(files: &Files, source: &[u8]) -> Result<u8> {
    let mut reader = files.open(source, 0, None).await?;
    while let Some(bytes) = reader.chunk().await? {
        match Stream::Stdout.write(bytes).await {
            Ok(()) => {}
            Err(Errno::PIPE) => return Ok(crate::output::BROKEN_PIPE),
            Err(error) => return Err(Error::io("write to standard output", error)),
        }
    }
    Ok(0)
}

/// A directory still to be copied. It is opened when its turn comes: only as many are open as the tree is deep.
struct Waiting {
    path: Vec<u8>,
    parent: Rc<HostDir>,
    entry: DirEntry,
}

async fn copy_tree(files: &Files, path: Vec<u8>, into: HostDir, tally: &mut Tally) -> Result<()> {
    let mut waiting = Vec::new();
    copy_entries(files, &path, into, &mut waiting, tally).await?;
    while let Some(Waiting { path, parent, entry }) = waiting.pop() {
        match parent.make_dir(&entry.name, entry.stat.mode) {
            Ok(dir) => match copy_entries(files, &path, dir, &mut waiting, tally).await {
                Err(error) if is_about_the_file(&error) => tally.leave_out(&path, &error.to_string()),
                done => done?,
            },
            Err(error) => tally.leave_out(&path, &error.to_string()),
        }
    }
    Ok(())
}

async fn copy_entries(
    files: &Files,
    path: &[u8],
    into: HostDir,
    waiting: &mut Vec<Waiting>,
    tally: &mut Tally,
) -> Result<()> {
    let into = Rc::new(into);
    for entry in files.list(path).await? {
        let from = join(path, &entry.name);
        match entry.stat.kind {
            FileKind::Directory => waiting.push(Waiting { path: from, parent: into.clone(), entry }),
            FileKind::File => match copy_file(files, &from, &into, &entry.name, entry.stat.mode, tally).await {
                Ok(()) => {}
                // One file that cannot be read, or is gone meanwhile, does not spoil the rest.
                Err(error) if is_about_the_file(&error) => tally.leave_out(&from, &error.to_string()),
                Err(error) => return Err(error),
            },
            FileKind::Symlink => {
                let target = entry.stat.target.unwrap_or_default();
                match into.make_link(&entry.name, &target) {
                    Ok(()) => tally.files += 1,
                    Err(error) => tally.leave_out(&from, &error.to_string()),
                }
            }
            FileKind::Other => tally.leave_out(&from, "it is a FIFO, socket or device"),
        }
    }
    Ok(())
}

/// Whether the rest can still be copied.
pub(super) fn is_about_the_file(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::NotFound | ErrorCode::PermissionDenied | ErrorCode::InvalidConfig)
}

async fn copy_file(
    files: &Files,
    from: &[u8],
    into: &HostDir,
    name: &[u8],
    mode: u32,
    tally: &mut Tally,
) -> Result<()> {
    let what = |error| Error::io(format!("write {}", String::from_utf8_lossy(name)), error);
    let mut reader = files.open(from, 0, None).await?;
    let mut new = into.new_file(name, mode).map_err(what)?;
    while let Some(bytes) = reader.chunk().await? {
        new.file.write_all(&bytes).map_err(what)?;
        tally.copied(bytes.len());
    }
    new.finish().map_err(what)?;
    tally.files += 1;
    Ok(())
}
