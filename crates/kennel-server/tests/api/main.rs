//! The API over real connections, on the mock provider: every route's authorisation, and the behaviour of each resource.

mod authorisation;
mod changes;
mod client;
mod conventions;
mod faults;
mod resources;
mod stand;
