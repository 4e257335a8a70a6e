//! Changes one setting in a file and keeps the rest of the file as it is.

use crate::check::{Context, Problems};
use crate::layers::known;
use crate::shape::{Shape, find};
use crate::{
    Environment, Error, Format, KeyPath, Location, Node, Owner, Problem, SearchPath, SettingsLayer, Source, Value,
    What, parse,
};
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use kennel_types::{ByteSize, parse_duration};
use serde_json::Value as Json;
use std::path::Path;
use toml_edit::{DocumentMut, Item, TableLike};

/// Sets a key in a file, which is created if it does not exist. Comments and the order of keys are kept. `value` is the
/// text that a person types, with `${VAR}` as in a file; lists and maps are JSON. YAML files are refused, because no
/// library preserves their comments.
///
/// The file is replaced atomically and keeps its permissions. A project's file that is a symlink is refused. The user's
/// own file may be a symlink; then its target is replaced.
pub fn set(search_path: &SearchPath, key: &str, value: &str) -> Result<(), Error> {
    let key = known(key)?;
    let file = search_path.path.as_path();
    let edit = Edit { file, key: &key };
    if let Owner::Other { section } = search_path.owner
        && key.segments()[0] != section
    {
        let advice = format!("this file is another program's; only {section} is read from it");
        return Err(edit.problem(What::Refused(advice)));
    }
    let text = match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        _ => crate::file::read(search_path)?,
    };
    let format = Format::of_path(file).unwrap_or_else(|| Format::of_content(&text));
    if format == Format::Yaml {
        let advice = format!("a YAML file is not edited, to keep its comments; add this by hand: {key}: {value}");
        return Err(edit.problem(What::Refused(advice)));
    }
    let node = parse(&text, format, Source::File(file.to_owned()))?;
    let (names, unit) = edit.names_in(&node);
    let value = edit.value(value, &unit)?;
    let changed = match format {
        Format::Toml => edit.toml(&text, &names, &value)?,
        _ => edit.json(&text, &names, &value)?,
    };
    // Parse the new text before the file is replaced, so that a valid file is never replaced by a broken one.
    parse(&changed, format, Source::File(file.to_owned()))?;
    Ok(crate::file::replace(search_path, &changed)?)
}

struct Edit<'a> {
    file: &'a Path,
    key: &'a KeyPath,
}

