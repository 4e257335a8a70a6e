//! Decides what must be hidden in a directory that is mounted into a sandbox: Kennel's own directories, and the sockets
//! of container engines. Every provider uses this module, so the same rules apply on each.
//!
//! If the sandbox may write to the mount, a mask alone is not enough: the sandbox could rename a directory above the
//! mask and replace it. So each directory between the top of the mount and the mask is *pinned*: it is mounted on
//! itself, and the kernel refuses to rename or remove a mount point. A symlink cannot be pinned; then the mount is
//! refused.

mod hidden_dir;
mod sockets;

use hidden_dir::HiddenDir;
use kennel_core::{Error, HostSocket, Result};
use kennel_types::{ErrorCode, SandboxSpec};
use std::path::{Path, PathBuf};

/// Through the magic links in `/proc`, a process can reach all files of the host's processes.
const PROC: &str = "/proc";

/// Host paths that no sandbox may see.
#[derive(Debug, Default)]
pub struct Guard {
    private: Vec<Private>,
    engines: Vec<PathBuf>,
}

#[derive(Debug)]
struct Private {
    hidden: HiddenDir,
    /// Whether mounting this directory, or a path in it, is an error. Otherwise it is only masked.
    refused: bool,
}

/// What must be hidden in one mount, by paths relative to it. Parents come before their children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// Directories that must be mount points, so that they cannot be renamed.
    pub pins: Vec<PathBuf>,
    /// Directories that must be empty and read-only.
    pub dirs: Vec<PathBuf>,
    /// Sockets that must be replaced by an empty file.
    pub sockets: Vec<PathBuf>,
}

impl Guard {
    /// Creates a guard that hides these directories of Kennel from every sandbox, whether they exist yet or not.
    pub fn new<'a>(private: impl IntoIterator<Item = &'a Path>) -> Self {
        let private = private.into_iter().map(|dir| Private { hidden: HiddenDir::resolve(dir), refused: true });
        Self { private: private.collect(), engines: Vec::new() }
    }

    /// Masks another directory. Paths in it may still be mounted.
    #[must_use]
    pub fn masking(mut self, dir: &Path) -> Self {
        self.private.push(Private { hidden: HiddenDir::resolve(dir), refused: false });
        self
    }

    /// Adds sockets of engines, in addition to the well-known ones.
    #[must_use]
    pub fn with_engines(self, sockets: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { engines: sockets.into_iter().collect(), ..self }
    }

    /// The real paths of all masked directories.
    pub fn masked(&self) -> impl Iterator<Item = &Path> {
        self.private.iter().map(|private| private.hidden.real.as_path())
    }

    /// The real paths of the directories that are refused as mounts.
    pub fn refused(&self) -> impl Iterator<Item = &Path> {
        self.private.iter().filter(|private| private.refused).map(|private| private.hidden.real.as_path())
    }

    /// Refuses a mount of Kennel's own directories, of a path in them, or of a directory in which a sandbox could
    /// replace a symlink to them. `asked` is the path as the user named it, and `real` is the same path without
    /// symlinks.
    pub fn check(&self, asked: &Path, real: &Path, read_only: bool) -> Result<()> {
        let refusal = |why: String, advice: &str| {
            let message = format!("mount {}: {why}", asked.display());
            Err(Error::new(ErrorCode::InvalidConfig, message).advise(advice))
        };
        if Path::new(PROC).starts_with(real) || real.starts_with(PROC) {
            let why = format!("{PROC} shows the processes of the host, and through them all of its files");
            return refusal(why, "mount a directory further down");
        }
        for Private { hidden, refused } in &self.private {
            if *refused && real.starts_with(&hidden.real) {
                let why = "Kennel keeps its own files there, which no sandbox may see";
                return refusal(why.into(), "mount another directory");
            }
            let replaceable = hidden.links.iter().find(|link| link.starts_with(real) && *link != real);
            if let (false, Some(link)) = (read_only, replaceable) {
                let (link, dir) = (link.display(), hidden.named.display());
                let why = format!("the sandbox could replace the symlink {link}, which leads to Kennel's {dir}");
                return refusal(why, "mount it read-only, or mount a directory further down");
            }
        }
        Ok(())
    }

    /// Refuses a mount of an engine's socket.
    pub async fn check_socket(&self, asked: &Path, real: &Path) -> Result<()> {
        if !sockets::is_engine(real, &self.engines).await {
            return Ok(());
        }
        let message = format!("mount {}: a container engine listens there, and controls the host", asked.display());
        Err(Error::new(ErrorCode::InvalidConfig, message).advise("leave this mount out"))
    }

    /// Refuses bridges to sockets that do not exist, and to those of Kennel itself and of engines.
    pub async fn check_bridges(&self, spec: &SandboxSpec) -> Result<()> {
        for bridge in &spec.sockets {
            let socket = HostSocket::open(&bridge.host)?;
            if self.refused().any(|dir| bridge.host.starts_with(dir)) {
                let message = format!("socket {}: it belongs to Kennel itself", bridge.host.display());
                return Err(Error::new(ErrorCode::InvalidConfig, message).advise("leave this socket out"));
            }
            refuse_engine(&socket, &self.engines).await?;
            socket.check_kind().await?;
        }
        Ok(())
    }

    /// Returns what must be hidden in the workspace, if there is one, and in each other mount of the spec, in this
    /// order. Creates missing directories of Kennel that a sandbox could otherwise create. Call it each time the mounts
    /// are created.
    pub async fn screens(&self, spec: &SandboxSpec) -> Result<Vec<Screen>> {
        let workspace = spec.workspace.iter().map(|host| (host, false));
        let others = spec.mounts.iter().map(|mount| (&mount.host, mount.read_only));
        let mut tops = Vec::new();
        let mut screens = Vec::new();
        for (host, read_only) in workspace.chain(others) {
            let real = host.canonicalize().map_err(|error| Error::io(format!("mount {}", host.display()), error))?;
            screens.push(self.screen(&real, read_only)?);
            tops.push((host.clone(), real));
        }
        let is_masked = |index: usize, rest: &Path| screens[index].dirs.iter().any(|dir| rest.starts_with(dir));
        let found = sockets::below(&tops, &self.engines, is_masked).await;
        for (screen, sockets) in screens.iter_mut().zip(found) {
            screen.sockets = sockets;
        }
        Ok(screens)
    }

    fn screen(&self, real: &Path, read_only: bool) -> Result<Screen> {
        let mut screen = Screen::default();
        let all = self.private.iter().map(|private| &private.hidden);
        let mut below: Vec<&Path> =
            all.filter(|hidden| hidden.real != real).filter_map(|hidden| hidden.real.strip_prefix(real).ok()).collect();
        below.sort_unstable();
        // A directory inside another masked one needs no mask.
        below.dedup_by(|inner, outer| inner.starts_with(outer));
        for dir in below {
            if !hidden_dir::is_there(&real.join(dir), read_only)? {
                continue;
            }
            screen.dirs.push(dir.to_owned());
            let above = dir.ancestors().skip(1).filter(|above| !read_only && !above.as_os_str().is_empty());
            screen.pins.extend(above.map(Path::to_owned));
        }
        screen.pins.sort_unstable();
        screen.pins.dedup();
        Ok(screen)
    }
}

