//! A client of the HTTP API of `kennel serve`.
//!
//! [`Client`] has a method for each operation, with the types of `kennel-api`. [`CommandStream`] is a command or terminal over
//! a WebSocket; it survives lost connections if that is requested. Errors are those of the library and the command line.
//!
//! Like every library here, this crate prints nothing and reads no environment variable.

mod address;
mod client;
mod command;
mod connection;
mod error;
mod files;
mod inventory;
mod lines;
mod operations;
mod processes;
mod sessions;
mod tls;

pub use address::{Fingerprint, ServerAddress};
pub use client::Client;
pub use command::{CommandControl, CommandEvent, CommandInput, CommandStream};
pub use lines::Lines;
