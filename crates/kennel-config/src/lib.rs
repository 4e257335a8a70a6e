//! Settings: the files they are in, the layers they come from, and their schema.
//!
//! Every format is parsed into one tree of [`Node`]s with line and column. The tree is checked against the shape of
//! [`Config`], which results in a [`Tree`] of settings with their origin. Layers of these trees are merged, and the
//! result becomes a [`Config`]. The published schema, the check, the environment variables and the built-in layer are
//! all derived from the declaration of [`Config`].
//!
//! This crate checks syntax and types only. It never checks whether an image, an engine or a directory exists. It
//! prints nothing and reads no environment variable: the caller provides the environment and the directories.

mod check;
mod edit;
mod environment;
mod error;
mod expand;
mod file;
mod grants;
mod key;
mod layers;
mod leaf;
mod load;
mod location;
mod model;
mod node;
mod parse;
mod quantity;
mod schema;
mod search_paths;
mod shape;
mod tree;

pub use edit::set;
pub use environment::{EnvVar, Environment, environment_variables, is_ours};
pub use error::{Error, Problem, What};
pub use grants::{Grant, GrantedPath};
pub use key::{InvalidKey, KeyPath};
pub use layers::{Layered, Origin, SettingsLayer};
pub use load::{Loaded, PROFILES, Sources, check_profile, check_text, load, validate};
pub use location::{Location, Source};
pub use model::{
    AgentContainer, AgentMode, AgentSection, Config, ContainerSection, ImagesSection, OnUnavailable, Provider,
    SandboxOverrides, SandboxSection, VmSection,
};
pub use node::{Key, Node, Value};
pub use parse::{Format, MAX_BYTES, MAX_DEPTH, parse};
pub use quantity::{Cpus, Network, Port, Socket, Time, Volume};
pub use schema::schema;
pub use search_paths::{Owner, SearchPath, paths};
pub use tree::{Setting, Tree};
