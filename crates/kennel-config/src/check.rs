//! Checks a parsed tree: keys must be known and get their canonical names, and values must have the right type.

use crate::error::printable;
use crate::shape::{Field, Keys, Shape, find, nearest};
use crate::{Environment, Key, KeyPath, Location, Node, Origin, Problem, Setting, SettingsLayer, Tree, Value, What};
use std::collections::BTreeMap;
use std::path::Path;

/// The context in which a tree is checked.
pub(crate) struct Context<'a> {
    pub(crate) layer: SettingsLayer,
    /// The directory that relative host paths start from.
    pub(crate) base: &'a Path,
    pub(crate) environment: &'a Environment,
    /// Whether `${VAR}` is expanded.
    pub(crate) expand: bool,
    /// Whether a text may stand for a number or a boolean. Variables and flags contain only text.
    pub(crate) loose: bool,
    /// Sections that are skipped, and [`PROFILES`](crate::PROFILES) for the profiles alone.
    pub(crate) unused: &'a [&'a str],
}

/// The problems found so far. A hostile file can cause any number of them, so the list is bounded.
#[derive(Default)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl Problems {
    const MOST: usize = 100;

    /// Whether the list is full. Further problems are not added, so the work to find them can be skipped.
    fn is_full(&self) -> bool {
        self.0.len() > Self::MOST
    }

    pub(crate) fn add(&mut self, at: &Location, key: &KeyPath, what: What) {
        match self.0.len() {
            count if count < Self::MOST => self.0.push(Problem { at: at.clone(), key: key.clone(), what }),
            Self::MOST => {
                let what = What::Syntax("and more; the rest is not listed".to_owned());
                self.0.push(Problem { at: at.clone(), key: KeyPath::default(), what });
            }
            _ => {}
        }
    }
}

