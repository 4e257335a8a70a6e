//! Finds what a project's settings would grant to a sandbox. Grants need the user's trust.
//!
//! A project may come from anyone, and commands in its sandbox can change its files and replace them by symlinks. A
//! project's setting needs trust in three cases: it gives a sandbox more than the default, it loosens what the user's
//! own file sets, or one of its paths is not a plain path in the project. [`RULES`](rules::RULES) decides this for each
//! key.

mod rules;

use crate::file::project_of;
use crate::shape::Shape;
use crate::{KeyPath, Layered, Setting, SettingsLayer, Socket, Volume};
use rules::{Opens, Over, Rule};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// A setting of a project's file that grants something.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant<'a> {
    /// The key.
    pub key: KeyPath,
    /// The setting.
    pub setting: &'a Setting,
    /// A description of what it grants.
    pub what: &'static str,
    /// The setting in the user's own file that it replaces.
    pub over: Option<&'a Setting>,
    /// All host paths in the setting.
    pub paths: Vec<GrantedPath>,
}

/// A host path in a setting, and what it resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantedPath {
    /// The absolute path.
    pub path: PathBuf,
    /// The path without symlinks; `None` if it cannot be resolved, for example because it does not exist.
    pub resolved: Option<PathBuf>,
}

impl Layered {
    /// Returns what the project's files grant, in the sections that were loaded. `resolve` returns a path without
    /// symlinks, or `None` if it does not exist.
    pub fn grants(&self, resolve: &dyn Fn(&Path) -> Option<PathBuf>) -> Vec<Grant<'_>> {
        let of_project = |(_, setting): &(KeyPath, &Setting)| setting.origin.layer == SettingsLayer::Project;
        let grant = |(key, setting)| {
            let rule = Rule::for_key(&key)?;
            // A profile overrides the section `sandbox`, so it must not loosen what the user's file says there.
            let base = match key.segments() {
                [container, profiles, _, below @ ..] if container == "container" && profiles == "profiles" => {
                    Some(std::iter::once("sandbox").chain(below.iter().map(String::as_str)).collect())
                }
                _ => None,
            };
            let over = self.in_layer(SettingsLayer::User, &key);
            let over = over.or_else(|| self.in_layer(SettingsLayer::User, &base?));
            let paths: Vec<GrantedPath> = host_paths(&key, setting)
                .into_iter()
                .map(|path| GrantedPath { resolved: resolve(&path), path })
                .collect();
            let what = opens(&rule, setting, over, &paths, resolve)?;
            Some(Grant { key, setting, what, over, paths })
        };
        self.settings().filter(of_project).filter_map(grant).collect()
    }
}

fn opens(
    rule: &Rule,
    setting: &Setting,
    over: Option<&Setting>,
    paths: &[GrantedPath],
    resolve: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Option<&'static str> {
    // A value that the user's own file already has grants nothing new. A path does, because it may resolve to another
    // place by now.
    if paths.is_empty() && over.is_some_and(|over| over.value == setting.value) {
        return None;
    }
    let opened = match rule.opens {
        Opens::Nothing => None,
        Opens::Always(what) => Some(what),
        Opens::If(is, what) => is(setting).then_some(what),
        Opens::Elsewhere(what) => paths.iter().any(|path| leads_elsewhere(path, setting, resolve)).then_some(what),
    };
    let loosened = || {
        let over = over?;
        match rule.over {
            Over::Free => None,
            Over::Same => (over.value != setting.value).then_some("not what your own settings say"),
            Over::AtMost(rank) => {
                let tighter = matches!((rank(setting), rank(over)), (Some(asked), Some(own)) if asked <= own);
                (!tighter).then_some("more than your own settings allow")
            }
        }
    };
    let variable = || names_a_variable(&setting.written).then_some("a variable of your environment");
    opened.or_else(loosened).or_else(variable)
}

/// Whether a path is anything but a plain path in the setting's project. A symlink on the way counts, even if it leads
/// back into the project: the sandbox may have write access to only a part of the project, and a symlink can lead out
/// of that part.
fn leads_elsewhere(path: &GrantedPath, setting: &Setting, resolve: &dyn Fn(&Path) -> Option<PathBuf>) -> bool {
    let Some(project) = setting.origin.file().and_then(project_of) else { return true };
    let Ok(below) = clean(&path.path).strip_prefix(clean(project)).map(Path::to_owned) else { return true };
    let Some(resolved) = &path.resolved else { return false };
    resolve(project).is_none_or(|project| *resolved != project.join(below))
}

/// Removes `.` and `..` from the path, textually.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Returns the host paths in a setting, according to the shape of its key.
fn host_paths(key: &KeyPath, setting: &Setting) -> Vec<PathBuf> {
    let Ok((_, shape)) = Shape::root().lookup(key) else { return Vec::new() };
    let (shape, values) = match (shape, setting.value.as_array()) {
        (Shape::List(of), Some(items)) => (&**of, items.clone()),
        (shape, _) => (shape, vec![setting.value.clone()]),
    };
    let path = |value| match shape {
        Shape::HostPath => serde_json::from_value::<PathBuf>(value).ok(),
        Shape::Volume => serde_json::from_value::<Volume>(value).ok().map(|volume| volume.host),
        Shape::Socket => serde_json::from_value::<Socket>(value).ok().map(|socket| socket.host),
        _ => None,
    };
    values.into_iter().filter_map(path).collect()
}

fn read<T: DeserializeOwned>(setting: &Setting) -> Option<T> {
    serde_json::from_value(setting.value.clone()).ok()
}

fn names_a_variable(written: &serde_json::Value) -> bool {
    match written {
        serde_json::Value::String(text) => text.replace("$$", "").contains("${"),
        serde_json::Value::Array(items) => items.iter().any(names_a_variable),
        serde_json::Value::Object(entries) => entries.values().any(names_a_variable),
        _ => false,
    }
}
