//! The parts of netlink that a sandbox's network needs: reading the host's networks, and loading firewall rules into a
//! sandbox's network namespace that block them.
//!
//! It is written by hand, because it needs only a few messages, and general crates would enlarge programs that are
//! mapped into every sandbox. It runs no program (`ip`, `nft`), because that would take longer than the rest of a
//! start.

mod firewall;
mod host;
mod message;
mod ranges;

pub use firewall::{Firewall, FirewallSocket};
pub use host::{Changes, connected_networks, host_networks};
pub use message::{Message, text};
pub use ranges::{Prefix, Ranges};