impl Context<'_> {
    /// Checks a whole file, or only one section of another program's file.
    pub(crate) fn check_root(&self, node: &Node, only: Option<&str>, problems: &mut Problems) -> Tree {
        let Value::Map(entries) = &node.value else {
            // The user may have named any file by mistake, so its content is not shown.
            let found = kind(node).to_owned();
            problems.add(&node.at, &KeyPath::default(), What::Value { expected: "a map".to_owned(), found });
            return Tree::default();
        };
        // Editors find the schema through `$schema`. It is not a setting.
        let used = |key: &Key| key.name != "$schema" && !self.unused.contains(&key.name.as_str());
        let ours = |key: &Key| only.map_or_else(|| used(key), |section| key.name == section);
        let entries: Vec<_> = entries.iter().filter(|(key, _)| ours(key)).collect();
        let Shape::Section(fields) = Shape::root() else { unreachable!("the whole is a section") };
        let tree = self.section(&entries, fields, &mut KeyPath::default(), problems);
        check_names(&tree, problems);
        tree
    }

    /// Checks a value of any shape. Returns `None` if it is missing or cannot be used.
    pub(crate) fn check(
        &self,
        node: &Node,
        shape: &Shape,
        path: &mut KeyPath,
        problems: &mut Problems,
    ) -> Option<Tree> {
        self.check_with_unit(node, shape, "", path, problems)
    }

    fn check_with_unit(
        &self,
        node: &Node,
        shape: &Shape,
        unit: &str,
        path: &mut KeyPath,
        problems: &mut Problems,
    ) -> Option<Tree> {
        match (shape, &node.value) {
            (_, Value::Null) => None,
            (Shape::Section(fields), Value::Map(entries)) => {
                let entries: Vec<_> = entries.iter().collect();
                Some(self.section(&entries, fields, path, problems))
            }
            (Shape::Map { keys, values }, Value::Map(entries)) => {
                Some(self.map(entries, *keys, values, path, problems))
            }
            _ => {
                let value = crate::leaf::read(node, shape, unit, path, self, problems)?;
                let origin = Origin { layer: self.layer, at: node.at.clone() };
                Some(Tree::Leaf(Setting { value, written: node.to_json(), origin }))
            }
        }
    }

    fn section(&self, entries: &[&(Key, Node)], fields: &[Field], path: &mut KeyPath, problems: &mut Problems) -> Tree {
        let mut out = BTreeMap::new();
        let mut seen = BTreeMap::new();
        let passed_over = |key: &Key| {
            let below: Vec<&str> = path.segments().iter().map(String::as_str).chain([key.name.as_str()]).collect();
            below.len() == 2 && self.unused.contains(&below.join(".").as_str())
        };
        let entries: Vec<_> = entries.iter().filter(|(key, _)| !passed_over(key)).collect();
        for (key, node) in entries {
            let Some((field, unit)) = find(fields, &key.name) else {
                let nearest = if problems.is_full() { None } else { nearest(fields, &key.name) };
                let nearest = nearest.map(|name| path.with(name));
                problems.add(&key.at, &path.with(&key.name), What::UnknownKey { nearest });
                continue;
            };
            if let Some(line) = seen.insert(&field.name, key.at.line) {
                problems.add(&key.at, &path.with(&key.name), What::Twice { line });
                continue;
            }
            // Messages use the key as it is written. The setting has its canonical name.
            path.push(&key.name);
            let tree = self.check_with_unit(node, &field.shape, unit, path, problems);
            path.pop();
            if let Some(tree) = tree {
                out.insert(field.name.clone(), tree);
            }
        }
        Tree::Map(out)
    }

    fn map(
        &self,
        entries: &[(Key, Node)],
        keys: Keys,
        values: &Shape,
        path: &mut KeyPath,
        problems: &mut Problems,
    ) -> Tree {
        let mut out = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for (key, node) in entries {
            if let Some(line) = seen.insert(&key.name, key.at.line) {
                problems.add(&key.at, &path.with(&key.name), What::Twice { line });
                continue;
            }
            let (good, expected) = match keys {
                Keys::Any => (!key.name.contains('\0'), "a key".to_owned()),
                Keys::Name => (crate::leaf::is_name(&key.name), Shape::Name.expected()),
                Keys::Variable => (
                    !key.name.is_empty() && !key.name.contains(['=', '\0']),
                    "the name of a variable, without =".to_owned(),
                ),
            };
            if !good {
                let found = format!("{:?}", key.name);
                problems.add(&key.at, &path.with(&key.name), What::Value { expected, found });
                continue;
            }
            path.push(&key.name);
            let tree = self.check(node, values, path, problems);
            path.pop();
            if let Some(tree) = tree {
                out.insert(key.name.clone(), tree);
            }
        }
        Tree::Map(out)
    }
}

/// If a profile contains its name, it must be the name it is stored under.
fn check_names(tree: &Tree, problems: &mut Problems) {
    let path: KeyPath = ["container", "profiles"].into_iter().collect();
    let Some(Tree::Map(profiles)) = tree.at(&path) else { return };
    for (name, profile) in profiles {
        let own: KeyPath = ["name"].into_iter().collect();
        if let Some(Tree::Leaf(said)) = profile.at(&own)
            && said.value != name.as_str()
        {
            let what =
                What::Value { expected: format!("{name:?}, the profile's key"), found: said.written.to_string() };
            problems.add(&said.origin.at, &path.with(name).with("name"), what);
        }
    }
}

/// The type of a value, for a message that must not show the value itself.
fn kind(node: &Node) -> &'static str {
    match &node.value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Int(_) | Value::Float(_) => "a number",
        Value::Text(_) => "text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
    }
}

/// A value as it was written, for a message.
pub(crate) fn describe(node: &Node) -> String {
    const LONGEST: usize = 60;
    match &node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Text(text) => {
            let cut: String = text.chars().take(LONGEST).collect();
            let more = if cut.len() < text.len() { "…" } else { "" };
            format!("\"{}{more}\"", printable(&cut))
        }
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
    }
}
