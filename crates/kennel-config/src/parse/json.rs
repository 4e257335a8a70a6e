//! Parses JSON. Comments and trailing commas are accepted.

use super::{MAX_DEPTH, syntax, too_deep};
use crate::location::Lines;
use crate::{Error, Key, Node, Value};
use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, Error> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options())
        .map_err(|error| syntax(lines.at(error.range().start), format!("not JSON: {}", error.kind())))?;
    match parsed.value {
        Some(value) => node(&value, lines, 0),
        None => Ok(Node { value: Value::Map(Vec::new()), at: lines.at(0) }),
    }
}

/// The accepted extensions of JSON; also used for edits.
pub(crate) fn options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_loose_object_property_names: false,
        allow_trailing_commas: true,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn node(value: &ast::Value<'_>, lines: &Lines, depth: usize) -> Result<Node, Error> {
    let at = lines.at(value.start());
    if depth > MAX_DEPTH {
        return Err(too_deep(at));
    }
    let value = match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(lit) => Value::Bool(lit.value),
        ast::Value::StringLit(lit) => Value::Text(lit.value.clone().into_owned()),
        ast::Value::NumberLit(lit) => match (lit.value.parse(), lit.value.parse()) {
            (Ok(whole), _) => Value::Int(whole),
            (_, Ok(number)) => Value::Float(number),
            _ => return Err(syntax(at, "not JSON: a number that cannot be read")),
        },
        ast::Value::Array(array) => {
            Value::List(array.elements.iter().map(|item| node(item, lines, depth + 1)).collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let entry = |prop: &ast::ObjectProp<'_>| {
                let key = Key { name: prop.name.as_str().to_owned(), at: lines.at(prop.range.start) };
                Ok((key, node(&prop.value, lines, depth + 1)?))
            };
            Value::Map(object.properties.iter().map(entry).collect::<Result<_, Error>>()?)
        }
    };
    Ok(Node { value, at })
}
