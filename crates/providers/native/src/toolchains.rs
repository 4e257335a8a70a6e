//! Programs in a home directory: compilers, interpreters and version managers. The home directory itself is not shown
//! inside; these directories are, read-only and without credentials.

use kennel_core::{Error, Result};
use kennel_jail::{Bind, Owners};
use kennel_types::{ErrorCode, Toolchains};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The keeper's default search path for programs.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A known toolchain.
struct Known {
    /// The path below the home directory. It contains only programs: what a tool writes goes to the sandbox's own home
    /// directory.
    at: &'static str,
    /// The directories with programs, below `at`.
    programs: &'static [&'static str],
    /// The variable that tells the tool its directory, because the home directory inside is another.
    variable: Option<&'static str>,
    /// Paths below `at` that are masked; `*` matches any one name.
    secrets: &'static [&'static str],
}

const fn programs(at: &'static str) -> Known {
    Known { at, programs: &[""], variable: None, secrets: &[] }
}

const fn library(at: &'static str) -> Known {
    Known { at, programs: &[], variable: None, secrets: &[] }
}

const KNOWN: &[Known] = &[
    programs(".cargo/bin"),
    Known { variable: Some("RUSTUP_HOME"), ..library(".rustup") },
    Known {
        programs: &["shims", "bin"],
        variable: Some("PYENV_ROOT"),
        secrets: &["versions/*/pip.conf"],
        ..library(".pyenv")
    },
    Known { programs: &["shims", "bin"], variable: Some("RBENV_ROOT"), ..library(".rbenv") },
    Known { variable: Some("NVM_DIR"), secrets: &[".npmrc", "versions/node/*/etc/npmrc"], ..library(".nvm") },
    Known { secrets: &["node-versions/*/installation/etc/npmrc"], ..library(".local/share/fnm") },
    Known {
        programs: &["bin"],
        variable: Some("VOLTA_HOME"),
        secrets: &["tools/image/node/*/etc/npmrc"],
        ..library(".volta")
    },
    Known { programs: &["bin"], secrets: &["etc/npmrc"], ..library(".npm-global") },
    programs(".local/share/pnpm"),
    programs(".bun/bin"),
    programs(".deno/bin"),
    programs("go/bin"),
    library("sdk"),
    Known { programs: &["shims", "bin"], variable: Some("ASDF_DATA_DIR"), ..library(".asdf") },
    library(".local/share/mise/installs"),
    programs(".local/share/mise/shims"),
    Known { secrets: &["maven/*/conf/settings.xml"], ..library(".sdkman/candidates") },
    library(".jdks"),
    Known { programs: &[""], variable: Some("DOTNET_ROOT"), ..library(".dotnet") },
    Known { programs: &["bin"], ..library(".ghcup") },
    Known { programs: &["bin"], ..library(".juliaup") },
    library(".local/share/uv/python"),
    library(".local/share/uv/tools"),
    library(".local/share/pipx/venvs"),
    library(".local/share/claude/versions"),
    programs(".local/bin"),
];

/// What is shown of a home directory, and the variables for commands.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) binds: Vec<Bind>,
    pub(crate) env: BTreeMap<String, String>,
}

/// Finds the toolchains in a home directory. `ours` are Kennel's own directories, without symlinks, which are not
/// shown. A directory is also not shown if a symlink in one of `writable`, the mounts that the sandbox can write to,
/// leads to it: the sandbox may have created the symlink.
pub(crate) fn find(asked: &Toolchains, ours: &[PathBuf], writable: &[&Path]) -> Result<Shown> {
    let mut shown = Shown::default();
    let mut search: Vec<PathBuf> = Vec::new();
    let Ok(home) = asked.home.canonicalize() else { return Ok(shown) };
    let more = asked.more.iter().map(|dir| (asked.home.join(dir), None));
    for (at, known) in KNOWN.iter().map(|known| (asked.home.join(known.at), Some(known))).chain(more) {
        let Some(bind) = bind(&at, known, &home, ours) else { continue };
        let real = Path::new(OsStr::from_bytes(&bind.host));
        // Usually there is no symlink.
        let plain = real == at || known.is_some_and(|known| real == home.join(known.at));
        if !plain && writable.iter().any(|dir| !real.starts_with(dir) && passes_symlink_in(&at, dir)) {
            if known.is_some() {
                continue;
            }
            let message = format!("extraToolchains {}: a symlink in a mount of the sandbox leads there", at.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message).advise("name the directory that it leads to"));
        }
        let programs = known.map_or(&[""][..], |known| known.programs);
        search.extend(programs.iter().map(|dir| if dir.is_empty() { at.clone() } else { at.join(dir) }));
        if let (Some(variable), Some(at)) = (known.and_then(|known| known.variable), at.to_str()) {
            shown.env.insert(variable.to_owned(), at.to_owned());
        }
        // The caller's search order applies inside too, so that the selected version of a tool is used.
        let chosen = asked.search.iter().filter(|dir| dir.starts_with(&at));
        search.splice(0..0, chosen.cloned());
        shown.binds.push(bind);
    }
    let search = in_order(search, &asked.search);
    if !search.is_empty() {
        shown.env.insert("PATH".to_owned(), format!("{}:{USUAL_PATH}", search.join(":")));
    }
    Ok(shown)
}

