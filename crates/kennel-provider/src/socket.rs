//! Connects to a unix socket that processes in a sandbox may have replaced.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::AsRawFd;
use std::path::Path;
use tokio::net::UnixStream;

/// Connects to the socket at `path`, of any length, without following symlinks. With `peer`, the listening process must
/// have this id.
pub async fn connect_socket(path: &Path, peer: Option<i32>) -> Result<UnixStream> {
    let what = || format!("connect to the keeper at {}", path.display());
    // Processes inside can change only the last component of the path. The directory belongs to Kennel.
    let stream = connect_file(path).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => {
            Error::new(ErrorCode::PermissionDenied, format!("{}: it is not a socket", what()))
        }
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::ConnectionReset => {
            Error::new(ErrorCode::Stopped, format!("{}: the keeper has ended", what())).caused_by(error)
        }
        _ => Error::io(what(), error),
    })?;
    if let Some(expected) = peer {
        let found = stream.peer_cred().ok().and_then(|cred| cred.pid());
        if found != Some(expected) {
            return Err(Error::new(
                ErrorCode::PermissionDenied,
                format!("{}: a process other than the keeper listens there", what()),
            ));
        }
    }
    Ok(stream)
}

/// Connects to the socket at `path`, of any length, without following symlinks. Returns `InvalidInput` if the file is
/// not a socket.
pub(crate) async fn connect_file(path: &Path) -> std::io::Result<UnixStream> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_symlink_or_a_file_in_place_of_the_socket_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        let _listener = tokio::net::UnixListener::bind(&real).unwrap();
        assert!(connect_socket(&real, Some(std::process::id() as i32)).await.is_ok());
        let code = |result: Result<UnixStream>| result.unwrap_err().code();
        assert_eq!(code(connect_socket(&real, Some(1)).await), ErrorCode::PermissionDenied);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(code(connect_socket(&link, None).await), ErrorCode::PermissionDenied);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(code(connect_socket(&file, None).await), ErrorCode::PermissionDenied);
    }

    #[tokio::test]
    async fn a_path_longer_than_an_address_works() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let short = dir.path().join("s");
        let _listener = tokio::net::UnixListener::bind(&short).unwrap();
        std::fs::rename(&short, deep.join("s")).unwrap();
        assert!(connect_socket(&deep.join("s"), None).await.is_ok());
    }
}
