//! Finds the endpoints of engines in the same way as their own programs: by environment variables, Docker's contexts
//! and the default sockets. The library gets only a dialer.

use crate::Caller;
use crate::caller::{CONTAINER_HOST, DOCKER_CERT_PATH, DOCKER_CONTEXT, DOCKER_HOST, DOCKER_TLS, DOCKER_TLS_VERIFY};
use kennel_core::{Error, Result, printable};
use kennel_docker::{Dialer, TcpDialer, Tls, UnixDialer};
use kennel_types::{ErrorCode, NextStep};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The endpoint of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket on this machine.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// The name or address of the machine.
        host: String,
        /// The port.
        port: u16,
        /// The directory of certificates, if TLS is used.
        certificates: Option<PathBuf>,
    },
}

impl Endpoint {
    /// Returns a dialer for this endpoint.
    pub fn dialer(&self) -> Result<Arc<dyn Dialer>> {
        let (host, port, dir) = match self {
            Self::Unix(socket) => return Ok(Arc::new(UnixDialer::new(socket))),
            Self::Tcp { host, port, certificates: None } => return Ok(Arc::new(TcpDialer::new(host, *port))),
            Self::Tcp { host, port, certificates: Some(dir) } => (host, *port, dir),
        };
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path).map_err(|error| {
                Error::new(ErrorCode::InvalidConfig, format!("TLS to {host}: read {}: {error}", path.display()))
                    .suggest(NextStep::advice(
                        "put ca.pem, cert.pem and key.pem there, or name another directory in DOCKER_CERT_PATH",
                    ))
            })
        };
        let authorities = read("ca.pem")?;
        let identity = if dir.join("cert.pem").exists() { Some((read("cert.pem")?, read("key.pem")?)) } else { None };
        let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
        let tls = Tls { authorities: &authorities, identity };
        Ok(Arc::new(TcpDialer::with_tls(host, port, tls)?))
    }

    /// Whether an engine may listen at this endpoint. Endpoints that the user did not name are tried only if so.
    pub fn may_answer(&self) -> bool {
        match self {
            Self::Unix(socket) => socket.exists(),
            Self::Tcp { .. } => true,
        }
    }

    /// Whether both endpoints belong to the same engine. Podman may provide Docker's socket.
    pub fn is_same(&self, other: &Self) -> bool {
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        match (self, other) {
            (Self::Unix(one), Self::Unix(other)) => real(one) == real(other),
            _ => self == other,
        }
    }

    /// Returns the endpoint in the form that users know.
    pub fn shown(&self) -> String {
        match self {
            Self::Unix(socket) => socket.display().to_string(),
            Self::Tcp { host, port, .. } => format!("tcp://{host}:{port}"),
        }
    }

    /// Returns the path of the socket, if the endpoint is a Unix socket.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Unix(socket) => Some(socket),
            Self::Tcp { .. } => None,
        }
    }

    /// Parses an endpoint from an environment variable or a context.
    fn parse(text: &str, from: &str, certificates: Option<PathBuf>) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(ErrorCode::Unsupported, format!("{from} is {:?}: {why}", printable(text)))
                .suggest(NextStep::advice("use unix:///PATH or tcp://HOST:PORT"))
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(bad("the path must be absolute"))
            };
        }
        let Some(place) = text.strip_prefix("tcp://") else {
            return Err(bad("expected a unix socket or a TCP address"));
        };
        let place = place.trim_end_matches('/');
        let usual = if certificates.is_some() { 2376 } else { 2375 };
        // An IPv6 address is in brackets.
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad("the port is invalid"))?),
            _ => (place, usual),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('/') {
            return Err(bad("the host is invalid"));
        }
        Ok(Self::Tcp { host: host.to_owned(), port, certificates })
    }
}

/// Returns Docker's endpoint: that of `DOCKER_HOST`, of the context, the system's socket, or the user's socket.
pub fn docker(caller: &Caller) -> Result<Endpoint> {
    if let Some(host) = caller.text(DOCKER_HOST) {
        return Endpoint::parse(&host, "DOCKER_HOST", certificates(caller)?);
    }
    if let Some(dir) = caller.docker_config()
        && let Some(name) = context(&dir, caller)?
    {
        return in_context(&dir, &name);
    }
    let own = caller.runtime_dir().map(|dir| dir.join("docker.sock"));
    let own = own.filter(|own| !system_docker().may_answer() && own.exists());
    Ok(own.map_or_else(system_docker, Endpoint::Unix))
}

