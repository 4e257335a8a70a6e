//! What the contract says of sandboxes, on the Docker of an ordinary user.

mod subject;

use kennel_docker::EngineKind;
use kennel_testkit::rootless;
use subject::Containers;

kennel_testkit::isolation_contract!(Containers::of_a_user(EngineKind::Docker, rootless::socket()));
kennel_testkit::sockets_contract!(Containers::of_a_user(EngineKind::Docker, rootless::socket()));
