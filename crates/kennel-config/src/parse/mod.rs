//! Parses text into a [`Node`], with one module per format. The size and depth of a file, and its growth through YAML
//! aliases, are capped here.

mod json;
mod toml;
mod yaml;

pub(crate) use json::options as json_options;

use crate::location::Lines;
use crate::{Error, KeyPath, Location, Node, Problem, Source, What};
use std::path::Path;
use std::sync::Arc;

/// The largest file that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting that is accepted.
pub const MAX_DEPTH: usize = 64;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON. Comments and trailing commas are accepted, because people are used to them in settings files.
    Json,
    /// YAML 1.2, one document.
    Yaml,
    /// TOML.
    Toml,
}

impl Format {
    /// Returns the format for a file's extension.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" | "jsonc" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }

    /// Guesses the format of a text without a file extension. JSON begins with a brace. The first line of TOML is a
    /// table or has `=` before any `:`. Everything else is YAML.
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

/// Parses a text. An empty text is an empty map.
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
