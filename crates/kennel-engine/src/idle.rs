//! Sandboxes that are put to sleep while nobody uses them.
//!
//! A sandbox with an idle pause has a file in the directory `idle` of the state directory. The file holds its idle times,
//! and it is the lock between use and pause:
//!
//! - Whoever uses the sandbox holds the lock shared while a request is sent, until the keeper has replied. Then the keeper
//!   knows that the sandbox is in use.
//! - The resident process holds the lock exclusively while it asks the keeper whether the sandbox is idle, and pauses it.
//!
//! So no request runs into a pause. A second file, `ID.paused`, exists while the resident process has paused the sandbox.
//! It is written before the pause. So a sandbox that a user has paused is never resumed by somebody else, and one whose
//! resident process was killed is resumed by the next use.

mod asleep;
mod gate;
mod times;

pub(crate) use asleep::{Entry, Exclusive, Idle};
pub(crate) use gate::IdleGate;
pub use times::IdleTimes;
