//! The keeper's configuration, which is an argument of its command: the user, the main process and the environment.

use super::{Facts, Ids, KeeperSetup};
use crate::mounts::{KEEPER, OURS};
use bollard::models::ImageConfig;
use kennel_core::{Error, Result};
use kennel_proto::{KeeperConfig, LogSink, Spawn};
use kennel_types::{ErrorCode, Field, NetworkMode, NextStep, Owner, SandboxSpec};
use std::fmt::Write;

/// The file in the run directory with the addresses that the sandbox must not connect to. The keeper removes it.
pub(crate) const FIREWALL_FILE: &str = "filter";

/// The name of the keeper's socket in the run directory.
pub(crate) const SOCKET: &str = "sock";

/// The home directory of a user to whom Podman gives none.
pub(super) const DEFAULT_HOME: &str = "/home/kennel";

/// The capabilities that commands can have: all but `SYS_PTRACE`.
const COMMAND_CAPABILITIES: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;

/// How long the owner of a tied sandbox may take to connect.
const OWNER_WITHIN_MS: u64 = 10_000;

/// The user of commands.
#[derive(Debug, PartialEq)]
pub(super) enum User {
    Named(String),
    /// The user outside, who may be unknown in the image.
    Owner(Owner),
}

/// Returns the user that commands run as.
pub(super) fn user(spec: &SandboxSpec, facts: &Facts<'_>) -> User {
    let image_user = facts.image.user.as_ref().filter(|user| !user.is_empty());
    match (&spec.user, image_user) {
        (None, _) if facts.ids == Ids::Root => User::Named("0:0".into()),
        (None, _) if matches!(facts.ids, Ids::Same | Ids::Kept) && facts.owner.uid != 0 => User::Owner(facts.owner),
        (Some(user), _) | (None, Some(user)) => User::Named(user.clone()),
        (None, None) => User::Named("0:0".into()),
    }
}

/// Creates the keeper's configuration.
pub(super) fn keeper_config(
    spec: &SandboxSpec,
    facts: &Facts<'_>,
    user: &User,
    workdir: &str,
    main: Option<&[String]>,
) -> KeeperConfig {
    let mounted = matches!(facts.keeper, KeeperSetup::Mounted { .. });
    let (user, ensure_user) = match user {
        User::Named(name) => (name.clone(), None),
        User::Owner(Owner { uid, gid }) => (format!("{uid}:{gid}"), Some((*uid, *gid))),
    };
    KeeperConfig {
        tied: spec.tied,
        owner_within_ms: spec.tied.then_some(OWNER_WITHIN_MS),
        owner_holds: (spec.tied && mounted).then(|| format!("{OURS}/run").into_bytes().into()),
        by_engine: !mounted,
        idle_ms: spec.idle_seconds.map(|seconds| seconds.saturating_mul(1000)),
        inherit_env: true,
        // The engine sets `HOME` for the keeper's own user, so the keeper passes on only an explicit one.
        env: home(spec, facts).map(|home| (b"HOME".to_vec().into(), home.into_bytes().into())).into_iter().collect(),
        cwd: Some(workdir.as_bytes().to_vec().into()),
        user: Some(user),
        give: ensure_user
            .map(|_| facts.volumes.iter().map(|volume| volume.target.as_bytes().to_vec().into()).collect())
            .unwrap_or_default(),
        ensure_user,
        main: main.map(|argv| Spawn {
            // It applies only to the image's own program; other commands end as usual.
            stop_signal: facts.image.stop_signal.as_deref().filter(|_| spec.command.is_none()).and_then(signal),
            ..Spawn::main(argv)
        }),
        // The engine stores the log, so that `docker logs` works too.
        log: LogSink::Passthrough,
        bounding: Some(COMMAND_CAPABILITIES),
        filter_commands: true,
        firewall: facts.filter.then(|| format!("{OURS}/run/{FIREWALL_FILE}").into_bytes().into()),
        shares_network: facts.network == NetworkMode::Host,
        ..KeeperConfig::default()
    }
}

/// Creates the command that starts the keeper. Everyone can see the keeper's arguments, so they must not contain a secret.
pub(super) fn keeper_command(config: &KeeperConfig) -> Result<Vec<String>> {
    let bytes = minicbor::to_vec(config)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("write the keeper's settings: {error}")))?;
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // Writing to a String cannot fail.
        hex
    });
    let socket = format!("{OURS}/run/{SOCKET}");
    let command = [KEEPER, "serve", "--socket", &socket, "--config", &hex];
    Ok(command.map(ToOwned::to_owned).into())
}

/// The home directory from the spec or the image, or Kennel's default for a user without one.
pub(super) fn home(spec: &SandboxSpec, facts: &Facts<'_>) -> Option<String> {
    let by_image = || facts.image.env.iter().flatten().find_map(|pair| pair.strip_prefix("HOME="));
    let ours = || (facts.ids == Ids::Kept && spec.user.is_none() && facts.owner.uid != 0).then_some(DEFAULT_HOME);
    spec.env.get("HOME").map(String::as_str).or_else(by_image).or_else(ours).map(ToOwned::to_owned)
}

/// The main process: the given command, or the image's own if requested.
pub(super) fn main_process(spec: &SandboxSpec, image: &ImageConfig) -> Result<Option<Vec<String>>> {
    if spec.command.is_some() || !spec.image_main {
        return Ok(spec.command.clone());
    }
    let own = own_command(image);
    if own.is_empty() {
        return Err(
            Error::new(ErrorCode::InvalidConfig, "the image defines no command").suggest(NextStep::set(Field::Command))
        );
    }
    Ok(Some(own))
}

/// The image's own command.
pub(super) fn own_command(image: &ImageConfig) -> Vec<String> {
    image.entrypoint.iter().flatten().chain(image.cmd.iter().flatten()).cloned().collect()
}

/// Parses a signal as images write it: `SIGQUIT`, `QUIT` or `3`.
pub(super) fn signal(text: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    if let Ok(number) = text.parse() {
        return Some(number).filter(|number| (1..=64).contains(number));
    }
    let text = text.to_ascii_uppercase();
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    if let Some(number) = name.strip_prefix("RTMIN+").and_then(|more| more.parse::<i32>().ok()) {
        return Some(34 + number).filter(|number| (34..=64).contains(number));
    }
    NAMES.iter().position(|known| *known == name).map(|at| at as i32 + 1)
}
