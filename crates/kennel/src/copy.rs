//! Files in and out of a sandbox.
//!
//! The inside is hostile, and may be at work in the same host directory while we copy. So nothing on the host is reached by a
//! path that could be changed meanwhile: what the user named is opened once, without leaving the workspace or the current
//! directory (`kennel_core::HostPath`), and everything below it by descriptor, never through a symlink. What is left out is said.

mod archive;
mod host;
mod inside;
mod into;
mod out;
mod pack;
mod streams;
mod tally;
mod unpack;

pub(crate) use inside::Inside;
pub(crate) use into::{copy_in, copy_stream_in};
pub(crate) use out::{copy_out, copy_stream_out};
pub(crate) use pack::pack;
pub(crate) use tally::Tally;
pub(crate) use unpack::unpack;

use kennel_core::Error;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One side of a copy, as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `-`: our own standard input or output.
    Stream,
    /// A path here.
    Host(PathBuf),
    /// `ID:PATH`.
    Inside { id: String, path: Vec<u8> },
}

impl Place {
    /// Reads one. What begins with `.` or has a slash before the colon is a path here.
    pub(crate) fn read(typed: &OsStr) -> Self {
        let bytes = typed.as_bytes();
        if bytes == b"-" {
            return Self::Stream;
        }
        let colon = bytes.iter().position(|&byte| byte == b':');
        match colon.map(|at| (std::str::from_utf8(&bytes[..at]), &bytes[at + 1..])) {
            Some((Ok(id), path)) if !id.is_empty() && !id.starts_with('.') && !id.contains('/') => {
                Self::Inside { id: id.to_owned(), path: path.to_vec() }
            }
            _ => Self::Host(typed.into()),
        }
    }

    /// The path, if it is one here.
    pub(crate) fn file(&self) -> Option<&Path> {
        if let Self::Host(path) = self { Some(path) } else { None }
    }
}

/// `path` seen from `base`.
pub(crate) fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
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

/// The error for a path on the host that cannot be read or written. One that leads out gets a hint.
fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    let leads_out = error.kind() == std::io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
    let error = Error::io(format!("{what} {}", path.display()), error);
    if leads_out {
        error.hint("if that is what you want, name what the symlink points at by its absolute path")
    } else {
        error
    }
}

/// The last name of a path; `None` where it names no entry: `/`, `.` and `..` at the end.
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

    #[test]
    fn places_are_told_apart() {
        let inside = |id: &str, path: &str| Place::Inside { id: id.into(), path: path.into() };
        let host = |path: &str| Place::Host(path.into());
        for (typed, place) in [
            ("-", Place::Stream),
            ("box:/a", inside("box", "/a")),
            ("box:a:b", inside("box", "a:b")),
            ("box:", inside("box", "")),
            ("./box:a", host("./box:a")),
            ("/tmp/x:y", host("/tmp/x:y")),
            (":a", host(":a")),
            ("plain", host("plain")),
        ] {
            assert_eq!(Place::read(OsStr::new(typed)), place, "{typed}");
        }
    }

    #[test]
    fn names_and_joins() {
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
