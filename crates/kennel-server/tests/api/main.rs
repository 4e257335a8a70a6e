//! The API over real connections, on the mock provider and on native: every route's authorisation, and the behaviour of each
//! resource.

mod authorisation;
mod changes;
mod client;
mod conventions;
mod faults;
mod files;
mod inventory;
mod processes;
mod profiles;
mod resources;
mod sessions;
mod stand;
