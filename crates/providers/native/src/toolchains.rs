//! Programs that people keep in their home directory: compilers, interpreters and what manages them. The home itself is
//! not there inside; these parts of it are, to be read, without what gives access to anything.

use kennel_jail::{Bind, Owners};
use kennel_types::Toolchains;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a keeper looks for programs if nothing else is said.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One of those that are known.
struct Known {
    /// Below the home directory. No more than holds programs: what a tool writes to goes to the sandbox's own home.
    at: &'static str,
    /// Where its programs are, below that.
    programs: &'static [&'static str],
    /// The variable by which it is found where the home is another.
    variable: Option<&'static str>,
    /// What must not be seen, below that; `*` is any one name.
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

/// What of a home is shown, and what commands are told of it.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) binds: Vec<Bind>,
    pub(crate) env: BTreeMap<String, String>,
}

/// What there is in that home. `ours` is Kennel's own, without links, and is not shown.
pub(crate) fn of(asked: &Toolchains, ours: &[PathBuf]) -> Shown {
    let mut shown = Shown::default();
    let mut search: Vec<PathBuf> = Vec::new();
    let Ok(home) = asked.home.canonicalize() else { return shown };
    let more = asked.more.iter().map(|dir| (asked.home.join(dir), None));
    for (at, known) in KNOWN.iter().map(|known| (asked.home.join(known.at), Some(known))).chain(more) {
        let Some(bind) = bind(&at, known, &home, ours) else { continue };
        let programs = known.map_or(&[""][..], |known| known.programs);
        search.extend(programs.iter().map(|dir| if dir.is_empty() { at.clone() } else { at.join(dir) }));
        if let (Some(variable), Some(at)) = (known.and_then(|known| known.variable), at.to_str()) {
            shown.env.insert(variable.to_owned(), at.to_owned());
        }
        // What the caller finds there, and in which order, is found inside too: of many versions, the chosen one.
        let chosen = asked.search.iter().filter(|dir| dir.starts_with(&at));
        search.splice(0..0, chosen.cloned());
        shown.binds.push(bind);
    }
    let search = in_order(search, &asked.search);
    if !search.is_empty() {
        shown.env.insert("PATH".to_owned(), format!("{}:{USUAL_PATH}", search.join(":")));
    }
    shown
}

/// Each once, those of the caller first, as the caller has them.
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

/// Shows a directory, unless it holds more than programs. `home` and `ours` have no links in them.
fn bind(at: &Path, known: Option<&Known>, home: &Path, ours: &[PathBuf]) -> Option<Bind> {
    if !at.is_dir() {
        return None;
    }
    // A link leads to where it leads now; to the whole home, or more, none may.
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

/// What is there by that pattern.
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
    fn programs_are_shown_and_what_gives_access_is_not() {
        let home = home();
        let shown = of(&asked(home.path()), &[]);
        let targets: Vec<_> = shown.binds.iter().map(|bind| String::from_utf8_lossy(&bind.target)).collect();
        let at = |name: &str| home.path().join(name).display().to_string();
        assert_eq!(targets, [at(".cargo/bin"), at(".pyenv"), at(".nvm")]);
        assert!(shown.binds.iter().all(|bind| bind.read_only));
        assert_eq!(shown.binds[2].hide, [bytes("versions/node/v20/etc/npmrc".as_ref())]);
        assert_eq!(shown.env["PYENV_ROOT"], at(".pyenv"));
        assert_eq!(shown.env["PATH"], format!("{}:{}:{USUAL_PATH}", at(".cargo/bin"), at(".pyenv/shims")));
    }

    #[test]
    fn of_many_versions_the_callers_is_found() {
        let home = home();
        let node = home.path().join(".nvm/versions/node/v20/bin");
        let search =
            vec![node.clone(), "/usr/bin".into(), home.path().join(".pyenv/shims"), home.path().join("private")];
        let shown = of(&Toolchains { search, ..asked(home.path()) }, &[]);
        let at = |name: &str| home.path().join(name).display().to_string();
        let path = format!("{}:{}:{}:{USUAL_PATH}", node.display(), at(".pyenv/shims"), at(".cargo/bin"));
        assert_eq!(shown.env["PATH"], path);
    }

    #[test]
    fn more_can_be_named_but_not_the_home_nor_kennels_own() {
        let home = home();
        std::os::unix::fs::symlink("..", home.path().join("tools/up")).unwrap();
        let more = ["tools/bin", "tools/up", ".", "..", "/", "missing", "kept"].map(PathBuf::from).to_vec();
        fs::create_dir(home.path().join("kept")).unwrap();
        let ours = home.path().join("kept/state");
        fs::create_dir(&ours).unwrap();
        let shown = of(&Toolchains { more, ..asked(home.path()) }, &[ours.canonicalize().unwrap()]);
        let hosts: Vec<_> = shown.binds.iter().map(|bind| String::from_utf8_lossy(&bind.host).into_owned()).collect();
        assert_eq!(hosts.len(), 4, "{hosts:?}");
        assert!(hosts[3].ends_with("tools/bin"));
    }
}
