//! The commands, one file each: its options, and what it does with the library.

pub(crate) mod attach;
pub(crate) mod cp;
pub(crate) mod create;
mod each;
pub(crate) mod exec;
pub(crate) mod inspect;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod stop;
