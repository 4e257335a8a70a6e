//! The mode of an engine: its own description decides it, and whether sandboxes are possible on it.

use crate::Docker;
use crate::engine::EngineKind;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, Field, IdScheme, Machine, Mode, ModeKey, NextStep, ProviderKind, RootSource, RunsAs};
use serde::Deserialize;

/// No user namespace in addition to the engine's own.
const HOST: &str = "host";

/// Whether the sandboxes of a mode each have their own user namespace.
pub(crate) fn has_own_ids(mode: &Mode) -> bool {
    mode.key.id_scheme.has_own_user_namespace()
}

/// Whether the engine is rootless.
pub(crate) fn is_rootless(mode: &Mode) -> bool {
    mode.key.runs_as == RunsAs::User
}

/// The parts of the engine's description that are used.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Info {
    security_options: Option<Vec<String>>,
    /// Podman reports it here, Docker among the options.
    rootless: bool,
    cgroup_version: String,
    memory_limit: bool,
    pids_limit: bool,
    architecture: Option<String>,
}

/// The mode of an engine, and what prevents sandboxes on it.
pub(crate) struct EngineMode {
    pub(crate) mode: &'static Mode,
    /// What prevents sandboxes.
    refusal: Option<(String, Option<&'static str>)>,
}

impl Docker {
    /// Returns the mode of the engine, which is queried once.
    pub(crate) async fn engine_mode(&self) -> Result<&EngineMode> {
        let ask = async {
            let info: Result<Info, _> = self.engine.ask("/info").await;
            let info = info.map_err(|error| self.engine.error("read the engine's info", error))?;
            Ok(EngineMode::from_info(&info, self.engine.kind(), self.engine.dialer().is_here()))
        };
        self.engine_mode.get_or_try_init(|| ask).await
    }

    /// The mode that applies here, as far as the engine was queried.
    pub(crate) fn row(&self) -> &'static Mode {
        let unknown = || {
            let machine = if self.engine.dialer().is_here() { Machine::Here } else { Machine::Remote };
            row(usual(self.engine.kind(), machine))
        };
        self.engine_mode.get().map_or_else(unknown, |engine_mode| engine_mode.mode)
    }
}

/// The key of an engine as long as only its machine is known: it is assumed to run as root.
fn usual(kind: EngineKind, machine: Machine) -> ModeKey {
    ModeKey {
        provider: kind.provider(),
        runs_as: RunsAs::Root,
        machine,
        root: RootSource::Image,
        id_scheme: IdScheme::Usual,
        cgroups: true,
    }
}

fn row(key: ModeKey) -> &'static Mode {
    Mode::with(key).expect("the mode table has a row for every engine")
}

impl EngineMode {
    fn from_info(info: &Info, kind: EngineKind, here: bool) -> Self {
        let options = info.security_options.as_deref().unwrap_or_default();
        let named = |name: &str| {
            let name = format!("name={name}");
            options.iter().find(|option| option.split(',').any(|part| part == name))
        };
        let rootless = info.rootless || named("rootless").is_some();
        // Only version 2 allows users to distribute resources.
        let limits = info.memory_limit && info.pids_limit && info.cgroup_version != "1";
        // On Podman, remapping is an option of each sandbox.
        let remapped = !rootless && kind == EngineKind::Docker && named("userns").is_some();
        let machine = match here {
            true => Machine::Here,
            false if runs_ours(info) => Machine::Remote,
            false => Machine::RemoteForeign,
        };
        let usual = usual(kind, machine);
        let key = match machine {
            Machine::Here => ModeKey {
                runs_as: if rootless { RunsAs::User } else { RunsAs::Root },
                id_scheme: if remapped { IdScheme::Remap } else { IdScheme::Usual },
                cgroups: !rootless || limits,
                ..usual
            },
            // This machine's files are not there, so it makes no difference who owns them. A rootless engine is refused.
            Machine::Remote | Machine::RemoteForeign => usual,
        };
        let seccomp = named("seccomp").filter(|option| !option.contains("profile=unconfined"));
        let refusal = if seccomp.is_none() {
            let why = "a system call filter: this engine runs without seccomp".to_owned();
            Some((why, Some("start the engine with its default seccomp profile")))
        } else if rootless && !here {
            Some(("sandboxes on a rootless engine of another machine".into(), None))
        } else {
            None
        };
        Self { mode: row(key), refusal }
    }

