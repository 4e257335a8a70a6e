//! The mounts of a sandbox, and the mounts that mask parts of them, as [`Guard`](kennel_provider::Guard) decides.

use bollard::models::{Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountTmpfsOptions, MountType};
use kennel_core::{Error, Result};
use kennel_provider::{Guard, Pin};
use kennel_types::{ErrorCode, NextStep, SandboxSpec};
use std::path::{Component, Path, PathBuf};

/// The path of the workspace inside.
pub(crate) const WORKSPACE: &str = "/workspace";
/// The directory of Kennel's own files in a container.
pub(crate) const OURS: &str = "/.kennel";
/// The path of the keeper program inside.
pub(crate) const KEEPER: &str = "/.kennel/keeper";

/// The kinds of masks.
#[derive(Clone, Copy)]
pub(crate) enum Empty {
    Dir,
    File,
}

/// Returns the workspace and the other mounts of the spec in the engine's form, with the mounts that mask parts of
/// them: an empty directory or file from `empty`. A tmpfs cannot be used, because Podman would copy the masked content
/// into it.
pub(crate) async fn mounts(
    spec: &SandboxSpec,
    guard: &Guard,
    empty: impl Fn(Empty) -> Result<PathBuf>,
    read_only_goes_deep: bool,
) -> Result<Vec<Mount>> {
    let workspace = spec.workspace.iter().map(|host| (host, WORKSPACE, false));
    let others = spec.mounts.iter().map(|mount| (&mount.host, mount.target.as_str(), mount.read_only));
    let mut asked = Vec::new();
    for (host, target, read_only) in workspace.chain(others) {
        let target = clean_target(target)?;
        let source = real_path(host)?;
        guard.check(host, &source, read_only)?;
        guard.check_socket(host, &source).await?;
        if source != *host {
            let message = format!(
                "mount {}: the path contains a symlink, which could change before it is mounted",
                host.display()
            );
            return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::UsePath { path: source }));
        }
        asked.push((source, target, read_only));
    }
    let mut mounts = Vec::new();
    for ((source, target, read_only), screen) in asked.iter().zip(guard.screens(spec).await?) {
        let options = || read_only.then(|| read_only_options(read_only_goes_deep));
        mounts.push(bind(source, target, *read_only, options())?);
        if !read_only {
            mounts.extend(pinned(spec, guard, source, target, read_only_goes_deep)?);
        }
        let top = Path::new(target);
        // What is below another mount is not visible, and the engine accepts only one mount per path.
        let others = || asked.iter().map(|(_, other, _)| Path::new(other)).filter(|other| *other != top);
        let is_seen = |at: &Path| !others().any(|other| other.starts_with(top) && at.starts_with(other));
        let places = |paths: &[PathBuf]| -> Result<Vec<(PathBuf, String)>> {
            let seen = paths.iter().map(|path| (source.join(path), top.join(path))).filter(|(_, at)| is_seen(at));
            seen.map(|(source, at)| Ok((source, text(&at)?))).collect()
        };
        for (source, at) in places(&screen.pins)? {
            mounts.push(bind(&source, &at, *read_only, options())?);
        }
        for (kind, masked) in [(Empty::Dir, &screen.dirs), (Empty::File, &screen.sockets)] {
            for (_, at) in places(masked)? {
                mounts.push(bind(&empty(kind)?, &at, true, None)?);
            }
        }
    }
    Ok(mounts)
}

/// Refuses to start a container if the engine would follow a symlink to one of its mounts. The paths had none when the
/// container was created, but processes inside may have put one there since. The engine resolves them again, a moment
/// later.
pub(crate) fn unchanged(paths: &[PathBuf], name: &str) -> Result<()> {
    let symlink = |path: &&PathBuf| path.canonicalize().map_or_else(|_| path.is_symlink(), |real| real != **path);
    let Some(path) = paths.iter().find(symlink) else { return Ok(()) };
    let message = format!(
        "start sandbox {name}: mount {}: the path contains a symlink that was not there when the sandbox was created",
        path.display()
    );
    Err(Error::new(ErrorCode::StartFailed, message).advise("restore the directory, or create the sandbox again"))
}

