//! How a sandbox with a network of its own is joined to the host, as the provider asks for it.

use minicbor::{Decode, Encode};

/// The interfaces on the host begin with this. A number follows: the sandbox's address in the range. Whoever makes the
/// interface has the address, and it is free again when the interface is gone: with the sandbox, however that ends.
pub const PREFIX: &str = "kennel";

/// The argument that makes the jail's program pass bytes between the host's network and a sandbox's.
pub const FORWARD: &str = "forward";

/// The file in a sandbox's directory that says where its ports are published, one in a line.
pub const PORTS: &str = "ports";

/// Where names are asked for inside, if whoever answers outside can be reached there only: this and the following.
pub const NAMES: [u8; 4] = [127, 0, 0, 11];

/// The same where `pasta` passes questions on: an address that is nobody's, and not of the loopback.
pub const NAMES_BY_PASTA: [u8; 4] = [169, 254, 1, 53];

/// A line to the host: a pair of interfaces, one at each end.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Link {
    /// The first address of a range of 65536. Its second is every sandbox's way out.
    #[n(0)]
    pub range: [u8; 4],
    /// Which of them to try first, so that one is not soon another's again.
    #[n(1)]
    pub first: u16,
    /// Ports to publish.
    #[n(2)]
    pub ports: Vec<Publish>,
    /// Who answers for names, if only the host can reach them: at most three.
    #[n(3)]
    pub names: Vec<String>,
    /// The program `pasta`, for an ordinary user: it is the way out then, and no address of the range is used.
    #[n(4)]
    pub pasta: Option<String>,
    /// Addresses of the name servers in the sandbox's `/etc/resolv.conf`. With `pasta`, they can be asked wherever they are.
    #[n(5)]
    pub resolvers: Vec<String>,
}

/// A port inside, and where it is to be reached on 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Publish {
    /// Outside; 0 for any that is free.
    #[n(0)]
    pub host: u16,
    /// Inside.
    #[n(1)]
    pub inside: u16,
    /// Datagrams, not connections.
    #[n(2)]
    pub udp: bool,
}
