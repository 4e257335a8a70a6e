//! The store through its public surface.

mod common;
mod load;
mod pull;
mod store;
