//! Volumes in memory.

use crate::tree::Tree;
use crate::{MockSandbox, keeper};
use kennel_core::{Error, Result, VolumeOptions, printable};
use kennel_types::{SandboxId, SandboxSpec, VolumeInfo, VolumeKind, VolumeUser};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The path of a sandbox's own volume inside.
const DATA: &str = "/.data";

/// All volumes, by their names.
#[derive(Default)]
pub(crate) struct Volumes(BTreeMap<String, Volume>);

struct Volume {
    kind: VolumeKind,
    workspace: Option<PathBuf>,
    project: Option<String>,
    created_ms: u64,
    tree: Arc<Tree>,
}

impl Volumes {
    /// Returns the volumes of a new sandbox: names, paths inside and files. Missing ones are created.
    pub(crate) fn made_for(&mut self, spec: &SandboxSpec, sandbox: &str) -> Vec<(String, String, Arc<Tree>)> {
        let own = spec.data.then_some((VolumeKind::Data, sandbox, DATA));
        let caches = spec.caches.iter().map(|cache| (VolumeKind::Cache, cache.name.as_str(), cache.target.as_str()));
        let made = own.into_iter().chain(caches).map(|(kind, of, target)| {
            let name = kind.volume(of);
            let volume = self.0.entry(name.clone()).or_insert_with(|| Volume {
                kind,
                workspace: spec.workspace.clone(),
                project: spec.project.clone(),
                created_ms: keeper::created_ms(),
                tree: Arc::default(),
            });
            (name, target.to_owned(), volume.tree.clone())
        });
        made.collect()
    }

    pub(crate) fn list(
        &self,
        rooms: &BTreeMap<SandboxId, MockSandbox>,
        options: VolumeOptions,
        provider: &str,
    ) -> Vec<VolumeInfo> {
        let info = |(name, volume): (&String, &Volume)| VolumeInfo {
            name: name.clone(),
            provider: provider.to_owned(),
            kind: volume.kind,
            workspace: volume.workspace.clone(),
            project: volume.project.clone(),
            size: options.sizes.then(|| volume.tree.size()),
            created_ms: Some(volume.created_ms),
            used_by: users(name, rooms).collect(),
        };
        self.0.iter().map(info).collect()
    }

    /// Removes a volume that no sandbox uses.
    pub(crate) fn remove(&mut self, name: &str, rooms: &BTreeMap<SandboxId, MockSandbox>) -> Result<()> {
        if let Some(user) = users(name, rooms).next() {
            return Err(Error::volume_in_use(name, user.name));
        }
        self.0.remove(name).map(drop).ok_or_else(|| Error::no_volume(printable(name)))
    }

    /// Removes a sandbox's own volume, unless another sandbox uses it.
    pub(crate) fn remove_own(&mut self, id: &SandboxId, rooms: &BTreeMap<SandboxId, MockSandbox>) -> Result<()> {
        let volumes = rooms.get(id).map(|room| room.volumes.as_slice()).unwrap_or_default();
        let is_own = |name: &&String| VolumeKind::split(name).is_some_and(|(kind, _)| kind == VolumeKind::Data);
        let Some(own) = volumes.iter().find(is_own) else { return Ok(()) };
        if let Some(other) = users(own, rooms).find(|user| user.id != *id) {
            return Err(Error::volume_in_use(own, other.name));
        }
        self.0.remove(own);
        Ok(())
    }
}

/// The sandboxes that use a volume.
fn users(volume: &str, rooms: &BTreeMap<SandboxId, MockSandbox>) -> impl Iterator<Item = VolumeUser> {
    let uses = move |(_, room): &(&SandboxId, &MockSandbox)| room.volumes.iter().any(|name| name == volume);
    rooms.iter().filter(uses).map(|(id, room)| VolumeUser { id: id.clone(), name: room.name(id).to_owned() })
}
