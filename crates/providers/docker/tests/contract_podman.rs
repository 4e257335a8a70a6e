//! The contract, on root's Podman.

mod subject;

use kennel_docker::{EngineKind, UnixDialer};
use kennel_testkit::Home;
use kennel_testkit::podman::{Service, image_on};
use kennel_types::{NetworkMode, SandboxSpec};
use std::sync::Arc;
use subject::Containers;

fn containers() -> Containers {
    let socket = Service::Root.socket();
    let image = image_on(&socket);
    let home = Home::new();
    Containers {
        programs: home.programs(),
        home,
        dialer: Arc::new(UnixDialer::new(&socket)),
        socket,
        kind: EngineKind::Podman,
        // A separate network for each sandbox takes time, and only the cases about networks need it.
        spec: SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() },
    }
}

kennel_testkit::contract_suite!(containers());
