//! All environment variables that Kennel reads. No other module reads the environment.
//!
//! `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are read by the library that prints colours.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]

use kennel_types::Owner;
use std::ffi::OsString;
use std::path::PathBuf;

/// Moves all of Kennel's files: configuration, data and state.
const KENNEL_HOME: &str = "KENNEL_HOME";
/// The user's home directory, under which the other places are found.
const HOME: &str = "HOME";
/// Where programs keep their state; `~/.local/state` if not set.
const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// Where programs keep their settings; `~/.config` if not set.
const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Where programs keep their data; `~/.local/share` if not set.
const XDG_DATA_HOME: &str = "XDG_DATA_HOME";
/// The directory in which engines of ordinary users have their sockets.
const XDG_RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// Docker's endpoint.
const DOCKER_HOST: &str = "DOCKER_HOST";
/// The directory of Docker's settings and logins; `~/.docker` if not set.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Podman's file of registry logins.
const REGISTRY_AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// Proxies for registries by protocol, and hosts that need no proxy. The names may also be in lower case.
const HTTP_PROXY: &str = "HTTP_PROXY";
const HTTPS_PROXY: &str = "HTTPS_PROXY";
const NO_PROXY: &str = "NO_PROXY";
/// The Docker context to use.
const DOCKER_CONTEXT: &str = "DOCKER_CONTEXT";
/// Whether a Docker engine at a TCP port must have a valid certificate.
const DOCKER_TLS_VERIFY: &str = "DOCKER_TLS_VERIFY";
/// TLS whose certificates are not verified, which Kennel refuses.
const DOCKER_TLS: &str = "DOCKER_TLS";
/// The directory of the certificates for Docker.
const DOCKER_CERT_PATH: &str = "DOCKER_CERT_PATH";
/// Podman's endpoint.
const CONTAINER_HOST: &str = "CONTAINER_HOST";
/// Set by a shell that requests completions; see `kennel completions`.
pub(crate) const COMPLETE: &str = "KENNEL_COMPLETE";
/// Directories of programs, for `kennel doctor`.
const PATH: &str = "PATH";
/// The type of the terminal, which is passed to a command that runs on a terminal.
const TERM: &str = "TERM";
/// The user who called `sudo`, who becomes the owner of files created in a workspace.
const SUDO_UID: &str = "SUDO_UID";
/// The group of the user who called `sudo`.
const SUDO_GID: &str = "SUDO_GID";

/// All variables and their meanings, from which the reference is generated.
#[cfg(test)]
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    (KENNEL_HOME, "Moves all of Kennel's files there: settings to `config`, data and state beside it."),
    ("KENNEL_SANDBOX_…", "A setting, which overrides the files; see below."),
    (COMPLETE, "Set by a shell that asks for completions; see `kennel completions`."),
    (HOME, "The user's home directory. The other directories are below it unless they are set."),
    (XDG_CONFIG_HOME, "Directory of settings: `kennel/config.toml` below it. Default: `~/.config`."),
    (XDG_DATA_HOME, "Directory of data: images, and the programs that run inside. Default: `~/.local/share`."),
    (XDG_STATE_HOME, "Directory of sandboxes. Default: `~/.local/state`."),
    (XDG_RUNTIME_DIR, "Directory of the sockets of rootless engines."),
    (DOCKER_HOST, "Address of Docker, for example `unix:///var/run/docker.sock` or `tcp://build.example:2376`."),
    (DOCKER_CONTEXT, "The Docker context to use if `DOCKER_HOST` is not set."),
    (DOCKER_CONFIG, "Directory of Docker's settings, contexts, certificates and logins. Default: `~/.docker`."),
    (DOCKER_TLS_VERIFY, "If set to any value, use TLS and verify the engine's certificate."),
    (DOCKER_TLS, "TLS without verification of the certificate. Kennel refuses it."),
    (DOCKER_CERT_PATH, "Directory of `ca.pem`, `cert.pem` and `key.pem`. Default: Docker's settings directory."),
    (CONTAINER_HOST, "Address of Podman, for example `unix:///run/podman/podman.sock`."),
    (REGISTRY_AUTH_FILE, "Podman's file of logins. It takes precedence over Docker's."),
    (
        "HTTP_PROXY, HTTPS_PROXY, NO_PROXY",
        "Proxies for registries, and hosts without a proxy. Lower-case names work too.",
    ),
    (PATH, "Directories in which Kennel looks for programs, for example credential helpers."),
    (TERM, "Terminal type, passed to commands that run on a terminal."),
    (SUDO_UID, "The user who called `sudo`. Files created in a workspace belong to that user."),
    (SUDO_GID, "The group of the user who called `sudo`."),
    ("NO_COLOR, CLICOLOR, CLICOLOR_FORCE", "No colours; colours if the terminal supports them; colours always."),
];

