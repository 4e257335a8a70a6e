//! The tree that every format is parsed into.

use crate::{KeyPath, Location, Source};

/// A value and its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// The location of its first character.
    pub at: Location,
}

/// A value as its format represents it, before it is checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Null: the key counts as not set.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number that is not an integer.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order written. A key may occur twice; the check refuses that.
    Map(Vec<(Key, Node)>),
}

/// A key of a map and its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The name as written.
    pub name: String,
    /// The location of its first character.
    pub at: Location,
}

impl Node {
    /// Creates the tree for the layer of flags. Each setting has its key, the flag that the user typed, and its value.
    /// If a key occurs twice, the later one applies.
    pub fn from_flags(settings: impl IntoIterator<Item = (KeyPath, String, Value)>) -> Self {
        let at = Location::whole(Source::Flag("flags".to_owned()));
        let mut root = Self { value: Value::Map(Vec::new()), at };
        for (key, flag, value) in settings {
            root.insert(key.segments(), &Location::whole(Source::Flag(flag)), value);
        }
        root
    }

    pub(crate) fn insert(&mut self, path: &[String], at: &Location, value: Value) {
        let Some((first, rest)) = path.split_first() else {
            *self = Self { value, at: at.clone() };
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            *self = Self { value: Value::Map(Vec::new()), at: at.clone() };
        }
        let Value::Map(entries) = &mut self.value else { return };
        let index = entries.iter().position(|(key, _)| key.name == *first).unwrap_or_else(|| {
            let child = Self { value: Value::Null, at: at.clone() };
            entries.push((Key { name: first.clone(), at: at.clone() }, child));
            entries.len() - 1
        });
        entries[index].1.insert(rest, at, value);
    }

    /// Returns the value as JSON. A number that JSON does not support (infinity) becomes null.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(value) => value.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|(key, node)| (key.name.clone(), node.to_json())).collect(),
        }
    }
}
