//! The shape of every setting, derived from the schema of [`Config`], so that the check never disagrees with the
//! declaration.

use crate::{Config, KeyPath};
use schemars::generate::SchemaSettings;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The permitted values of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Bool,
    Text,
    Count { min: i64 },
    Choice { values: Vec<String>, renames: BTreeMap<String, String> },
    Time,
    Size,
    Cpus,
    HostPath,
    InnerPath,
    Name,
    Network,
    Volume,
    Socket,
    Port,
    List(Box<Shape>),
    Map { keys: Keys, values: Box<Shape> },
    Section(Vec<Field>),
}

/// The permitted keys of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Any,
    Name,
    Variable,
}

/// A key of a section.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    /// The canonical name, in camelCase.
    pub(crate) name: String,
    /// Other names, each with the unit of a number without one; empty for the field's own unit.
    pub(crate) aliases: BTreeMap<String, String>,
    pub(crate) description: String,
    pub(crate) shape: Shape,
}

impl Shape {
    /// Returns the shape of the whole configuration.
    pub(crate) fn root() -> &'static Self {
        // The schema is kept, because dropping it would take as long as building the shape.
        static SCHEMA: LazyLock<Json> = LazyLock::new(raw_schema);
        static ROOT: LazyLock<Shape> = LazyLock::new(|| Shape::from_schema(&SCHEMA));
        &ROOT
    }

    fn from_schema(schema: &Json) -> Self {
        let schema = without_null(schema);
        if let Some(kind) = schema["x-kind"].as_str() {
            return match kind {
                "time" => Self::Time,
                "size" => Self::Size,
                "cpus" => Self::Cpus,
                "host-path" => Self::HostPath,
                "inner-path" => Self::InnerPath,
                "name" => Self::Name,
                "network" => Self::Network,
                "volume" => Self::Volume,
                "socket" => Self::Socket,
                "port" => Self::Port,
                other => unreachable!("a kind in the model that the check does not know: {other}"),
            };
        }
        if let Some(variants) = schema["oneOf"].as_array() {
            let values = variants.iter().filter_map(|variant| variant["const"].as_str()).map(str::to_owned).collect();
            return Self::Choice { values, renames: texts(&schema["x-renames"]) };
        }
        match &schema["type"] {
            kind if is(kind, "boolean") => Self::Bool,
            kind if is(kind, "string") => Self::Text,
            kind if is(kind, "integer") => Self::Count { min: schema["minimum"].as_i64().unwrap_or(0) },
            kind if is(kind, "array") => Self::List(Box::new(Self::from_schema(&schema["items"]))),
            kind if is(kind, "object") => Self::object(schema),
            other => unreachable!("a type in the model that the check does not know: {other}"),
        }
    }

    fn object(schema: &Json) -> Self {
        let Some(properties) = schema["properties"].as_object() else {
            let keys = match schema["x-keys"].as_str() {
                Some("name") => Keys::Name,
                Some("variable") => Keys::Variable,
                _ => Keys::Any,
            };
            return Self::Map { keys, values: Box::new(Self::from_schema(&schema["additionalProperties"])) };
        };
        let field = |(name, schema): (&String, &Json)| Field {
            name: name.clone(),
            aliases: texts(&schema["x-aliases"]),
            description: schema["description"].as_str().unwrap_or_default().to_owned(),
            shape: Self::from_schema(schema),
        };
        Self::Section(properties.iter().map(field).collect())
    }

    /// Returns the shape under a key, and the key's canonical name.
    pub(crate) fn under(&self, name: &str) -> Option<(String, &Self)> {
        match self {
            Self::Section(fields) => find(fields, name).map(|(field, _)| (field.name.clone(), &field.shape)),
            Self::Map { values, .. } => Some((name.to_owned(), values)),
            _ => None,
        }
    }

    /// Returns the canonical form of a path and its shape, or the first part of the path that is unknown.
    pub(crate) fn lookup(&self, path: &KeyPath) -> Result<(KeyPath, &Self), KeyPath> {
        let mut known = KeyPath::default();
        let mut shape = self;
        for name in path.segments() {
            let Some((proper, next)) = shape.under(name) else { return Err(known.with(name)) };
            known.push(&proper);
            shape = next;
        }
        Ok((known, shape))
    }

    /// Describes the expected value, for a message.
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Count { min } => format!("a whole number from {min} to {}", u32::MAX),
            Self::Choice { values, .. } => format!("one of {}", values.join(", ")),
            Self::Time => "a duration, as in 30s or 5m".to_owned(),
            Self::Size => "a size, as in 512m or 4G".to_owned(),
            Self::Cpus => "a number of CPUs, as in 0.5 or 2".to_owned(),
            Self::HostPath => "a path on this machine".to_owned(),
            Self::InnerPath => "an absolute path inside the sandbox".to_owned(),
            Self::Name => "a name: letters, digits, dots, dashes and underscores, a letter or digit first".to_owned(),
            Self::Network => "bridge, host or none".to_owned(),
            Self::Volume => {
                "a mount: ./host:/container, /host:/container:ro, or a map with host and container".to_owned()
            }
            Self::Socket => "a socket: /host.sock:/container.sock, or a map with host and container".to_owned(),
            Self::Port => "a port: container or host:container, as in 8080 or 3000:8080".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map { .. } | Self::Section(_) => "a map".to_owned(),
        }
    }
}

/// Returns the field with this name in any spelling, and the unit of a number without one.
pub(crate) fn find<'a>(fields: &'a [Field], name: &str) -> Option<(&'a Field, &'a str)> {
    // The name is nearly always written in its canonical form.
    if let Some(field) = fields.iter().find(|field| field.name == name) {
        return Some((field, ""));
    }
    let name = spelling(name);
    fields.iter().find_map(|field| {
        if spelling(&field.name) == name {
            return Some((field, ""));
        }
        let (_, unit) = field.aliases.iter().find(|(alias, _)| spelling(alias) == name)?;
        Some((field, unit.as_str()))
    })
}

/// Returns the field name that is most similar to a wrong one, if any is similar.
pub(crate) fn nearest<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    let wanted = spelling(name);
    let names = fields.iter().flat_map(|field| std::iter::once(&field.name).chain(field.aliases.keys()));
    names
        .map(|name| (strsim::damerau_levenshtein(&wanted, &spelling(name)), name))
        .filter(|(distance, name)| *distance <= (name.len().min(wanted.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name.as_str())
}

/// Normalises camelCase, snake_case and kebab-case: lower-case words with `_` between them.
pub(crate) fn spelling(name: &str) -> String {
    let mut out = String::new();
    let mut after_lower = false;
    // A wrong key may have any length. No known key is similar to a long one.
    for char in name.chars().take(100) {
        if char.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        after_lower = char.is_ascii_lowercase() || char.is_ascii_digit();
        out.push(if char == '-' { '_' } else { char.to_ascii_lowercase() });
    }
    out
}

/// Returns the schema including the annotations that only this crate reads.
pub(crate) fn raw_schema() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}

/// The schema of an optional value allows the value or null. Returns the schema of the value.
fn without_null(schema: &Json) -> &Json {
    if schema.get("x-kind").is_some() {
        return schema;
    }
    let others = |options: &'_ [Json]| options.iter().position(|option| option["type"] != "null");
    match schema["anyOf"].as_array() {
        Some(options) => others(options).map_or(schema, |index| &options[index]),
        None => schema,
    }
}

fn is(kind: &Json, name: &str) -> bool {
    kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name))
}

fn texts(map: &Json) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}
