//! Engines for the time of a chore: those that answer already, or are started and ended here.

use crate::machine::{Machine, find};
use anyhow::Result;
use kennel_testkit::docker;
use kennel_testkit::podman::{Service, image_on};
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

/// Podman services: root's, and an ordinary user's.
#[derive(Default)]
pub(crate) struct Podmans {
    sockets: Vec<(Service, PathBuf, bool)>,
}

impl Podmans {
    /// Finds or starts them, with the test image on each. Where that is not possible it is said, and in CI it is a failure.
    pub(crate) fn get(machine: &mut Machine) -> Result<Self> {
        let mut found = Self::default();
        for service in Service::ALL {
            let named = std::env::var_os(service.variable()).map(PathBuf::from);
            let (socket, ours) = match named {
                Some(named) => (named, false),
                None if machine.root && find("podman").is_some() => {
                    eprintln!("== starting podman ({service:?})");
                    (service.start(), true)
                }
                None => {
                    let why =
                        format!("only root can start one, and it needs podman; or name one in {}", service.variable());
                    machine.leave_out("everything on Podman", &why)?;
                    return Ok(found);
                }
            };
            image_on(&socket);
            found.sockets.push((service, socket, ours));
        }
        Ok(found)
    }

    /// Whether all are there.
    pub(crate) fn are_there(&self) -> bool {
        self.sockets.len() == Service::ALL.len()
    }

    /// Tells a command which ones to use.
    pub(crate) fn tell(&self, command: &mut Command) {
        for (service, socket, _) in &self.sockets {
            command.env(service.variable(), socket);
        }
    }
}

impl Drop for Podmans {
    fn drop(&mut self) {
        for (service, _, ours) in &self.sockets {
            if *ours {
                eprintln!("== ending podman ({service:?})");
                if !service.stop() {
                    eprintln!("== it stays: someone else uses it");
                }
            }
        }
    }
}
