//! Converts one value from the form in which it was written.

use crate::check::{Context, Problems, describe};
use crate::expand::expand;
use crate::quantity::{Port, Time};
use crate::shape::{Field, Shape};
use crate::{KeyPath, Node, Value, What};
use kennel_types::{ByteSize, NetworkMode, parse_cpus, parse_duration};
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Returns the converted value, or `None` after adding a problem. `unit` is the unit of a number without one.
pub(crate) fn read(
    node: &Node,
    shape: &Shape,
    unit: &str,
    path: &mut KeyPath,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<Json> {
    match (shape, &node.value) {
        (Shape::List(of), Value::List(items)) => {
            let mut out = Vec::new();
            for (index, item) in items.iter().enumerate() {
                path.push(&index.to_string());
                out.extend(read(item, of, "", path, context, problems));
                path.pop();
            }
            Some(out.into())
        }
        (Shape::Volume | Shape::Socket, Value::Map(_)) => {
            let form = if *shape == Shape::Volume { &VOLUME } else { &SOCKET };
            let parts = context.check(node, form, path, problems)?.to_json(&|part| part.value.clone());
            if parts.get("host").is_some() && parts.get("container").is_some() {
                return Some(parts);
            }
            problems.add(&node.at, path, wrong(shape, node));
            None
        }
        (Shape::Network, Value::Map(_)) => {
            let parts = context.check(node, &NETWORK, path, problems)?.to_json(&|part| part.value.clone());
            let mode = parts.get("mode").cloned();
            if mode.is_none() {
                problems.add(&node.at, path, wrong(shape, node));
            }
            mode
        }
        _ => match scalar(node, shape, unit, context) {
            Ok(value) => Some(value),
            Err(what) => {
                problems.add(&node.at, path, what);
                None
            }
        },
    }
}

fn scalar(node: &Node, shape: &Shape, unit: &str, context: &Context<'_>) -> Result<Json, What> {
    let err = || wrong(shape, node);
    // A text may stand for any scalar if a variable was expanded in it, or if its source contains only text.
    let (text, loose) = match &node.value {
        Value::Text(text) if context.expand => {
            let expanded = expand(text, context.environment)?;
            let loose = context.loose || matches!(expanded, Cow::Owned(_));
            (Some(expanded), loose)
        }
        Value::Text(text) => (Some(Cow::Borrowed(text.as_str())), context.loose),
        _ => (None, false),
    };
    let text = text.as_deref();
    // Numbers are converted to text, so that one parser handles every quantity.
    let number = match &node.value {
        Value::Int(number) => Some(number.to_string()),
        Value::Float(number) if number.is_finite() => Some(number.to_string()),
        _ => None,
    };
    let number = number.as_deref();
    Ok(match shape {
        Shape::Bool => match (&node.value, text) {
            (Value::Bool(value), _) => (*value).into(),
            (_, Some("true" | "1")) if loose => true.into(),
            (_, Some("false" | "0")) if loose => false.into(),
            _ => return Err(err()),
        },
        Shape::Text => match text {
            Some(text) if !text.contains('\0') => text.into(),
            _ => return Err(err()),
        },
        Shape::Count { min } => {
            let count: i64 = number.or(text.filter(|_| loose)).ok_or_else(err)?.parse().map_err(|_| err())?;
            if count < *min || count > i64::from(u32::MAX) {
                return Err(err());
            }
            count.into()
        }
        Shape::Choice { values, renames } => {
            let text = text.ok_or_else(err)?;
            let same = |one: &str| crate::shape::spelling(one) == crate::shape::spelling(text);
            let renamed = renames.iter().find(|(from, _)| same(from)).map(|(_, to)| to);
            renamed.or_else(|| values.iter().find(|value| same(value))).ok_or_else(err)?.as_str().into()
        }
        Shape::Time => {
            let text = with_unit(number.or(text).ok_or_else(err)?, unit);
            Time(parse_duration(&text).map_err(|_| err())?).to_string().into()
        }
        Shape::Size => {
            let text = with_unit(number.or(text).ok_or_else(err)?, unit);
            text.parse::<ByteSize>().map_err(|_| err())?.0.into()
        }
        Shape::Cpus => {
            let thousandths = parse_cpus(number.or(text).ok_or_else(err)?).map_err(|_| err())?;
            (f64::from(thousandths) / 1000.0).into()
        }
        Shape::HostPath => host_path(text.ok_or_else(err)?, context.base).ok_or_else(err)?,
        Shape::InnerPath => match text {
            Some(text) if is_inner_path(text) => text.into(),
            _ => return Err(err()),
        },
        Shape::Name => match text {
            Some(text) if is_name(text) => text.into(),
            _ => return Err(err()),
        },
        Shape::Network => text.and_then(|text| text.parse::<NetworkMode>().ok()).ok_or_else(err)?.to_string().into(),
        Shape::Volume => volume(text.ok_or_else(err)?, context.base).ok_or_else(err)?,
        Shape::Socket => socket(text.ok_or_else(err)?, context.base).ok_or_else(err)?,
        Shape::Port => port(number.or(text).ok_or_else(err)?).ok_or_else(err)?,
        Shape::List(_) | Shape::Map { .. } | Shape::Section(_) => return Err(err()),
    })
}

/// Whether the text can be part of a file name and of a container name.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 100
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char))
}

