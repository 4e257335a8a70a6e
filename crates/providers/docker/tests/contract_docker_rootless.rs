//! What the contract says of sandboxes, on the Docker of an ordinary user.

mod subject;

use kennel_docker::{Kind, UnixDialer};
use kennel_testkit::{Home, become_ordinary_user, docker, rootless, testers_ids};
use kennel_types::{NetworkMode, SandboxSpec};
use std::sync::Arc;
use subject::Containers;

fn containers() -> Containers {
    let socket = rootless::socket();
    let image = docker::image_on(&socket);
    become_ordinary_user(testers_ids());
    let home = Home::new();
    Containers {
        programs: home.path().join("programs"),
        home,
        dialer: Arc::new(UnixDialer::new(&socket)),
        socket,
        kind: Kind::Docker,
        // A network for each takes its time, and only the cases about networks are about that.
        spec: SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() },
    }
}

kennel_testkit::contract_of_walls!(containers());
