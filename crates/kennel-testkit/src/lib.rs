//! What tests stand on: the contract suite that every provider passes, a home of its own for each test, a look at the
//! host from outside, and starters for engines.
//!
//! It knows the provider interface and no provider. A case asks the provider's row of the mode table what should
//! happen, and checks that it works or that it is refused; it never skips.

pub mod busybox;
pub mod contract;
pub mod docker;
pub mod environment;
mod eventually;
pub mod front;
mod home;
pub mod host;
pub mod inside;
pub mod net;
pub mod podman;
pub mod programs;
pub mod registry;
pub mod rootless;
mod stage;
mod tester;
mod wire;

pub use eventually::{eventually, within, within_blocking};
pub use home::Home;
pub use net::Net;
pub use stage::{Stage, Subject, check};
pub use tester::{NOBODYS_IDS, become_ordinary_user, testers_ids};
pub use wire::Wire;
