//! The volumes of all providers: which there are, which of them no sandbox uses, and their removal.

use crate::{Engine, Silent};
use kennel_core::{Error, Provider, Result, VolumeOptions, printable};
use kennel_types::{ErrorCode, NextStep, VolumeInfo, VolumeKind};
use std::sync::Arc;

/// The volumes of all providers, and the providers that could not list theirs.
#[derive(Default)]
pub struct VolumeListing {
    /// The volumes, in the order of their names.
    pub found: Vec<FoundVolume>,
    /// The providers that did not respond. Their volumes are missing.
    pub silent: Vec<Silent>,
}

/// A volume and its provider.
#[derive(Clone)]
pub struct FoundVolume {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The volume.
    pub info: VolumeInfo,
}

impl Engine {
    /// Lists all volumes. It is an error if a named provider cannot list its volumes; others are reported.
    pub async fn volumes(&self, options: VolumeOptions) -> Result<VolumeListing> {
        let list = |provider: Arc<dyn Provider>| async move {
            let volumes = provider.volumes(options).await?;
            Ok(volumes.into_iter().map(|info| FoundVolume { provider: provider.clone(), info }).collect::<Vec<_>>())
        };
        let (found, silent) = self.each(list).await?;
        let mut found: Vec<FoundVolume> = found.into_iter().flat_map(|(_, found)| found).collect();
        found.sort_by(|a, b| (&a.info.name, &a.info.provider).cmp(&(&b.info.name, &b.info.provider)));
        Ok(VolumeListing { found, silent })
    }
}

impl VolumeListing {
    /// Returns the volume with this name. It is an error if several providers have one.
    pub fn find(&self, name: &str) -> Result<&FoundVolume> {
        let named: Vec<&FoundVolume> = self.found.iter().filter(|found| found.info.name == name).collect();
        match named.as_slice() {
            [] => Err(Error::no_volume(printable(name))),
            [one] => Ok(one),
            several => {
                let kinds: Vec<_> = several.iter().map(|found| found.provider.mode().key.provider).collect();
                let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
                let message = format!("several providers have a volume {}: {}", printable(name), names.join(", "));
                Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::use_provider(kinds)))
            }
        }
    }

    /// Returns the data volumes that no sandbox uses, and on request also such caches. The volumes of providers that did
    /// not respond are not among them.
    pub fn unused(self, caches: bool) -> Vec<FoundVolume> {
        let is_wanted = |info: &VolumeInfo| info.used_by.is_empty() && (info.kind == VolumeKind::Data || caches);
        self.found.into_iter().filter(|found| is_wanted(&found.info)).collect()
    }
}

impl FoundVolume {
    /// Removes the volume and its content. Fails with `conflict` if a sandbox uses it by now.
    pub async fn remove(&self) -> Result<()> {
        self.provider.remove_volume(&self.info.name).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Directories};
    use kennel_core::{RemoveOptions, Sandbox};
    use kennel_mock::{Call, Fault, Mock};
    use kennel_types::{Cache, SandboxSpec};

    fn engine(mocks: &[&Mock]) -> Engine {
        let providers = mocks.iter().map(|mock| Arc::new((*mock).clone()) as Arc<dyn Provider>);
        Engine::with_providers(Caller::default(), Directories::new("/nowhere", "/nowhere", None), providers)
    }

    async fn sandbox(mock: &Mock, name: &str) -> Sandbox {
        let caches = vec![Cache::new("npm", "/cache")];
        let spec = SandboxSpec { name: Some(name.into()), data: true, caches, ..SandboxSpec::default() };
        Sandbox::create(Arc::new(mock.clone()), &spec).await.unwrap()
    }

    fn names(found: &[FoundVolume]) -> Vec<&str> {
        found.iter().map(|found| found.info.name.as_str()).collect()
    }

    #[tokio::test]
    async fn only_volumes_without_a_sandbox_are_unused() {
        let mock = Mock::new();
        let engine = engine(&[&mock]);
        let list = async || engine.volumes(VolumeOptions::default()).await.unwrap();
        let (gone, kept) = (sandbox(&mock, "gone").await, sandbox(&mock, "kept").await);
        assert_eq!(names(&list().await.found), ["cache-npm", "data-gone", "data-kept"]);
        assert!(list().await.unused(true).is_empty());
        gone.remove(RemoveOptions::default()).await.unwrap();
        assert_eq!(names(&list().await.unused(true)), ["data-gone"]);
        let listed = list().await;
        kept.remove(RemoveOptions::default()).await.unwrap();
        assert_eq!(names(&list().await.unused(false)), ["data-gone", "data-kept"]);
        assert_eq!(names(&list().await.unused(true)), ["cache-npm", "data-gone", "data-kept"]);
        // A sandbox that was created after the listing keeps its volumes.
        let _new = sandbox(&mock, "gone").await;
        let error = listed.find("data-gone").unwrap().remove().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Conflict);
        listed.find("data-kept").unwrap().remove().await.unwrap();
        assert_eq!(names(&list().await.found), ["cache-npm", "data-gone"]);
        assert_eq!(list().await.find("data-kept").err().map(|error| error.code()), Some(ErrorCode::NotFound));
    }

    #[tokio::test]
    async fn a_failed_listing_has_no_unused_volumes() {
        let mock = Mock::new();
        sandbox(&mock, "gone").await.remove(RemoveOptions::default()).await.unwrap();
        mock.fault(Fault::Fails(Call::Volumes, ErrorCode::NotAvailable));
        let listing = engine(&[&mock]).volumes(VolumeOptions::default()).await.unwrap();
        assert_eq!(listing.silent.len(), 1);
        assert!(listing.unused(true).is_empty());
        mock.fault(Fault::Fails(Call::Volumes, ErrorCode::NotAvailable));
        let only = engine(&[&mock]).only(kennel_types::ProviderKind::Mock);
        assert!(only.volumes(VolumeOptions::default()).await.is_err());
    }
}
