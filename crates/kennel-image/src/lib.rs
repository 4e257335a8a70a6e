//! Images: from a registry, an archive or plain files into a [`Store`] of unpacked layers that sandboxes are made of.
//!
//! Everything that comes from outside is checked against its digest, and held to [`Limits`] while it streams; what is
//! refused leaves nothing behind. Layers are unpacked once and shared. This room knows nothing of sandboxes: who makes
//! one takes an image with [`Store::hold`], and notes its layers where the sandbox is.
//!
//! It prints nothing, reads no environment variable and never changes directory.

mod credentials;
mod digest;
mod error;
mod image;
mod layer;
mod limits;
mod load;
mod operation;
mod progress;
mod pull;
mod reference;
mod store;
mod sweep;
mod tree;

pub use credentials::{Credentials, Login};
pub use digest::Digest;
pub use error::{Error, Result};
pub use image::{Image, ImageConfig};
pub use layer::unpack_layer;
pub use limits::Limits;
pub use load::LoadOptions;
pub use progress::{Doing, Progress, Tell};
pub use pull::{Proxies, PullOptions};
pub use reference::Reference;
pub use store::{Held, Kind, Store, noted_below};
pub use sweep::{InUse, Removed};
