//! An image in the store.

use crate::error::{Error, Result, shown, unsound};
use crate::{Digest, Reference};
use kennel_types::ErrorCode;
use oci_spec::image::{Arch, ImageConfiguration, Os};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An image in the store, ready to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The full name.
    pub reference: Reference,
    /// The id: the digest of the configuration.
    pub id: Digest,
    /// The digest of the manifest, if the image came with one.
    pub manifest: Option<Digest>,
    /// The directories of its layers, lowest first and each only once, for an overlay.
    pub layers: Vec<PathBuf>,
    /// The digests of the layers' content, in the same order.
    pub diff_ids: Vec<Digest>,
    /// The total size of its files, unpacked, in bytes.
    pub size: u64,
    /// The time of creation in seconds since 1970, if the image states it.
    pub created: Option<i64>,
    /// The configuration: how the image is run.
    pub config: ImageConfig,
}

/// How an image is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageConfig {
    /// The environment, each entry as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The user: a name, an id, or `user:group`.
    pub user: Option<String>,
    /// The entry point: the program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments of the entry point, or the program and its arguments if there is no entry point.
    pub cmd: Vec<String>,
    /// Working directory.
    pub workdir: Option<String>,
    /// The signal that stops it, such as `SIGINT` or `2`.
    pub stop_signal: Option<String>,
    /// The ports that it listens on, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A verified image configuration.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) id: Digest,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) created: Option<i64>,
    pub(crate) config: ImageConfig,
}

impl Described {
    /// Parses a configuration. It must be for this architecture.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let read: ImageConfiguration = serde_json::from_slice(bytes)
            .map_err(|error| unsound(format!("parse the image's configuration: {}", for_message(&error))))?;
        if *read.os() != Os::Linux || *read.architecture() != Arch::default() {
            let message = format!(
                "the image is for {}/{}, but this machine is linux/{}",
                for_message(read.os()),
                for_message(read.architecture()),
                Arch::default()
            );
            return Err(Error::new(ErrorCode::Unsupported, message));
        }
        let diff_ids = read.rootfs().diff_ids().iter().map(|id| id.parse()).collect::<Result<Vec<_>>>()?;
        let created = read.created().as_deref().and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        let config = read.config().as_ref().map(run).unwrap_or_default();
        Ok(Self { id: Digest::compute(bytes), diff_ids, created: created.map(OffsetDateTime::unix_timestamp), config })
    }

    /// Creates a configuration for plain files, which have none.
    pub(crate) fn of_files(diff_id: Digest) -> Self {
        let text = format!(
            r#"{{"architecture":"{}","os":"linux","rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#,
            Arch::default()
        );
        let id = Digest::compute(text.as_bytes());
        Self { id, diff_ids: vec![diff_id], created: None, config: ImageConfig::default() }
    }
}

/// Prepares a value from an image for a message.
fn for_message(text: &impl ToString) -> String {
    shown(text.to_string().as_bytes())
}

fn run(config: &oci_spec::image::Config) -> ImageConfig {
    // Docker writes an empty value for one that is not set.
    let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    ImageConfig {
        env: config.env().clone().unwrap_or_default(),
        user: said(config.user()),
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        cmd: config.cmd().clone().unwrap_or_default(),
        workdir: said(config.working_dir()),
        stop_signal: said(config.stop_signal()),
        exposed_ports: config.exposed_ports().clone().unwrap_or_default(),
        labels: config.labels().clone().unwrap_or_default().into_iter().collect(),
    }
}

/// Removes duplicate layers, and keeps the upper one of each: it hides the lower one anyway. The kernel accepts no
/// directory twice.
pub(crate) fn each_once(layers: &[Digest]) -> Vec<Digest> {
    let later = |index: usize| &layers[index + 1..];
    layers.iter().enumerate().filter(|(index, id)| !later(*index).contains(id)).map(|(_, id)| *id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_layer_counts_at_its_highest_position() {
        let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| Digest::compute(bytes));
        assert_eq!(each_once(&[a, b, a, c, b]), [a, c, b]);
        assert_eq!(each_once(&[]), []);
    }

    #[test]
    fn image_configurations_of_docker_are_understood() {
        let diff = Digest::compute(b"");
        let text = format!(
            r#"{{"architecture":"{}","os":"linux","created":"2026-01-02T03:04:05.678Z","docker_version":"20.10",
            "container":"x","container_config":{{"Cmd":null}},"history":[{{"created":"2026-01-02T03:04:05Z"}}],
            "config":{{"Hostname":"","User":"","Env":["A=b"],"Cmd":["sh"],"Entrypoint":null,"WorkingDir":"","Labels":null,
            "ExposedPorts":{{"80/tcp":{{}}}},"Volumes":null,"OnBuild":null,"StopSignal":"SIGINT"}},
            "rootfs":{{"type":"layers","diff_ids":["{diff}"]}}}}"#,
            Arch::default()
        );
        let read = Described::read(text.as_bytes()).unwrap();
        assert_eq!(read.diff_ids, [diff]);
        assert_eq!(read.created, Some(1_767_323_045));
        let ImageConfig { env, user, entrypoint, cmd, workdir, stop_signal, exposed_ports, labels } = read.config;
        assert_eq!((env, cmd, exposed_ports), (vec!["A=b".into()], vec!["sh".into()], vec!["80/tcp".into()]));
        assert_eq!((user, workdir, stop_signal.as_deref()), (None, None, Some("SIGINT")));
        assert!(entrypoint.is_empty() && labels.is_empty());
    }

    #[test]
    fn another_architecture_is_refused() {
        let text = r#"{"architecture":"s390x","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        let error = Described::read(text.as_bytes()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.to_string().contains("linux/s390x"), "{error}");
    }

    #[test]
    fn images_of_plain_files_have_a_stable_id() {
        let diff = Digest::compute(b"x");
        assert_eq!(Described::of_files(diff).id, Described::of_files(diff).id);
        assert_ne!(Described::of_files(diff).id, Described::of_files(Digest::compute(b"y")).id);
    }
}
