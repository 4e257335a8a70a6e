//! The plan of a native sandbox, which the provider computes and the jail carries out.
//!
//! The jail is a separate program, because namespaces must not be created in a multi-threaded one. Its standard input
//! is a socket: it reads the plan from it and replies on it. It builds the sandbox around itself and becomes the
//! keeper. Only the argument `try` makes it print its result on standard output.

mod plan;
mod trial;
mod wiring;

pub use plan::{
    Base, Bind, CLEAR, Cgroup, Clear, Cover, CoverKind, DISK, EtcFile, IdMap, Ids, Network, Owners, Part, PartKind,
    Pin, Plan, Rights,
};
pub use trial::{TRY, Trial, landlock_version};
pub use wiring::{FORWARD, Link, NAMES, NAMES_BY_PASTA, PORTS, PREFIX, Publish};
