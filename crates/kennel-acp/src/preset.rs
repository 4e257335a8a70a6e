//! Agents as data: how each is installed and started, which variables it needs, and where it writes.
//!
//! Presets are TOML files. Those of Kennel are part of the program; users add their own in `agents` in the directory of their
//! settings, where a file replaces the preset of the same name. A project cannot add presets.

use kennel_core::{Error, Result, check_name};
use kennel_types::{ErrorCode, NextStep};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, TableLike, TomlError};

/// The presets of Kennel, by name.
const OWN: [(&str, &str); 6] = [
    ("claude-code", include_str!("../presets/claude-code.toml")),
    ("codex", include_str!("../presets/codex.toml")),
    ("gemini", include_str!("../presets/gemini.toml")),
    ("goose", include_str!("../presets/goose.toml")),
    ("opencode", include_str!("../presets/opencode.toml")),
    ("qwen-code", include_str!("../presets/qwen-code.toml")),
];

/// The largest file of a preset, in bytes.
const LARGEST: u64 = 64 * 1024;

/// How an agent is started, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all(serialize = "camelCase"))]
pub struct Preset {
    /// The name, which is that of its file.
    #[serde(skip_deserializing)]
    pub name: String,
    /// The file, if it is the user's own.
    #[serde(skip_deserializing)]
    pub file: Option<PathBuf>,
    /// The name for people.
    #[serde(default)]
    pub title: Option<String>,
    /// The command that starts it in its ACP mode, program first.
    pub command: Vec<String>,
    /// How a person installs it, if it is not a package of npm.
    #[serde(default)]
    pub install: Option<String>,
    /// Its package of npm, which Kennel can install.
    #[serde(default)]
    pub npm: Option<String>,
    /// The version of the package.
    #[serde(default)]
    pub version: Option<String>,
    /// The image that its own image is built from. It must have Node and npm, and for `packages` also Debian's apt.
    #[serde(default = "node")]
    pub base: String,
    /// The Debian packages that its image has in addition.
    #[serde(default)]
    pub packages: Vec<String>,
    /// The variables of the caller that carry secrets, and are passed to it if they are set.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// The other variables of the caller that are passed to it if they are set.
    #[serde(default)]
    pub passed: Vec<String>,
    /// Variables with their values.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The hosts that it connects to.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// How long it may take to reply to the first message, in seconds.
    #[serde(default = "ten")]
    pub startup_seconds: u64,
    /// What it writes below its home directory: logins, settings, sessions. Directories end with a slash.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Whether it is told that its client serves files.
    #[serde(default = "yes")]
    pub files: bool,
    /// Whether it is told that its client serves terminals.
    #[serde(default = "yes")]
    pub terminals: bool,
    /// What was tried with it. `None` if it was never run.
    #[serde(default)]
    pub tried: Option<String>,
    /// What else a user should know.
    #[serde(default)]
    pub note: Option<String>,
}

fn ten() -> u64 {
    10
}

fn node() -> String {
    "node:22-slim".to_owned()
}

fn yes() -> bool {
    true
}

impl Preset {
    /// Returns all presets, by name: those of Kennel, and those in a directory of the user, which may not exist.
    pub fn all(dir: Option<&Path>) -> Result<Vec<Self>> {
        let mut all = BTreeMap::new();
        for (name, text) in OWN {
            all.insert(name.to_owned(), parse(name, text, None)?);
        }
        for name in dir.map(names).transpose()?.unwrap_or_default() {
            if let Some(preset) = dir.map(|dir| read(dir, &name)).transpose()?.flatten() {
                all.insert(name, preset);
            }
        }
        Ok(all.into_values().collect())
    }

    /// Returns the preset of this name.
    pub fn find(name: &str, dir: Option<&Path>) -> Result<Self> {
        check_name(name).map_err(|error| error.context(format!("agent {name:?}")))?;
        if let Some(preset) = dir.map(|dir| read(dir, name)).transpose()?.flatten() {
            return Ok(preset);
        }
        if let Some((name, text)) = OWN.iter().find(|(own, _)| *own == name) {
            return parse(name, text, None);
        }
        let message = format!("there is no agent {name:?}");
        Err(Error::new(ErrorCode::NotFound, message).suggest(NextStep::ListAgents))
    }

    /// Returns the package of npm with its version, as npm's command line names it.
    pub fn package(&self) -> Option<String> {
        Some(format!("{}@{}", self.npm.as_ref()?, self.version.as_ref()?))
    }

    /// Returns the command that installs it, or what else there is to know about that.
    pub fn installing(&self) -> Option<String> {
        self.install.clone().or_else(|| Some(format!("npm install --global {}", self.package()?)))
    }

    /// Checks what becomes a word of a build file or a shell command.
    pub(crate) fn check_words(&self) -> std::result::Result<(), String> {
        let is = |text: &str, also: &str| {
            let first = text.chars().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == '@');
            first && text.chars().all(|char| char.is_ascii_alphanumeric() || also.contains(char))
        };
        if let Some(name) = self.npm.as_ref().filter(|name| !is(name, "@/-._~")) {
            return Err(format!("npm: expected the name of a package, found {name:?}"));
        }
        if let Some(version) = self.version.as_ref().filter(|version| !is(version, ".+-") || version.len() > 64) {
            return Err(format!("version: expected a version such as 1.2.3, found {version:?}"));
        }
        if !is(&self.base, "./:@_-") {
            return Err(format!("base: expected the name of an image, found {:?}", self.base));
        }
        if let Some(name) = self.packages.iter().find(|name| !is(name, "+.-")) {
            return Err(format!("packages: expected the names of Debian packages, found {name:?}"));
        }
        let is_below_home = |path: &String| {
            let parts = path.strip_suffix('/').unwrap_or(path).split('/');
            is(path.trim_start_matches('.'), "./_-")
                && parts.clone().all(|part| !part.is_empty() && part != "." && part != "..")
        };
        if let Some(path) = self.writes.iter().find(|path| !is_below_home(path)) {
            return Err(format!("writes: expected paths below the home directory, found {path:?}"));
        }
        Ok(())
    }

    /// Returns the variables for the agent, from those of the caller.
    pub fn variables(&self, of_caller: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
        let passed = self.secrets.iter().chain(&self.passed);
        let mut variables = self.env.clone();
        variables.extend(passed.filter_map(|name| Some((name.clone(), of_caller(name)?))));
        variables
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {}", dir.display()), error)),
    };
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".toml").map(ToOwned::to_owned);
    Ok(entries.flatten().filter_map(name).filter(|name| check_name(name).is_ok()).collect())
}