/// Returns what is mounted over itself in a git repository at the top of a writable mount, so that it can neither be
/// changed nor replaced. The engine resolves these paths again when the container starts; a symlink that exists now is
/// refused.
fn pinned(spec: &SandboxSpec, guard: &Guard, source: &Path, target: &str, deep: bool) -> Result<Vec<Mount>> {
    let pins = kennel_provider::pins(spec, source, target)?.into_iter();
    pins.map(|Pin { path, read_only }| (source.join(&path), Path::new(target).join(path), read_only))
        .filter(|(host, ..)| !guard.masked().any(|masked| host.starts_with(masked)))
        .map(|(host, place, read_only)| {
            let options = read_only.then(|| read_only_options(deep));
            bind(&host, &place.to_string_lossy(), read_only, options)
        })
        .collect()
}

/// A tmpfs that everyone inside may write to.
pub(crate) fn scratch(target: &str) -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(target.to_owned()),
        tmpfs_options: Some(MountTmpfsOptions { mode: Some(0o1777), ..MountTmpfsOptions::default() }),
        ..Mount::default()
    }
}

/// A bind mount of one of Kennel's own paths.
pub(crate) fn own_mount(source: &Path, target: &str, read_only: bool) -> Result<Mount> {
    bind(source, target, read_only, None)
}

/// An anonymous volume of Kennel, which the engine removes with its container.
pub(crate) fn own_volume(target: &str) -> Mount {
    Mount { typ: Some(MountType::VOLUME), target: Some(target.to_owned()), ..Mount::default() }
}

/// An engine that makes only the top mount read-only would leave the mounts below it writable. Then they are left out.
fn read_only_options(goes_deep: bool) -> MountBindOptions {
    MountBindOptions {
        propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
        read_only_force_recursive: goes_deep.then_some(true),
        non_recursive: (!goes_deep).then_some(true),
        ..MountBindOptions::default()
    }
}

fn bind(source: &Path, target: &str, read_only: bool, bind_options: Option<MountBindOptions>) -> Result<Mount> {
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(text(source)?),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options,
        ..Mount::default()
    })
}

/// Returns a path as text, which engines require.
fn text(path: &Path) -> Result<String> {
    path.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        let message = format!("mount {}: the engine accepts only UTF-8 paths", path.display());
        Error::new(ErrorCode::InvalidConfig, message)
    })
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

