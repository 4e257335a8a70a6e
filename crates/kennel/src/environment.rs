//! All environment variables that Kennel reads. No other module reads the environment.
//!
//! `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are read by the library that prints colours.

#![expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]

use kennel_core::{Error, Result};
use kennel_engine::Caller;
#[cfg(test)]
use kennel_engine::caller::{
    CONTAINER_HOST, DOCKER_CERT_PATH, DOCKER_CONFIG, DOCKER_CONTEXT, DOCKER_HOST, DOCKER_TLS, DOCKER_TLS_VERIFY, HOME,
    KENNEL_HOME, PATH, REGISTRY_AUTH_FILE, SUDO_GID, SUDO_UID, XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_RUNTIME_DIR,
    XDG_STATE_HOME,
};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Set by a shell that requests completions; see `kennel completions`.
pub(crate) const COMPLETE: &str = "KENNEL_COMPLETE";
/// The server whose sandboxes commands use.
const KENNEL_URL: &str = "KENNEL_URL";
/// The token for that server.
const KENNEL_TOKEN: &str = "KENNEL_TOKEN";
/// The address of npm's registry.
const NPM_CONFIG_REGISTRY: &str = "NPM_CONFIG_REGISTRY";
/// A file of further certificates for npm.
const NODE_EXTRA_CA_CERTS: &str = "NODE_EXTRA_CA_CERTS";
/// The type of the terminal, which is passed to a command that runs on a terminal.
const TERM: &str = "TERM";

/// Returns what the engine needs to know about the user who calls this program.
pub(crate) fn caller() -> Result<Caller> {
    let current_dir = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
    Ok(Caller { variables: std::env::vars_os().collect(), current_dir, uid: rustix::process::geteuid().as_raw() })
}

/// All variables and their meanings, from which the reference is generated.
#[cfg(test)]
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    (KENNEL_HOME, "A directory for all of Kennel's files: settings in `config`, data in `data`, state in `state`."),
    ("KENNEL_SANDBOX_…", "A setting, which overrides the files; see below."),
    (KENNEL_URL, "The server whose sandboxes commands use, for example `http://127.0.0.1:7070`; see `--server`."),
    (KENNEL_TOKEN, "The token for that server. Default on this machine: the file `token` in the state directory."),
    ("LISTEN_FDS, LISTEN_PID", "Sockets that a service manager such as systemd passes to `kennel serve`."),
    ("NOTIFY_SOCKET", "Where `kennel serve` tells a service manager that it is ready, or ends."),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR",
        "Certificates of authorities, for a server at `https://`. Default: those of this machine.",
    ),
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
    (NPM_CONFIG_REGISTRY, "Address of the registry from which agents are installed. Default: npm's own."),
    (NODE_EXTRA_CA_CERTS, "File of further certificates for that registry. It must be visible in sandboxes."),
    (PATH, "Directories in which Kennel looks for programs, for example credential helpers."),
    ("VISUAL, EDITOR", "The editor of `kennel profile edit`. Default: `vi`."),
    (TERM, "Terminal type, passed to commands that run on a terminal."),
    (SUDO_UID, "The user who called `sudo`. Files created in a workspace belong to that user."),
    (SUDO_GID, "The group of the user who called `sudo`."),
    ("NO_COLOR, CLICOLOR, CLICOLOR_FORCE", "No colours; colours if the terminal supports them; colours always."),
];

/// Returns a variable that the user names, for `-e NAME`.
pub(crate) fn named(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

pub(crate) fn is_completing() -> bool {
    std::env::var_os(COMPLETE).is_some()
}

/// Returns whether a variable is set, and not empty.
pub(crate) fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

pub(crate) fn program_dirs() -> Vec<std::path::PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

/// Returns the user's editor.
pub(crate) fn editor() -> String {
    let set = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned())
}

/// Returns the address of npm's registry, if one is set.
pub(crate) fn npm_registry() -> Option<String> {
    let set = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    set(NPM_CONFIG_REGISTRY).or_else(|| set("npm_config_registry"))
}

/// Returns the variables with which npm reaches its registry.
pub(crate) fn npm_variables() -> BTreeMap<String, String> {
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", NODE_EXTRA_CA_CERTS];
    let set = names.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    set.chain(npm_registry().map(|address| (NPM_CONFIG_REGISTRY.to_owned(), address))).collect()
}

pub(crate) fn term() -> Option<String> {
    std::env::var(TERM).ok().filter(|text| !text.is_empty())
}

/// Returns the server whose sandboxes commands use, if one is set.
pub(crate) fn server() -> Option<String> {
    std::env::var(KENNEL_URL).ok().filter(|text| !text.is_empty())
}

/// Returns the token for that server.
pub(crate) fn token() -> Option<String> {
    std::env::var(KENNEL_TOKEN).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}
