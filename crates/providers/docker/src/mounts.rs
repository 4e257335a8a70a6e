//! Which host paths a sandbox sees, and which it must never see.
//!
//! The engine's socket is the keys to the host, and the state directory holds the sockets of other sandboxes' keepers:
//! a mount that would show the first is refused, and the second is covered.

use bollard::models::{Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountTmpfsOptions, MountType};
use kennel_core::{Error, Pin, Result};
use kennel_types::{ErrorCode, SandboxSpec};
use std::path::{Component, Path, PathBuf};

/// Where the workspace is.
pub(crate) const WORKSPACE: &str = "/workspace";
/// What Kennel itself puts into a container is below here.
pub(crate) const OURS: &str = "/.kennel";
/// The keeper's program.
pub(crate) const KEEPER: &str = "/.kennel/keeper";

/// Host paths that are not for sandboxes.
pub(crate) struct Guard {
    /// The engine's socket.
    pub(crate) socket: Option<PathBuf>,
    /// Directories of Kennel's own.
    pub(crate) private: Vec<PathBuf>,
}

/// The workspace and the other mounts of the spec, as the engine takes them.
pub(crate) fn mounts(spec: &SandboxSpec, guard: &Guard, read_only_goes_deep: bool) -> Result<Vec<Mount>> {
    let workspace = spec.workspace.iter().map(|host| (host, WORKSPACE, false));
    let others = spec.mounts.iter().map(|mount| (&mount.host, mount.target.as_str(), mount.read_only));
    let mut mounts = Vec::new();
    for (host, target, read_only) in workspace.chain(others) {
        let target = clean_target(target)?;
        let source = real_path(host)?;
        guard.refuse(host, &source)?;
        let covers = guard.below(&source).map(|rest| cover(&target, rest)).collect::<Vec<_>>();
        let options = read_only.then(|| read_only_options(read_only_goes_deep));
        mounts.push(bind(&source, &target, read_only, options)?);
        if !read_only {
            mounts.extend(pinned(spec, guard, &source, &target, read_only_goes_deep)?);
        }
        mounts.extend(covers);
    }
    Ok(mounts)
}

/// What of a git repository at the top of a writable mount is mounted over itself, so that it can be neither changed nor
/// replaced. The engine resolves these paths again when the container starts; a symlink found now is refused.
fn pinned(spec: &SandboxSpec, guard: &Guard, source: &Path, target: &str, deep: bool) -> Result<Vec<Mount>> {
    let pins = kennel_core::pins(spec, source, target)?.into_iter();
    pins.map(|Pin { path, read_only }| (source.join(&path), Path::new(target).join(path), read_only))
        .filter(|(host, ..)| !guard.private.iter().any(|private| host.starts_with(private)))
        .map(|(host, place, read_only)| {
            let options = read_only.then(|| read_only_options(deep));
            bind(&host, &place.to_string_lossy(), read_only, options)
        })
        .collect()
}

/// A place in memory that anyone inside may write to.
pub(crate) fn scratch(target: &str) -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(target.to_owned()),
        tmpfs_options: Some(MountTmpfsOptions { mode: Some(0o1777), ..MountTmpfsOptions::default() }),
        ..Mount::default()
    }
}

/// A bind mount of a path of our own.
pub(crate) fn own_mount(source: &Path, target: &str, read_only: bool) -> Result<Mount> {
    bind(source, target, read_only, None)
}

/// A volume of our own, without a name: the engine removes it with its container.
pub(crate) fn own_volume(target: &str) -> Mount {
    Mount { typ: Some(MountType::VOLUME), target: Some(target.to_owned()), ..Mount::default() }
}

impl Guard {
    /// The guard of an engine and of these directories, all by their real paths.
    pub(crate) fn new(socket: Option<&Path>, private: &[&Path]) -> Self {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut dirs: Vec<PathBuf> = private.iter().map(|path| real(path)).collect();
        dirs.sort();
        // One inside another needs no cover of its own.
        dirs.dedup_by(|inner, outer| inner.starts_with(outer));
        Self { socket: socket.map(real), private: dirs }
    }

    fn refuse(&self, asked: &Path, real: &Path) -> Result<()> {
        let refusal = |why: &str| {
            let message = format!("mount {}: {why}", asked.display());
            Err(Error::new(ErrorCode::InvalidConfig, message).hint("mount a directory further down"))
        };
        if self.socket.as_ref().is_some_and(|socket| socket.starts_with(real)) {
            return refusal("the engine's socket is there, and must not get into a sandbox");
        }
        if self.private.iter().any(|private| real.starts_with(private)) {
            return refusal("it belongs to Kennel, and must not get into a sandbox");
        }
        Ok(())
    }

    /// Our own directories below `source`, relative to it.
    fn below(&self, source: &Path) -> impl Iterator<Item = &Path> {
        self.private.iter().filter_map(move |private| private.strip_prefix(source).ok())
    }
}

/// An engine that makes only the top mount read-only would leave those below it writable: then they are left out.
fn read_only_options(goes_deep: bool) -> MountBindOptions {
    MountBindOptions {
        propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
        read_only_force_recursive: goes_deep.then_some(true),
        non_recursive: (!goes_deep).then_some(true),
        ..MountBindOptions::default()
    }
}

fn bind(source: &Path, target: &str, read_only: bool, bind_options: Option<MountBindOptions>) -> Result<Mount> {
    let Some(text) = source.to_str() else {
        let message = format!("mount {}: the engine takes UTF-8 paths only", source.display());
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    };
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(text.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options,
        ..Mount::default()
    })
}

