//! Finds files inside a sandbox by name and by content. The search runs here and not inside, where a program for it may be
//! missing or replaced. So it reads every file that it searches, within limits.

use super::files::{inside, open};
use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use globset::{GlobBuilder, GlobMatcher};
use kennel_api::{FileMatch, FileMatches, Scope};
use kennel_core::Files;
use kennel_types::{ErrorCode, FileKind, TreeEntry};
use regex::bytes::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// The largest file whose content is searched.
const LARGEST: u64 = 8 << 20;
/// How many bytes of contents one request reads.
const MOST_BYTES: u64 = 256 << 20;
/// How many matches a response has if the client does not say.
const MATCHES: usize = 100;
/// The longest pattern, and the memory of its compiled form.
const LONGEST_PATTERN: usize = 1000;
const PATTERN_MEMORY: usize = 1 << 20;
/// How many characters of a line are returned.
const LONGEST_LINE: usize = 1000;
/// A zero byte in the first bytes of a file says that it is not text.
const LOOKED_AT: usize = 8 << 10;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(
        Operation {
            query: QuerySchema::Of(fields::<SearchQuery>),
            response: (200, Content::Json(schema::<FileMatches>)),
            ..operation(
                Method::GET,
                "/v1/sandboxes/{sandbox}/files/search",
                "searchFiles",
                Scope::Read,
                "Finds files below a directory by name, and lines of files by their text.",
            )
        },
        search,
    )
}

/// What is searched.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SearchQuery {
    /// The directory inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// Only files whose name fits, for example `*.rs`. A pattern with a slash is for the path below the directory, for example
    /// `src/**/*.rs`.
    name: Option<String>,
    /// Only lines with this text. Without it, files of all kinds are found by their name.
    text: Option<String>,
    /// `text` is a regular expression.
    #[serde(default)]
    regex: bool,
    /// The case of letters in `text` does not matter.
    #[serde(default)]
    ignore_case: bool,
    /// How deep to descend; defaults to 64, the deepest.
    #[schemars(range(min = 1, max = 64))]
    depth: Option<u32>,
    /// How many matches are returned; defaults to 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn search(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(sandbox): Path<String>,
    Query(query): Query<SearchQuery>,
) -> Outcome<Json<FileMatches>> {
    let limit = query.limit.unwrap_or(MATCHES);
    if !(1..=1000).contains(&limit) {
        return Err(Failure::invalid(format!("invalid limit {limit}: expected 1 to 1000")));
    }
    if query.text.is_none() && (query.regex || query.ignore_case) {
        return Err(Failure::invalid("regex and ignoreCase need text"));
    }
    let name = query.name.as_deref().map(NamePattern::parse).transpose()?;
    let text = query.text.as_deref().map(|text| pattern(text, query.regex, query.ignore_case)).transpose()?;
    let (sandbox, files) = open(&app, &identity, &sandbox, query.user.as_deref()).await?;
    let top = inside(&sandbox, &query.path)?;
    let entries = files.list_tree(&top, query.depth.unwrap_or(64)).await?;
    let mut found = Found { matches: Vec::new(), limit, truncated: false, skipped: 0 };
    let (mut ending, mut left) = (app.ending.clone(), MOST_BYTES);
    for entry in entries.iter().filter(|entry| name.as_ref().is_none_or(|name| name.fits(&entry.path))) {
        let Some(text) = &text else {
            found.add(entry, None);
            continue;
        };
        if entry.stat.kind != FileKind::File {
            continue;
        }
        if found.truncated || left < entry.stat.size || *ending.borrow_and_update() {
            found.truncated = true;
            break;
        }
        let path = [top.trim_end_matches('/').as_bytes(), b"/", &entry.path].concat();
        match content(&files, &path, entry.stat.size).await? {
            Some(bytes) => {
                left = left.saturating_sub(bytes.len() as u64);
                found.add_lines(entry, &bytes, text);
            }
            None => found.skipped += 1,
        }
    }
    Ok(Json(FileMatches { matches: found.matches, truncated: found.truncated, skipped: found.skipped }))
}

/// A pattern for names.
struct NamePattern {
    glob: GlobMatcher,
    /// Whether it is for whole paths.
    is_path: bool,
}

