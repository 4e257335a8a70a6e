//! The jail: the process that stays outside a native sandbox and waits for its end, and, after a fork, the process
//! inside. The provider computes a plan, and the jail carries it out.
//!
//! ```text
//! kennel ──────────> jail (outside, root)                     jail (inside, process 1)
//!                     fork into namespaces ─────────────────>  creates what belongs to them
//!        ── plan ──>  lock, listen, cgroup
//!                     map ids, create mounts ─ descriptors ─>  attach, pivot, drop rights, filter
//!                     connect the network ─────── "go" ─────>
//!        <── "ok" ──  <───────────────────────── "ok" ───────  keeper
//!     or <────────────────────────────────────── "welcome" ──  keeper, if kennel keeps using the same socket
//!                     waits ................................  ends
//!                     exit code, cgroup, directory
//! ```
//!
//! The process outside holds only the lock. If it is killed, the process inside dies with it.
//!
//! It is a separate program, because namespaces must not be created in a multi-threaded one. A program that has not
//! started a thread yet can fork it instead, which is faster: see [`ForkedJail`]. Its standard input is a socket: it
//! reads the plan from it and replies on it. Only the argument `try` makes it print its result on standard output.

mod cgroup;
mod clear;
mod cpu;
mod disk;
mod fork;
mod forward;
mod guard;
mod handover;
mod ids;
mod inside;
mod kernel_support;
mod landlock_rules;
mod layers;
mod link;
mod measure;
mod netlink;
mod network;
mod overlay;
mod pasta;
mod plan;
mod probe_kernel;
mod rootfs;
mod rootless_root;
mod sandbox;
mod sys;
mod usage;

pub use fork::ForkedJail;
pub use kernel_support::{KernelSupport, PROBE_KERNEL, landlock_version};
pub use layers::{PARTS, open_work_dirs};
pub use link::{FORWARD, Link, NAMES, NAMES_BY_PASTA, PORTS, PREFIX, Publish};
pub use plan::{
    AHEAD, Ahead, Base, Bind, CLEAR, Cgroup, Clear, DISK, EtcFile, HostDir, HostDirKind, IdMap, Ids, MaskEntry,
    MaskEntryKind, Network, Owners, Pin, Plan, Rights,
};
pub use sandbox::run;
pub use usage::{MEASURE, disk_usage};
