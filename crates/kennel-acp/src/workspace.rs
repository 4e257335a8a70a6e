//! The workspace of an agent. Client and agent exchange absolute paths, so it is at the same path inside and outside.

use kennel_core::{Error, Result, printable_path};
use kennel_types::{ErrorCode, Mode, Mount, SandboxSpec, Support};

/// Mounts the workspace of a sandbox also at its own path, which becomes the working directory. On a provider without
/// mounts, the workspace is there anyway.
pub fn at_own_path(spec: &mut SandboxSpec, mode: &Mode) -> Result<()> {
    let Some(workspace) = &spec.workspace else { return Ok(()) };
    let Some(path) = workspace.to_str() else {
        let message = format!("the path of the workspace {} is not UTF-8", printable_path(workspace));
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    };
    let path = path.to_owned();
    let is_there = spec.mounts.iter().any(|mount| mount.target == path) || path == "/workspace";
    if mode.mounts == Support::Given && !is_there {
        spec.mounts.push(Mount { host: workspace.clone(), target: path.clone(), read_only: false });
    }
    spec.workdir.get_or_insert(path);
    Ok(())
}