/// Returns Podman's endpoint: that of `CONTAINER_HOST`, root's socket, or the user's socket.
pub fn podman(caller: &Caller) -> Result<Endpoint> {
    const SYSTEM: &str = "/run/podman/podman.sock";
    if let Some(host) = caller.text(CONTAINER_HOST) {
        return Endpoint::parse(&host, "CONTAINER_HOST", None);
    }
    let own = caller.runtime_dir().map(|dir| dir.join("podman/podman.sock"));
    let own = own.filter(|_| caller.uid != 0);
    Ok(Endpoint::Unix(own.unwrap_or_else(|| SYSTEM.into())))
}

/// Returns the sockets at which Docker, or Podman, will be found when it is started.
pub(crate) fn awaited(caller: &Caller, is_docker: bool) -> Vec<PathBuf> {
    let endpoint = if is_docker { docker(caller) } else { podman(caller) };
    let own = caller.runtime_dir().map(|dir| dir.join("docker.sock"));
    // The user's own socket is used only while the system's does not exist.
    let own = own.filter(|_| is_docker && endpoint.as_ref().is_ok_and(|endpoint| *endpoint == system_docker()));
    let socket = endpoint.ok().and_then(|endpoint| endpoint.socket().map(Path::to_owned));
    socket.into_iter().chain(own).collect()
}

/// Docker's socket for the whole machine.
fn system_docker() -> Endpoint {
    Endpoint::Unix("/var/run/docker.sock".into())
}

/// Returns all sockets at which engines of this user may listen. None of them may be visible in a sandbox.
pub fn sockets(caller: &Caller) -> Vec<PathBuf> {
    const IN_RUNTIME_DIR: [&str; 4] =
        ["docker.sock", "podman/podman.sock", "buildkit/buildkitd.sock", "containerd-rootless/api.sock"];
    const IN_HOME: [&str; 6] = [
        ".docker/run/docker.sock",
        ".docker/desktop/docker.sock",
        ".colima/default/docker.sock",
        ".orbstack/run/docker.sock",
        ".rd/docker.sock",
        ".lima/docker/sock/docker.sock",
    ];
    let named = [caller.text(DOCKER_HOST), caller.text(CONTAINER_HOST)].into_iter().flatten();
    let contexts = caller.docker_config().map(|dir| hosts_of_contexts(&dir)).unwrap_or_default();
    let named = named.chain(contexts).filter_map(|host| host.strip_prefix("unix://").map(PathBuf::from));
    let runtime = caller.runtime_dir().into_iter().flat_map(|dir| IN_RUNTIME_DIR.map(|name| dir.join(name)));
    let home = caller.home().into_iter().flat_map(|home| IN_HOME.map(|name| home.join(name)));
    named.chain(runtime).chain(home).filter(|socket| socket.is_absolute()).collect()
}

/// Returns the endpoints of all Docker contexts. Skips a context that cannot be read.
fn hosts_of_contexts(dir: &Path) -> Vec<String> {
    let contexts = std::fs::read_dir(dir.join("contexts/meta")).into_iter().flatten().flatten();
    let hosts = contexts.filter_map(|context| {
        let meta = read_json::<serde_json::Value>(&context.path().join("meta.json")).ok()??;
        Some(meta.pointer("/Endpoints/docker/Host")?.as_str()?.to_owned())
    });
    hosts.collect()
}

/// Returns the directory of certificates, if the environment requests TLS.
fn certificates(caller: &Caller) -> Result<Option<PathBuf>> {
    if caller.text(DOCKER_TLS_VERIFY).is_some() {
        let dir = caller.path(DOCKER_CERT_PATH).or_else(|| caller.docker_config());
        return dir.map(Some).ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidConfig,
                "DOCKER_TLS_VERIFY is set, but the directory of the certificates is unknown",
            )
            .suggest(NextStep::advice("set DOCKER_CERT_PATH"))
        });
    }
    if caller.text(DOCKER_TLS).is_some() {
        return Err(unverified("DOCKER_TLS is set without DOCKER_TLS_VERIFY")
            .suggest(NextStep::advice("set DOCKER_TLS_VERIFY=1")));
    }
    Ok(None)
}

fn unverified(what: &str) -> Error {
    Error::new(ErrorCode::Unsupported, format!("{what}: the server's certificate would not be verified"))
}

/// Returns the name of Docker's current context, unless it is the default one.
fn context(dir: &Path, caller: &Caller) -> Result<Option<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Config {
        #[serde(default)]
        current_context: Option<String>,
    }
    let named = match caller.text(DOCKER_CONTEXT) {
        Some(named) => Some(named),
        None => read_json::<Config>(&dir.join("config.json"))?.and_then(|config| config.current_context),
    };
    Ok(named.filter(|name| !name.is_empty() && name != "default"))
}