/// Whether an absolute path contains a symlink that lies in `dir`. The path of `dir` itself has none.
fn passes_symlink_in(path: &Path, dir: &Path) -> bool {
    let mut left: Vec<PathBuf> = path.components().rev().map(|part| part.as_os_str().into()).collect();
    let mut here = PathBuf::new();
    let mut followed = 0;
    while let Some(part) = left.pop() {
        if part == Path::new("..") {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        let Ok(target) = next.read_link() else {
            here = next;
            continue;
        };
        followed += 1;
        if here.starts_with(dir) || followed > 40 {
            return true;
        }
        left.extend(target.components().rev().map(|part| PathBuf::from(part.as_os_str())));
    }
    false
}

/// Removes duplicates, and sorts in the caller's order, with the caller's directories first.
fn in_order(mut dirs: Vec<PathBuf>, by: &[PathBuf]) -> Vec<String> {
    dirs.sort_by_key(|dir| by.iter().position(|other| other == dir).unwrap_or(usize::MAX));
    let mut all: Vec<String> = Vec::new();
    for dir in dirs.iter().filter(|dir| dir.is_dir()).filter_map(|dir| dir.to_str()) {
        if !dir.contains(':') && !all.iter().any(|other| other == dir) {
            all.push(dir.to_owned());
        }
    }
    all
}

/// Returns a mount for a directory, unless it contains more than programs. `home` and `ours` contain no symlinks.
fn bind(at: &Path, known: Option<&Known>, home: &Path, ours: &[PathBuf]) -> Option<Bind> {
    if !at.is_dir() {
        return None;
    }
    // The symlink's current target counts. It must not be the whole home directory or a parent of it.
    let real = at.canonicalize().ok()?;
    let own = |dir: &PathBuf| dir.starts_with(&real) || real.starts_with(dir);
    if home.starts_with(&real) || ours.iter().any(own) || !at.is_absolute() {
        return None;
    }
    let secrets = known.map_or(&[][..], |known| known.secrets);
    let hide = secrets.iter().flat_map(|secret| matching(&real, secret));
    let hide = hide.filter_map(|path| path.strip_prefix(&real).ok().map(|path| bytes(path.as_os_str())));
    Some(Bind {
        hide: hide.collect(),
        host: bytes(real.as_os_str()),
        target: bytes(at.as_os_str()),
        read_only: true,
        owners: Owners::Shifted,
        pins: Vec::new(),
    })
}

/// Returns the existing paths that match a pattern.
fn matching(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for name in pattern.split('/') {
        found = found
            .into_iter()
            .flat_map(|dir| match name {
                "*" => std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
                name => vec![dir.join(name)],
            })
            .filter(|path| path.symlink_metadata().is_ok_and(|meta| !meta.is_symlink()))
            .collect();
    }
    found
}

fn bytes(text: &OsStr) -> minicbor::bytes::ByteVec {
    text.as_bytes().to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for dir in
            [".cargo/bin", ".nvm/versions/node/v20/bin", ".nvm/versions/node/v20/etc", ".pyenv/shims", "tools/bin"]
        {
            fs::create_dir_all(home.path().join(dir)).unwrap();
        }
        fs::write(home.path().join(".cargo/credentials.toml"), "token").unwrap();
        fs::write(home.path().join(".nvm/versions/node/v20/etc/npmrc"), "token").unwrap();
        home
    }

    fn asked(home: &Path) -> Toolchains {
        Toolchains { home: home.to_owned(), more: Vec::new(), search: Vec::new() }
    }

    #[test]
    fn programs_are_visible_and_credentials_are_not() {
        let home = home();
        let shown = find(&asked(home.path()), &[], &[]).unwrap();
        let targets: Vec<_> = shown.binds.iter().map(|bind| String::from_utf8_lossy(&bind.target)).collect();
        let at = |name: &str| home.path().join(name).display().to_string();
        assert_eq!(targets, [at(".cargo/bin"), at(".pyenv"), at(".nvm")]);
        assert!(shown.binds.iter().all(|bind| bind.read_only));
        assert_eq!(shown.binds[2].hide, [bytes("versions/node/v20/etc/npmrc".as_ref())]);
        assert_eq!(shown.env["PYENV_ROOT"], at(".pyenv"));
        assert_eq!(shown.env["PATH"], format!("{}:{}:{USUAL_PATH}", at(".cargo/bin"), at(".pyenv/shims")));
    }

    #[test]
    fn the_callers_version_is_found() {
        let home = home();
        let node = home.path().join(".nvm/versions/node/v20/bin");
        let search =
            vec![node.clone(), "/usr/bin".into(), home.path().join(".pyenv/shims"), home.path().join("private")];
        let shown = find(&Toolchains { search, ..asked(home.path()) }, &[], &[]).unwrap();
        let at = |name: &str| home.path().join(name).display().to_string();
        let path = format!("{}:{}:{}:{USUAL_PATH}", node.display(), at(".pyenv/shims"), at(".cargo/bin"));
        assert_eq!(shown.env["PATH"], path);
    }

    #[test]
    fn extra_toolchains_cannot_be_the_home_or_kennels_directories() {
        let home = home();
        std::os::unix::fs::symlink("..", home.path().join("tools/up")).unwrap();
        let more = ["tools/bin", "tools/up", ".", "..", "/", "missing", "kept"].map(PathBuf::from).to_vec();
        fs::create_dir(home.path().join("kept")).unwrap();
        let ours = home.path().join("kept/state");
        fs::create_dir(&ours).unwrap();
        let shown = find(&Toolchains { more, ..asked(home.path()) }, &[ours.canonicalize().unwrap()], &[]).unwrap();
        let hosts: Vec<_> = shown.binds.iter().map(|bind| String::from_utf8_lossy(&bind.host).into_owned()).collect();
        assert_eq!(hosts.len(), 4, "{hosts:?}");
        assert!(hosts[3].ends_with("tools/bin"));
    }

    #[test]
    fn symlinks_of_a_writable_mount_are_not_followed() {
        let (home, outside) = (home(), tempfile::tempdir().unwrap());
        let real = home.path().canonicalize().unwrap();
        let link = |name: &str, target: &Path| std::os::unix::fs::symlink(target, real.join(name)).unwrap();
        fs::create_dir_all(real.join("work/in")).unwrap();
        link(".bun", &real.join("work/bun"));
        link(".deno", Path::new("work/in"));
        link("work/bun", outside.path());
        link("work/tools", outside.path());
        link("mine", outside.path());
        for dir in [outside.path().join("bin"), real.join("work/in/bin")] {
            fs::create_dir(dir).unwrap();
        }
        let shown = |writable: &[&Path], more: &str| {
            let more = if more.is_empty() { Vec::new() } else { vec![PathBuf::from(more)] };
            let shown = find(&Toolchains { more, ..asked(&real) }, &[], writable)?;
            let targets = shown.binds.iter().map(|bind| PathBuf::from(OsStr::from_bytes(&bind.target)));
            Ok::<Vec<PathBuf>, Error>(targets.map(|at| at.strip_prefix(&real).unwrap().to_owned()).collect())
        };
        let has = |shown: &[PathBuf], name: &str| shown.iter().any(|at| at == Path::new(name));
        let all = shown(&[], "work/tools").unwrap();
        assert!(has(&all, ".bun/bin") && has(&all, ".deno/bin") && has(&all, "work/tools"), "{all:?}");
        let work = real.join("work");
        let some = shown(&[&work], "mine").unwrap();
        assert!(!has(&some, ".bun/bin") && has(&some, ".deno/bin") && has(&some, "mine"), "{some:?}");
        assert!(shown(&[&work], "work/tools").is_err());
    }
}
