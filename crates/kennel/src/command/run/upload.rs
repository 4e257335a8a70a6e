//! `kennel run --upload`: copies the current directory to a sandbox of a server, which does not see it.

use crate::progress::while_waiting;
use crate::report;
use kennel_api::MkdirRequest;
use kennel_client::Client;
use kennel_core::copy::PipeReader;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, NextStep};
use std::io::{BufWriter, PipeWriter, Write as _};
use std::path::{Path, PathBuf};

/// Where the directory is inside.
pub(super) const WORKSPACE: &str = "/workspace";

/// A directory that is copied to a sandbox.
pub(super) struct Upload {
    dir: PathBuf,
}

/// What was packed.
#[derive(Clone, Copy, Default)]
struct Packed {
    files: u64,
    skipped: u64,
}

impl Upload {
    /// The current directory. It must not be the root directory or the user's home, which nobody means to copy.
    pub(super) fn of_current_dir() -> Result<Self> {
        let dir = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        let home = crate::environment::named("HOME").map(PathBuf::from);
        if dir == Path::new("/") || home.is_some_and(|home| home.canonicalize().is_ok_and(|home| home == dir)) {
            let message = format!("--upload: it would copy all of {}", dir.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .suggest(NextStep::advice("change to the directory of your project first")));
        }
        Ok(Self { dir })
    }

    /// Copies the directory to `/workspace` of a sandbox.
    pub(super) async fn copy(&self, client: &Client, sandbox: &str) -> Result<()> {
        report::note(&format!(
            "copying {} to {WORKSPACE} of the sandbox; changes there are not copied back",
            self.dir.display()
        ));
        let failed = |error| Error::io(format!("copy {}", self.dir.display()), error);
        let request = MkdirRequest { path: WORKSPACE.into(), parents: true, user: None };
        client.make_directory(sandbox, &request).await?;
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let dir = self.dir.clone();
        let packing = tokio::task::spawn_blocking(move || pack(&dir, writer));
        let title = format!("copying {}", self.dir.display());
        let copied = while_waiting(&title, client.unpack(sandbox, WORKSPACE, None, PipeReader::new(reader))).await;
        let packed = packing.await.map_err(|error| Error::new(ErrorCode::Internal, format!("{title}: {error}")))?;
        // If the server has refused the archive, the pipe broke for this reason.
        copied?;
        let packed = packed.map_err(failed)?;
        if packed.skipped > 0 {
            report::warning(&format!("{} sockets, FIFOs and devices were not copied", packed.skipped));
        }
        report::note(&format!("copied {} files and directories", packed.files));
        Ok(())
    }
}

/// Writes an archive of everything in a directory. Symlinks are packed as such.
fn pack(dir: &Path, to: PipeWriter) -> std::io::Result<Packed> {
    let mut archive = tar::Builder::new(BufWriter::with_capacity(1 << 16, to));
    archive.follow_symlinks(false);
    let mut packed = Packed::default();
    let mut left = vec![PathBuf::new()];
    while let Some(below) = left.pop() {
        for entry in std::fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let (name, kind) = (below.join(entry.file_name()), entry.file_type()?);
            if kind.is_dir() {
                archive.append_dir(&name, entry.path())?;
                left.push(name);
            } else if kind.is_file() || kind.is_symlink() {
                match archive.append_path_with_name(entry.path(), &name) {
                    // It was removed while its directory was read.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    done => done?,
                }
            } else {
                packed.skipped += 1;
                continue;
            }
            packed.files += 1;
        }
    }
    archive.into_inner()?.flush()?;
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_sockets_is_packed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/file"), "content").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let path = dir.path().to_owned();
        let packing = std::thread::spawn(move || pack(&path, writer).unwrap());
        let mut archive = tar::Archive::new(reader);
        let mut found: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                format!("{} {:?}", entry.path().unwrap().display(), entry.header().entry_type())
            })
            .collect();
        found.sort();
        assert_eq!(found, ["link Symlink", "sub Directory", "sub/file Regular"]);
        let packed = packing.join().unwrap();
        assert_eq!((packed.files, packed.skipped), (3, 1));
    }
}
