//! Host paths on the command line.
//!
//! Processes in a sandbox can replace a directory of the workspace by a symlink. So a relative path must not lead out
//! of the directory it starts from. Symlinks in an absolute path are followed, because the user chose the whole path.

use crate::next_step::Hint;
use kennel_core::{Error, Result};
use kennel_engine::request::missing_path;
use kennel_types::ErrorCode;
use std::path::{Component, Path, PathBuf};

/// Resolves the symlinks in a path, which must exist. A relative path must stay beneath the current directory, or
/// beneath the parent directory that its leading `..` name.
pub(crate) fn existing(path: &Path, option: &str) -> Result<PathBuf> {
    existing_in(path, option, None)
}

/// Resolves the symlinks in a path like [`existing`]. A relative path that starts in the workspace must also stay
/// beneath it. `workspace` must not contain symlinks.
pub(super) fn existing_in(path: &Path, option: &str, workspace: Option<&Path>) -> Result<PathBuf> {
    let real = path.canonicalize().map_err(|error| missing_path(path, option, error))?;
    if path.is_absolute() {
        return Ok(real);
    }
    let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
    let mut parts = path.components().filter(|part| *part != Component::CurDir).peekable();
    let mut base = here;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        base.pop();
    }
    let named = base.join(parts.collect::<PathBuf>());
    let workspace = workspace.filter(|workspace| named.starts_with(workspace));
    for outer in [Some(base.as_path()), workspace].into_iter().flatten() {
        if !real.starts_with(outer) {
            let message =
                format!("{option} {}: the path leads out of {} to {}", path.display(), outer.display(), real.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .hint(format!("if you mean that path, name it directly: {}", real.display())));
        }
    }
    Ok(real)
}
