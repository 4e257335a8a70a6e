//! Engines for the time of a chore: those that answer already, or are started and ended here.

use crate::machine::{Machine, find};
use anyhow::Result;
use kennel_testkit::{docker, podman, rootless};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An engine that answers.
pub(crate) struct Engine {
    socket: PathBuf,
    ours: bool,
}

impl Engine {
    /// Finds or starts one, with the test image on it. Where that is not possible it is said, and in CI it is a failure.
    pub(crate) fn get(machine: &mut Machine) -> Result<Option<Self>> {
        const USUAL: &str = "/var/run/docker.sock";
        let named = std::env::var_os(docker::SOCKET_VARIABLE).map(PathBuf::from);
        let usual = named.unwrap_or_else(|| USUAL.into());
        let engine = if docker::answers(&usual) {
            Self { socket: usual, ours: false }
        } else if !machine.root {
            let why = format!("no engine answers at {}, and only root can start one", usual.display());
            machine.leave_out("everything on Docker", &why)?;
            return Ok(None);
        } else if find("dockerd").is_none() {
            machine.leave_out("everything on Docker", "there is no dockerd: apt-get install docker.io")?;
            return Ok(None);
        } else {
            eprintln!("== starting dockerd");
            Self { socket: docker::start(), ours: true }
        };
        docker::image_on(&engine.socket);
        Ok(Some(engine))
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Tells a command which engine to use.
    pub(crate) fn tell(engine: Option<&Self>, command: &mut Command) {
        if let Some(engine) = engine {
            command.env(docker::SOCKET_VARIABLE, engine.socket());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.ours {
            eprintln!("== ending dockerd");
            if !docker::stop() {
                eprintln!("== it stays: someone else uses it");
            }
        }
    }
}

/// An engine beside root's Docker.
pub(crate) struct Service {
    name: &'static str,
    /// What names the socket of one to use.
    variable: &'static str,
    /// The program that it cannot be without.
    program: &'static str,
    start: fn() -> PathBuf,
    stop: fn() -> bool,
}

pub(crate) const PODMAN: Service = Service {
    name: "podman",
    variable: podman::Service::Root.variable(),
    program: "podman",
    start: || podman::Service::Root.start(),
    stop: || podman::Service::Root.stop(),
};

/// All that the tests use.
pub(crate) const SERVICES: [Service; 3] = [
    PODMAN,
    Service {
        name: "podman of an ordinary user",
        variable: podman::Service::User.variable(),
        program: "podman",
        start: || podman::Service::User.start(),
        stop: || podman::Service::User.stop(),
    },
    Service {
        name: "dockerd of an ordinary user",
        variable: rootless::SOCKET_VARIABLE,
        program: "rootlesskit",
        start: rootless::start,
        stop: rootless::stop,
    },
];

/// Those that answer.
#[derive(Default)]
pub(crate) struct Services {
    found: Vec<(Service, PathBuf, bool)>,
    wanted: usize,
}

impl Services {
    /// Finds or starts them, with the test image on each. Where that is not possible it is said, and in CI it is a failure.
    pub(crate) fn get(machine: &mut Machine, wanted: impl IntoIterator<Item = Service>) -> Result<Self> {
        let mut services = Self::default();
        for service in wanted {
            services.wanted += 1;
            let named = std::env::var_os(service.variable).map(PathBuf::from);
            let (socket, ours) = match named {
                Some(named) => (named, false),
                None if machine.root && find(service.program).is_some() => {
                    eprintln!("== starting {}", service.name);
                    ((service.start)(), true)
                }
                None => {
                    let Service { name, variable, program, .. } = service;
                    let why = format!("only root can start one, and it needs {program}; or name one in {variable}");
                    machine.leave_out(&format!("everything on {name}"), &why)?;
                    continue;
                }
            };
            docker::image_on(&socket);
            services.found.push((service, socket, ours));
        }
        Ok(services)
    }

    /// Whether all are there.
    pub(crate) fn are_there(&self) -> bool {
        self.found.len() == self.wanted
    }

    /// Tells a command which ones to use.
    pub(crate) fn tell(&self, command: &mut Command) {
        for (service, socket, _) in &self.found {
            command.env(service.variable, socket);
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for (service, _, _) in self.found.iter().filter(|(_, _, ours)| *ours) {
            eprintln!("== ending {}", service.name);
            if !(service.stop)() {
                eprintln!("== it stays: someone else uses it");
            }
        }
    }
}