impl NamePattern {
    fn parse(text: &str) -> Outcome<Self> {
        let invalid = |why: String| Failure::invalid(format!("invalid name {text:?}: {why}"));
        if text.is_empty() || text.len() > LONGEST_PATTERN {
            return Err(invalid(format!("expected 1 to {LONGEST_PATTERN} bytes")));
        }
        let glob =
            GlobBuilder::new(text).literal_separator(true).build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self { glob: glob.compile_matcher(), is_path: text.contains('/') })
    }

    fn fits(&self, path: &[u8]) -> bool {
        let text = if self.is_path { path } else { path.rsplit(|byte| *byte == b'/').next().unwrap_or(path) };
        self.glob.is_match(OsStr::from_bytes(text))
    }
}

fn pattern(text: &str, is_regex: bool, ignore_case: bool) -> Outcome<Regex> {
    let invalid = |why: String| Failure::invalid(format!("invalid text {text:?}: {why}"));
    if text.is_empty() || text.len() > LONGEST_PATTERN {
        return Err(invalid(format!("expected 1 to {LONGEST_PATTERN} bytes")));
    }
    let pattern = if is_regex { text.to_owned() } else { regex::escape(text) };
    let built = RegexBuilder::new(&pattern)
        .case_insensitive(ignore_case)
        .size_limit(PATTERN_MEMORY)
        .dfa_size_limit(PATTERN_MEMORY)
        .build();
    built.map_err(|error| invalid(error.to_string()))
}

/// Reads a file to search it. Returns `None` if it is too large, not text, or cannot be read.
async fn content(files: &Files, path: &[u8], size: u64) -> Outcome<Option<Vec<u8>>> {
    if size > LARGEST {
        return Ok(None);
    }
    match files.read(path, LARGEST as usize).await {
        Ok(bytes) => Ok(Some(bytes).filter(|bytes| !bytes[..bytes.len().min(LOOKED_AT)].contains(&0))),
        // The keeper is gone, and with it all files.
        Err(error) if matches!(error.code(), ErrorCode::Stopped | ErrorCode::NotAvailable) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// What was found so far.
struct Found {
    matches: Vec<FileMatch>,
    limit: usize,
    truncated: bool,
    skipped: u64,
}

impl Found {
    fn add(&mut self, entry: &TreeEntry, line: Option<(u64, &[u8])>) {
        if self.matches.len() == self.limit {
            self.truncated = true;
            return;
        }
        let path = &entry.path;
        self.matches.push(FileMatch {
            path: String::from_utf8_lossy(path).into_owned(),
            path_base64: std::str::from_utf8(path).is_err().then(|| STANDARD.encode(path)),
            kind: crate::convert::file_kind(entry.stat.kind),
            line: line.map(|(number, _)| number),
            text: line.map(|(_, line)| String::from_utf8_lossy(line).chars().take(LONGEST_LINE).collect()),
        });
    }

    fn add_lines(&mut self, entry: &TreeEntry, bytes: &[u8], text: &Regex) {
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if text.is_match(line) {
                self.add(entry, Some((number, line)));
                if self.truncated {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_have_patterns() {
        for (pattern, path, fits) in [
            ("*.rs", "src/deep/main.rs", true),
            ("*.rs", "main.rs.bak", false),
            ("src/*.rs", "src/deep/main.rs", false),
            ("src/**/*.rs", "src/deep/main.rs", true),
            ("{a,b}", "x/b", true),
        ] {
            assert_eq!(NamePattern::parse(pattern).ok().unwrap().fits(path.as_bytes()), fits, "{pattern} {path}");
        }
        for bad in ["", "[", "{a"] {
            assert!(NamePattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_is_bounded() {
        assert!(pattern("a.c", false, false).ok().unwrap().is_match(b"a.c"));
        assert!(!pattern("a.c", false, false).ok().unwrap().is_match(b"abc"));
        assert!(pattern("A.C", true, true).ok().unwrap().is_match(b"abc"));
        for bad in ["", "(", r"\w{1000}{1000}"] {
            assert!(pattern(bad, true, false).is_err(), "{bad}");
        }
    }
}
