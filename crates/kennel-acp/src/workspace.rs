//! The workspace of an agent. Client and agent exchange absolute paths, so it is at the same path inside and outside, unless the
//! user chose another path inside.

use crate::paths::PathMap;
use kennel_core::{Error, Result, printable_path};
use kennel_types::{ErrorCode, Mode, Mount, SandboxSpec, Support};

/// Mounts the workspace of a sandbox at a chosen path, which becomes the working directory. Returns how paths are rewritten.
pub fn at_chosen_path(spec: &mut SandboxSpec, mode: &Mode, inside: &str) -> Result<PathMap> {
    let invalid = |message: String| Error::new(ErrorCode::InvalidConfig, message);
    let Some(workspace) = &spec.workspace else {
        return Err(invalid(format!("the workspace cannot be at {inside}: there is none")));
    };
    let Some(outside) = workspace.to_str().map(ToOwned::to_owned) else {
        return Err(invalid(format!("the path of the workspace {} is not UTF-8", printable_path(workspace))));
    };
    let inside = match inside.trim_end_matches('/') {
        path if path.starts_with('/') && !path.split('/').any(|part| part == "..") => path.to_owned(),
        _ => return Err(invalid(format!("the workspace cannot be at {inside:?}: expected an absolute path"))),
    };
    if mode.mounts != Support::Given {
        let message = format!("the workspace at {inside}: {} has no mounts", mode.provider());
        return Err(Error::new(ErrorCode::Unsupported, message).advise("leave the workspace at its own path"));
    }
    if inside != "/workspace" && spec.mounts.iter().all(|mount| mount.target != inside) {
        spec.mounts.push(Mount { host: workspace.clone(), target: inside.clone(), read_only: false });
    }
    spec.workdir.get_or_insert_with(|| inside.clone());
    Ok(PathMap { outside, inside })
}

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
