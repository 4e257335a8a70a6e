//! A directory for the build context that a client sends. It is removed with the build. One that a killed server has left is
//! removed at the next start.

use crate::error::Outcome;
use kennel_core::{Error, Result, new_id};
use kennel_engine::Directories;
use kennel_image::Limits;
use kennel_types::LimitReason;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The largest archive, and what it may contain.
const LARGEST: u64 = 2 << 30;
const UNPACKED: u64 = 8 << 30;
const ENTRIES: u64 = 500_000;
/// How much is received at once.
const PIECE: usize = 256 << 10;

/// The context of a build.
pub(crate) struct BuildDir(PathBuf);

impl Drop for BuildDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "a build context is left");
        }
    }
}

impl BuildDir {
    /// Removes what a killed server has left. There is one server for each state directory.
    pub(crate) fn sweep(directories: &Directories) {
        let _ = std::fs::remove_dir_all(directories.builds());
    }

    /// Receives an archive, and unpacks it.
    pub(crate) async fn receive(directories: &Directories, mut from: impl AsyncRead + Unpin) -> Outcome<Self> {
        let dir = Self(directories.builds().join(new_id()?.as_str()));
        let failed = |error| Error::io("receive the build context", error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.context()).map_err(failed)?;
        let archive = dir.0.join("archive");
        let mut file = std::fs::File::create(&archive).map_err(failed)?;
        let (mut piece, mut received) = (vec![0; PIECE], 0);
        loop {
            let count = from.read(&mut piece).await.map_err(failed)?;
            if count == 0 {
                break;
            }
            received += count as u64;
            if received > LARGEST {
                let message = format!("the archive is larger than {LARGEST} bytes");
                return Err(Error::limit(LimitReason::TooLarge, message).into());
            }
            file.write_all(&piece[..count]).map_err(failed)?;
        }
        drop(file);
        let context = dir.context();
        let unpacking = tokio::task::spawn_blocking(move || unpack(&archive, &context));
        crate::app::joined(unpacking.await)?;
        Ok(dir)
    }

    /// The directory with the content of the archive.
    pub(crate) fn context(&self) -> PathBuf {
        self.0.join("context")
    }
}

fn unpack(archive: &Path, context: &Path) -> Result<()> {
    let file = std::fs::File::open(archive).map_err(|error| Error::io("read the build context", error))?;
    let limits = Limits { bytes: UNPACKED, entries: ENTRIES, ..Limits::default() };
    let unpacked = kennel_image::unpack_layer(file, context, &limits);
    unpacked.map_err(|error| error.context("unpack the build context"))?;
    std::fs::remove_file(archive).map_err(|error| Error::io("remove the build context", error))
}
