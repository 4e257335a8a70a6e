//! What a project's files give away. A project may be anyone's: what its settings open up beyond what a sandbox has by
//! itself is for the user to allow.

use crate::{KeyPath, Layer, Layered, OnUnavailable, Port, Provider, Setting, Volume};
use kennel_types::NetworkMode;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// A setting of a project's file that opens something up.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant<'a> {
    /// Its key.
    pub key: KeyPath,
    /// The setting.
    pub setting: &'a Setting,
    /// What it opens up.
    pub what: &'static str,
}

impl Layered {
    /// What the project's files open up in the sections `sandbox` and `images`, for new sandboxes. `real` resolves links: what looks
    /// like a directory of the project may be a link to another.
    pub fn grants(&self, real: &dyn Fn(&Path) -> PathBuf) -> Vec<Grant<'_>> {
        let of_project = |(_, setting): &(KeyPath, &Setting)| setting.origin.layer == Layer::Project;
        // What the user has closed, a project may not open.
        let shut = Shut {
            network: self.user_says("sandbox.network", &NetworkMode::None),
            root: self.user_says("sandbox.readOnly", &true),
        };
        let in_force = |(key, _): &(KeyPath, &Setting)| {
            key.segments().first().is_some_and(|name| name == "sandbox" || name == "images")
        };
        self.settings()
            .filter(of_project)
            .filter(in_force)
            .filter_map(|(key, setting)| {
                let what = opens(&key, setting, shut, real)?;
                Some(Grant { key, setting, what })
            })
            .collect()
    }

    /// Whether the user's own file says that.
    fn user_says<T: DeserializeOwned + PartialEq>(&self, key: &str, value: &T) -> bool {
        let says = |(_, setting): &(KeyPath, &Setting)| {
            setting.origin.layer == Layer::User && read::<T>(setting).as_ref() == Some(value)
        };
        self.explain(key).is_ok_and(|layers| layers.iter().any(says))
    }
}

/// What the user's own settings do not give.
#[derive(Clone, Copy)]
struct Shut {
    network: bool,
    /// To write to the root.
    root: bool,
}

fn opens(key: &KeyPath, setting: &Setting, shut: Shut, real: &dyn Fn(&Path) -> PathBuf) -> Option<&'static str> {
    let outside = |path: &Path| {
        let project = project_of(setting);
        project.is_none_or(|project| !real(path).starts_with(real(&project)))
    };
    // All of it: with it someone else's image comes under a name that you trust, or fills your disk.
    if key.segments()[0] == "images" {
        let size = key.segments()[1..] == ["maxSize"];
        return Some(if size { "how much an image may take" } else { "where your images come from" });
    }
    let found = match key.segments()[1..].iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["enabled"] => (read(setting) == Some(false)).then_some("commands run without a sandbox"),
        ["onUnavailable"] => {
            (read(setting) == Some(OnUnavailable::RunDirectly)).then_some("commands may run without a sandbox")
        }
        ["provider"] => (read(setting) == Some(Provider::Local)).then_some("commands run without a sandbox"),
        ["network"] => match read(setting) {
            Some(NetworkMode::Host) => Some("the network of this machine"),
            Some(NetworkMode::Bridge) if shut.network => Some("a network, which your own settings do not give"),
            _ => None,
        },
        ["readOnly"] => (shut.root && read(setting) == Some(false))
            .then_some("a root that is written to, which your own settings do not give"),
        // One may hold less than the engine's usual.
        ["runtime"] => Some("what your engine runs containers with"),
        ["userns"] => Some("who root inside is outside"),
        // Who takes a port may be taken for someone else.
        ["ports"] => read(setting)
            .is_some_and(|ports: Vec<Port>| ports.iter().any(|port| port.host.is_some()))
            .then_some("a port of this machine"),
        ["workspace"] => read(setting)
            .is_some_and(|path: PathBuf| outside(&path))
            .then_some("a directory outside the project, to read and write"),
        ["volumes"] => read(setting)
            .is_some_and(|volumes: Vec<Volume>| volumes.iter().any(|volume| outside(&volume.host)))
            .then_some("files outside the project"),
        ["extraToolchains"] => Some("directories of this machine, to read"),
        ["nesting"] => (read(setting) == Some(true)).then_some("more of the kernel"),
        ["vm", ..] if setting.value.is_string() && setting.written.as_str().is_some_and(|text| text.contains('/')) => {
            Some("files of this machine")
        }
        _ => None,
    };
    found.or_else(|| names_a_variable(&setting.written).then_some("a variable of your environment"))
}

fn read<T: DeserializeOwned>(setting: &Setting) -> Option<T> {
    serde_json::from_value(setting.value.clone()).ok()
}

/// The project that a setting's file is of: its directory, or the one above if that is a hidden one for settings.
fn project_of(setting: &Setting) -> Option<PathBuf> {
    let dir = setting.origin.file()?.parent()?;
    let hidden = dir.file_name().is_some_and(|name| name == ".kennel" || name == ".openagents");
    Some(if hidden { dir.parent()? } else { dir }.to_owned())
}

fn names_a_variable(written: &serde_json::Value) -> bool {
    match written {
        serde_json::Value::String(text) => text.replace("$$", "").contains("${"),
        serde_json::Value::Array(items) => items.iter().any(names_a_variable),
        serde_json::Value::Object(entries) => entries.values().any(names_a_variable),
        _ => false,
    }
}
