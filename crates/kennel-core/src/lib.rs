//! The core of Kennel: the provider trait, the sandbox handle, and the client side of the keeper protocol.
//!
//! The library prints nothing, reads no environment variable and never changes the working directory. It checks
//! everything that comes out of a sandbox before it returns it.

mod child;
mod collect;
pub mod copy;
mod error;
mod exec;
mod files;
mod guard;
mod host_path;
mod keeper;
pub mod labels;
mod logfile;
mod provider;
mod records;
mod repository;
mod sandbox;
mod socket;
mod text;

pub use child::{Helper, Told};
pub use collect::{Collector, Output, RUN_OUTPUT_CAP};
pub use error::{Error, Result};
pub use exec::{Exec, ExecEvent, Position, Stdin};
pub use files::{FileReader, FileWatch, Files, SparseReader, WriteOptions};
pub use guard::{Guard, Screen};
pub use host_path::{Fence, HostPath, LastLink, open_regular_file, open_regular_file_beneath};
pub use keeper::{Keeper, KeeperStream, shut_down};
pub use kennel_proto::Features;
pub use kennel_proto::sparse::Piece;
pub use kennel_types as types;
pub use logfile::{LOG_FILES, follow_log, keep_last_lines};
pub use provider::{
    ByteStream, Dialed, EventStream, ImageBuild, LogChunk, LogOptions, LogStream, Provider, PullProgress,
    RemoveOptions, check_name, new_id, require,
};
pub use records::{Record, Records, Starting, TakenImage, watch_records};
pub use repository::{Pin, pins};
pub use sandbox::Sandbox;
pub use socket::connect_socket;
pub use text::{printable, printable_json, printable_layout, printable_path};
