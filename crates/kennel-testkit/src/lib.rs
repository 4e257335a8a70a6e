//! Support for tests: the contract suite that every provider passes, a separate home directory for each test,
//! inspection of sandboxes from the host, and engines to test on.
//!
//! This crate knows the provider interface, but no provider. The provider's mode states what should happen, and a case
//! checks that it works or is refused. A case is never skipped.

pub mod acp;
pub mod bun;
pub mod busybox;
pub mod contract;
pub mod docker;
pub mod environment;
mod eventually;
pub mod front;
pub mod git_image;
mod home;
pub mod host;
pub mod inside;
pub mod net;
pub mod node_image;
mod npm;
pub mod podman;
pub mod programs;
pub mod python;
pub mod registry;
pub mod rootless;
mod stage;
mod tester;
mod wire;

pub use eventually::{eventually, wait_in_race, within, within_blocking};
pub use home::Home;
pub use net::Net;
pub use stage::{Stage, Subject, check};
pub use tester::{NOBODYS_IDS, become_ordinary_user, testers_ids};
pub use wire::Wire;