    /// Refuses an engine that cannot enforce what its mode promises.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.refusal {
            None => Ok(()),
            Some((what, advice)) => {
                let error = Error::unsupported(self.mode.provider(), what);
                Err(match advice {
                    Some(advice) => error.advise(*advice),
                    None => error,
                })
            }
        }
    }

    /// Returns the mode for sandboxes with this user namespace.
    pub(crate) fn with_userns(&self, userns: Option<&str>) -> Result<&'static Mode> {
        let podman = self.mode.key.provider == ProviderKind::Podman;
        let refuse = |what: &str, step| Err(Error::unsupported(self.mode.provider(), what).suggest(step));
        let leave_out = || NextStep::LeaveOut { field: Field::Userns };
        let set_to = |values: &[&str]| NextStep::set_to(Field::Userns, values);
        let with = |id_scheme| match Mode::with(ModeKey { id_scheme, ..self.mode.key }) {
            Some(mode) => Ok(mode),
            None => refuse("a user namespace for each sandbox on another machine", leave_out()),
        };
        match userns {
            // The engine's files have the ids of its range in this case too, so the files of an image would not belong
            // to its users.
            Some(HOST) if !podman && has_own_ids(self.mode) => {
                refuse("the user namespace host: the engine remaps ids", leave_out())
            }
            None | Some(HOST) => Ok(self.mode),
            Some("auto" | "keep-id") if !podman => refuse(
                "a user namespace for each sandbox",
                NextStep::use_provider([ProviderKind::Podman, ProviderKind::Native]),
            ),
            Some("keep-id") if !is_rootless(self.mode) => {
                refuse("the user namespace keep-id: the engine runs as root", set_to(&["auto"]))
            }
            Some("auto") if is_rootless(self.mode) => {
                refuse("the user namespace auto: the engine does not run as root", set_to(&["keep-id"]))
            }
            Some("auto") => with(IdScheme::Auto),
            Some("keep-id") => with(IdScheme::KeepId),
            Some(other) => Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("invalid user namespace {other:?}: expected auto, keep-id or host"),
            )
            .suggest(set_to(&["auto", "keep-id", HOST]))),
        }
    }
}

