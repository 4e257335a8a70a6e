//! Settings: the files they stand in, the layers they come from, and the form they must have.
//!
//! Every format is read into one tree of [`Node`]s that know their line and column. A tree is checked against the
//! shape of [`Config`], which gives a [`Tree`] of settings that know their origin; layers of those are merged, and the
//! result becomes a [`Config`]. The published schema, the check, the environment variables and the built-in layer all
//! come from the one declaration in [`Config`].
//!
//! This room checks form only. It never asks whether an image, an engine or a directory exists, prints nothing, and
//! reads no environment variable: the caller passes environment and directories in.

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
mod places;
mod quantity;
mod schema;
mod shape;
mod tree;

pub use edit::set;
pub use environment::{EnvVar, Environment, environment_variables, is_ours};
pub use error::{Error, Problem, What};
pub use grants::{Grant, GrantedPath};
pub use key::{InvalidKey, KeyPath};
pub use layers::{Layer, Layered, Origin};
pub use load::{Loaded, Sources, check_text, load, validate};
pub use location::{Location, Source};
pub use model::{
    AgentContainer, AgentMode, AgentSection, Config, ContainerSection, ImagesSection, OnUnavailable, Profile, Provider,
    SandboxSection, VmSection,
};
pub use node::{Key, Node, Value};
pub use parse::{Format, MAX_BYTES, MAX_DEPTH, parse};
pub use places::{Owner, Place, paths};
pub use quantity::{Cpus, Network, Port, Time, Volume};
pub use schema::schema;
pub use tree::{Setting, Tree};
