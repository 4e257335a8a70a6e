//! Engines for the time of a chore: those that answer already, or are started and ended here.

use crate::machine::{Machine, find};
use anyhow::Result;
use kennel_testkit::{docker, podman, rootless};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An engine that answers.
pub(crate) struct Engine {
    socket: PathBuf,
    ours: bool,
    stock: Stock,
}

/// All that an engine has, in words.
struct Stock(BTreeSet<String>);

impl Stock {
    fn of(socket: &Path) -> Self {
        let lists: [&[&str]; 4] = [
            &["ps", "--all", "--format", "container {{.Names}}"],
            &["volume", "ls", "--format", "volume {{.Name}}"],
            &["network", "ls", "--format", "network {{.Name}}"],
            &["images", "--format", "image {{.Repository}}:{{.Tag}} {{.ID}}"],
        ];
        let lists = lists.map(|list| docker::docker(socket, list));
        Self(lists.iter().flat_map(|list| list.lines().map(ToOwned::to_owned)).collect())
    }

    /// What is there and was not before. On an engine that others use too, as far as it is called by our name.
    fn left(&self, socket: &Path, ours: bool) -> Vec<String> {
        let now = Self::of(socket).0;
        let new = now.difference(&self.0).filter(|item| ours || item.contains("kennel"));
        new.map(|item| format!("{item} on {}", socket.display())).collect()
    }
}

/// Looks at what was left on engines: none of it should be there. Answers whether that is so.
pub(crate) fn is_nothing_left(engine: Option<&Engine>, services: &Services) -> bool {
    let mut left = engine.map(|engine| engine.stock.left(&engine.socket, engine.ours)).unwrap_or_default();
    for Running { socket, ours, stock, .. } in &services.running {
        left.extend(stock.left(socket, *ours));
    }
    for item in &left {
        eprintln!("left behind: {item}");
    }
    left.is_empty()
}

impl Engine {
    /// Finds or starts one, with the test image on it. Where that is not possible it is said, and in CI it is a failure.
    pub(crate) fn get(machine: &mut Machine) -> Result<Option<Self>> {
        const USUAL: &str = "/var/run/docker.sock";
        let named = kennel_testkit::environment::variable(docker::SOCKET_VARIABLE).map(PathBuf::from);
        let usual = named.unwrap_or_else(|| USUAL.into());
        let (socket, ours) = if docker::answers(&usual) {
            (usual, false)
        } else if !machine.root {
            let why = format!("no engine answers at {}, and only root can start one", usual.display());
            machine.leave_out("everything on Docker", &why)?;
            return Ok(None);
        } else if find("dockerd").is_none() {
            machine.leave_out("everything on Docker", "there is no dockerd: apt-get install docker.io")?;
            return Ok(None);
        } else {
            eprintln!("== starting dockerd");
            (docker::start(), true)
        };
        docker::image_on(&socket);
        Ok(Some(Self { stock: Stock::of(&socket), socket, ours }))
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
    /// What is in the names of tests on it.
    tests: &'static str,
    start: fn() -> PathBuf,
    stop: fn() -> bool,
}

pub(crate) const PODMAN: Service = Service {
    name: "podman",
    variable: podman::Service::Root.variable(),
    program: "podman",
    tests: "podman",
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
        tests: "podman_rootless",
        start: || podman::Service::User.start(),
        stop: || podman::Service::User.stop(),
    },
    Service {
        name: "dockerd of an ordinary user",
        variable: rootless::SOCKET_VARIABLE,
        program: "rootlesskit",
        tests: "docker_rootless",
        start: rootless::start,
        stop: rootless::stop,
    },
];

/// Those that answer.
#[derive(Default)]
pub(crate) struct Services {
    running: Vec<Running>,
    /// What is in the names of tests on those that are not there.
    pub(crate) missing: BTreeSet<&'static str>,
}

struct Running {
    service: Service,
    socket: PathBuf,
    ours: bool,
    stock: Stock,
}

impl Services {
    /// Finds or starts them, with the test image on each. Where that is not possible it is said, and in CI it is a failure.
    pub(crate) fn get(machine: &mut Machine, wanted: impl IntoIterator<Item = Service>) -> Result<Self> {
        let mut services = Self::default();
        for service in wanted {
            let named = kennel_testkit::environment::variable(service.variable).map(PathBuf::from);
            let (socket, ours) = match named {
                Some(named) => (named, false),
                None if machine.root && find(service.program).is_some() => {
                    eprintln!("== starting {}", service.name);
                    ((service.start)(), true)
                }
                None => {
                    let Service { name, variable, program, tests, .. } = service;
                    services.missing.insert(tests);
                    let why = format!("only root can start one, and it needs {program}; or name one in {variable}");
                    machine.leave_out(&format!("everything on {name}"), &why)?;
                    continue;
                }
            };
            docker::image_on(&socket);
            services.running.push(Running { service, stock: Stock::of(&socket), socket, ours });
        }
        Ok(services)
    }

    /// Tells a command which ones to use.
    pub(crate) fn tell(&self, command: &mut Command) {
        for Running { service, socket, .. } in &self.running {
            command.env(service.variable, socket);
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for Running { service, .. } in self.running.iter().filter(|running| running.ours) {
            eprintln!("== ending {}", service.name);
            if !(service.stop)() {
                eprintln!("== it stays: someone else uses it");
            }
        }
    }
}
