//! Parses TOML. Dates become text, because no setting is a date.

use super::{MAX_DEPTH, syntax, too_deep};
use crate::location::Lines;
use crate::{Error, Key, Location, Node, Value};
use toml_edit::{Document, Item, TableLike};

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, Error> {
    let document = Document::parse(text).map_err(|error| {
        let at = lines.at(error.span().map_or(0, |span| span.start));
        syntax(at, format!("not TOML: {}", error.message()))
    })?;
    Ok(Node { value: table(document.as_table(), lines, 0)?, at: lines.at(0) })
}

fn table(table: &dyn TableLike, lines: &Lines, depth: usize) -> Result<Value, Error> {
    let mut entries = Vec::new();
    for (name, item) in table.iter() {
        let span = table.get_key_value(name).and_then(|(key, _)| key.span());
        let at = lines.at(span.or_else(|| item.span()).map_or(0, |span| span.start));
        let node = item_node(item, &at, lines, depth + 1)?;
        entries.push((Key { name: name.to_owned(), at }, node));
    }
    Ok(Value::Map(entries))
}

fn item_node(item: &Item, key_at: &Location, lines: &Lines, depth: usize) -> Result<Node, Error> {
    // A table from a dotted key or a header has no text of its own. Its location is that of its key.
    let at = match item {
        Item::Value(value) if !value.is_inline_table() || value.span().is_some() => {
            value.span().map_or_else(|| key_at.clone(), |span| lines.at(span.start))
        }
        _ => key_at.clone(),
    };
    if depth > MAX_DEPTH {
        return Err(too_deep(at));
    }
    let value = match item {
        Item::None => Value::Null,
        Item::Value(value) => scalar(value, &at, lines, depth)?,
        Item::Table(inner) => table(inner, lines, depth)?,
        Item::ArrayOfTables(tables) => {
            let mut items = Vec::new();
            for inner in tables {
                let at = inner.span().map_or_else(|| at.clone(), |span| lines.at(span.start));
                items.push(Node { value: table(inner, lines, depth + 1)?, at });
            }
            Value::List(items)
        }
    };
    Ok(Node { value, at })
}

fn scalar(value: &toml_edit::Value, at: &Location, lines: &Lines, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep(at.clone()));
    }
    Ok(match value {
        toml_edit::Value::String(text) => Value::Text(text.value().clone()),
        toml_edit::Value::Integer(number) => Value::Int(*number.value()),
        toml_edit::Value::Float(number) => Value::Float(*number.value()),
        toml_edit::Value::Boolean(value) => Value::Bool(*value.value()),
        toml_edit::Value::Datetime(date) => Value::Text(date.value().to_string()),
        toml_edit::Value::InlineTable(inner) => table(inner, lines, depth)?,
        toml_edit::Value::Array(array) => {
            let mut items = Vec::new();
            for item in array {
                let at = item.span().map_or_else(|| at.clone(), |span| lines.at(span.start));
                items.push(Node { value: scalar(item, &at, lines, depth + 1)?, at });
            }
            Value::List(items)
        }
    })
}