/// Refuses a bridge to the socket of a container engine. `engines` are sockets of engines, in addition to the well-known
/// ones.
pub async fn refuse_engine(socket: &HostSocket, engines: &[PathBuf]) -> Result<()> {
    let (path, is_engine) = (socket.path(), sockets::is_engine(socket.path(), engines).await);
    let refuse = |why: &str, advice: &str| {
        let message = format!("socket {}: {why}", path.display());
        Err(Error::new(ErrorCode::InvalidConfig, message).advise(advice))
    };
    if is_engine {
        return refuse("a container engine listens there, and controls the host", "leave this socket out");
    }
    // Another socket was checked than the one that was opened.
    if !socket.is_current() {
        return refuse("it was replaced while it was checked", "try again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::Mount;
    use std::fs;

    fn spec(host: &Path, read_only: bool) -> SandboxSpec {
        let mount = Mount { host: host.to_owned(), target: "/x".into(), read_only };
        SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() }
    }

    fn paths<const N: usize>(paths: [&str; N]) -> Vec<PathBuf> {
        paths.map(PathBuf::from).into()
    }

    #[tokio::test]
    async fn directories_are_masked_and_those_above_them_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let dirs = [".config/kennel", ".local/state/kennel", ".local/state/kennel/docker"].map(|dir| home.join(dir));
        let guard = Guard::new(dirs.iter().map(PathBuf::as_path));
        let [screen] = guard.screens(&spec(&home, false)).await.unwrap().try_into().unwrap();
        assert_eq!(screen.pins, paths([".config", ".local", ".local/state"]));
        assert_eq!(screen.dirs, paths([".config/kennel", ".local/state/kennel"]));
        assert!(dirs[0].is_dir(), "a missing one is made, so that the inside cannot");
        let [screen] = guard.screens(&spec(&home, true)).await.unwrap().try_into().unwrap();
        assert_eq!((screen.pins, screen.dirs.len()), (Vec::new(), 2), "nothing is renamed in a read-only mount");
    }

    #[tokio::test]
    async fn a_directory_missing_below_a_read_only_mount_is_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let missing = home.join(".config/kennel");
        let guard = Guard::new([missing.as_path()]);
        assert_eq!(guard.screens(&spec(&home, true)).await.unwrap(), [Screen::default()]);
        assert!(!missing.exists());
    }

    #[test]
    fn kennels_own_directories_are_refused_by_every_path() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        fs::create_dir_all(home.join("real/kennel/trusted")).unwrap();
        std::os::unix::fs::symlink("real", home.join("link")).unwrap();
        let guard = Guard::new([home.join("link/kennel").as_path()]).masking(&home.join("others"));
        let refused = |path: &str, read_only| {
            let error = guard.check(&home.join(path), &home.join(path), read_only).err();
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        for inside in ["real/kennel", "real/kennel/trusted"] {
            assert!(refused(inside, true).contains("its own files"), "{inside}");
        }
        assert_eq!(refused("real", false), "", "it is masked there");
        assert_eq!(refused("others/one", false), "");
        assert!(refused("", false).contains("could replace the symlink"));
        assert_eq!(refused("", true), "");
    }
}
