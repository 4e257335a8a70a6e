//! Engines for a task: those that already run, or those that the task starts and ends.

use crate::machine::{Machine, find};
use anyhow::Result;
use kennel_testkit::{docker, podman, rootless};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A running Docker engine of root.
pub(crate) struct Engine {
    socket: PathBuf,
    ours: bool,
    stock: Stock,
}

/// Everything that an engine has, as lines of text.
struct Stock(BTreeSet<String>);

impl Stock {
    fn list(socket: &Path) -> Self {
        let lists: [&[&str]; 4] = [
            &["ps", "--all", "--format", "container {{.Names}}"],
            &["volume", "ls", "--format", "volume {{.Name}}"],
            &["network", "ls", "--format", "network {{.Name}}"],
            &["images", "--format", "image {{.Repository}}:{{.Tag}} {{.ID}}"],
        ];
        let lists = lists.map(|list| docker::docker(socket, list));
        Self(lists.iter().flat_map(|list| list.lines().map(ToOwned::to_owned)).collect())
    }

    /// Returns what the engine has now and did not have before. On an engine that others use as well (`ours` is false),
    /// only what has `kennel` in its name.
    fn left(&self, socket: &Path, ours: bool) -> Vec<String> {
        let now = Self::list(socket).0;
        let new = now.difference(&self.0).filter(|item| ours || item.contains("kennel"));
        new.map(|item| format!("{item} on {}", socket.display())).collect()
    }
}

/// Prints what the tests left behind on engines. Returns whether nothing was left.
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
    /// Finds or starts the engine, and creates the test image and these images on it. If this is not possible, it is reported; in CI it
    /// is a failure.
    pub(crate) fn get(machine: &mut Machine, images: &[fn(&Path) -> String]) -> Result<Option<Self>> {
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
        for create in images {
            create(&socket);
        }
        Ok(Some(Self { stock: Stock::list(&socket), socket, ours }))
    }

    /// Returns the engine's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sets the variable that tells a command which engine to use.
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

/// An engine other than root's Docker.
pub(crate) struct Service {
    name: &'static str,
    /// The environment variable with the socket of the engine to use.
    variable: &'static str,
    /// The program that the engine needs.
    program: &'static str,
    /// The part that the names of its tests have in common.
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

/// All engines other than root's Docker that the tests use.
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

/// The running engines other than root's Docker.
#[derive(Default)]
pub(crate) struct Services {
    running: Vec<Running>,
    /// The common parts of the names of tests whose engines are missing.
    pub(crate) missing: BTreeSet<&'static str>,
}

struct Running {
    service: Service,
    socket: PathBuf,
    ours: bool,
    stock: Stock,
}

impl Services {
    /// Finds or starts the engines, and creates the test image on each. If this is not possible, it is reported; in CI
    /// it is a failure.
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
            services.running.push(Running { service, stock: Stock::list(&socket), socket, ours });
        }
        Ok(services)
    }

    /// Sets the variables that tell a command which engines to use.
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
