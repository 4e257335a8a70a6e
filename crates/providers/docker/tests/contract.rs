//! The contract, on a Docker engine.

use kennel_core::Provider;
use kennel_docker::{Docker, DockerOptions, NamePrefix};
use kennel_testkit::{Home, Subject, docker};
use kennel_types::SandboxSpec;
use std::path::PathBuf;
use std::sync::Arc;

struct Containers {
    home: Home,
    socket: PathBuf,
    image: String,
}

impl Containers {
    fn new() -> Self {
        let socket = docker::socket();
        let image = docker::image_on(&socket);
        Self { home: Home::new(), socket, image }
    }
}

impl Subject for Containers {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Docker::new(DockerOptions {
            state_dir: self.home.state(),
            program_dir: self.home.programs(),
            socket: self.socket.clone(),
            installation: self.home.mark(),
            name_prefix: NamePrefix::default(),
        }))
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec { image: Some(self.image.clone()), ..SandboxSpec::default() }
    }

    fn socket_inside(&self) -> Option<String> {
        Some("/.kennel/run/sock".into())
    }

    fn leftovers(&self) -> Vec<String> {
        docker::leftovers(&self.socket, &format!("kennel.installation={}", self.home.mark()))
    }
}

kennel_testkit::contract_suite!(Containers::new());
