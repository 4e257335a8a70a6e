//! The arguments of `kennel cp`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One side of a copy, as the user typed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyEndpoint {
    /// `-`: standard input or output.
    Stream,
    /// A path of the host.
    Host(PathBuf),
    /// `ID:PATH`.
    Inside { id: String, path: Vec<u8> },
}

impl CopyEndpoint {
    /// Parses an argument. If it begins with `.`, or has a slash before the colon, it is a host path.
    pub(super) fn read(typed: &OsStr) -> Self {
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

    /// Returns the host path, if it is one.
    pub(super) fn file(&self) -> Option<&Path> {
        if let Self::Host(path) = self { Some(path) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_endpoints_are_parsed() {
        let inside = |id: &str, path: &str| CopyEndpoint::Inside { id: id.into(), path: path.into() };
        let host = |path: &str| CopyEndpoint::Host(path.into());
        for (typed, endpoint) in [
            ("-", CopyEndpoint::Stream),
            ("box:/a", inside("box", "/a")),
            ("box:a:b", inside("box", "a:b")),
            ("box:", inside("box", "")),
            ("./box:a", host("./box:a")),
            ("/tmp/x:y", host("/tmp/x:y")),
            (":a", host(":a")),
            ("plain", host("plain")),
        ] {
            assert_eq!(CopyEndpoint::read(OsStr::new(typed)), endpoint, "{typed}");
        }
    }
}
