//! The network `bridge`: what the host needs for it, once for all sandboxes.
//!
//! The jail creates a pair of interfaces for each sandbox. This module manages what all sandboxes have in common:
//! firewall rules that match the interfaces' names, so that nothing changes per sandbox and nothing is left behind;
//! permission to pass where Docker drops everything else; and the DNS configuration.
//!
//! Each start asks the kernel whether everything is in place, which takes microseconds. Programs (`nft`,
//! `iptables-restore`) run only if something is missing.

mod docker_firewall;
mod names;
mod nfnetlink;
mod rules;

use kennel_core::{Error, Result};
use kennel_jail::{Link, PORTS, Publish, Rights};
use kennel_types::{ErrorCode, NextStep, Protocol, Published, SandboxId, SandboxSpec};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use docker_firewall::DockerFirewall;

/// What network `bridge` finds on this machine.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// The path of the program `nft`, if it is installed.
    pub nft: Option<PathBuf>,
    /// The address range, if the rules exist.
    pub range: Option<String>,
    /// Whether this machine forwards packets.
    pub forwarding: bool,
    /// The state of Docker's rules.
    pub docker: DockerFirewall,
    /// Whether the policy of the chain `FORWARD` drops packets, without Docker.
    pub closed: bool,
    /// Whether firewalld runs, which drops traffic it does not know.
    pub firewalld: bool,
    /// Whether there are rules of `iptables-legacy`, which cannot be read here.
    pub legacy: bool,
}

impl Bridge {
    /// Creates the rules if they do not exist. There is no other way to find out whether this works.
    pub fn make() -> Result<()> {
        match rules::in_force()? {
            Some(_) => Ok(()),
            None => rules::install().map(drop),
        }
    }

    /// Returns the state without changing anything. Root sees everything; others see only programs.
    pub fn look() -> Self {
        let rules = rules::present().ok().flatten();
        let docker = DockerFirewall::look();
        Self {
            nft: program("nft"),
            range: rules.map(rules::Rules::range_text),
            forwarding: rules::is_forwarding(),
            closed: docker == DockerFirewall::NotHere && docker_firewall::drops().unwrap_or(false),
            docker,
            firewalld: docker_firewall::has_firewalld().unwrap_or(false),
            legacy: docker_firewall::has_old_rules(),
        }
    }
}

/// The result of the check when a sandbox was created, for the start that follows at once. An older result is not used,
/// because the firewall may have changed.
#[derive(Default)]
pub(crate) struct BridgeProbe(Mutex<Option<(Instant, Ipv4Addr)>>);

impl BridgeProbe {
    const FRESH: Duration = Duration::from_millis(200);

    /// Makes sure that sandboxes can use `bridge`.
    pub(crate) async fn check(&self, rights: Rights) -> Result<()> {
        let range = ready(rights).await?;
        *self.slot() = Some((Instant::now(), range));
        Ok(())
    }