/// Reads a preset of the user. Returns `None` if there is none of this name.
fn read(dir: &Path, name: &str) -> Result<Option<Preset>> {
    let file = dir.join(format!("{name}.toml"));
    let failed = |error| Error::io(format!("read {}", file.display()), error);
    match file.metadata() {
        Ok(found) if found.len() > LARGEST => {
            let message = format!("{}: a preset has at most {LARGEST} bytes", file.display());
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let text = std::fs::read_to_string(&file).map_err(failed)?;
    parse(name, &text, Some(file)).map(Some)
}

fn parse(name: &str, text: &str, file: Option<PathBuf>) -> Result<Preset> {
    let shown = file.as_ref().map_or_else(|| format!("the preset {name}"), |file| file.display().to_string());
    let invalid = |why: String| Error::of_lines(ErrorCode::InvalidConfig, format!("{shown}: {why}").trim_end().lines());
    let document: DocumentMut = text.parse().map_err(|error: TomlError| invalid(error.to_string()))?;
    let preset: Preset =
        serde_json::from_value(table(document.as_table())).map_err(|error| invalid(error.to_string()))?;
    if preset.command.is_empty() {
        return Err(invalid("command: expected a program".to_owned()));
    }
    if preset.npm.is_some() && preset.version.is_none() {
        return Err(invalid("version: expected the version of the npm package".to_owned()));
    }
    preset.check_words().map_err(invalid)?;
    Ok(Preset { name: name.to_owned(), file, ..preset })
}

/// Converts TOML to JSON.
fn table(table: &dyn TableLike) -> Value {
    let value = |item: &Item| match item {
        Item::Value(found) => value(found),
        Item::Table(found) => self::table(found),
        Item::None | Item::ArrayOfTables(_) => Value::Null,
    };
    Value::Object(table.iter().map(|(key, item)| (key.to_owned(), value(item))).collect())
}

fn value(found: &toml_edit::Value) -> Value {
    match found {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Float(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(yes) => (*yes.value()).into(),
        toml_edit::Value::Datetime(time) => time.value().to_string().into(),
        toml_edit::Value::Array(items) => items.iter().map(value).collect(),
        toml_edit::Value::InlineTable(found) => table(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_of_kennel_are_valid() {
        let all = Preset::all(None).unwrap();
        assert_eq!(all.len(), OWN.len());
        for preset in all {
            assert!(!preset.secrets.is_empty() && !preset.writes.is_empty(), "{}", preset.name);
            assert_eq!(Preset::find(&preset.name, None).unwrap(), preset);
        }
        assert_eq!(Preset::find("goose", None).unwrap().tried, None, "it was never run");
        assert_eq!(Preset::find("nonsense", None).unwrap_err().code(), ErrorCode::NotFound);
        assert!(Preset::find("../x", None).is_err());
    }

    #[test]
    fn users_add_and_replace_presets() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine.toml"), "command = [\"./mine\"]\n").unwrap();
        std::fs::write(dir.path().join("goose.toml"), "command = [\"other\"]\nsecrets = [\"KEY\", \"NOT_SET\"]\n")
            .unwrap();
        let all = Preset::all(Some(dir.path())).unwrap();
        assert_eq!(all.len(), OWN.len() + 1);
        let goose = Preset::find("goose", Some(dir.path())).unwrap();
        assert_eq!((goose.command.as_slice(), goose.file.is_some()), (&["other".to_owned()][..], true));
        let variables = goose.variables(|name| (name == "KEY").then(|| "value".to_owned()));
        assert_eq!(variables, [("KEY".to_owned(), "value".to_owned())].into());

        std::fs::write(dir.path().join("bad.toml"), "comand = [\"x\"]\n").unwrap();
        let error = Preset::find("bad", Some(dir.path())).unwrap_err();
        assert!(error.to_string().contains("comand"), "{error}");
        assert!(Preset::find("mine", Some(&dir.path().join("missing"))).is_err());
        for (line, said) in [
            ("npm = \"x\"", "version: expected"),
            ("npm = \"x; rm\"\nversion = \"1\"", "npm: expected"),
            ("npm = \"x\"\nversion = \"1\\n2\"", "version: expected"),
            ("base = \"x\\nRUN y\"", "base: expected"),
            ("packages = [\"-o\"]", "packages: expected"),
            ("writes = [\"../x\"]", "writes: expected"),
            ("writes = [\"/x\"]", "writes: expected"),
        ] {
            std::fs::write(dir.path().join("bad.toml"), format!("command = [\"x\"]\n{line}\n")).unwrap();
            let error = Preset::find("bad", Some(dir.path())).unwrap_err();
            assert!(error.to_string().contains(said), "{line}: {error}");
        }
        std::fs::write(dir.path().join("bad.toml"), "command = []\n").unwrap();
        assert!(Preset::all(Some(dir.path())).is_err());
    }
}
