//! The requests and responses of the HTTP API. The server and its clients share these types.
//!
//! They are separate from the engine's own types, so that the engine can change without breaking clients. Requests reject
//! unknown fields, and accept durations and sizes as text with a unit or as integers. Responses have integers only, with the
//! unit in the name: `memoryBytes`, `timeoutMs`. This crate does no I/O.

mod error;
mod exec;
mod file;
mod image;
mod inventory;
mod listing;
mod pool;
mod process;
mod profile;
mod quantity;
mod sandbox;
mod session;
pub mod stream;
mod ticket;
mod token;

pub use error::{ApiError, ErrorBody};
pub use exec::{ExecRequest, ExecResult, ExecTimings, OutputCut, TerminalSize};
pub use file::{
    FileContent, FileContents, FileEntry, FileInfo, FileKind, FileListing, FileMatch, FileMatches, FileToWrite,
    MkdirRequest, MoveRequest, ReadFiles, Unpacked, WriteFiles, WrittenFile, WrittenFiles,
};
pub use image::{BuildImage, PullImage, RemovedImages};
pub use inventory::{ImageView, List, ProfileView, ProviderView, SessionView, VolumeView};
pub use kennel_types::Scope;
pub use listing::{Health, Page, SilentProvider};
pub use pool::{FailedVolume, PoolView, PruneVolumes, PrunedVolumes, SetPool};
pub use process::{
    OutputPart, OutputView, ProcessExit, ProcessOutput, ProcessView, SignalRequest, StartProcess, StartedProcess,
    StdinTaken,
};
pub use profile::{ChangeProfile, CreateProfile, RestartProfile};
pub use quantity::{Bytes, Cpus, Millis};
pub use sandbox::{
    ChangeSandbox, CreateSandbox, LimitsView, MountRequest, Network, PortRequest, ProviderName, PublishedPort,
    PullPolicy, RenameRequest, RenewRequest, SandboxStats, SandboxStatus, SandboxView, StopRequest, WaitResult,
};
pub use session::{CreateSession, PoolPolicy, SessionEventView, SessionSecret};
pub use ticket::{Preview, PreviewRequest, Ticket, TicketRequest};
pub use token::TokenView;
