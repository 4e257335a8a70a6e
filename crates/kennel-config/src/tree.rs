//! Checked settings with their origin, and the merging of layers.

use crate::{KeyPath, Origin};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// A tree of checked settings under their canonical names. A list is one setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// One setting.
    Leaf(Setting),
    /// Settings by key.
    Map(BTreeMap<String, Tree>),
}

/// A value in its written and its effective form, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The effective value: variables expanded, sizes in bytes, paths absolute.
    pub value: Json,
    /// The value as written. This is what Kennel displays, because it contains no secret that came from a variable.
    pub written: Json,
    /// The layer that contains the value, and the location in it.
    pub origin: Origin,
}

impl Default for Tree {
    fn default() -> Self {
        Self::Map(BTreeMap::new())
    }
}

impl Tree {
    /// Merges `stronger` over this tree. Maps are merged key by key. Everything else is replaced as a whole.
    ///
    /// This is associative for checked trees, because there a key is a map in all trees or in none.
    #[must_use]
    pub fn merge(self, stronger: Self) -> Self {
        match (self, stronger) {
            (Self::Map(mut below), Self::Map(above)) => {
                for (key, tree) in above {
                    let merged = match below.remove(&key) {
                        Some(under) => under.merge(tree),
                        None => tree,
                    };
                    below.insert(key, merged);
                }
                Self::Map(below)
            }
            (_, stronger) => stronger,
        }
    }

    /// Returns the subtree at a path.
    pub fn at(&self, path: &KeyPath) -> Option<&Self> {
        path.segments().iter().try_fold(self, |tree, name| match tree {
            Self::Map(entries) => entries.get(name),
            Self::Leaf(_) => None,
        })
    }

    /// Removes the subtree at a path.
    pub(crate) fn remove(&mut self, path: &[String]) {
        let (Self::Map(entries), Some((name, rest))) = (self, path.split_first()) else { return };
        if rest.is_empty() {
            entries.remove(name);
        } else if let Some(below) = entries.get_mut(name) {
            below.remove(rest);
        }
    }

    /// Returns all settings with their paths, in the order of their keys.
    pub fn settings(&self) -> Vec<(KeyPath, &Setting)> {
        let mut out = Vec::new();
        self.collect(&mut KeyPath::default(), &mut out);
        out
    }

    fn collect<'a>(&'a self, path: &mut KeyPath, out: &mut Vec<(KeyPath, &'a Setting)>) {
        match self {
            Self::Leaf(setting) => out.push((path.clone(), setting)),
            Self::Map(entries) => {
                for (name, tree) in entries {
                    path.push(name);
                    tree.collect(path, out);
                    path.pop();
                }
            }
        }
    }

    /// Returns the tree as JSON, with each setting converted by `show`.
    pub(crate) fn to_json(&self, show: &dyn Fn(&Setting) -> Json) -> Json {
        match self {
            Self::Leaf(setting) => show(setting),
            Self::Map(entries) => entries.iter().map(|(key, tree)| (key.clone(), tree.to_json(show))).collect(),
        }
    }
}
