//! The contract, on a Docker engine.

mod subject;

use kennel_docker::{EngineKind, UnixDialer};
use kennel_testkit::{Home, docker};
use kennel_types::SandboxSpec;
use std::sync::Arc;
use subject::Containers;

fn containers() -> Containers {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let home = Home::new();
    Containers {
        programs: home.programs(),
        home,
        dialer: Arc::new(UnixDialer::new(&socket)),
        socket,
        kind: EngineKind::Docker,
        spec: SandboxSpec { image: Some(image), ..SandboxSpec::default() },
    }
}

kennel_testkit::contract_suite!(containers());
