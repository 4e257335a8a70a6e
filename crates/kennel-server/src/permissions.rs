//! What a caller without the scope `admin` may ask of a new sandbox. Everything that gives a sandbox more of the host than
//! the server's operator allowed by the token is refused, wherever it comes from: the request, or the settings.

use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use kennel_types::{ByteSize, GitProtection, Limits, NetworkMode, ProviderKind, SandboxSpec};
use std::path::{Path, PathBuf};

/// Checks a specification before anything is created, and completes it with the defaults of the token's limits.
pub(crate) fn check(identity: &Identity, provider: ProviderKind, spec: &mut SandboxSpec) -> Outcome<()> {
    limit(identity, spec)?;
    if identity.is_admin() {
        return Ok(());
    }
    for (asked, what) in [
        (provider == ProviderKind::Local, "the provider local, whose commands run on the host"),
        (spec.network == Some(NetworkMode::Host), "the network host"),
        (spec.nesting, "nesting"),
        (spec.runtime.is_some(), "another container runtime"),
        (spec.userns.is_some(), "another user namespace"),
        (spec.protect_git == GitProtection::None, "a repository without protection"),
        (!spec.sockets.is_empty(), "a socket of the host"),
        (spec.toolchains.as_ref().is_some_and(|toolchains| !toolchains.more.is_empty()), "additional toolchains"),
    ] {
        if asked {
            return Err(Failure::forbidden(format!("{what} needs the scope admin")));
        }
    }
    let allowed = directories(identity);
    let hosts = spec.mounts.iter().map(|mount| &mount.host).chain(&spec.workspace);
    for host in hosts {
        if !allowed.iter().any(|dir| host.starts_with(dir)) {
            // The path is the caller's own, so it may be in the message. Whether it exists is not said.
            let message = format!("{} is not below a directory that this token allows", host.display());
            return Err(Failure::forbidden(message));
        }
    }
    Ok(())
}

/// Resolves a path of the host that a request names. For a caller without the scope `admin`, a path elsewhere and a path
/// that does not exist are the same.
pub(crate) fn resolve(identity: &Identity, path: &str) -> Outcome<PathBuf> {
    if !Path::new(path).is_absolute() {
        return Err(Failure::invalid(format!("invalid path {path:?}: expected an absolute path of the server's host")));
    }
    let real = Path::new(path).canonicalize();
    if identity.is_admin() {
        return real.map_err(|error| Failure::invalid(format!("{path}: {error}")));
    }
    let allowed = directories(identity);
    real.ok()
        .filter(|real| allowed.iter().any(|dir| real.starts_with(dir)))
        .ok_or_else(|| Failure::forbidden(format!("{path} is not below a directory that this token allows")))
}

/// The directories of the token that exist, without symlinks.
fn directories(identity: &Identity) -> Vec<PathBuf> {
    let token = identity.token().into_iter().flat_map(|token| &token.directories);
    token.filter_map(|dir| Path::new(dir).canonicalize().ok()).collect()
}

/// Applies the limits of the token: a larger limit is refused, and a missing one becomes that of the token.
fn limit(identity: &Identity, spec: &mut SandboxSpec) -> Outcome<()> {
    check_limits(identity, &spec.limits)?;
    let Some(token) = identity.token() else { return Ok(()) };
    spec.limits.memory = spec.limits.memory.or(token.limits.memory_bytes.map(ByteSize));
    spec.limits.millicpus = spec.limits.millicpus.or(token.limits.millicpus);
    Ok(())
}

/// Refuses limits that are larger than those of the token.
pub(crate) fn check_limits(identity: &Identity, limits: &Limits) -> Outcome<()> {
    let Some(token) = identity.token() else { return Ok(()) };
    if let (Some(most), Some(asked)) = (token.limits.memory_bytes, limits.memory)
        && asked.0 > most
    {
        return Err(Failure::forbidden(format!(
            "the memory limit is larger than {most} bytes, which this token allows"
        )));
    }
    if let (Some(most), Some(asked)) = (token.limits.millicpus, limits.millicpus)
        && asked > most
    {
        let message = format!("the CPU limit is larger than {most} thousandths, which this token allows");
        return Err(Failure::forbidden(message));
    }
    Ok(())
}
