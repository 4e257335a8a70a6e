//! Copies files between the host and a sandbox.
//!
//! Processes in the sandbox are hostile, and may work in the same host directory during the copy. So no host file is
//! opened by a path that they could change meanwhile: the path that the user named is opened once, without leaving the
//! workspace or the current directory ([`HostPath`]), and everything below it by descriptor, never through a symlink.
//! Everything that is not copied is reported.
//!
//! Inside, everything is done by requests to the keeper. Only for a keeper that cannot create symlinks or set
//! permissions, programs inside do that.
//!
//! Host files are read and written where the copy is polled. They are regular files, so this waits for nobody but the
//! disk.

mod archive;
mod host;
mod inside;
mod into;
mod out;
mod pack;
mod streams;
mod tally;
mod unpack;

pub use streams::PipeReader;
pub use tally::{Counts, Progress};

#[cfg(doc)]
use crate::HostPath;
use crate::{Error, Result, Sandbox};
use inside::Inside;
use std::path::Path;
use tally::Tally;
use tokio::io::{AsyncRead, AsyncWrite};

/// Copies files between the host and a sandbox, as one of the sandbox's users.
///
/// Relative paths inside start at the sandbox's working directory. A relative host path stays beneath the current
/// directory, and a path that enters the workspace of a sandbox stays beneath that workspace.
///
/// A copy that is dropped leaves no incomplete file.
pub struct Copier {
    inside: Inside,
    tally: Tally,
}

impl Copier {
    /// Connects to a sandbox. The user defaults to the sandbox's own. `tell` is called with the progress.
    pub async fn new(
        sandbox: &Sandbox,
        user: Option<&str>,
        tell: impl FnMut(Progress<'_>) + Send + 'static,
    ) -> Result<Self> {
        let files = sandbox.files(user).await?;
        let inside = Inside { sandbox: sandbox.clone(), files, user: user.map(ToOwned::to_owned) };
        Ok(Self { inside, tally: Tally::new(tell) })
    }

    /// Returns what was copied so far.
    pub fn counts(&self) -> Counts {
        self.tally.counts
    }

    /// Copies a host file or directory to a path inside. If a directory is there, the copy is put into it.
    pub async fn copy_in(&mut self, source: &Path, target: &[u8]) -> Result<()> {
        let (target, fences) = (self.inside.path(target), self.inside.fences().await?);
        into::copy_in(&self.inside, source, &target, &fences, &mut self.tally).await
    }

    /// Copies a file or directory to a host path. If a directory is there, the copy is put into it.
    pub async fn copy_out(&mut self, source: &[u8], target: &Path) -> Result<()> {
        let (source, fences) = (self.inside.path(source), self.inside.fences().await?);
        out::copy_out(&self.inside.files, &source, target, &fences, &mut self.tally).await
    }

    /// Copies a stream to a file inside, without progress. Errors call the stream `title`.
    pub async fn stream_in(&mut self, from: impl AsyncRead + Send + Unpin, title: &str, target: &[u8]) -> Result<()> {
        let target = self.inside.path(target);
        into::copy_stream_in(&self.inside, from, title, &target).await
    }

    /// Copies a file to a stream, without progress. Errors call the stream `title`.
    pub async fn stream_out(&mut self, source: &[u8], to: impl AsyncWrite + Send + Unpin, title: &str) -> Result<()> {
        let source = self.inside.path(source);
        out::copy_stream_out(&self.inside.files, &source, to, title).await
    }

    /// Packs a file or directory into a tar archive, which is a new host file.
    pub async fn pack(&mut self, source: &[u8], target: &Path) -> Result<()> {
        let (source, fences) = (self.inside.path(source), self.inside.fences().await?);
        pack::pack(&self.inside.files, &source, target, &fences, &mut self.tally).await
    }

    /// Packs a file or directory into a tar archive, which is written to a stream. Errors call the stream `title`.
    pub async fn pack_stream(&mut self, source: &[u8], to: impl AsyncWrite + Send + Unpin, title: &str) -> Result<()> {
        let source = self.inside.path(source);
        pack::pack_stream(&self.inside.files, &source, to, title, &mut self.tally).await
    }

    /// Unpacks a tar archive, which is a host file or FIFO, into a directory inside. Hints call the directory `called`.
    pub async fn unpack(&mut self, source: &Path, target: &[u8], called: &str) -> Result<()> {
        let (target, fences) = (self.inside.path(target), self.inside.fences().await?);
        let archive = unpack::open(source, called, &fences).await?;
        unpack::unpack(&self.inside, archive, &target, &mut self.tally).await
    }

    /// Unpacks a tar archive from a stream into a directory inside. Errors call the stream `title`, and hints call the
    /// directory `called`.
    pub async fn unpack_stream(
        &mut self,
        from: impl AsyncRead + Send + Unpin + 'static,
        title: &str,
        target: &[u8],
        called: &str,
    ) -> Result<()> {
        let target = self.inside.path(target);
        let archive = archive::Archive::new(Box::new(from), title.to_owned(), None, called.to_owned());
        unpack::unpack(&self.inside, archive, &target, &mut self.tally).await
    }
}

/// Resolves a path relative to `base`.
fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    let mut joined = base.to_vec();
    if !path.is_empty() {
        if !joined.ends_with(b"/") {
            joined.push(b'/');
        }
        joined.extend_from_slice(path);
    }
    joined
}

/// The error for a host path that cannot be read or written. If the path leads out, the error has a hint.
fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    let leads_out = error.kind() == std::io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
    let error = Error::io(format!("{what} {}", path.display()), error);
    if leads_out {
        error.advise("if that is what you want, name what the symlink points at by its absolute path")
    } else {
        error
    }
}

/// Returns the last component of a path, or `None` if that is not the name of an entry: `/`, `.` and `..`.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    if path.ends_with(b"/.") {
        return None;
    }
    let name = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All futures can be sent to another thread. This is checked when it is compiled.
    #[allow(dead_code)]
    fn copies_are_send(copier: &mut Copier, sandbox: &Sandbox, stream: tokio::io::DuplexStream) {
        fn is_send<T: Send>(_: T) {}
        is_send(Copier::new(sandbox, None, |_| {}));
        is_send(copier.copy_in(Path::new("a"), b"b"));
        is_send(copier.copy_out(b"a", Path::new("b")));
        is_send(copier.stream_in(&b"a"[..], "a", b"b"));
        is_send(copier.stream_out(b"a", Vec::new(), "b"));
        is_send(copier.pack(b"a", Path::new("b")));
        is_send(copier.pack_stream(b"a", Vec::new(), "b"));
        is_send(copier.unpack(Path::new("a"), b"b", "b"));
        is_send(copier.unpack_stream(stream, "a", b"b", "b"));
        is_send(copier);
    }

    #[test]
    fn paths_are_joined_and_last_names_found() {
        assert_eq!(join(b"/workspace", b"a/b"), b"/workspace/a/b");
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/workspace", b"/etc"), b"/etc");
        assert_eq!(join(b"/workspace", b""), b"/workspace");
        assert_eq!(last_name(b"/a/b/"), Some(&b"b"[..]));
        assert_eq!(last_name(b"a"), Some(&b"a"[..]));
        for none in [&b"/"[..], b".", b"..", b"a/.", b"a/..", b""] {
            assert_eq!(last_name(none), None);
        }
    }
}
