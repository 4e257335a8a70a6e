//! What the author of a provider uses, in addition to the trait [`kennel_core::Provider`]: checks of a spec against a
//! mode and of an operation against a state, records of sandboxes on disk, helper processes, log files, paths that no
//! mount may show, and the keeper's side of the protocol over a byte stream.
//!
//! Programs that use sandboxes do not need this crate: see `kennel-core`.

mod blocking;
mod checks;
mod children;
mod guard;
mod helper;
pub mod keeper_server;
pub mod labels;
mod logfile;
mod records;
mod repository;
mod socket;

pub use blocking::blocking;
pub use checks::{permit, require};
pub use children::Children;
pub use guard::{Guard, Screen, refuse_engine};
pub use helper::{Helper, InstructedHelper};
pub use logfile::{LOG_FILES, follow_log, keep_last_lines};
pub use records::{NewRecord, Record, Records, Starting, TakenImage, is_sweep_due, watch_records};
pub use repository::{Pin, pins};
pub use socket::connect_socket;
