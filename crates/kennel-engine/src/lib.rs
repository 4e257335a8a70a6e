//! The engine: everything that makes a sandbox last beyond one command, for every front end.
//!
//! The command line, a server or your own program calls it. A front end passes in what it has read (environment
//! variables, directories), and the engine returns data. It prints nothing and reads no environment variable.

mod claim;
mod failpoint;
mod reconcile;
mod session;
mod sessions;
mod steps;
mod store;

pub use failpoint::Failpoints;
pub use reconcile::{Action, Applied, Effect, Foreign, Plan, Unlisted, Unneeded};
pub use session::{
    Cause, EventFilter, LOG_LINES, Session, SessionEvent, SessionFilter, SessionId, SessionState, SessionSummary,
    Wanted,
};
pub use sessions::{
    GitCredentials, OpenProgress, OpenSession, SECRET_VARIABLE, SESSION_VARIABLE, STOP_GRACE, SessionWorkspace,
    Sessions,
};
pub use steps::Steps;
pub use store::{Store, StoreProblem};
