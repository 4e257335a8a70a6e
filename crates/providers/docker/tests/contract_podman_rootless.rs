//! What the contract says of sandboxes, on the Podman of an ordinary user.

mod subject;

use kennel_docker::Kind;
use kennel_testkit::podman::Service;
use subject::Containers;

kennel_testkit::contract_of_walls!(Containers::of_a_user(Kind::Podman, Service::User.socket()));
