//! What a shell completes: commands and options, from the command line's own description, and the sandboxes there are.
//!
//! The shell calls this program with a variable set; see `kennel completions`.

use crate::cli::Cli;
use crate::places::Places;
use crate::providers::Providers;
use crate::{environment, report};
use clap::CommandFactory;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use kennel_core::printable;
use kennel_image::Store;
use std::ffi::OsStr;
use std::time::Duration;

/// Nobody waits longer for a completion: an engine that hangs is left out.
const WITHIN: Duration = Duration::from_secs(1);

/// Answers the shell, if it is the shell that asks, and ends.
pub(crate) fn answer_the_shell() {
    if environment::is_completing() {
        report::set_silent();
        CompleteEnv::with_factory(Cli::command).var(environment::COMPLETE).complete();
    }
}

/// What a shell has to read once.
pub(crate) fn registration(shell: &str) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or(std::io::ErrorKind::Unsupported)?;
    shell.write_registration(environment::COMPLETE, "kennel", "kennel", "kennel", &mut text)?;
    Ok(text)
}

/// For an argument that names a sandbox.
pub(crate) fn sandboxes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(""))
}

/// For an argument that names an image.
pub(crate) fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let images = Places::find().ok().and_then(|places| Store::open(places.images()).ok()?.list().ok());
        images.unwrap_or_default().iter().map(|image| CompletionCandidate::new(image.reference.familiar())).collect()
    })
}

/// For an argument that is a path here, or one in a sandbox.
pub(crate) fn places() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = PathCompleter::any().stdio().complete(typed);
        let begun = |it: &CompletionCandidate| it.get_value().as_encoded_bytes().starts_with(typed.as_encoded_bytes());
        found.extend(named(":").into_iter().filter(begun));
        found
    })
}

/// Names, and ids of those that have none.
fn named(suffix: &str) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let providers = Providers::new(None);
    let listing = runtime.block_on(async { tokio::time::timeout(WITHIN, providers.list()).await });
    let Ok(Ok(listing)) = listing else { return Vec::new() };
    let candidate = |info: kennel_types::SandboxInfo| {
        let help = format!("{}, {}", printable(&info.provider), info.status);
        CompletionCandidate::new(format!("{}{suffix}", info.name)).help(Some(help.into()))
    };
    listing.found.into_iter().map(candidate).collect()
}
