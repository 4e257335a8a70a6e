//! Single values as they are typed.

use super::host_path::existing_in;
use crate::environment::named;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, Mount, parse_duration};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A time limit, or none: `30s`, `5m`, `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) Option<Duration>);

impl std::str::FromStr for Patience {
    type Err = kennel_types::InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches!(text, "none" | "0") { Ok(Self(None)) } else { parse_duration(text).map(|limit| Self(Some(limit))) }
    }
}

/// Variables for a command.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvironmentOptions {
    /// Set a variable, or pass on one of ours
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Set the variables that this file lists, one NAME[=VALUE] on a line
    #[arg(long = "env-file", value_name = "FILE")]
    env_files: Vec<PathBuf>,
}

impl EnvironmentOptions {
    /// All of them: files in order, then what was typed.
    pub(crate) fn read(&self) -> Result<BTreeMap<String, String>> {
        let mut env = BTreeMap::new();
        for path in &self.env_files {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Error::new(ErrorCode::InvalidConfig, format!("--env-file {}: {error}", path.display())).caused_by(error)
            })?;
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.trim_start();
                if !line.is_empty() && !line.starts_with('#') {
                    let (name, value) = variable(&format!("{}:{number}:", path.display()), line)?;
                    env.insert(name, value);
                }
            }
        }
        for entry in &self.env {
            let (name, value) = variable("-e", entry)?;
            env.insert(name, value);
        }
        Ok(env)
    }
}

/// Reads `NAME=VALUE` and `NAME`, the latter taken from our own environment.
fn variable(at: &str, entry: &str) -> Result<(String, String)> {
    let (name, value) = match entry.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (entry, inherited(at, entry)?),
    };
    if name.is_empty() || name.contains(char::is_whitespace) || value.contains('\0') || name.contains('\0') {
        return Err(wrong(at, entry, "NAME=VALUE or NAME"));
    }
    Ok((name.to_owned(), value))
}

fn inherited(at: &str, name: &str) -> Result<String> {
    let value = named(name).ok_or_else(|| {
        Error::new(ErrorCode::InvalidConfig, format!("{at} {name}: the variable is not set here"))
            .hint(format!("-e {name}=VALUE"))
    })?;
    value
        .into_string()
        .map_err(|_| Error::new(ErrorCode::InvalidConfig, format!("{at} {name}: its value is not valid UTF-8")))
}

/// Reads `KEY=VALUE`.
pub(crate) fn label(entry: &str, option: &str) -> Result<(String, String)> {
    match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(wrong(option, entry, "KEY=VALUE")),
    }
}

/// Reads `HOST:TARGET[:ro]`. The host path must exist; a relative one counts from the current directory, and does not
/// lead out of it or out of the workspace.
pub(super) fn mount(entry: &str, workspace: Option<&Path>) -> Result<Mount> {
    let mut parts = entry.split(':');
    let (Some(host), Some(target), mode, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(wrong("-v", entry, "HOST:TARGET or HOST:TARGET:ro"));
    };
    let read_only = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return Err(wrong("-v", entry, "HOST:TARGET or HOST:TARGET:ro")),
    };
    if !target.starts_with('/') || host.is_empty() {
        return Err(wrong("-v", entry, "HOST:TARGET with an absolute TARGET, as in ./data:/data"));
    }
    let host = existing_in(Path::new(host), "-v", workspace)?;
    Ok(Mount { host, target: target.to_owned(), read_only })
}

fn wrong(option: &str, given: &str, expected: &str) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("{option} {given:?}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience() {
        assert_eq!("none".parse(), Ok(Patience(None)));
        assert_eq!("0".parse(), Ok(Patience(None)));
        assert_eq!("2m".parse(), Ok(Patience(Some(Duration::from_mins(2)))));
        assert!("soon".parse::<Patience>().is_err());
    }

    #[test]
    fn environment_entries() {
        let read = |env: &[&str], env_files: Vec<PathBuf>| {
            EnvironmentOptions { env: env.iter().map(ToString::to_string).collect(), env_files }.read()
        };
        let env = read(&["A=1", "B=x=y", "C="], Vec::new()).unwrap();
        assert_eq!(
            env.into_iter().collect::<Vec<_>>(),
            [("A", "1"), ("B", "x=y"), ("C", "")].map(|(k, v)| (k.into(), v.into()))
        );
        for bad in ["=x", "NO_SUCH_VARIABLE_HERE", "A B=1"] {
            assert_eq!(read(&[bad], Vec::new()).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        std::fs::write(&file, "# a comment\n\nA=from the file\n  B= kept \nPATH\n").unwrap();
        let env = read(&["A=typed"], vec![file.clone()]).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("typed", " kept "));
        assert_eq!(env["PATH"], std::env::var("PATH").unwrap());
        std::fs::write(&file, "A=1\nNO_SUCH_VARIABLE_HERE\n").unwrap();
        let error = read(&[], vec![file.clone()]).unwrap_err().to_string();
        assert!(error.contains("env:2:"), "{error}");
        assert!(read(&[], vec![dir.path().join("missing")]).is_err());
    }

    #[test]
    fn mounts() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap();
        let text = host.to_str().unwrap();
        let read = mount(&format!("{text}:/data:ro"), None).unwrap();
        assert_eq!(read, Mount { host: host.clone(), target: "/data".into(), read_only: true });
        assert!(!mount(&format!("{text}:/data"), None).unwrap().read_only);
        assert!(mount(".:/here", None).unwrap().host.is_absolute());
        for bad in ["", "/tmp", ":/data", "/tmp:data", "/tmp:/data:xx", "/tmp:/a:ro:b", "/no/such/path:/data"] {
            assert_eq!(mount(bad, None).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad}");
        }
    }
}
