//! The command line as a user meets it: the real program, in a home of its own, on every provider.

mod bun;
mod config;
mod copy;
mod doctor;
mod engines;
mod escapes;
mod failures;
mod git;
mod idle;
mod images;
mod lifecycle;
mod profiles;
mod run;
mod sessions;
mod settings;
mod suite;
mod support;
mod terminal;
mod trust;
mod usage;
mod volumes;
mod walk;
mod watching;
mod words;
mod workspace_files;
