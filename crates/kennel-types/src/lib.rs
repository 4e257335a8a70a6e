//! Types that all of Kennel's crates use: what a sandbox and a command are specified by, and what can go wrong.
//!
//! Plain data with serde, and with schemars if the feature `schema` is on. This crate does no I/O, reads no clock and no
//! environment, and depends on no other crate of Kennel.

mod error;
mod error_code;
mod event;
mod exec;
mod file;
mod id;
mod leftover;
mod mode;
mod next_step;
mod port;
mod quantity;
mod sandbox;
mod scope;
mod stats;
mod status;
mod text;
mod volume;

pub use error::{Error, Result};
pub use error_code::{ErrorCode, LimitReason};
pub use event::{EndCause, Event, EventKind};
pub use exec::{Command, ExecSpec, ExitStatus, TermSize};
pub use file::{DirEntry, FileKind, FileStat, TreeEntry, WatchEvent, WatchKind};
pub use id::{InvalidId, SandboxId};
pub use leftover::Leftover;
pub use mode::{
    Backing, IdScheme, IsolationLayer, MODES, Machine, Mode, ModeKey, MountOwners, ProviderKind, RootSource, RunsAs,
    Support,
};
pub use next_step::{Feature, Field, NextStep};
pub use port::{Port, Protocol, Published};
pub use quantity::{ByteSize, InvalidQuantity, format_bytes, parse_cpus, parse_duration};
pub use sandbox::{
    Availability, Cache, Enforcement, GitProtection, Limits, Mount, NetworkMode, Owner, Pull, STARTUP, SandboxInfo,
    SandboxSpec, SocketBridge, Toolchains,
};
pub use scope::Scope;
pub use stats::Stats;
pub use status::{Operation, Refusal, Status, Verdict, steps};
pub use text::{printable, printable_json, printable_layout, printable_path, printable_within};
pub use volume::{VolumeInfo, VolumeKind, VolumeUser};