/// Returns the endpoint of a Docker context.
fn in_context(dir: &Path, name: &str) -> Result<Endpoint> {
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "Endpoints")]
        endpoints: Endpoints,
    }
    #[derive(Deserialize)]
    struct Endpoints {
        docker: Option<ContextEndpoint>,
    }
    #[derive(Deserialize)]
    struct ContextEndpoint {
        #[serde(rename = "Host", default)]
        host: String,
        #[serde(rename = "SkipTLSVerify", default)]
        unverified: bool,
    }
    let step =
        || NextStep::either([NextStep::run_on_host("docker context ls"), NextStep::advice("unset DOCKER_CONTEXT")]);
    let shown = printable(name);
    let key = key(name);
    let contexts = dir.join("contexts");
    let meta = read_json::<Meta>(&contexts.join("meta").join(&key).join("meta.json"))?.ok_or_else(|| {
        Error::new(ErrorCode::InvalidConfig, format!("there is no Docker context {shown}")).suggest(step())
    })?;
    let endpoint = meta.endpoints.docker.filter(|endpoint| !endpoint.host.is_empty()).ok_or_else(|| {
        Error::new(ErrorCode::InvalidConfig, format!("the Docker context {shown} has no endpoint")).suggest(step())
    })?;
    if endpoint.unverified {
        return Err(unverified(&format!("the Docker context {shown} sets skip-tls-verify")).suggest(step()));
    }
    let certificates = Some(contexts.join("tls").join(&key).join("docker")).filter(|dir| dir.join("ca.pem").exists());
    Endpoint::parse(&endpoint.host, &format!("the host of the Docker context {shown}"), certificates)
}

/// Returns the name of a context's directory: the hash of its name.
fn key(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // a String takes everything
        hex
    })
}

/// Reads a JSON file of Docker. Returns `None` if it does not exist.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
    };
    let read = serde_json::from_slice(&bytes);
    read.map(Some).map_err(|error| Error::new(ErrorCode::InvalidConfig, format!("read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, tls: bool) -> Result<Endpoint> {
        Endpoint::parse(text, "DOCKER_HOST", tls.then(|| "/certs".into()))
    }

    #[test]
    fn endpoints_are_parsed_from_variables() {
        let tcp = |host: &str, port, tls: bool| Endpoint::Tcp {
            host: host.into(),
            port,
            certificates: tls.then(|| "/certs".into()),
        };
        for (text, tls, endpoint) in [
            ("unix:///run/x.sock", false, Endpoint::Unix("/run/x.sock".into())),
            ("tcp://build:1234", false, tcp("build", 1234, false)),
            ("tcp://build:1234/", true, tcp("build", 1234, true)),
            ("tcp://build", false, tcp("build", 2375, false)),
            ("tcp://build", true, tcp("build", 2376, true)),
            ("tcp://[::1]:99", false, tcp("::1", 99, false)),
            ("tcp://[::1]", false, tcp("::1", 2375, false)),
        ] {
            assert_eq!(parse(text, tls).unwrap(), endpoint, "{text}");
        }
        for bad in
            ["", "unix://relative", "ssh://me@host", "tcp://", "tcp://:1", "tcp://h:x", "tcp://h:99999", "/run/x"]
        {
            assert_eq!(parse(bad, false).unwrap_err().code(), ErrorCode::Unsupported, "{bad}");
        }
    }

    #[test]
    fn a_docker_context_names_its_endpoint() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let key = key(name);
            let meta = dir.path().join("contexts/meta").join(&key);
            std::fs::create_dir_all(&meta).unwrap();
            std::fs::write(meta.join("meta.json"), text).unwrap();
            dir.path().join("contexts/tls").join(key).join("docker")
        };
        put("plain", r#"{"Name": "plain", "Endpoints": {"docker": {"Host": "unix:///run/other.sock"}}}"#);
        assert_eq!(in_context(dir.path(), "plain").unwrap(), Endpoint::Unix("/run/other.sock".into()));
        let tls = put("far", r#"{"Name": "far", "Endpoints": {"docker": {"Host": "tcp://far:2376"}}}"#);
        std::fs::create_dir_all(&tls).unwrap();
        std::fs::write(tls.join("ca.pem"), "").unwrap();
        let far = Endpoint::Tcp { host: "far".into(), port: 2376, certificates: Some(tls) };
        assert_eq!(in_context(dir.path(), "far").unwrap(), far);
        assert_eq!(hosts_of_contexts(dir.path()).len(), 2);
        put("blind", r#"{"Endpoints": {"docker": {"Host": "tcp://far:2376", "SkipTLSVerify": true}}}"#);
        assert_eq!(in_context(dir.path(), "blind").unwrap_err().code(), ErrorCode::Unsupported);
        put("spoilt", "{");
        put("other", r#"{"Endpoints": {"kubernetes": {}}}"#);
        for bad in ["missing", "spoilt", "other", "../x"] {
            assert_eq!(in_context(dir.path(), bad).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad}");
        }
    }
}