/// Returns a variable that the user names, for `-e NAME`.
pub(crate) fn named(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

pub(crate) fn kennel_home() -> Option<PathBuf> {
    path(KENNEL_HOME)
}

pub(crate) fn is_completing() -> bool {
    std::env::var_os(COMPLETE).is_some()
}

pub(crate) fn home() -> Option<PathBuf> {
    path(HOME)
}

pub(crate) fn state_home() -> Option<PathBuf> {
    path(XDG_STATE_HOME).filter(|path| path.is_absolute())
}

pub(crate) fn config_home() -> Option<PathBuf> {
    path(XDG_CONFIG_HOME).filter(|path| path.is_absolute())
}

/// Returns all variables that a settings file can refer to. Those that are not UTF-8 are left out.
pub(crate) fn all() -> kennel_config::Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

pub(crate) fn data_home() -> Option<PathBuf> {
    path(XDG_DATA_HOME).filter(|path| path.is_absolute())
}

pub(crate) fn runtime_dir() -> Option<PathBuf> {
    path(XDG_RUNTIME_DIR).filter(|path| path.is_absolute())
}

pub(crate) fn docker_host() -> Option<String> {
    text(DOCKER_HOST)
}

pub(crate) fn docker_context() -> Option<String> {
    text(DOCKER_CONTEXT)
}

/// Returns the directory of Docker's settings.
pub(crate) fn docker_config() -> Option<PathBuf> {
    path(DOCKER_CONFIG).or_else(|| home().map(|home| home.join(".docker")))
}

pub(crate) fn docker_tls_verify() -> bool {
    text(DOCKER_TLS_VERIFY).is_some()
}

pub(crate) fn docker_tls() -> bool {
    text(DOCKER_TLS).is_some()
}

pub(crate) fn docker_cert_path() -> Option<PathBuf> {
    path(DOCKER_CERT_PATH)
}

pub(crate) fn container_host() -> Option<String> {
    text(CONTAINER_HOST)
}

pub(crate) fn program_dirs() -> Vec<PathBuf> {
    std::env::var_os(PATH).map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

pub(crate) fn term() -> Option<String> {
    text(TERM)
}

/// Returns the paths of files with registry logins, highest precedence first. They need not exist.
pub(crate) fn login_files() -> Vec<PathBuf> {
    let docker = path(DOCKER_CONFIG).or_else(|| home().map(|home| home.join(".docker")));
    let podman = config_home().or_else(|| home().map(|home| home.join(".config")));
    let parts = [
        path(REGISTRY_AUTH_FILE),
        docker.map(|dir| dir.join("config.json")),
        runtime_dir().map(|dir| dir.join("containers/auth.json")),
        podman.map(|dir| dir.join("containers/auth.json")),
    ];
    parts.into_iter().flatten().collect()
}

/// Returns the proxies for registries.
pub(crate) fn proxies() -> kennel_image::Proxies {
    let said = |name: &str| {
        let value = std::env::var(name.to_lowercase()).or_else(|_| std::env::var(name));
        value.ok().filter(|value| !value.is_empty())
    };
    kennel_image::Proxies { http: said(HTTP_PROXY), https: said(HTTPS_PROXY), none: said(NO_PROXY) }
}

/// Returns the user who called `sudo`. The variables count only if this process runs as root.
pub(crate) fn sudo_owner() -> Option<Owner> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    Some(Owner { uid: number(SUDO_UID)?, gid: number(SUDO_GID)? })
}

/// Returns the home directory of the calling user; with `sudo`, of the user who called it.
pub(crate) fn home_of_caller() -> Option<PathBuf> {
    let Some(Owner { uid, .. }) = sudo_owner() else { return home() };
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let own = fields.find(|fields| fields.get(2).and_then(|field| field.parse().ok()) == Some(uid))?;
    own.get(5).map(PathBuf::from)
}

/// Returns the value of a variable that contains text. An empty variable counts as not set.
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Returns the value of a variable that contains a path. An empty variable counts as not set.
fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
