//! The layers of settings, weakest first, and their merged result.

use crate::shape::{Shape, find, nearest};
use crate::{Config, Error, KeyPath, Location, Problem, Setting, Source, Tree, What};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

/// A layer of settings, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingsLayer {
    /// Kennel's own defaults.
    BuiltIn,
    /// The user's file.
    User,
    /// A file of the project.
    Project,
    /// Environment variables.
    Environment,
    /// The command line.
    Flags,
}

impl fmt::Display for SettingsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BuiltIn => "built-in",
            Self::User => "user",
            Self::Project => "project",
            Self::Environment => "environment",
            Self::Flags => "flags",
        })
    }
}

/// The origin of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The layer that contains the setting.
    pub layer: SettingsLayer,
    /// The location of the setting in that layer.
    pub at: Location,
}

impl Origin {
    /// Returns the file that contains the setting, if it comes from a file.
    pub fn file(&self) -> Option<&Path> {
        self.at.file()
    }

    /// Returns the line of the setting in its file, if it comes from a file.
    pub fn line(&self) -> Option<u32> {
        (self.at.line > 0).then_some(self.at.line)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.layer == SettingsLayer::BuiltIn { self.layer.fmt(f) } else { write!(f, "{} ({})", self.layer, self.at) }
    }
}

/// All layers, and their merged result.
#[derive(Clone, Debug, PartialEq)]
pub struct Layered {
    layers: Vec<Tree>,
    merged: Tree,
}

impl Layered {
    /// Puts these layers, weakest first, on top of the built-in layer.
    pub fn new(others: impl IntoIterator<Item = Tree>) -> Self {
        let layers: Vec<_> = std::iter::once(built_in().clone()).chain(others).collect();
        let merged = layers.iter().cloned().fold(Tree::default(), Tree::merge);
        Self { layers, merged }
    }

    /// Returns the merged settings as a value.
    pub fn config(&self) -> Result<Config, Error> {
        serde_json::from_value(self.merged.to_json(&|setting| setting.value.clone())).map_err(|error| {
            let at = Location::whole(Source::BuiltIn);
            let what = What::Syntax(format!("a checked setting cannot be used, which is a defect: {error}"));
            Problem { at, key: KeyPath::default(), what }.into()
        })
    }

    /// Returns the merged setting or map of settings at a key, in any of its spellings. `None` means that the key is
    /// known but not set.
    pub fn get(&self, key: &str) -> Result<Option<&Tree>, Error> {
        Ok(self.merged.at(&known(key)?))
    }

    /// Removes the settings whose keys are `chosen` from all layers except the built-in one. Returns the removed keys,
    /// in order.
    pub fn forget(&mut self, chosen: impl Fn(&KeyPath) -> bool) -> Vec<KeyPath> {
        let is_set =
            |(key, setting): &(KeyPath, &Setting)| setting.origin.layer != SettingsLayer::BuiltIn && chosen(key);
        let forgotten: Vec<KeyPath> = self.merged.settings().into_iter().filter(is_set).map(|(key, _)| key).collect();
        for layer in self.layers.iter_mut().skip(1) {
            for key in &forgotten {
                layer.remove(key.segments());
            }
        }
        self.merged = self.layers.iter().cloned().fold(Tree::default(), Tree::merge);
        forgotten
    }

    /// Returns the settings of all layers at or under a key, strongest layer first. If a path occurs more than once,
    /// its first setting applies.
    pub fn explain(&self, key: &str) -> Result<Vec<(KeyPath, &Setting)>, Error> {
        let key = known(key)?;
        let under = |(path, _): &(KeyPath, &Setting)| path.segments().starts_with(key.segments());
        Ok(self.layers.iter().rev().flat_map(Tree::settings).filter(under).collect())
    }

    /// Returns the layer that decides a single setting, or `None` if the key is unknown, not set, or a map.
    pub fn layer_of(&self, key: &str) -> Option<SettingsLayer> {
        match self.get(key).ok()?? {
            Tree::Leaf(setting) => Some(setting.origin.layer),
            Tree::Map(_) => None,
        }
    }

