//! The cases of the contract about isolation, on a rootless Docker.

mod subject;

use kennel_docker::EngineKind;
use kennel_testkit::rootless;
use subject::Containers;

kennel_testkit::isolation_contract!(Containers::of_a_user(EngineKind::Docker, rootless::socket()));
kennel_testkit::sockets_contract!(Containers::of_a_user(EngineKind::Docker, rootless::socket()));
