//! Text to [`Node`], one file per format. What a file may cost is capped here: its size, its depth, and what YAML's
//! aliases may grow it to.

mod json;
mod toml;
mod yaml;

pub(crate) use json::options as json_options;

use crate::location::Lines;
use crate::{Error, KeyPath, Location, Node, Problem, Source, What};
use std::path::Path;
use std::sync::Arc;

/// The largest file that is read.
pub const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting that is read.
pub const MAX_DEPTH: usize = 64;

/// A format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON; comments and trailing commas are let pass, since editors of such files write them.
    Json,
    /// YAML 1.2, one document.
    Yaml,
    /// TOML.
    Toml,
}

impl Format {
    /// The format that a file's extension names.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" | "jsonc" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }

    /// The likely format of a text without an extension: JSON begins with a brace, the first line of TOML is a table or
    /// has `=` before any `:`, the rest is YAML.
    pub fn of_content(text: &str) -> Self {
        let lines = text.lines().map(str::trim_start);
        let Some(line) = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#')) else {
            return Self::Toml;
        };
        if line.starts_with('{') || line.starts_with("//") || line.starts_with("/*") {
            Self::Json
        } else if line.starts_with('[') {
            Self::Toml
        } else {
            match (line.find('='), line.find(':')) {
                (Some(equals), Some(colon)) if equals < colon => Self::Toml,
                (Some(_), None) => Self::Toml,
                _ => Self::Yaml,
            }
        }
    }
}

/// Reads a text. An empty one is an empty map.
pub fn parse(text: &str, format: Format, source: Source) -> Result<Node, Error> {
    let source = Arc::new(source);
    if text.len() > MAX_BYTES {
        let at = Location { source, line: 0, column: 0 };
        return Err(syntax(at, format!("larger than {MAX_BYTES} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::new(text, source);
    match format {
        Format::Json => json::parse(text, &lines),
        Format::Yaml => yaml::parse(text, &lines),
        Format::Toml => toml::parse(text, &lines),
    }
}

fn syntax(at: Location, message: impl Into<String>) -> Error {
    Problem { at, key: KeyPath::default(), what: What::Syntax(message.into()) }.into()
}

fn too_deep(at: Location) -> Error {
    syntax(at, format!("nested deeper than {MAX_DEPTH} levels"))
}
