//! Shell completions for commands, options, sandboxes, volumes and images.
//!
//! For each completion, the shell runs this program with an environment variable set; see `kennel completions`.

use crate::cli::Cli;
use crate::{environment, report};
use clap::CommandFactory;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use kennel_core::{Result, VolumeOptions, printable};
use kennel_engine::{Engine, FoundVolume};
use std::ffi::OsStr;
use std::time::Duration;

/// The time limit for a completion. The sandboxes of an engine that does not respond in time are left out.
const WITHIN: Duration = Duration::from_secs(1);

/// If a shell requests completions, prints them and ends the process.
pub(crate) fn answer_the_shell() {
    if environment::is_completing() {
        report::set_silent();
        CompleteEnv::with_factory(Cli::command).var(environment::COMPLETE).complete();
    }
}

/// Returns the script that enables completions in a shell.
pub(crate) fn registration(shell: &str) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or(std::io::ErrorKind::Unsupported)?;
    shell.write_registration(environment::COMPLETE, "kennel", "kennel", "kennel", &mut text)?;
    Ok(text)
}

/// Completes an argument that is the name or id of a sandbox.
pub(crate) fn sandboxes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(""))
}

/// Completes an argument that is the name of a volume.
pub(crate) fn volumes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let listing = in_time(|engine| async move { engine.volumes(VolumeOptions::default()).await });
        let candidate =
            |FoundVolume { info, .. }| CompletionCandidate::new(info.name).help(Some(printable(&info.provider).into()));
        listing.unwrap_or_default().found.into_iter().map(candidate).collect()
    })
}

/// Completes an argument that is the name of a profile.
pub(crate) fn profiles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = environment::caller().ok().and_then(|caller| Engine::new(caller).profiles().ok()?.names().ok());
        names.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Completes an argument that is the name of a pool.
pub(crate) fn pools() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let pools = in_time(|engine| async move { engine.pools()?.list().await });
        pools.unwrap_or_default().into_iter().map(|pool| CompletionCandidate::new(pool.name)).collect()
    })
}

/// Completes an argument that is the name of an agent.
pub(crate) fn agents() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let presets = environment::caller().ok().and_then(|caller| {
            let dir = crate::command::agent::presets(&Engine::new(caller));
            kennel_acp::Preset::all(dir.as_deref()).ok()
        });
        presets.unwrap_or_default().into_iter().map(|preset| CompletionCandidate::new(preset.name)).collect()
    })
}

/// Completes an argument that is the name of an image.
pub(crate) fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let images = environment::caller().ok().and_then(|caller| Engine::new(caller).images().ok()?.list().ok());
        images.unwrap_or_default().iter().map(|image| CompletionCandidate::new(image.reference.familiar())).collect()
    })
}

/// Completes an argument that is a host path or `ID:PATH`.
pub(crate) fn places() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = PathCompleter::any().stdio().complete(typed);
        let begun = |it: &CompletionCandidate| it.get_value().as_encoded_bytes().starts_with(typed.as_encoded_bytes());
        found.extend(named(":").into_iter().filter(begun));
        found
    })
}

/// Returns the name of each sandbox, or its id if it has no name, with `suffix` appended.
fn named(suffix: &str) -> Vec<CompletionCandidate> {
    let Some(listing) = in_time(|engine| async move { engine.list().await }) else { return Vec::new() };
    let candidate = |info: kennel_types::SandboxInfo| {
        let help = format!("{}, {}", printable(&info.provider), info.status);
        CompletionCandidate::new(format!("{}{suffix}", info.name)).help(Some(help.into()))
    };
    listing.found.into_iter().map(candidate).collect()
}

/// Returns the result of a request to all providers, if it succeeds within the time limit.
fn in_time<T, F: Future<Output = Result<T>>>(request: impl FnOnce(Engine) -> F) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let request = request(Engine::new(environment::caller().ok()?));
    runtime.block_on(async { tokio::time::timeout(WITHIN, request).await }).ok()?.ok()
}