/// Returns the target without `.` and double slashes, if a user may choose it.
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

    async fn made(spec: &SandboxSpec, guard: &Guard, deep: bool) -> Result<Vec<Mount>> {
        mounts(spec, guard, |_| Ok("/empty".into()), deep).await
    }

    async fn refused(host: &Path, target: &str, guard: &Guard) -> String {
        let error = made(&spec(host, target), guard, true).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig);
        error.to_string()
    }

    fn shape(mounts: &[Mount]) -> Vec<(&str, &str)> {
        mounts.iter().map(|mount| (mount.target.as_deref().unwrap(), mount.source.as_deref().unwrap())).collect()
    }

    #[tokio::test]
    async fn sockets_of_engines_are_refused_or_masked() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("run")).unwrap();
        let socket = root.join("run/api.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        std::os::unix::fs::symlink("run", root.join("link")).unwrap();
        let guard = Guard::default().with_engines([root.join("link/api.sock")]);
        for bad in [&socket, &root.join("link/api.sock")] {
            assert!(refused(bad, "/x", &guard).await.contains("engine"), "{}", bad.display());
        }
        assert!(refused(&root.join("link"), "/x", &guard).await.contains("symlink"));
        for (source, target) in [(&root, "/x/run/api.sock"), (&root.join("run"), "/x/api.sock")] {
            let mounts = made(&spec(source, "/x"), &guard, true).await.unwrap();
            assert_eq!(shape(&mounts)[1..], [(target, "/empty")]);
            assert_eq!(mounts[1].read_only, Some(true));
        }
    }

    #[tokio::test]
    async fn our_own_directories_are_masked_and_those_above_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let guard = Guard::new([home.join(".local/state/kennel").as_path(), home.join(".config/kennel").as_path()]);
        let mut spec = SandboxSpec { workspace: Some(home.clone()), ..SandboxSpec::default() };
        let source = |path: &str| home.join(path).to_str().unwrap().to_owned();
        let mounts = made(&spec, &guard, true).await.unwrap();
        let pinned = [source(""), source(".config"), source(".local"), source(".local/state")];
        let expected = [
            ("/workspace", pinned[0].trim_end_matches('/')),
            ("/workspace/.config", &pinned[1]),
            ("/workspace/.local", &pinned[2]),
            ("/workspace/.local/state", &pinned[3]),
            ("/workspace/.config/kennel", "/empty"),
            ("/workspace/.local/state/kennel", "/empty"),
        ];
        assert_eq!(shape(&mounts), expected);
        // Another mount covers one of them.
        spec.mounts.push(Asked { host: "/usr".into(), target: "/workspace/.config".into(), read_only: true });
        let mounts = made(&spec, &guard, true).await.unwrap();
        let at: Vec<&str> = shape(&mounts).into_iter().map(|(at, _)| at).collect();
        assert_eq!(at.iter().filter(|at| at.starts_with("/workspace/.config")).count(), 1, "{at:?}");
    }

    #[tokio::test]
    async fn a_repository_is_mounted_over_itself() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(project.join(".git/hooks")).unwrap();
        let guard = Guard::default();
        let shape = async |spec: &SandboxSpec, guard: &Guard| -> Vec<(String, String, bool)> {
            let made = made(spec, guard, true).await.unwrap().into_iter();
            made.map(|mount| (mount.source.unwrap_or_default(), mount.target.unwrap(), mount.read_only.unwrap()))
                .collect()
        };
        let at = |path: &str| project.join(path).to_str().unwrap().trim_end_matches('/').to_owned();
        let spec = SandboxSpec { workspace: Some(project.clone()), ..SandboxSpec::default() };
        let whole = (at(""), "/workspace".to_owned(), false);
        let git = (at(".git"), "/workspace/.git".to_owned(), false);
        let hooks = (at(".git/hooks"), "/workspace/.git/hooks".to_owned(), true);
        assert_eq!(shape(&spec, &guard).await, [whole.clone(), git, hooks]);
        let off = SandboxSpec { protect_git: GitProtection::None, ..spec.clone() };
        assert_eq!(shape(&off, &guard).await, [whole]);
        // A read-only mount needs no protection.
        assert_eq!(made(&self::spec(&project, "/x"), &guard, true).await.unwrap().len(), 1);
        // Hidden paths stay hidden.
        let hiding = Guard::new([project.join(".git").as_path()]);
        assert!(shape(&spec, &hiding).await.iter().all(|(source, ..)| !source.contains(".git")));
    }

    #[tokio::test]
    async fn targets_that_would_break_the_sandbox_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::default();
        for bad in ["/", "//.", "/a/../b", "/.kennel", "/.kennel/run", "//.kennel//keeper"] {
            refused(dir.path(), bad, &guard).await;
        }
        let made = made(&spec(dir.path(), "//a/./b/"), &guard, true).await.unwrap();
        assert_eq!(made[0].target.as_deref(), Some("/a/b"));
        assert!(refused(Path::new("/no/such/path"), "/x", &guard).await.contains("nothing at that path"));
        assert!(refused(Path::new("relative"), "/x", &guard).await.contains("absolute"));
    }

    #[tokio::test]
    async fn a_read_only_mount_has_no_writable_one_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::default();
        for deep in [false, true] {
            let made = made(&spec(dir.path(), "/x"), &guard, deep).await.unwrap();
            assert_eq!(made[0].read_only, Some(true));
            let options = made[0].bind_options.as_ref().unwrap();
            assert_eq!(options.non_recursive.is_some(), !deep);
            assert_eq!(options.read_only_force_recursive.is_some(), deep);
        }
    }
}