fn wrong(shape: &Shape, node: &Node) -> What {
    let mut expected = shape.expected();
    if *shape == Shape::Text && matches!(node.value, Value::Int(_) | Value::Float(_) | Value::Bool(_)) {
        expected.push_str(" (put it in quotes)");
    }
    if matches!(&node.value, Value::Text(text) if text.starts_with('~')) {
        expected.push_str(" (in place of `~` write `${HOME}`)");
    }
    What::Value { expected, found: describe(node) }
}

/// Adds the unit of the key to a number without one.
fn with_unit<'a>(text: &'a str, unit: &str) -> Cow<'a, str> {
    let bare = !text.trim().ends_with(|last: char| last.is_ascii_alphabetic());
    if bare && !unit.is_empty() { Cow::Owned(format!("{}{unit}", text.trim())) } else { Cow::Borrowed(text) }
}

/// Returns an absolute host path. JSON supports only Unicode, so a path that is not valid UTF-8 is refused.
fn host_path(text: &str, base: &Path) -> Option<Json> {
    // The shell expands `~`. Nobody means a directory of that name.
    if text.is_empty() || text.contains('\0') || text == "~" || text.starts_with("~/") {
        return None;
    }
    let path: PathBuf = base.join(text).components().collect();
    path.to_str().map(Json::from)
}

fn is_inner_path(text: &str) -> bool {
    text.starts_with('/') && !text.contains('\0')
}

fn volume(text: &str, base: &Path) -> Option<Json> {
    let mut parts = text.split(':');
    let (host, container, mode) = (parts.next()?, parts.next()?, parts.next());
    let readonly = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return None,
    };
    // In other tools, a plain word is a named volume. A directory is written `./word`.
    let is_path = host.contains('/') || matches!(host, "." | "..");
    if !is_path || !is_inner_path(container) || parts.next().is_some() {
        return None;
    }
    Some(json!({ "host": host_path(host, base)?, "container": container, "readonly": readonly }))
}

fn socket(text: &str, base: &Path) -> Option<Json> {
    let (host, container) = text.rsplit_once(':')?;
    is_inner_path(container).then_some(())?;
    Some(json!({ "host": host_path(host, base)?, "container": container }))
}

fn port(text: &str) -> Option<Json> {
    let port: Port = text.trim().parse().ok()?;
    Some(port.to_string().into())
}

/// The map forms of values that have one.
static VOLUME: LazyLock<Shape> = LazyLock::new(|| {
    Shape::Section(vec![
        part("host", &[], Shape::HostPath),
        part("container", &["target"], Shape::InnerPath),
        part("readonly", &["readOnly"], Shape::Bool),
    ])
});
static SOCKET: LazyLock<Shape> = LazyLock::new(|| {
    Shape::Section(vec![part("host", &[], Shape::HostPath), part("container", &["target"], Shape::InnerPath)])
});
static NETWORK: LazyLock<Shape> = LazyLock::new(|| Shape::Section(vec![part("mode", &[], Shape::Network)]));

fn part(name: &str, aliases: &[&str], shape: Shape) -> Field {
    let aliases: BTreeMap<_, _> = aliases.iter().map(|alias| ((*alias).to_owned(), String::new())).collect();
    Field { name: name.to_owned(), aliases, description: String::new(), shape }
}
