//! The engine: everything that makes a sandbox last beyond one command, for every front end.
//!
//! The command line, a server or your own program calls it. A front end passes in what it has read (environment
//! variables, directories), and the engine returns data. It prints nothing and reads no environment variable.

mod amendments;
mod bridges;
pub mod caller;
mod cancel;
mod choose;
mod claim;
mod create;
mod directories;
pub mod endpoint;
mod engine;
mod events;
mod failpoint;
mod filter;
mod idempotency;
mod idle;
mod lock_file;
mod messages;
mod pool;
pub mod profiles;
mod reattach;
mod reconcile;
pub mod request;
mod resident;
mod secrets;
mod session;
mod sessions;
pub mod settings;
mod steps;
mod store;
mod tokens;
mod volumes;

pub use amendments::{Amendment, Amendments};
pub use bridges::{BridgeProgram, serve_bridges};
pub use caller::Caller;
pub use cancel::Cancel;
pub use choose::{Choice, Directly, PassedOver};
pub use create::{create_claimed, create_sandbox, create_sandbox_with_id, discard};
pub use directories::Directories;
pub use engine::{Engine, FoundLeftover, Listing, LookUp, Silent};
pub use events::{EngineEvent, EventReader, Events, ListedSandbox, NumberedEvent};
pub use failpoint::Failpoints;
pub use filter::Filter;
pub use idempotency::{Begun, IdempotencyKeys};
pub use idle::IdleTimes;
pub use kennel_native::{EarlyJail, ForkedJail};
pub use kennel_provider::labels;
pub use messages::{AgentRecord, Batch, Continued, Direction, Message, Messages, OutputRecord};
pub use pool::{Claimed, MAX_MEMBERS, Pool, PoolClaims, PoolResult, PoolStatus, PoolUse, Pools, SessionMembers};
pub use profiles::{OrphanedProfile, Profile, ProfileStatus, Profiles};
pub use reattach::{Reattached, reattach};
pub use reconcile::{Action, Applied, Effect, Foreign, Plan, Unlisted, Unneeded};
pub use resident::{PoolCounts, Resident};
pub use secrets::SecretSource;
pub use session::{
    Cause, EventFilter, LOG_LINES, Session, SessionEvent, SessionFilter, SessionId, SessionState, SessionSummary,
    Wanted,
};
pub use sessions::{
    AgentEnd, GitCredentials, OpenProgress, OpenSession, SECRET_VARIABLE, SESSION_VARIABLE, STOP_GRACE,
    SessionWorkspace, Sessions,
};
pub use settings::Settings;
pub use steps::Steps;
pub use store::{Store, StoreObserver, StoreProblem, StoreUse};
pub use tokens::{NewToken, TokenInfo, TokenLimits, Tokens};
pub use volumes::{FoundVolume, VolumeListing};
