//! Parses YAML from the events of its parser. So this module counts the growth through aliases, and nothing recurses.

use super::{MAX_BYTES, MAX_DEPTH, syntax, too_deep};
use crate::location::Lines;
use crate::{Error, Key, Location, Node, Value};
use saphyr::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;

/// The growth that all aliases of a file may cause together, in bytes and values.
const MAX_GROWTH: usize = 2 * MAX_BYTES;

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, Error> {
    let mut builder = Builder::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let mark = error.marker();
            syntax(lines.line_column(mark.line(), mark.col() + 1), format!("not YAML: {}", error.info()))
        })?;
        let at = lines.line_column(span.start.line(), span.start.col() + 1);
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(syntax(at, "more than one YAML document; keep one"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                // An empty plain scalar is null. Quoted scalars are always text.
                let value = match Scalar::parse_from_cow_and_metadata(text.clone(), style, tag.as_ref()) {
                    Some(Scalar::Null) => Value::Null,
                    Some(Scalar::Boolean(value)) => Value::Bool(value),
                    Some(Scalar::Integer(number)) => Value::Int(number),
                    Some(Scalar::FloatingPoint(number)) => Value::Float(number.into_inner()),
                    Some(Scalar::String(text)) => Value::Text(text.into_owned()),
                    None => return Err(syntax(at, "not YAML: a value that is not of its tag")),
                };
                let plain = style == ScalarStyle::Plain;
                builder.add(Node { value, at }, anchor, plain.then(|| text.into_owned()))?;
            }
            Event::SequenceStart(anchor, _) => builder.open(Value::List(Vec::new()), at, anchor)?,
            Event::MappingStart(anchor, _) => builder.open(Value::Map(Vec::new()), at, anchor)?,
            Event::SequenceEnd | Event::MappingEnd => builder.close()?,
            Event::Alias(anchor) => builder.alias(anchor, at)?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }
    match builder.root {
        Some(Node { value: Value::Null, at }) => Ok(Node { value: Value::Map(Vec::new()), at }),
        Some(node) => Ok(node),
        None => Ok(Node { value: Value::Map(Vec::new()), at: lines.at(0) }),
    }
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, (Node, usize)>,
    grown: usize,
}

/// A list or map whose end has not been reached.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<Key>,
}

impl Builder {
    fn open(&mut self, value: Value, at: Location, anchor: usize) -> Result<(), Error> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        if self.open.last().is_some_and(|top| matches!(top.node.value, Value::Map(_)) && top.key.is_none()) {
            return Err(syntax(at, "a key must be plain text"));
        }
        self.open.push(Open { node: Node { value, at }, anchor, key: None });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(done) = self.open.pop() else { return Ok(()) };
        self.add(done.node, done.anchor, None)
    }

    /// Adds a finished value to its parent. `plain` is the text of an unquoted scalar: as a key, `1:` or `true:` means
    /// its text.
    fn add(&mut self, node: Node, anchor: usize, plain: Option<String>) -> Result<(), Error> {
        if anchor > 0 {
            // Stored copies count too: anchors within anchors are copies of copies.
            let weight = weight(&node);
            self.grow(weight, &node.at)?;
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        let Some(top) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut top.node.value, top.key.take()) {
            (Value::List(items), _) => items.push(node),
            (Value::Map(entries), Some(key)) => entries.push((key, node)),
            (_, None) => {
                let ((Some(name), _) | (None, Value::Text(name))) = (plain, node.value) else {
                    return Err(syntax(node.at, "a key must be plain text"));
                };
                top.key = Some(Key { name, at: node.at });
            }
            (_, Some(_)) => return Err(syntax(node.at, "a value where none can be")),
        }
        Ok(())
    }

    fn grow(&mut self, weight: usize, at: &Location) -> Result<(), Error> {
        self.grown += weight;
        if self.grown > MAX_GROWTH {
            return Err(syntax(at.clone(), format!("anchors and aliases make the file grow past {MAX_GROWTH} bytes")));
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: Location) -> Result<(), Error> {
        let Some(weight) = self.anchors.get(&anchor).map(|(_, weight)| *weight) else {
            return Err(syntax(at, "an alias of something that has not ended yet"));
        };
        self.grow(weight, &at)?;
        let (node, _) = &self.anchors[&anchor];
        if self.open.len() + depth(node) > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let node = Node { value: node.value.clone(), at };
        self.add(node, 0, None)
    }
}

/// The approximate cost of a tree: its texts, and a fixed cost for each value.
fn weight(node: &Node) -> usize {
    const EACH: usize = 64;
    EACH + match &node.value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(entries) => entries.iter().map(|(key, node)| key.name.len() + weight(node)).sum(),
        _ => 0,
    }
}

fn depth(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| depth(node)).max().unwrap_or(0),
        _ => 0,
    }
}
