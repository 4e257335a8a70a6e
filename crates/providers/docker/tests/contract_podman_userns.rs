//! What the contract says of sandboxes, on root's Podman, with a user namespace for each.

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
        // A network for each takes its time, and only the cases about networks are about that.
        spec: SandboxSpec {
            image: Some(image),
            network: Some(NetworkMode::None),
            userns: Some("auto".into()),
            ..SandboxSpec::default()
        },
    }
}

kennel_testkit::isolation_contract!(containers());
