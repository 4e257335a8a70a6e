//! The core of Kennel: the provider trait, the sandbox handle, and the client side of the keeper protocol.
//!
//! The library prints nothing, reads no environment variable and never changes the working directory. It checks
//! everything that comes out of a sandbox before it returns it.

mod bridge;
mod collect;
mod connect;
pub mod copy;
mod exec;
mod fan_out;
mod files;
mod gate;
mod host_path;
mod idle;
mod keeper;
mod listen;
mod prepared;
mod provider;
mod sandbox;

pub use bridge::{Bridges, HostSocket};
pub use collect::{Collector, Output, RUN_OUTPUT_CAP};
pub use connect::{SandboxStream, Target};
pub use exec::{Exec, ExecEvent, Position, Stdin};
pub use fan_out::{FanOut, FanOutEvent, FanOutOptions, FanOutStdin, Lag, SharedBytes, Subscriber};
pub use files::{FileReader, FileWatch, Files, SparseReader, WriteOptions};
pub use gate::{Gate, Pass};
pub use host_path::{Fence, HostPath, LastLink, open_regular_file, open_regular_file_beneath};
pub use idle::has_ended_idle;
pub use keeper::{Keeper, KeeperStream, shut_down};
pub use kennel_proto::Features;
pub use kennel_proto::sparse::Piece;
pub use kennel_types as types;
pub use kennel_types::{Error, Result, printable, printable_json, printable_layout, printable_path};
pub use listen::{Datagrams, ListenAt, Listener, Origin, Replies};
pub use prepared::Prepared;
pub use provider::{
    ByteStream, Dialed, EventStream, ImageBuild, LogChunk, LogOptions, LogStream, Provider, PullProgress,
    RemoveOptions, Sweep, VolumeOptions, check_name, new_id,
};
pub use sandbox::{IdleTime, Sandbox};