    /// Returns the range of addresses. Uses the last result if it is recent.
    pub(crate) async fn take(&self, rights: Rights) -> Result<Ipv4Addr> {
        let last = self.slot().take().filter(|(when, _)| when.elapsed() < Self::FRESH);
        match last {
            Some((_, range)) => Ok(range),
            None => ready(rights).await,
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<(Instant, Ipv4Addr)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes sure that sandboxes can use `bridge`, and returns the range of their addresses. The error says why they cannot,
/// and what to do.
async fn ready(rights: Rights) -> Result<Ipv4Addr> {
    if rights == Rights::User {
        return pasta().map(|_| Ipv4Addr::UNSPECIFIED);
    }
    let range = match rules::in_force()? {
        Some(rules) => rules.range,
        None => apart(rules::install).await?,
    };
    if DockerFirewall::look() == DockerFirewall::Shut {
        apart(docker_firewall::pass).await?;
    }
    Ok(range)
}

/// Returns the connection of a sandbox to the outside.
pub(crate) fn link(
    id: &SandboxId,
    spec: &SandboxSpec,
    rights: Rights,
    range: Ipv4Addr,
    jail: &Path,
) -> Result<(Link, names::Names)> {
    for port in &spec.ports {
        check_free(*port)?;
    }
    let mut names = names::Names::of_this_machine();
    if rights == Rights::User {
        names = names.by_pasta();
    }
    let ports = spec.ports.iter().map(|port| Publish {
        host: port.host.unwrap_or(0),
        inside: port.inside,
        udp: port.protocol == Protocol::Udp,
    });
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(id.as_str());
    let servers = names.forwarded.iter().map(ToString::to_string).collect();
    let pasta = match rights {
        Rights::Root => None,
        Rights::User => Some(pasta()?),
    };
    let link = Link {
        range: range.octets(),
        first: hash as u16,
        ports: ports.collect(),
        names: servers,
        pasta,
        resolvers: names.servers(),
        program: crate::plan::text(jail)?,
    };
    Ok((link, names))
}

/// Returns the path of `pasta`, which connects the sandboxes of an ordinary user.
fn pasta() -> Result<String> {
    let unavailable = |what: &str| Error::new(ErrorCode::NotAvailable, what);
    let path = program("pasta").ok_or_else(|| {
        unavailable("a network for sandboxes of ordinary users: pasta is not installed")
            .suggest(NextStep::run_on_host("sudo apt-get install passt"))
    })?;
    let device = rustix::fs::access("/dev/net/tun", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK);
    device.map_err(|_| {
        unavailable("a network for sandboxes of ordinary users: this user cannot open /dev/net/tun")
            .suggest(NextStep::run_on_host("sudo chmod 666 /dev/net/tun"))
    })?;
    path.into_os_string().into_string().map_err(|path| {
        unavailable(&format!("{} is not valid UTF-8", path.display())).advise("install pasta elsewhere")
    })
}

/// Returns the published ports of a running sandbox, which its jail has written to a file.
pub(crate) fn published(dir: &Path) -> Vec<Published> {
    let text = std::fs::read_to_string(dir.join(PORTS)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Runs work that starts other programs on a blocking thread.
async fn apart<T: Send + 'static>(work: fn() -> Result<T>) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::new(ErrorCode::Internal, format!("prepare the network: {error}")))?
}

/// Reports early, with a hint, that a port is in use. The jail would notice it, too.
fn check_free(port: kennel_types::Port) -> Result<()> {
    let Some(number) = port.host else { return Ok(()) };
    let place = (Ipv4Addr::LOCALHOST, number);
    let tried = match port.protocol {
        Protocol::Tcp => std::net::TcpListener::bind(place).map(drop),
        Protocol::Udp => std::net::UdpSocket::bind(place).map(drop),
    };
    match tried {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let message = format!("publish port {port}: 127.0.0.1:{number} is taken by another program");
            let free = kennel_types::Port { host: None, ..port };
            let steps = [
                NextStep::PublishAtFreePort { port: Some(free) },
                NextStep::run_on_host_to("see who has it", "ss -ltunp"),
            ];
            Err(Error::new(ErrorCode::StartFailed, message).suggest(NextStep::either(steps)))
        }
        Err(error) => Err(Error::io(format!("publish port {port}"), error)),
        Ok(()) => Ok(()),
    }
}

/// Finds a program of root in the usual directories. The library does not use `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    const PLACES: [&str; 6] =
        ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/run/current-system/sw/bin"];
    let runs = |path: &PathBuf| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    PLACES.iter().map(|place| Path::new(place).join(name)).find(runs)
}

/// Runs a program with this input. If it fails, its output is the reason.
fn run(what: &str, name: &str, arguments: &[&str], input: &str) -> Result<()> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let missing = || {
        let package = if name == "nft" { "nftables" } else { "iptables" };
        Error::new(ErrorCode::NotAvailable, format!("{what}: the program {name} is not installed"))
            .suggest(NextStep::InstallPackage { package: package.to_owned() })
    };
    let path = program(name).ok_or_else(missing)?;
    let failed = |error| Error::io(format!("{what}: {}", path.display()), error);
    let mut command = Command::new(&path);
    command.args(arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program does not read its input, its output contains the reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = kennel_core::printable(String::from_utf8_lossy(&output.stderr).trim());
    Err(Error::new(ErrorCode::StartFailed, format!("{what}: {name} says: {said}")).suggest(NextStep::check_machine()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn recent_results_are_reused() {
        let range = Ipv4Addr::new(10, 0, 0, 0);
        let found = |when| BridgeProbe(Mutex::new(Some((when, range))));
        let fresh = found(Instant::now());
        assert_eq!(fresh.take(Rights::Root).await.unwrap(), range);
        assert!(fresh.slot().is_none(), "it counts for one start");
        // No machine gives sandboxes this range, so whatever is found now is something else.
        let old = found(Instant::now().checked_sub(BridgeProbe::FRESH).unwrap());
        assert_ne!(old.take(Rights::User).await.ok(), Some(range));
    }
}
