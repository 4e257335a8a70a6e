//! Options that several commands share, and their conversion to the library's types.

mod exec;
mod host_path;
mod lasting;
mod pool;
mod program;
mod sandbox;
mod value;

pub(crate) use exec::ExecOptions;
pub(crate) use host_path::existing;
pub(crate) use lasting::LastingOptions;
pub(crate) use pool::PoolOptions;
pub(crate) use program::ProgramOptions;
pub(crate) use sandbox::SandboxOptions;
pub(crate) use value::{EnvironmentOptions, TimeLimit, label};
