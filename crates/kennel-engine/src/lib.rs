//! The engine: everything that makes a sandbox last beyond one command, for every front end.
//!
//! The command line, a server or your own program calls it. A front end passes in what it has read (environment
//! variables, directories), and the engine returns data. It prints nothing and reads no environment variable.

pub mod caller;
mod choose;
mod directories;
pub mod endpoint;
mod engine;
mod filter;
pub mod profiles;
pub mod request;
pub mod settings;
mod volumes;

pub use caller::Caller;
pub use choose::{Choice, Directly, PassedOver};
pub use directories::Directories;
pub use engine::{Engine, FoundLeftover, Listing, LookUp, Silent};
pub use filter::Filter;
pub use profiles::{Profile, ProfileStatus, Profiles};
pub use settings::Settings;
pub use volumes::{FoundVolume, VolumeListing};
