//! The plan of a native sandbox, which the provider computes and the jail carries out.
//!
//! The jail is a separate program, because namespaces must not be created in a multi-threaded one. Its standard input
//! is a socket: it reads the plan from it and replies on it. It builds the sandbox around itself and becomes the
//! keeper. Only the argument `try` makes it print its result on standard output.

mod kernel_support;
mod layers;
mod link;
mod plan;
mod usage;

pub use kernel_support::{KernelSupport, PROBE_KERNEL, landlock_version};
pub use layers::{PARTS, open_work_dirs};
pub use link::{FORWARD, Link, NAMES, NAMES_BY_PASTA, PORTS, PREFIX, Publish};
pub use plan::{
    Base, Bind, CLEAR, Cgroup, Clear, DISK, EtcFile, HostDir, HostDirKind, IdMap, Ids, MaskEntry, MaskEntryKind,
    Network, Owners, Pin, Plan, Rights,
};
pub use usage::{MEASURE, disk_usage};
