//! Container engines that appear while the resident process runs.
//!
//! An engine is there when its socket is. The kernel reports new entries of the directory in which the socket will be, or of
//! the closest directory above it that exists (inotify), so nothing is polled.

use crate::engine::Engine;
use crate::steps::Steps;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use kennel_core::{Error, Result};
use kennel_types::ProviderKind;
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::unix::AsyncFd;

/// Returns the providers of engines that appear from now on. It ends when no other engine can appear, or when the kernel
/// refuses to report changes.
pub(super) fn arrivals(
    engine: Engine,
    known: &[(ProviderKind, Arc<Steps>)],
) -> BoxStream<'static, (ProviderKind, Arc<Steps>)> {
    let known = known.iter().map(|(kind, _)| *kind).collect();
    let watch = match ChangeWatch::start() {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!(%error, "engines that are started later are not watched");
            return stream::empty().boxed();
        }
    };
    let arrivals = Arrivals { engine, known, watch };
    let next = async |mut arrivals: Arrivals| match arrivals.next().await {
        Ok(arrived) => arrived.map(|arrived| (arrived, arrivals)),
        Err(error) => {
            tracing::warn!(%error, "engines that are started later are not watched any more");
            None
        }
    };
    stream::unfold(arrivals, next).boxed()
}

struct Arrivals {
    engine: Engine,
    known: Vec<ProviderKind>,
    watch: ChangeWatch,
}

impl Arrivals {
    /// Waits for the next engine. Returns `None` if no other one can appear.
    async fn next(&mut self) -> Result<Option<(ProviderKind, Arc<Steps>)>> {
        loop {
            let sockets = self.engine.absent_sockets(&self.known);
            // First the watch, then the look: what appears in between is not missed.
            self.watch.expect(&sockets)?;
            let arrived = self.engine.existing_providers().into_iter().find(|(kind, _)| !self.known.contains(kind));
            if let Some((kind, provider)) = arrived {
                self.known.push(kind);
                return Ok(Some((kind, provider)));
            }
            if sockets.is_empty() {
                return Ok(None);
            }
            self.watch.changed().await?;
        }
    }
}

/// Waits until a path, or a directory on the way to it, is created.
struct ChangeWatch {
    inotify: AsyncFd<OwnedFd>,
    /// The awaited entries of each watched directory.
    awaited: BTreeMap<i32, BTreeSet<OsString>>,
}

impl ChangeWatch {
    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::io("watch for engines", error);
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        #[allow(deprecated)] // its successor needs `unsafe`; an `OwnedFd` that nobody else holds is what both ask for
        let inotify = AsyncFd::new(inotify).map_err(failed)?;
        Ok(Self { inotify, awaited: BTreeMap::new() })
    }

    /// Waits for these paths from now on, and for no others.
    fn expect(&mut self, paths: &[PathBuf]) -> Result<()> {
        let mut awaited: BTreeMap<i32, BTreeSet<OsString>> = BTreeMap::new();
        for path in paths {
            let Some((dir, entry)) = next_entry(path) else { continue };
            let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
            match inotify::add_watch(self.inotify.get_ref(), dir, flags) {
                Ok(number) => drop(awaited.entry(number).or_default().insert(entry)),
                // It was removed just now, or it is not ours to look into.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
                Err(error) => return Err(Error::io(format!("watch {}", dir.display()), error)),
            }
        }
        for number in self.awaited.keys().filter(|number| !awaited.contains_key(number)) {
            // The kernel has removed it already if the directory is gone.
            let _ = inotify::remove_watch(self.inotify.get_ref(), *number);
        }
        self.awaited = awaited;
        Ok(())
    }

    /// Waits until something that is awaited is there, or may be.
    async fn changed(&self) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("watch for engines", error);
        loop {
            self.inotify.readable().await.map_err(failed)?.clear_ready();
            if self.read().map_err(|error| failed(error.into()))? {
                return Ok(());
            }
        }
    }

    /// Reads all reports that are there, and returns whether one is about something awaited.
    fn read(&self) -> Result<bool, Errno> {
        let mut is_awaited = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(is_awaited),
                Err(error) => return Err(error),
            };
            let is_lost = event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::DELETE_SELF);
            let name = event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned());
            let awaited = self.awaited.get(&event.wd());
            is_awaited |= is_lost || name.is_some_and(|name| awaited.is_some_and(|awaited| awaited.contains(&name)));
        }
    }
}

/// Returns the closest directory above a path that exists, and the entry of it that leads to the path.
fn next_entry(path: &Path) -> Option<(&Path, OsString)> {
    path.ancestors().find_map(|missing| {
        let dir = missing.parent()?;
        dir.is_dir().then(|| Some((dir, missing.file_name()?.to_owned())))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn is_reported(watch: &ChangeWatch) -> bool {
        tokio::time::timeout(Duration::from_mins(1), watch.changed()).await.is_ok_and(|changed| changed.is_ok())
    }

    #[tokio::test]
    async fn a_path_is_followed_as_its_directories_appear() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/engine/socket");
        let mut watch = ChangeWatch::start().unwrap();
        for made in ["run", "run/engine"] {
            watch.expect(std::slice::from_ref(&socket)).unwrap();
            std::fs::create_dir(dir.path().join(made)).unwrap();
            assert!(is_reported(&watch).await, "{made}");
        }
        watch.expect(std::slice::from_ref(&socket)).unwrap();
        std::fs::write(dir.path().join("run/engine/other"), "").unwrap();
        assert!(!watch.read().unwrap(), "nobody waits for this one");
        // It is created under another name, and is then renamed.
        std::fs::rename(dir.path().join("run/engine/other"), &socket).unwrap();
        assert!(is_reported(&watch).await);
        // A directory that is removed is awaited from above again.
        std::fs::remove_dir_all(dir.path().join("run")).unwrap();
        assert!(is_reported(&watch).await);
        watch.expect(std::slice::from_ref(&socket)).unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        assert!(is_reported(&watch).await);
    }
}
