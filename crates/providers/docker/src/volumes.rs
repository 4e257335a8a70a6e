//! Volumes: one that belongs to a sandbox and survives its removal, and shared ones.
//!
//! An engine has one set of volume names for all its users. So the names, and labels, contain the installation.

use crate::engine::status;
use crate::mounts::clean_target;
use crate::{Docker, labels};
use bollard::models::{Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::RemoveVolumeOptionsBuilder;
use kennel_core::{Error, Result, check_name};
use kennel_types::{ErrorCode, Field, NextStep, SandboxSpec};
use std::collections::HashMap;

/// The path of a sandbox's own volume inside.
pub(crate) const DATA: &str = "/.data";

/// A volume of a new sandbox.
#[derive(Debug, PartialEq)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) target: String,
    labels: HashMap<String, String>,
}

impl Docker {
    /// The name of the data volume for a sandbox name.
    pub(crate) fn data_volume(&self, sandbox: &str) -> String {
        format!("{}data-{}-{sandbox}", self.prefix.as_str(), self.installation)
    }

    /// Returns the volumes of a sandbox with this name.
    pub(crate) fn volumes(&self, spec: &SandboxSpec, name: &str) -> Result<Vec<Volume>> {
        let labelled = |key: &str, value: &str| {
            let ours = [(labels::KENNEL, "true"), (labels::INSTALLATION, self.installation.as_str()), (key, value)];
            let project = spec.project.as_deref().map(|project| (labels::PROJECT, project));
            ours.into_iter().chain(project).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let mut volumes = Vec::new();
        if spec.data && spec.tied && spec.name.is_none() {
            let message = "a data volume needs a sandbox with a name: this one has none, and is removed at once";
            return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Name)));
        }
        if spec.data {
            let name_of_it = self.data_volume(name);
            volumes.push(Volume { name: name_of_it, target: DATA.into(), labels: labelled(labels::NAME, name) });
        }
        for cache in &spec.caches {
            check_name(&cache.name)?;
            if !cache.target.starts_with('/') {
                let message = format!("cache {} at {}: the path must be absolute", cache.name, cache.target);
                return Err(Error::new(ErrorCode::InvalidConfig, message));
            }
            let target = clean_target(&cache.target)?;
            let name = format!("{}cache-{}-{}", self.prefix.as_str(), self.installation, cache.name);
            volumes.push(Volume { name, target, labels: labelled(labels::CACHE, &cache.name) });
        }
        let mut targets: Vec<&str> = volumes.iter().map(|volume| volume.target.as_str()).collect();
        targets.extend(spec.mounts.iter().map(|mount| mount.target.trim_end_matches('/')));
        targets.sort_unstable();
        if let Some([twice, _]) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("two mounts or volumes have the same path {twice}");
            return Err(Error::new(ErrorCode::InvalidConfig, message).advise("choose another path for one of them"));
        }
        Ok(volumes)
    }

    /// Creates missing volumes. Existing ones stay as they are.
    pub(crate) async fn make_volumes(&self, volumes: &[Volume]) -> Result<()> {
        for volume in volumes {
            let request = VolumeCreateRequest {
                name: Some(volume.name.clone()),
                labels: Some(volume.labels.clone()),
                ..VolumeCreateRequest::default()
            };
            let made = self.engine.api().await?.create_volume(request).await;
            // Podman has another status for an existing one.
            match made {
                Err(error) if status(&error) == Some(409) || error.to_string().contains("already exists") => {}
                made => {
                    made.map_err(|error| self.engine.error(format!("create the volume {}", volume.name), error))?;
                }
            }
        }
        Ok(())
    }

    /// Removes a sandbox's own volume, if there is one.
    pub(crate) async fn remove_data(&self, name: &str) -> Result<()> {
        let query = RemoveVolumeOptionsBuilder::default().build();
        match self.engine.api().await?.remove_volume(name, Some(query)).await {
            Err(error) if status(&error) != Some(404) => {
                Err(self.engine.error(format!("remove the volume {name}"), error))
            }
            _ => Ok(()),
        }
    }
}

impl Volume {
    /// Returns the mount in the engine's form.
    pub(crate) fn mount(&self) -> Mount {
        Mount {
            typ: Some(MountType::VOLUME),
            source: Some(self.name.clone()),
            target: Some(self.target.clone()),
            read_only: Some(false),
            ..Mount::default()
        }
    }
}
