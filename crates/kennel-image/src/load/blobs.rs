//! Access to the files of an OCI layout or image archive. Paths in it are not trusted.

use crate::error::{Error, Result, shown, unsound};
use kennel_types::LimitReason;
use pathrs::Root;
use pathrs::error::ErrorKind;
use pathrs::flags::OpenFlags;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest manifest or other metadata file that is read into memory, in bytes.
pub(crate) const DESCRIPTION: u64 = 4 << 20;

/// The files of an image layout, by path.
pub(crate) trait Blobs {
    /// Opens a file and returns it with its size, or `None` if it does not exist.
    fn open(&self, path: &str) -> Result<Option<(Box<dyn Read + '_>, u64)>>;

    /// Reads a file of at most [`DESCRIPTION`] bytes, or returns `None` if it does not exist.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some((from, size)) = self.open(path)? else { return Ok(None) };
        let path = shown(path.as_bytes());
        if size > DESCRIPTION {
            return Err(Error::limit(LimitReason::TooLarge, format!("{path} is too large")));
        }
        let mut bytes = Vec::new();
        from.take(size).read_to_end(&mut bytes).map_err(|error| Error::io(format!("read {path}"), error))?;
        if bytes.len() as u64 != size {
            return Err(unsound(format!("{path} is truncated")));
        }
        Ok(Some(bytes))
    }
}

/// An image layout in a directory. No path or symlink can lead out of it.
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
        // Opening a FIFO must not block.
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
            return Err(unsound(format!("{} is not a regular file", shown(path.as_bytes()))));
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
