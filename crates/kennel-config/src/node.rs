//! The one tree that every format is read into.

use crate::{KeyPath, Location, Source};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it begins.
    pub at: Location,
}

/// A value as its format has it, before it is known what it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: the key counts as not given.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order written; a key may stand in it twice, which the check refuses.
    Map(Vec<(Key, Node)>),
}

/// A key of a map and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// As written.
    pub name: String,
    /// Where it begins.
    pub at: Location,
}

impl Node {
    /// The tree for the layer of flags: each setting with its key, the flag the user typed, and its value. Of two with
    /// the same key the later one counts.
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

    /// The value as JSON. A number that JSON has not (infinite) becomes null.
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
