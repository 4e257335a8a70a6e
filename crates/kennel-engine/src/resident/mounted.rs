//! What a member has mounted from the host. A container keeps the mounts that it was created with, so a member is not handed
//! out if a new container would have others: for example, if its workspace has become a git repository, whose hooks must be
//! read-only inside.

use kennel_core::{Error, Result};
use kennel_provider::pins;
use kennel_types::SandboxSpec;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The target of the workspace.
const WORKSPACE: &str = "/workspace";

/// The files and directories of the host that are mounted in a sandbox, and which of them are read-only.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mounted(Vec<(PathBuf, bool, u64, u64)>);

impl Mounted {
    /// Looks up what a sandbox would have now.
    pub(super) fn look_up(spec: &SandboxSpec) -> Result<Self> {
        let workspace = spec.workspace.iter().map(|dir| (dir, WORKSPACE, false));
        let mounts = spec.mounts.iter().map(|mount| (&mount.host, mount.target.as_str(), mount.read_only));
        let mut found = Vec::new();
        for (source, target, read_only) in workspace.chain(mounts) {
            found.push(identity(source, read_only)?);
            if !read_only {
                for pin in pins(spec, source, target)? {
                    found.push(identity(&source.join(pin.path), pin.read_only)?);
                }
            }
        }
        Ok(Self(found))
    }
}

fn identity(path: &Path, read_only: bool) -> Result<(PathBuf, bool, u64, u64)> {
    let failed = |error| Error::io(format!("look at {}, which a member of a pool mounts", path.display()), error);
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    Ok((path.to_owned(), read_only, found.dev(), found.ino()))
}
