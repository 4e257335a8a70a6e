//! Reads the files of a layout in an archive. They come in any order, so the archive is indexed once, and then read
//! where needed.

use super::blobs::Blobs;
use crate::error::{Result, shown, unsound};
use crate::layer::Budget;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use tar::{Archive, EntryType};

/// The bytes that may precede an entry.
const HEADERS: u64 = 64 << 10;
/// The maximum number of members. A layout has a few for each layer; an archive with more is not a layout.
const MOST: usize = 20_000;
/// The maximum number of symlinks from one file to the next.
const LINKS: usize = 8;

/// The members of an archive.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    file: &'a File,
    found: HashMap<String, Member>,
}

#[derive(Debug)]
enum Member {
    At { start: u64, size: u64 },
    Link(String),
}

impl<'a> Members<'a> {
    /// Indexes an archive. Returns `None` if it has more members than a layout can have.
    pub(crate) fn index(file: &'a File) -> Result<Option<Self>> {
        let wrong = |error: io::Error| {
            let why = shown(error.to_string().as_bytes());
            unsound(format!("it is not a readable tar archive: {why}"))
        };
        let left = Rc::new(Cell::new(HEADERS));
        let mut archive = Archive::new(Budget { from: file, left: left.clone() });
        let mut entries = archive.entries_with_seek().map_err(wrong)?;
        let mut found = HashMap::new();
        loop {
            left.set(HEADERS);
            let Some(entry) = entries.next() else { break };
            let entry = entry.map_err(wrong)?;
            if found.len() == MOST {
                return Ok(None);
            }
            let Some(name) = plain(&String::from_utf8_lossy(&entry.path_bytes())) else { continue };
            let target = || entry.link_name_bytes().map(|target| String::from_utf8_lossy(&target).into_owned());
            let member = match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => {
                    Some(Member::At { start: entry.raw_file_position(), size: entry.size() })
                }
                // Docker writes a layer that two images share only once, and a symlink to it.
                EntryType::Symlink => target().and_then(|target| {
                    let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                    plain(&format!("{dir}/{target}")).map(Member::Link)
                }),
                EntryType::Link => target().and_then(|target| plain(&target)).map(Member::Link),
                _ => None,
            };
            found.extend(member.map(|member| (name, member)));
        }
        if found.is_empty() {
            return Err(unsound("it is empty, or not a tar archive"));
        }
        Ok(Some(Self { file, found }))
    }
}

impl Blobs for Members<'_> {
    fn open(&self, path: &str) -> Result<Option<(Box<dyn Read + '_>, u64)>> {
        let Some(mut name) = plain(path) else { return Ok(None) };
        for _ in 0..LINKS {
            match self.found.get(&name) {
                None => return Ok(None),
                Some(Member::Link(target)) => name.clone_from(target),
                Some(Member::At { start, size }) => {
                    let section = Section { file: self.file, at: *start, left: *size };
                    return Ok(Some((Box::new(section), *size)));
                }
            }
        }
        Err(unsound(format!("{} is a symlink loop", shown(path.as_bytes()))))
    }
}

/// Normalises a path. Returns `None` if it leads out of the archive.
fn plain(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// A range of a file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(plain("./a//b/../c").as_deref(), Some("a/c"));
        assert_eq!(plain("abc/../../x"), None);
        assert_eq!(plain("/etc/passwd").as_deref(), Some("etc/passwd"));
    }
}
