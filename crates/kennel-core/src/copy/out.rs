//! Copies from a sandbox to the host.

use super::host::HostDir;
use super::{Tally, cannot, join, last_name};
use crate::{Error, Fence, Files, HostPath, LastLink, Piece, Result};
use kennel_types::{DirEntry, ErrorCode, FileKind};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Copies a file or directory to a path on the host.
pub(super) async fn copy_out(
    files: &Files,
    source: &[u8],
    target: &Path,
    fences: &[Fence],
    tally: &mut Tally,
) -> Result<()> {
    let stat = files.stat(source, true).await?;
    let what = |error| cannot("write", target, error);
    let (parent, name) = match Target::find(target, fences)? {
        Target::Directory(dir) => (dir, last_name(source).map(<[u8]>::to_vec)),
        Target::New(parent, name) => (parent, Some(name)),
    };
    match (stat.kind, name.as_deref()) {
        (FileKind::Directory, Some(name)) => {
            let dir = parent.make_dir(name, stat.mode).map_err(what)?;
            copy_tree(files, source.to_vec(), dir, tally).await
        }
        (FileKind::Directory, None) => copy_tree(files, source.to_vec(), parent, tally).await,
        (FileKind::File, Some(name)) => copy_file(files, source, &parent, name, stat.mode, tally).await,
        _ => Err(Error::new(
            ErrorCode::Unsupported,
            format!("{} is not a file or directory", String::from_utf8_lossy(source)),
        )),
    }
}

/// The place on the host that a copy writes to.
pub(super) enum Target {
    /// An existing directory.
    Directory(HostDir),
    /// A name in a directory. An existing file is replaced; a symlink is refused.
    New(HostDir, Vec<u8>),
}

impl Target {
    /// Opens the place at a host path. Symlinks are followed only as far as `fences` allow.
    pub(super) fn find(path: &Path, fences: &[Fence]) -> Result<Self> {
        let what = |error| cannot("write", path, error);
        match HostDir::open(path, fences) {
            Ok(dir) => return Ok(Self::Directory(dir)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(what(error)),
        }
        let (dir, name) =
            HostPath::resolve(path, fences, LastLink::Keep).and_then(|path| path.parent()).map_err(what)?;
        let (dir, name) = (HostDir::new(dir), name.into_vec());
        if dir.is_link(&name) {
            let message = format!("write {}: it is a symlink, which is not followed", path.display());
            return Err(Error::new(ErrorCode::PermissionDenied, message).advise("name the file that it points at"));
        }
        Ok(Self::New(dir, name))
    }
}

/// Copies a file to a stream.
pub(super) async fn copy_stream_out(
    files: &Files,
    source: &[u8],
    mut to: impl AsyncWrite + Send + Unpin,
    title: &str,
) -> Result<()> {
    let failed = |error| Error::io(format!("write to {title}"), error);
    let mut reader = files.open(source, 0, None).await?;
    while let Some(bytes) = reader.chunk().await? {
        to.write_all(&bytes).await.map_err(failed)?;
    }
    to.flush().await.map_err(failed)
}

/// A directory that has not been copied yet. It is opened only when its turn comes, so the number of open directories
/// is at most the depth of the tree.
struct Waiting {
    path: Vec<u8>,
    parent: Arc<HostDir>,
    entry: DirEntry,
}

async fn copy_tree(files: &Files, path: Vec<u8>, into: HostDir, tally: &mut Tally) -> Result<()> {
    let mut waiting = Vec::new();
    copy_entries(files, &path, into, &mut waiting, tally).await?;
    while let Some(Waiting { path, parent, entry }) = waiting.pop() {
        match parent.make_dir(&entry.name, entry.stat.mode) {
            Ok(dir) => match copy_entries(files, &path, dir, &mut waiting, tally).await {
                Err(error) if is_about_the_file(&error) => tally.skip(&path, &error.to_string()),
                done => done?,
            },
            Err(error) => tally.skip(&path, &error.to_string()),
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
    let into = Arc::new(into);
    for entry in files.list(path).await? {
        let from = join(path, &entry.name);
        match entry.stat.kind {
            FileKind::Directory => waiting.push(Waiting { path: from, parent: into.clone(), entry }),
            FileKind::File => match copy_file(files, &from, &into, &entry.name, entry.stat.mode, tally).await {
                Ok(()) => {}
                // A file that cannot be read, or was removed meanwhile, does not end the copy.
                Err(error) if is_about_the_file(&error) => tally.skip(&from, &error.to_string()),
                Err(error) => return Err(error),
            },
            FileKind::Symlink => {
                let target = entry.stat.target.unwrap_or_default();
                match into.make_link(&entry.name, &target) {
                    Ok(()) => tally.file(),
                    Err(error) => tally.skip(&from, &error.to_string()),
                }
            }
            FileKind::Other => tally.skip(&from, "it is a FIFO, socket or device"),
        }
    }
    Ok(())
}

/// Whether an error concerns only the current file, so that the other files can still be copied.
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
    let mut reader = files.open_sparse(from).await?;
    let mut new = into.new_file(name, mode).map_err(what)?;
    let (mut size, mut holes) = (0, false);
    while let Some(piece) = reader.piece().await? {
        match piece {
            Piece::Hole(length) => {
                size += length;
                holes = true;
                new.file.seek(SeekFrom::Start(size)).map_err(what)?;
            }
            Piece::Data(bytes) => {
                new.file.write_all(&bytes).map_err(what)?;
                size += bytes.len() as u64;
                tally.copied(bytes.len());
            }
        }
    }
    if holes {
        // A hole at the end does not extend the file by itself.
        new.file.set_len(size).map_err(what)?;
    }
    new.finish().map_err(what)?;
    tally.file();
    Ok(())
}
