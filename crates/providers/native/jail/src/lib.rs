//! The plan of a native sandbox: what the provider computes and the jail carries out.
//!
//! The jail is a program of its own because namespaces must not be made in a program with threads. It reads a plan on
//! its standard input, answers on its standard output, builds the walls and is the keeper behind them.

mod plan;
mod trial;
mod wiring;

pub use plan::{
    Base, Bind, CLEAR, Cgroup, Clear, Cover, CoverKind, DISK, EtcFile, IdMap, Ids, Network, Owners, Part, PartKind,
    Pin, Plan, Rights,
};
pub use trial::{TRY, Trial, landlock_version};
pub use wiring::{FORWARD, Link, NAMES, NAMES_BY_PASTA, PORTS, PREFIX, Publish};
