//! Netlink, as far as a sandbox's network needs it: which networks are the host's own, and firewall rules in the network
//! namespace of a sandbox that keep it away from them.
//!
//! Written by hand: it is a handful of messages, and the crates that know all of them would weigh on programs that are
//! mapped into every sandbox. No program (`ip`, `nft`) is run: that would take longer than the whole rest of a start.

mod firewall;
mod host;
mod message;
mod ranges;

pub use firewall::{Firewall, FirewallSocket};
pub use host::{Changes, connected_networks, host_networks};
pub use message::{Message, text};
pub use ranges::{Prefix, Ranges};
