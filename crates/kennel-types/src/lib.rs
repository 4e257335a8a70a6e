//! Types that all of Kennel's crates use: what a sandbox and a command are specified by, and what can go wrong.
//!
//! Plain data with serde and schemars. This crate does no I/O, reads no clock and no environment, and depends on no
//! other crate of Kennel.

mod error_code;
mod event;
mod exec;
mod file;
mod id;
mod mode;
mod port;
mod quantity;
mod sandbox;
mod stats;

pub use error_code::ErrorCode;
pub use event::{Event, EventKind};
pub use exec::{Command, ExecSpec, ExitStatus, TermSize};
pub use file::{DirEntry, FileKind, FileStat, WatchEvent, WatchKind};
pub use id::{InvalidId, SandboxId};
pub use mode::{
    Backing, IdScheme, Layer, MODES, Machine, Mode, ModeKey, MountOwners, ProviderKind, RootSource, RunsAs, Support,
};
pub use port::{Port, Protocol, Published};
pub use quantity::{ByteSize, InvalidQuantity, format_bytes, parse_cpus, parse_duration};
pub use sandbox::{
    Availability, Cache, Enforcement, GitProtection, Limits, Mount, NetworkMode, Owner, Pull, STARTUP, SandboxInfo,
    SandboxSpec, Status, Toolchains,
};
pub use stats::Stats;
