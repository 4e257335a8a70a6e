//! The cases of the contract about isolation, on a Docker engine that is reached by TCP and TLS, as if it were on
//! another machine: no file of this machine is mounted, and keepers are reached through the engine.

mod subject;

use kennel_docker::{EngineKind, TcpDialer, Tls};
use kennel_testkit::front::Front;
use kennel_testkit::{Home, docker};
use kennel_types::SandboxSpec;
use std::sync::{Arc, OnceLock};
use subject::Containers;

fn containers() -> Containers {
    static FRONT: OnceLock<Front> = OnceLock::new();
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let front = FRONT.get_or_init(|| Front::start(&socket));
    let tls = Tls { authorities: front.authority(), identity: Some(front.identity()) };
    let home = Home::new();
    Containers {
        programs: home.programs(),
        home,
        dialer: Arc::new(TcpDialer::with_tls("localhost", front.port(), tls).unwrap()),
        socket,
        kind: EngineKind::Docker,
        spec: SandboxSpec { image: Some(image), ..SandboxSpec::default() },
    }
}

kennel_testkit::isolation_contract!(containers());
kennel_testkit::sockets_contract!(containers());
