//! The contract, on the Podman of an ordinary user.

mod subject;

use kennel_docker::Kind;
use kennel_testkit::podman::Service;
use subject::Containers;

kennel_testkit::contract_suite!(Containers::of_a_user(Kind::Podman, Service::User.socket()));
