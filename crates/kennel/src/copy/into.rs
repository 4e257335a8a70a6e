//! From the host to a sandbox.

use super::host::HostDir;
use super::{Tally, join, last_name};
use crate::input::Input;
use kennel_core::{Error, Files, Result, Sandbox, WriteOptions};
use kennel_types::{ErrorCode, ExecSpec, FileKind};
use rustix::fs::FileType;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};

/// Copies a file or directory of the host to a path inside.
pub(crate) async fn copy_in(
    sandbox: &Sandbox,
    files: &Files,
    source: &Path,
    target: &[u8],
    tally: &mut Tally,
) -> Result<()> {
    let what = |error| Error::io(format!("read {}", source.display()), error);
    // What the user named may be a link of the user's own; what is below it is not followed.
    let file = File::open(source).map_err(what)?;
    let meta = file.metadata().map_err(what)?;
    let name = last_name(source.as_os_str().as_bytes());
    let target = match name {
        Some(name) if target.ends_with(b"/") || is_dir(files, target).await? => join(target, name),
        _ => target.to_vec(),
    };
    if meta.is_dir() {
        let dir = HostDir::open(source).map_err(what)?;
        return copy_tree(sandbox, files, dir, target, tally).await;
    }
    if !meta.is_file() {
        return Err(Error::new(ErrorCode::Unsupported, format!("{} is no file or directory", source.display()))
            .hint("pass it on standard input: kennel cp - ID:PATH < FILE"));
    }
    copy_file(files, file, meta.permissions().mode() & 0o777, &target, tally).await
}

/// Copies our standard input to a file inside.
pub(crate) async fn copy_stream_in(files: &Files, target: &[u8]) -> Result<()> {
    if target.ends_with(b"/") || is_dir(files, target).await? {
        let message = format!("{} is a directory: standard input needs a file name", String::from_utf8_lossy(target));
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    files.write_from(target, Input::open(), WriteOptions::default()).await
}

async fn is_dir(files: &Files, path: &[u8]) -> Result<bool> {
    match files.stat(path, true).await {
        Ok(stat) => Ok(stat.kind == FileKind::Directory),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A directory still to be copied.
struct Waiting {
    parent: Rc<HostDir>,
    name: Vec<u8>,
    target: Vec<u8>,
}

async fn copy_tree(sandbox: &Sandbox, files: &Files, from: HostDir, to: Vec<u8>, tally: &mut Tally) -> Result<()> {
    let mut waiting = Vec::new();
    copy_entries(sandbox, files, from, &to, &mut waiting, tally).await?;
    while let Some(Waiting { parent, name, target }) = waiting.pop() {
        match parent.dir(&name) {
            Ok(dir) => copy_entries(sandbox, files, dir, &target, &mut waiting, tally).await?,
            Err(error) => tally.leave_out(&target, &error.to_string()),
        }
    }
    Ok(())
}

async fn copy_entries(
    sandbox: &Sandbox,
    files: &Files,
    from: HostDir,
    to: &[u8],
    waiting: &mut Vec<Waiting>,
    tally: &mut Tally,
) -> Result<()> {
    files.mkdir(to, true).await?;
    let entries = from
        .entries()
        .map_err(|error| Error::io(format!("read what goes to {}", String::from_utf8_lossy(to)), error))?;
    let from = Rc::new(from);
    for (name, kind, _) in entries {
        let target = join(to, &name);
        match kind {
            FileType::Directory => waiting.push(Waiting { parent: from.clone(), name, target }),
            FileType::RegularFile => match from.read_file(&name) {
                Ok((file, mode)) => copy_file(files, file, mode, &target, tally).await?,
                Err(error) => tally.leave_out(&target, &error.to_string()),
            },
            FileType::Symlink => match from.read_link(&name) {
                Ok(link) => copy_link(sandbox, &link, &target, tally).await?,
                Err(error) => tally.leave_out(&target, &error.to_string()),
            },
            _ => tally.leave_out(&target, "it is a FIFO, socket or device"),
        }
    }
    Ok(())
}

/// The keeper has no call for links, so `ln` inside makes them.
async fn copy_link(sandbox: &Sandbox, link: &[u8], target: &[u8], tally: &mut Tally) -> Result<()> {
    let (Ok(link), Ok(path)) = (std::str::from_utf8(link), std::str::from_utf8(target)) else {
        tally.leave_out(target, "a link whose name is not UTF-8");
        return Ok(());
    };
    let made = sandbox.run(&ExecSpec::argv(["ln", "-sfn", "--", link, path]), None, 4096).await;
    match made {
        Ok(output) if output.status.success() => tally.files += 1,
        Ok(output) => tally.leave_out(target, output.stderr_text().trim_end()),
        Err(error) if error.code() == ErrorCode::ExecFailed => tally.leave_out(target, &error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn copy_file(files: &Files, file: File, mode: u32, target: &[u8], tally: &mut Tally) -> Result<()> {
    let options = WriteOptions { mode: Some(mode), parents: true };
    files.write_from(target, Counted { file, tally }, options).await?;
    tally.files += 1;
    Ok(())
}

/// A regular file of the host. It is read without waiting for anyone, so no thread is needed.
struct Counted<'a> {
    file: File,
    tally: &'a mut Tally,
}

impl AsyncRead for Counted<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let count = this.file.read(into.initialize_unfilled())?;
        into.advance(count);
        this.tally.copied(count);
        Poll::Ready(Ok(()))
    }
}