/// An empty directory over one of ours.
fn cover(target: &str, rest: &Path) -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(Path::new(target).join(rest).to_string_lossy().into_owned()),
        read_only: Some(true),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(4096),
            mode: Some(0o555),
            ..MountTmpfsOptions::default()
        }),
        ..Mount::default()
    }
}

fn real_path(host: &Path) -> Result<PathBuf> {
    let invalid = |why: &str| Error::new(ErrorCode::InvalidConfig, format!("mount {}: {why}", host.display()));
    if !host.is_absolute() {
        return Err(invalid("the path must be absolute"));
    }
    host.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => invalid("there is nothing at that path on the host"),
        _ => Error::io(format!("mount {}", host.display()), error),
    })
}

/// The target without `.` and doubled slashes, if it is one that a user may choose.
pub(crate) fn clean_target(target: &str) -> Result<String> {
    let refusal = |why: &str| Err(Error::new(ErrorCode::InvalidConfig, format!("mount at {target}: {why}")));
    let mut clean = String::new();
    for component in Path::new(target).components() {
        match component {
            Component::Normal(part) => {
                clean.push('/');
                clean.push_str(&part.to_string_lossy());
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return refusal("write the path without .."),
        }
    }
    if clean.is_empty() {
        return refusal("the root itself comes from the image");
    }
    if Path::new(&clean).starts_with(OURS) {
        return refusal("Kennel needs that path itself");
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::{GitProtection, Mount as Asked};

    fn spec(host: &Path, target: &str) -> SandboxSpec {
        let mount = Asked { host: host.to_owned(), target: target.into(), read_only: true };
        SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() }
    }

    fn refused(host: &Path, target: &str, guard: &Guard) -> String {
        let error = mounts(&spec(host, target), guard, true).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn the_engines_socket_stays_out_by_whatever_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("run")).unwrap();
        std::fs::create_dir(root.join("running")).unwrap();
        let socket = root.join("run/docker.sock");
        std::fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink("run", root.join("link")).unwrap();
        let guard = Guard::new(Some(&root.join("link/docker.sock")), &[]);
        for bad in [&root, &root.join("run"), &socket, &root.join("link"), &root.join("link/docker.sock")] {
            assert!(refused(bad, "/x", &guard).contains("engine's socket"), "{}", bad.display());
        }
        assert!(mounts(&spec(&root.join("running"), "/x"), &guard, true).is_ok());
    }

    #[test]
    fn our_own_directories_are_covered_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let state = home.join("state/kennel");
        std::fs::create_dir_all(state.join("programs")).unwrap();
        let guard = Guard::new(None, &[&state.join("programs"), &state]);
        assert!(refused(&state, "/x", &guard).contains("belongs to Kennel"));
        assert!(refused(&state.join("programs"), "/x", &guard).contains("belongs to Kennel"));
        let spec = SandboxSpec { workspace: Some(home), ..SandboxSpec::default() };
        let made = mounts(&spec, &guard, true).unwrap();
        let shape: Vec<_> = made.iter().map(|mount| (mount.typ.unwrap(), mount.target.as_deref().unwrap())).collect();
        assert_eq!(shape, [(MountType::BIND, "/workspace"), (MountType::TMPFS, "/workspace/state/kennel")]);
    }

    #[test]
    fn a_repository_is_mounted_over_itself() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(project.join(".git/hooks")).unwrap();
        let guard = Guard::new(None, &[]);
        let shape = |spec: &SandboxSpec, guard: &Guard| -> Vec<(String, String, bool)> {
            let made = mounts(spec, guard, true).unwrap().into_iter();
            made.map(|mount| (mount.source.unwrap_or_default(), mount.target.unwrap(), mount.read_only.unwrap()))
                .collect()
        };
        let at = |path: &str| project.join(path).to_str().unwrap().trim_end_matches('/').to_owned();
        let spec = SandboxSpec { workspace: Some(project.clone()), ..SandboxSpec::default() };
        let whole = (at(""), "/workspace".to_owned(), false);
        let git = (at(".git"), "/workspace/.git".to_owned(), false);
        let hooks = (at(".git/hooks"), "/workspace/.git/hooks".to_owned(), true);
        assert_eq!(shape(&spec, &guard), [whole.clone(), git, hooks]);
        let off = SandboxSpec { protect_git: GitProtection::None, ..spec.clone() };
        assert_eq!(shape(&off, &guard), [whole]);
        // What is only read needs no more.
        assert_eq!(mounts(&self::spec(&project, "/x"), &guard, true).unwrap().len(), 1);
        // What is hidden stays so.
        let hiding = Guard::new(None, &[&project.join(".git")]);
        assert!(shape(&spec, &hiding).iter().all(|(source, ..)| !source.contains(".git")));
    }

    #[test]
    fn targets_that_would_break_the_sandbox_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::new(None, &[]);
        for bad in ["/", "//.", "/a/../b", "/.kennel", "/.kennel/run", "//.kennel//keeper"] {
            refused(dir.path(), bad, &guard);
        }
        let made = mounts(&spec(dir.path(), "//a/./b/"), &guard, true).unwrap();
        assert_eq!(made[0].target.as_deref(), Some("/a/b"));
        assert!(refused(Path::new("/no/such/path"), "/x", &guard).contains("nothing at that path"));
        assert!(refused(Path::new("relative"), "/x", &guard).contains("absolute"));
    }

    #[test]
    fn a_read_only_mount_has_no_writable_one_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::new(None, &[]);
        for deep in [false, true] {
            let made = mounts(&spec(dir.path(), "/x"), &guard, deep).unwrap();
            assert_eq!(made[0].read_only, Some(true));
            let options = made[0].bind_options.as_ref().unwrap();
            assert_eq!(options.non_recursive.is_some(), !deep);
            assert_eq!(options.read_only_force_recursive.is_some(), deep);
        }
    }
}
