//! Images: from a registry, an archive or plain files into a [`Store`] of unpacked layers, from which sandboxes are
//! created.
//!
//! Everything from outside is verified against its digest and limited by [`Limits`] while it streams. Refused input
//! leaves nothing behind. Layers are unpacked once and shared. This crate knows nothing about sandboxes: the program
//! that creates one locks an image with [`Store::hold`], and records its layers in the sandbox's directory.
//!
//! Without the feature `registries`, nothing can be pulled, and no HTTP or TLS code is built.
//!
//! This crate prints nothing, reads no environment variable and never changes the working directory.

#![cfg_attr(not(feature = "registries"), allow(dead_code))] // code that only pulling uses

#[cfg(feature = "registries")]
mod credentials;
mod digest;
mod error;
mod image;
mod layer;
mod limits;
mod load;
mod operation;
mod progress;
#[cfg(feature = "registries")]
mod pull;
mod reference;
mod store;
mod sweep;
mod tree;

#[cfg(feature = "registries")]
pub use credentials::{Credentials, Login};
pub use digest::Digest;
pub use error::{Error, Result};
pub use image::{Image, ImageConfig};
pub use layer::unpack_layer;
pub use limits::Limits;
pub use load::LoadOptions;
pub use progress::{Doing, Progress, Tell};
#[cfg(feature = "registries")]
pub use pull::{Proxies, PullOptions};
pub use reference::Reference;
pub use store::{Held, Store, StoreOwner, noted_below};
pub use sweep::{InUse, Removed};
