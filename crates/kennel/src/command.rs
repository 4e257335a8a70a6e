//! The commands. Each has a file with its options and its calls to the library.

pub(crate) mod attach;
pub(crate) mod build;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod doctor;
mod each;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod gc;
pub(crate) mod image;
pub(crate) mod inspect;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod pause;
pub(crate) mod rename;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod version;
pub(crate) mod volume;
pub(crate) mod wait;