    /// Returns the setting of one layer at a key, even if a stronger layer overrides it.
    pub(crate) fn in_layer(&self, layer: SettingsLayer, key: &KeyPath) -> Option<&Setting> {
        self.layers.iter().rev().find_map(|tree| match tree.at(key) {
            Some(Tree::Leaf(setting)) if setting.origin.layer == layer => Some(setting),
            _ => None,
        })
    }

    /// Returns the merged settings with their origins, in the order of their keys.
    pub fn settings(&self) -> impl Iterator<Item = (KeyPath, &Setting)> {
        self.merged.settings().into_iter()
    }

    /// Returns the merged settings as JSON. Each setting is a map with its `value` as written and its `layer`. A
    /// setting from a file also has `file`, `line` and `column`; one from a variable or a flag has `name`.
    pub fn show(&self) -> Json {
        self.merged.to_json(&|setting| {
            let mut out = json!({ "value": setting.written, "layer": setting.origin.layer.to_string() });
            let at = &setting.origin.at;
            match &*at.source {
                Source::BuiltIn => {}
                Source::File(path) => {
                    out["file"] = path.to_string_lossy().into();
                    out["line"] = at.line.into();
                    out["column"] = at.column.into();
                }
                Source::Variable(name) | Source::Flag(name) => out["name"] = name.as_str().into(),
            }
            out
        })
    }
}

/// Returns the canonical form of a key that a user typed. An unknown key is an error that suggests a similar one.
pub(crate) fn known(key: &str) -> Result<KeyPath, Error> {
    let at = || Location::whole(Source::Flag("key".to_owned()));
    let path: KeyPath = key
        .parse()
        .map_err(|error: crate::InvalidKey| problem(at(), KeyPath::default(), What::Syntax(error.to_string())))?;
    match Shape::root().lookup(&path) {
        Ok((proper, _)) => Ok(proper),
        Err(wrong) => Err(problem(at(), wrong.clone(), What::UnknownKey { nearest: near(&wrong) })),
    }
}

fn problem(at: Location, key: KeyPath, what: What) -> Error {
    Problem { at, key, what }.into()
}

/// Returns the known path that is most similar to a path whose last key is wrong.
fn near(path: &KeyPath) -> Option<KeyPath> {
    let (last, before) = path.segments().split_last()?;
    let before: KeyPath = before.iter().cloned().collect();
    let Ok((_, Shape::Section(fields))) = Shape::root().lookup(&before) else { return None };
    let name = nearest(fields, last)?;
    let (field, _) = find(fields, name)?;
    Some(before.with(&field.name))
}

/// Returns the defaults of [`Config`] as a layer.
fn built_in() -> &'static Tree {
    static TREE: LazyLock<Tree> = LazyLock::new(|| {
        let json = serde_json::to_value(Config::default()).expect("settings are plain data");
        settings_of(&json, Shape::root()).unwrap_or_default()
    });
    &TREE
}

fn settings_of(json: &Json, shape: &Shape) -> Option<Tree> {
    match (json, shape) {
        (Json::Null, _) => None,
        (Json::Array(items), _) if items.is_empty() => None,
        (Json::Object(entries), Shape::Section(_) | Shape::Map { .. }) => {
            let trees = entries.iter().filter_map(|(name, json)| {
                let (name, shape) = shape.under(name)?;
                Some((name, settings_of(json, shape)?))
            });
            let trees: BTreeMap<_, _> = trees.collect();
            (!trees.is_empty()).then_some(Tree::Map(trees))
        }
        _ => {
            let origin = Origin { layer: SettingsLayer::BuiltIn, at: Location::whole(Source::BuiltIn) };
            Some(Tree::Leaf(Setting { value: json.clone(), written: json.clone(), origin }))
        }
    }
}
