//! The cases of the contract about isolation, on a rootless Podman.

mod subject;

use kennel_docker::EngineKind;
use kennel_testkit::podman::Service;
use subject::Containers;

kennel_testkit::isolation_contract!(Containers::of_a_user(EngineKind::Podman, Service::User.socket()));
kennel_testkit::sockets_contract!(Containers::of_a_user(EngineKind::Podman, Service::User.socket()));
