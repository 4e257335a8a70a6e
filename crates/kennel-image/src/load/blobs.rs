//! Access to the files of a layout. Its paths are not trusted.

use crate::error::{Error, Result, shown};
use pathrs::Root;
use pathrs::error::ErrorKind;
use pathrs::flags::OpenFlags;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes in the largest description that is read into memory.
pub(crate) const DESCRIPTION: u64 = 4 << 20;

/// Files by their paths.
pub(crate) trait Blobs {
    /// Opens a file and returns it with its size, or `None` if it does not exist.
    fn open(&self, path: &str) -> Result<Option<(Box<dyn Read + '_>, u64)>>;

    /// Reads a small file, or returns `None` if it does not exist.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some((from, size)) = self.open(path)? else { return Ok(None) };
        let path = shown(path.as_bytes());
        if size > DESCRIPTION {
            return Err(Error::too_much(format!("{path} is too large")));
        }
        let mut bytes = Vec::new();
        from.take(size).read_to_end(&mut bytes).map_err(|error| Error::io(format!("read {path}"), error))?;
        if bytes.len() as u64 != size {
            return Err(Error::unsound(format!("{path} is truncated")));
        }
        Ok(Some(bytes))
    }
}

/// The files in a directory. No path leads out of it.
pub(crate) struct Directory {
    root: Root,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let root = Root::open(path).map_err(|error| Error::io(format!("open {}", path.display()), system(error)))?;
        Ok(Self { root })
    }
}

impl Blobs for Directory {
    fn open(&self, path: &str) -> Result<Option<(Box<dyn Read + '_>, u64)>> {
        let what = |error| Error::io(format!("read {}", shown(path.as_bytes())), error);
        // Do not wait for a FIFO that someone put there.
        let flags = OpenFlags::O_RDONLY | OpenFlags::O_NONBLOCK | OpenFlags::O_CLOEXEC;
        let file: File = match self.root.open_subpath(path, flags) {
            Ok(file) => file,
            Err(error) => {
                let error = system(error);
                return if error.kind() == std::io::ErrorKind::NotFound { Ok(None) } else { Err(what(error)) };
            }
        };
        let meta = file.metadata().map_err(what)?;
        if !meta.is_file() {
            return Err(Error::unsound(format!("{} is not a regular file", shown(path.as_bytes()))));
        }
        Ok(Some((Box::new(file), meta.len())))
    }
}

fn system(error: pathrs::error::Error) -> std::io::Error {
    match error.kind() {
        ErrorKind::OsError(Some(code)) => std::io::Error::from_raw_os_error(code),
        _ => std::io::Error::other(error),
    }
}
