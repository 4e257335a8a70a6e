//! Volumes: one that belongs to a sandbox and survives its removal, and shared ones.
//!
//! An engine has one set of volume names for all its users. So the names, and labels, contain the installation. Kennel
//! shows its volumes by shorter names, which are the same on every provider.
//!
//! A volume is removed only while the lock of the installation is held, which also the creation of a container holds.
//! The engine itself refuses to remove a volume of a container.

use crate::engine::{is_gone, status};
use crate::info::Container;
use crate::mounts::clean_target;
use crate::names::NamePrefix;
use crate::{Docker, labels};
use bollard::errors::Error as EngineError;
use bollard::models::{Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::RemoveVolumeOptionsBuilder;
use kennel_core::{Error, Provider, Result, VolumeOptions, check_name, printable};
use kennel_types::{ErrorCode, Field, NextStep, SandboxSpec, VolumeInfo, VolumeKind, VolumeUser};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The path of a sandbox's own volume inside.
pub(crate) const DATA: &str = "/.data";

/// How often a request for sizes is repeated if it fails because a container is removed meanwhile.
const RETRIES: u32 = 20;

/// How long a request for sizes is repeated while the engine measures for someone else, and the pauses in between.
const MEASURED_WITHIN: Duration = Duration::from_mins(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A volume of a new sandbox.
#[derive(Debug, PartialEq)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) read_only: bool,
    labels: HashMap<String, String>,
}

/// The engine's description of a volume.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    name: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
    #[serde(default)]
    usage_data: Option<Usage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Usage {
    /// Negative if it is not known.
    size: i64,
}

/// The reply to a request for volumes, or for disk usage.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listing {
    #[serde(default)]
    volumes: Option<Vec<Listed>>,
}

/// A volume of this installation.
struct Found {
    /// The engine's name of it.
    engine_name: String,
    info: VolumeInfo,
}

impl Docker {
    /// The name of the data volume for a sandbox name.
    pub(crate) fn data_volume(&self, sandbox: &str) -> String {
        format!("{}data-{}-{sandbox}", self.prefix.as_str(), self.installation)
    }

