//! Watches files, in a worker: reports changes until the watched path is gone or nobody reads them.

use crate::files::{names, put_item};
use crate::paths::{self, failure};
use crate::report::{Report, write_all};
use crate::worker::Pipes;
use kennel_proto::{Failure, Limit, Outcome, WatchItem, WatchKind};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;

/// The number of directories that one watch may cover.
const DIRECTORIES: usize = 10_000;

struct FileWatch {
    inotify: OwnedFd,
    /// The name of the watched path. A descriptor would keep the file alive, so its removal would not be noticed.
    top: Vec<u8>,
    /// The path of each watched file or directory, relative to the first.
    paths: HashMap<i32, Vec<u8>>,
    recursive: bool,
}

pub(crate) fn run(path: &[u8], recursive: bool, pipes: &Pipes) -> Result<Outcome, Failure> {
    let top = paths::open(path, OFlags::PATH, Mode::empty()).map_err(|error| failure(path, error))?;
    let inotify = inotify::init(CreateFlags::CLOEXEC).map_err(|error| failure(path, error))?;
    let mut watch = FileWatch { inotify, top: path.to_vec(), paths: HashMap::new(), recursive };
    watch.add(&top, &[], &mut None)?;
    drop(top);
    Report::Ready.send(&pipes.status);
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    loop {
        let mut out = Vec::new();
        let (made, over) = watch.read(&mut buffer, &mut out).map_err(|error| failure(path, error))?;
        for directory in made {
            watch.add_made(&directory, &mut out)?;
        }
        if !write_all(&pipes.output, &out) || over {
            return Ok(Outcome::Nothing);
        }
    }
}

impl FileWatch {
    /// Watches a new directory, and reports what was created in it before it was watched.
    fn add_made(&mut self, relative: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match paths::open(&join(&self.top, relative), flags, Mode::empty()) {
            Ok(directory) => self.add(&directory, relative, &mut Some(out)),
            Err(_) => Ok(()), // It is gone again.
        }
    }

    /// Watches the file of the descriptor, and with `recursive` everything below. With `tell`, everything below is
    /// reported as new.
    fn add(&mut self, what: &OwnedFd, relative: &[u8], tell: &mut Option<&mut Vec<u8>>) -> Result<(), Failure> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let shown = || if relative.is_empty() { b"the watched path" } else { relative };
        if self.paths.len() >= DIRECTORIES {
            let message = format!("more than {DIRECTORIES} directories to watch");
            return Err(Failure::limit(Limit::Size, message));
        }
        // By descriptor, so that nothing can be swapped between check and watch.
        let by_descriptor = format!("/proc/self/fd/{}", what.as_raw_fd());
        let wd = inotify::add_watch(&self.inotify, &by_descriptor, flags).map_err(|error| failure(shown(), error))?;
        self.paths.insert(wd, relative.to_vec());
        if self.recursive {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(dir) = rustix::fs::openat(what, ".", flags, Mode::empty()) {
                for name in names(&dir).unwrap_or_default() {
                    if let Some(out) = tell {
                        let path = join(relative, &name).into();
                        put_item(&WatchItem { kind: WatchKind::Created, path }, out);
                    }
                    self.add_child(&dir, &name, relative, tell)?;
                }
            }
        }
        Ok(())
    }

    fn add_child(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        relative: &[u8],
        tell: &mut Option<&mut Vec<u8>>,
    ) -> Result<(), Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Ok(child) => self.add(&child, &join(relative, name), tell),
            Err(_) => Ok(()),
        }
    }

    /// Waits for changes and appends them to `out`. Returns the new directories, and whether the watch has ended.
    fn read(&mut self, buffer: &mut [MaybeUninit<u8>], out: &mut Vec<u8>) -> Result<(Vec<Vec<u8>>, bool), Errno> {
        let mut over = false;
        let mut made = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                put_item(&WatchItem { kind: WatchKind::Missed, path: Vec::new().into() }, out);
            } else if let Some(base) = self.paths.get(&event.wd()) {
                let path = event.file_name().map_or(base.clone(), |name| join(base, name.to_bytes()));
                let kind = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    Some(WatchKind::Created)
                } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                    Some(WatchKind::Removed)
                } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
                    Some(WatchKind::Modified)
                } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && base.is_empty() {
                    over = true;
                    Some(WatchKind::Removed)
                } else {
                    None
                };
                if flags.contains(ReadFlags::IGNORED) {
                    let wd = event.wd();
                    over |= self.paths.remove(&wd).is_some_and(|base| base.is_empty());
                } else if let Some(kind) = kind {
                    if kind == WatchKind::Created && flags.contains(ReadFlags::ISDIR) && self.recursive {
                        made.push(path.clone());
                    }
                    put_item(&WatchItem { kind, path: path.into() }, out);
                }
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        Ok((made, over))
    }
}

fn join(base: &[u8], name: &[u8]) -> Vec<u8> {
    if base.is_empty() { name.to_vec() } else { [base, b"/", name].concat() }
}
