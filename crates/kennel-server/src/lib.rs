//! The HTTP server: the engine for other programs and languages.
//!
//! [`Server`] answers requests on TCP and on a unix socket, with the resident process of the same state directory beside it.
//! Every route is added by one function (`routes.rs`), which demands what the OpenAPI document and the authorisation need. So
//! no route can be without either. Handlers hold no logic of sandboxes: they convert requests for the engine and its results
//! for the client.
//!
//! Like every library here, this crate prints nothing and reads no environment variable. It logs with `tracing`.

mod acp;
mod app;
mod auth;
mod build_dir;
mod convert;
mod error;
mod expiry;
mod extract;
mod handlers;
mod host;
mod idempotent;
mod limits;
mod metrics;
mod one_time;
mod openapi;
mod patience;
mod paused;
mod permissions;
mod ports;
mod previews;
mod request_id;
mod revocation;
mod routes;
mod serve;
mod streams;
mod strict;
mod tickets;
mod tls;
mod token_file;

pub use openapi::document;
pub use serve::{Listen, Passed, Server, ServerOptions};
pub use tls::Certificate;
pub use token_file::keep_token_file;
