//! How a sandbox with its own network is connected to the host, as part of the plan.

use minicbor::{Decode, Encode};

/// The prefix of interface names on the host. A number follows: the sandbox's address in the range. Whoever creates the
/// interface owns the address, which is free again when the interface is gone: with the sandbox, however it ends.
pub const PREFIX: &str = "kennel";

/// The argument that makes the jail program copy bytes between the host's network and a sandbox's.
pub const FORWARD: &str = "forward";

/// The file in a sandbox's directory that lists its published ports, one per line.
pub const PORTS: &str = "ports";

/// The address for DNS queries inside, if only the host can reach its resolvers. Further resolvers have the following
/// addresses.
pub const NAMES: [u8; 4] = [127, 0, 0, 11];

/// The address for DNS queries inside if `pasta` forwards them: an unused address that is not a loopback address.
pub const NAMES_BY_PASTA: [u8; 4] = [169, 254, 1, 53];

/// The connection to the host: a pair of interfaces, or `pasta`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Link {
    /// The first address of a range of 65536. The second is the gateway of every sandbox.
    #[n(0)]
    pub range: [u8; 4],
    /// The number to try first, so that an address is not reused soon.
    #[n(1)]
    pub first: u16,
    /// Ports to publish.
    #[n(2)]
    pub ports: Vec<Publish>,
    /// The host's resolvers, if only the host can reach them; at most three.
    #[n(3)]
    pub names: Vec<String>,
    /// The path of `pasta`, for an ordinary user. It provides the connection then, and no address of the range is used.
    #[n(4)]
    pub pasta: Option<String>,
    /// The name servers in the sandbox's `/etc/resolv.conf`. With `pasta`, they can be reached wherever they are.
    #[n(5)]
    pub resolvers: Vec<String>,
    /// The path of the jail as a program, for the process that forwards ports and DNS.
    #[n(6)]
    pub program: String,
}

/// A port to publish on 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Publish {
    /// The port on the host; 0 for any free one.
    #[n(0)]
    pub host: u16,
    /// The port inside.
    #[n(1)]
    pub inside: u16,
    /// Whether it is UDP instead of TCP.
    #[n(2)]
    pub udp: bool,
}