/// Whether programs for this architecture run on the engine's machine.
fn runs_ours(info: &Info) -> bool {
    let theirs = match info.architecture.as_deref() {
        Some("amd64") => Some("x86_64"),
        Some("arm64") => Some("aarch64"),
        other => other,
    };
    theirs.is_none_or(|theirs| theirs == std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(options: &[&str]) -> Info {
        let security_options = Some(options.iter().map(|&option| option.to_owned()).collect());
        Info { security_options, memory_limit: true, pids_limit: true, ..Info::default() }
    }

    #[test]
    fn an_engine_without_seccomp_is_refused() {
        let check = |options: &[&str]| {
            EngineMode::from_info(&info(options), EngineKind::Docker, true).check().map_err(|error| error.code())
        };
        assert_eq!(check(&["name=apparmor", "name=seccomp,profile=default"]), Ok(()));
        let refused: &[&[&str]] = &[&[], &["name=apparmor"], &["name=seccomp,profile=unconfined"]];
        for options in refused {
            assert_eq!(check(options), Err(ErrorCode::Unsupported), "{options:?}");
        }
    }

    fn named(name: &str) -> &'static Mode {
        Mode::named(name).unwrap()
    }

    #[test]
    fn the_mode_is_derived_from_the_engines_info() {
        let of = |options: &[&str], version: &str, kind, here| {
            let version = version.to_owned();
            let info = Info { cgroup_version: version, ..info(options) };
            let engine_mode = EngineMode::from_info(&info, kind, here);
            (engine_mode.mode, engine_mode.check().is_ok())
        };
        const OLD: &str = "1";
        const NEW: &str = "2";
        let (plain, rootless) = (&["name=seccomp,profile=default"][..], &["name=seccomp", "name=rootless"][..]);
        let remapped = &["name=seccomp", "name=userns"][..];
        assert_eq!(of(remapped, NEW, EngineKind::Docker, true), (named("docker, root, userns remap"), true));
        assert_eq!(of(remapped, NEW, EngineKind::Docker, false), (named("docker, root, remote"), true));
        assert_eq!(of(plain, OLD, EngineKind::Docker, true), (named("docker, root"), true));
        assert_eq!(of(plain, NEW, EngineKind::Docker, false), (named("docker, root, remote"), true));
        assert_eq!(of(plain, OLD, EngineKind::Podman, true), (named("podman, root"), true));
        assert_eq!(of(plain, NEW, EngineKind::Podman, false), (named("podman, root, remote"), true));
        assert_eq!(of(rootless, NEW, EngineKind::Podman, true), (named("podman, rootless"), true));
        assert_eq!(of(rootless, OLD, EngineKind::Podman, true), (named("podman, rootless, no limits"), true));
        assert_eq!(of(rootless, NEW, EngineKind::Docker, true), (named("docker, rootless"), true));
        assert_eq!(of(rootless, OLD, EngineKind::Docker, true), (named("docker, rootless, no limits"), true));
        assert!(!of(rootless, NEW, EngineKind::Podman, false).1);
        assert!(!of(rootless, NEW, EngineKind::Docker, false).1);
        // As Podman reports it.
        let said = r#"{"SecurityOptions": ["name=seccomp,profile=default"], "Rootless": true, "CgroupVersion": "1"}"#;
        let engine_mode = EngineMode::from_info(&serde_json::from_str(said).unwrap(), EngineKind::Podman, true);
        assert_eq!(engine_mode.mode.name(), "podman, rootless, no limits");
    }

    #[test]
    fn user_namespaces_need_an_engine_that_creates_them() {
        let with = |options: &[&str], version: &str, kind, here, userns| {
            let info = Info { cgroup_version: version.to_owned(), ..info(options) };
            let mode = EngineMode::from_info(&info, kind, here).with_userns(Some(userns));
            mode.map(|mode| (mode, has_own_ids(mode))).map_err(|error| error.code())
        };
        let (root, user) = (&["name=seccomp"][..], &["name=seccomp", "name=rootless"][..]);
        assert_eq!(with(root, "1", EngineKind::Podman, true, "auto"), Ok((named("podman, root, userns auto"), true)));
        let old = with(user, "1", EngineKind::Podman, true, "keep-id");
        assert_eq!(old, Ok((named("podman, rootless, no limits, userns keep-id"), true)));
        assert_eq!(with(user, "2", EngineKind::Podman, true, "auto"), Err(ErrorCode::Unsupported));
        assert_eq!(
            with(user, "2", EngineKind::Podman, true, "keep-id"),
            Ok((named("podman, rootless, userns keep-id"), true))
        );
        assert_eq!(with(root, "2", EngineKind::Podman, true, "host"), Ok((named("podman, root"), false)));
        assert_eq!(with(root, "2", EngineKind::Docker, true, "host"), Ok((named("docker, root"), false)));
        let remapped = &["name=seccomp", "name=userns"][..];
        assert_eq!(with(remapped, "2", EngineKind::Docker, true, "host"), Err(ErrorCode::Unsupported));
        for (kind, here, userns) in [
            (EngineKind::Docker, true, "auto"),
            (EngineKind::Docker, true, "keep-id"),
            (EngineKind::Podman, false, "auto"),
            (EngineKind::Podman, true, "keep-id"),
        ] {
            assert_eq!(with(root, "2", kind, here, userns), Err(ErrorCode::Unsupported), "{kind:?} {here} {userns}");
        }
        assert_eq!(with(root, "2", EngineKind::Podman, true, "ns:/proc/1/ns/user"), Err(ErrorCode::InvalidConfig));
    }

    #[test]
    fn an_engine_of_another_architecture_gets_no_keeper() {
        let on = |architecture: &str, here| {
            let info = Info { architecture: Some(architecture.into()), ..info(&["name=seccomp"]) };
            EngineMode::from_info(&info, EngineKind::Docker, here).mode.name()
        };
        assert_eq!(on(std::env::consts::ARCH, false), "docker, root, remote");
        assert_eq!(on("s390x", false), "docker, root, remote, no keeper");
        assert_eq!(
            on("s390x", true),
            "docker, root",
            "an engine on this machine runs our programs, whatever it reports"
        );
    }
}