    /// Returns the volumes of a sandbox with this name.
    pub(crate) fn new_volumes(&self, spec: &SandboxSpec, name: &str) -> Result<Vec<Volume>> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
        let workspace = spec.workspace.as_ref().map(|dir| dir.to_string_lossy());
        let labelled = |key: &str, value: &str| {
            let ours = [
                (labels::KENNEL, "true"),
                (labels::INSTALLATION, self.installation.as_str()),
                (labels::CREATED, created.as_str()),
                (key, value),
            ];
            let project = spec.project.as_deref().map(|project| (labels::PROJECT, project));
            let workspace = workspace.as_deref().map(|workspace| (labels::WORKSPACE, workspace));
            let all = ours.into_iter().chain(project).chain(workspace);
            all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let mut volumes = Vec::new();
        if spec.data && spec.tied && spec.name.is_none() {
            let message = "a data volume needs a sandbox with a name: this one has none, and is removed at once";
            return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Name)));
        }
        if spec.data {
            let name_of_it = self.data_volume(name);
            let labels = labelled(labels::NAME, name);
            volumes.push(Volume { name: name_of_it, target: DATA.into(), read_only: false, labels });
        }
        for cache in &spec.caches {
            check_name(&cache.name)?;
            if !cache.target.starts_with('/') {
                let message = format!("cache {} at {}: the path must be absolute", cache.name, cache.target);
                return Err(Error::new(ErrorCode::InvalidConfig, message));
            }
            let target = clean_target(&cache.target)?;
            let name = format!("{}cache-{}-{}", self.prefix.as_str(), self.installation, cache.name);
            let labels = labelled(labels::CACHE, &cache.name);
            volumes.push(Volume { name, target, read_only: cache.read_only, labels });
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

    /// Returns all volumes of this installation, in the order of their names.
    pub(crate) async fn list_volumes(&self, options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        let (mut found, (containers, _)) = (self.found_volumes().await?, self.all().await?);
        let sizes = if options.sizes && !found.is_empty() { self.volume_sizes().await? } else { HashMap::new() };
        for Found { engine_name, info } in &mut found {
            info.size = sizes.get(engine_name).copied();
            info.used_by = users(engine_name, &containers).collect();
        }
        Ok(found.into_iter().map(|found| found.info).collect())
    }

    /// Returns the volumes of this installation, without sizes and users.
    async fn found_volumes(&self) -> Result<Vec<Found>> {
        let filters =
            serde_json::json!({ "label": [format!("{}={}", labels::INSTALLATION, self.installation)] }).to_string();
        let query: String = form_urlencoded::byte_serialize(filters.as_bytes()).collect();
        let listed: Listing = self
            .engine
            .ask(&format!("/volumes?filters={query}"))
            .await
            .map_err(|error| self.engine.error("list the volumes", error))?;
        let listed = listed.volumes.unwrap_or_default();
        let mut found: Vec<Found> = listed.into_iter().filter_map(|volume| self.read_volume(volume)).collect();
        found.sort_by(|a, b| a.info.name.cmp(&b.info.name).then_with(|| a.engine_name.cmp(&b.engine_name)));
        Ok(found)
    }

    /// Returns `None` for what is not a volume of this installation.
    fn read_volume(&self, volume: Listed) -> Option<Found> {
        let labels = volume.labels.unwrap_or_default();
        if labels.get(labels::INSTALLATION) != Some(&self.installation) {
            return None;
        }
        let kind = if labels.contains_key(labels::CACHE) {
            VolumeKind::Cache
        } else if labels.contains_key(labels::NAME) {
            VolumeKind::Data
        } else {
            return None;
        };
        let info = VolumeInfo {
            name: shown_name(&volume.name, kind, &self.installation),
            provider: self.name().to_owned(),
            kind,
            workspace: labels.get(labels::WORKSPACE).filter(|text| !text.is_empty()).map(Into::into),
            project: labels.get(labels::PROJECT).filter(|text| !text.is_empty()).cloned(),
            size: None,
            created_ms: labels.get(labels::CREATED).and_then(|text| text.parse().ok()),
            used_by: Vec::new(),
        };
        Some(Found { engine_name: volume.name, info })
    }

    /// Returns the sizes of all volumes of the engine. This is slow: the engine reads their directories.
    async fn volume_sizes(&self) -> Result<HashMap<String, u64>> {
        // An engine that does not know the parameter measures more.
        const USAGE: &str = "/system/df?type=volume";
        let mut usage = self.engine.ask::<Listing>(USAGE).await;
        let (mut gone, began, mut pause) = (0, Instant::now(), FIRST_PAUSE);
        loop {
            match &usage {
                // Podman also looks at all containers, and fails if one of them is removed meanwhile.
                Err(error) if is_gone(error) && gone < RETRIES => gone += 1,
                // Docker measures for one caller at a time, and refuses the others.
                Err(error) if is_measuring(error) && began.elapsed() < MEASURED_WITHIN => {
                    #[expect(clippy::disallowed_methods, reason = "a backoff: no event tells when Docker is done")]
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                _ => break,
            }
            usage = self.engine.ask(USAGE).await;
        }
        let usage = usage.map_err(|error| self.engine.error("measure the volumes", error))?;
        let size = |volume: Listed| Some((volume.name, u64::try_from(volume.usage_data?.size).ok()?));
        Ok(usage.volumes.unwrap_or_default().into_iter().filter_map(size).collect())
    }

    /// Removes a volume that no sandbox uses.
    pub(crate) async fn take_away_volume(&self, name: &str) -> Result<()> {
        let none = || Error::no_volume(printable(name));
        let _held = self.run_dirs.lock().await?;
        let mut found = self.found_volumes().await?;
        found.retain(|found| found.info.name == name);
        let [Found { engine_name, .. }] = found.as_slice() else {
            return Err(if found.is_empty() { none() } else { ambiguous(name, &found) });
        };
        let (containers, _) = self.all().await?;
        if let Some(user) = users(engine_name, &containers).next() {
            return Err(Error::volume_in_use(printable(name), user.name));
        }
        let query = RemoveVolumeOptionsBuilder::default().build();
        match self.engine.api().await?.remove_volume(engine_name, Some(query)).await {
            Err(error) if status(&error) == Some(404) => Err(none()),
            // A container that is no sandbox uses it, or one whose creator was killed.
            Err(error) if is_in_use(&error) => {
                let message = self.engine.error(format!("remove the volume {}", printable(name)), error).to_string();
                Err(Error::new(ErrorCode::Conflict, message).suggest(NextStep::CollectGarbage))
            }
            done => done.map_err(|error| self.engine.error(format!("remove the volume {}", printable(name)), error)),
        }
    }

    /// Removes a sandbox's own volume, if there is one.
    pub(crate) async fn remove_data(&self, name: &str) -> Result<()> {
        let _held = self.run_dirs.lock().await?;
        let query = RemoveVolumeOptionsBuilder::default().build();
        match self.engine.api().await?.remove_volume(name, Some(query)).await {
            Err(error) if status(&error) != Some(404) => {
                Err(self.engine.error(format!("remove the volume {name}"), error))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the engine refuses to measure because it is measuring for someone else.
fn is_measuring(error: &EngineError) -> bool {
    status(error).is_some() && error.to_string().contains("disk usage operation is already running")
}

/// Returns the name that Kennel shows: without the installation, and without the usual prefix.
fn shown_name(engine_name: &str, kind: VolumeKind, installation: &str) -> String {
    let usual = NamePrefix::default();
    match engine_name.split_once(&format!("{kind}-{installation}-")) {
        Some((prefix, of)) => format!("{}{}", prefix.strip_prefix(usual.as_str()).unwrap_or(prefix), kind.volume(of)),
        None => engine_name.to_owned(),
    }
}

/// The sandboxes that use a volume, whether they run or not.
fn users(engine_name: &str, containers: &[Container]) -> impl Iterator<Item = VolumeUser> {
    let uses = move |container: &&Container| container.volumes.iter().any(|volume| volume == engine_name);
    let user = |container: &Container| VolumeUser { id: container.id().clone(), name: container.info.name.clone() };
    containers.iter().filter(uses).map(user)
}

/// Whether the engine refused to remove a volume because a container uses it.
fn is_in_use(error: &bollard::errors::Error) -> bool {
    status(error) == Some(409) || (status(error) == Some(500) && error.to_string().contains("being used"))
}

/// The error for a name that several volumes have, because their names have prefixes that look like other names.
fn ambiguous(name: &str, found: &[Found]) -> Error {
    let names: Vec<String> = found.iter().map(|found| printable(&found.engine_name)).collect();
    let message = format!("there are {} volumes {}: {}", names.len(), printable(name), names.join(", "));
    Error::new(ErrorCode::Conflict, message).advise("remove one of them with the engine's own program")
}

impl Volume {
    /// Returns the mount in the engine's form.
    pub(crate) fn mount(&self) -> Mount {
        Mount {
            typ: Some(MountType::VOLUME),
            source: Some(self.name.clone()),
            target: Some(self.target.clone()),
            read_only: Some(self.read_only),
            ..Mount::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_the_same_names_as_on_other_providers() {
        let shown = |name: &str, kind| shown_name(name, kind, "4f2a");
        assert_eq!(shown("kennel-data-4f2a-box", VolumeKind::Data), "data-box");
        assert_eq!(shown("kennel-cache-4f2a-1b2c3d4e-npm", VolumeKind::Cache), "cache-1b2c3d4e-npm");
        assert_eq!(shown("kennel-data-4f2a-data-4f2a-box", VolumeKind::Data), "data-data-4f2a-box");
        assert_eq!(shown("dog-data-4f2a-box", VolumeKind::Data), "dog-data-box");
        assert_eq!(shown("kennel-data-ffff-box", VolumeKind::Data), "kennel-data-ffff-box");
    }
}