impl Edit<'_> {
    fn problem(&self, what: What) -> Error {
        Problem { at: Location::whole(Source::File(self.file.to_owned())), key: self.key.clone(), what }.into()
    }

    /// Returns the names that the file uses for the key, or the canonical names where it has none, and the unit of a
    /// number under the last name.
    fn names_in(&self, node: &Node) -> (Vec<String>, String) {
        let mut names = Vec::new();
        let mut unit = String::new();
        let (mut shape, mut node) = (Shape::root(), Some(node));
        for name in self.key.segments() {
            let entries = match node.map(|node| &node.value) {
                Some(Value::Map(entries)) => entries.as_slice(),
                _ => &[],
            };
            let same = |written: &str| shape.under(written).is_some_and(|(proper, _)| proper == *name);
            let there = entries.iter().find(|(key, _)| same(&key.name));
            let used = there.map_or(name, |(key, _)| &key.name);
            if let Shape::Section(fields) = shape {
                unit = find(fields, used).map(|(_, unit)| unit.to_owned()).unwrap_or_default();
            }
            names.push(used.clone());
            node = there.map(|(_, node)| node);
            let Some((_, next)) = shape.under(name) else { break };
            shape = next;
        }
        (names, unit)
    }

    /// Returns the value with the right type, after checking it.
    fn value(&self, text: &str, unit: &str) -> Result<Json, Error> {
        let shape = Shape::root().lookup(self.key).map(|(_, shape)| shape).map_err(|_| {
            let what = What::UnknownKey { nearest: None };
            self.problem(what)
        })?;
        let none = Environment::new();
        let at = Location::whole(Source::Flag("value".to_owned()));
        let node = match shape {
            Shape::Section(_) => {
                let what = What::Refused("a section cannot be set as a whole; set one of its keys".to_owned());
                return Err(self.problem(what));
            }
            Shape::List(_) | Shape::Map { .. } => parse(text, Format::Json, Source::Flag("value".to_owned()))?,
            _ => Node { value: Value::Text(text.to_owned()), at },
        };
        let base = self.file.parent().unwrap_or(self.file);
        let context =
            Context { layer: SettingsLayer::Flags, base, environment: &none, expand: true, loose: true, unused: &[] };
        let mut problems = Problems::default();
        let tree = context.check(&node, shape, &mut self.key.clone(), &mut problems);
        // Whether a variable is set matters only when the file is read.
        problems.0.retain(|problem| !matches!(problem.what, What::Unset { .. }));
        let tree = Error::unless_empty(tree, problems.0)?;
        let counts = tree.map(|tree| tree.to_json(&|setting| setting.value.clone()));
        Ok(match (shape, counts) {
            (Shape::List(_) | Shape::Map { .. }, _) => node.to_json(),
            _ if text.contains('$') => text.into(),
            (Shape::Bool | Shape::Count { .. } | Shape::Cpus, Some(counts)) => counts,
            _ if unit.is_empty() => text.into(),
            _ => in_unit(text, shape, unit).ok_or_else(|| {
                let what = What::Refused(format!("this file expects a whole number of {unit}, found {text}"));
                self.problem(what)
            })?,
        })
    }

    fn toml(&self, text: &str, names: &[String], value: &Json) -> Result<String, Error> {
        let mut document: DocumentMut = text
            .parse()
            .map_err(|error: toml_edit::TomlError| self.problem(What::Syntax(error.message().to_owned())))?;
        let (last, sections) = names.split_last().expect("a key has a name");
        let mut table: &mut dyn TableLike = document.as_table_mut();
        for name in sections {
            if table.get(name).is_none() {
                // A table that contains only tables needs no header.
                let mut new = toml_edit::Table::new();
                new.set_implicit(true);
                table.insert(name, Item::Table(new));
            }
            let next = table.get_mut(name).and_then(Item::as_table_like_mut);
            table = next.ok_or_else(|| self.problem(What::Refused(format!("{name} is not a table in this file"))))?;
        }
        let mut new = toml_value(value);
        match table.get_mut(last) {
            Some(Item::Value(old)) => {
                // The comment after a value is part of its decoration.
                *new.decor_mut() = old.decor().clone();
                *old = new;
            }
            Some(_) => {
                return Err(self.problem(What::Refused("it is a table in this file; edit it by hand".to_owned())));
            }
            None => {
                table.insert(last, Item::Value(new));
            }
        }
        Ok(document.to_string())
    }

    fn json(&self, text: &str, names: &[String], value: &Json) -> Result<String, Error> {
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let root = CstRootNode::parse(text, &crate::parse::json_options())
            .map_err(|error| self.problem(What::Syntax(error.to_string())))?;
        let (last, sections) = names.split_last().expect("a key has a name");
        let refused = || self.problem(What::Refused("the file has a value of another type here".to_owned()));
        let mut object: CstObject = root.object_value_or_create().ok_or_else(refused)?;
        for name in sections {
            object = object.object_value_or_create(name).ok_or_else(refused)?;
        }
        match object.get(last) {
            Some(property) => property.set_value(json_input(value)),
            None => {
                object.append(last, json_input(value));
            }
        }
        Ok(root.to_string())
    }
}

/// Returns a quantity as a whole number in the unit that the file already uses for it.
fn in_unit(text: &str, shape: &Shape, unit: &str) -> Option<Json> {
    let one = format!("1{unit}");
    if *shape == Shape::Size {
        let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| u128::from(size.0));
        return whole(size(text)?, size(&one)?);
    }
    let millis = |text: &str| parse_duration(text).ok().map(|time| time.as_millis());
    whole(millis(text)?, millis(&one)?)
}

fn whole(amount: u128, one: u128) -> Option<Json> {
    amount.is_multiple_of(one).then(|| u64::try_from(amount / one).ok().map(Json::from)).flatten()
}

fn toml_value(json: &Json) -> toml_edit::Value {
    match json {
        Json::Null => "".into(),
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(toml_value).collect(),
        Json::Object(entries) => entries.iter().map(|(key, value)| (key.as_str(), toml_value(value))).collect(),
    }
}

fn json_input(json: &Json) -> CstInputValue {
    match json {
        Json::Null => CstInputValue::Null,
        Json::Bool(value) => CstInputValue::Bool(*value),
        Json::Number(number) => CstInputValue::Number(number.to_string()),
        Json::String(text) => CstInputValue::String(text.clone()),
        Json::Array(items) => CstInputValue::Array(items.iter().map(json_input).collect()),
        Json::Object(entries) => {
            CstInputValue::Object(entries.iter().map(|(key, value)| (key.clone(), json_input(value))).collect())
        }
    }
}
