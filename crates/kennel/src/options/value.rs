//! Single values as they are typed.

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

/// Reads `-e NAME=VALUE` and `-e NAME`, the latter taken from our own environment.
pub(crate) fn environment(given: &[String]) -> Result<BTreeMap<String, String>> {
    let mut env = BTreeMap::new();
    for entry in given {
        let (name, value) = match entry.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (entry.as_str(), inherited(entry)?),
        };
        if name.is_empty() || value.contains('\0') || name.contains('\0') {
            return Err(wrong("-e", entry, "NAME=VALUE or NAME"));
        }
        env.insert(name.to_owned(), value);
    }
    Ok(env)
}

fn inherited(name: &str) -> Result<String> {
    let value = named(name).ok_or_else(|| {
        Error::new(ErrorCode::InvalidConfig, format!("-e {name}: the variable is not set here"))
            .hint(format!("-e {name}=VALUE"))
    })?;
    value
        .into_string()
        .map_err(|_| Error::new(ErrorCode::InvalidConfig, format!("-e {name}: its value is not valid UTF-8")))
}

/// Reads `KEY=VALUE`.
pub(super) fn label(entry: &str) -> Result<(String, String)> {
    match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(wrong("--label", entry, "KEY=VALUE")),
    }
}

/// Reads `HOST:TARGET[:ro]`; a relative host path counts from the current directory, and must exist.
pub(super) fn mount(entry: &str) -> Result<Mount> {
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
    let host = existing(Path::new(host), "-v")?;
    Ok(Mount { host, target: target.to_owned(), read_only })
}

/// The absolute form of a path that must exist.
pub(super) fn existing(path: &Path, option: &str) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|error| {
        let hint = format!("mkdir -p {}", path.display());
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let error =
            Error::new(ErrorCode::InvalidConfig, format!("{option} {}: {error}", path.display())).caused_by(error);
        if missing { error.hint(hint) } else { error }
    })
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
        let env = environment(&["A=1".into(), "B=x=y".into(), "C=".into()]).unwrap();
        assert_eq!(
            env.into_iter().collect::<Vec<_>>(),
            [("A", "1"), ("B", "x=y"), ("C", "")].map(|(k, v)| (k.into(), v.into()))
        );
        for bad in ["=x", "NO_SUCH_VARIABLE_HERE"] {
            assert_eq!(environment(&[bad.into()]).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad}");
        }
    }

    #[test]
    fn mounts() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap();
        let text = host.to_str().unwrap();
        let read = mount(&format!("{text}:/data:ro")).unwrap();
        assert_eq!(read, Mount { host: host.clone(), target: "/data".into(), read_only: true });
        assert!(!mount(&format!("{text}:/data")).unwrap().read_only);
        assert!(mount(".:/here").unwrap().host.is_absolute());
        for bad in ["", "/tmp", ":/data", "/tmp:data", "/tmp:/data:xx", "/tmp:/a:ro:b", "/no/such/path:/data"] {
            assert_eq!(mount(bad).unwrap_err().code(), ErrorCode::InvalidConfig, "{bad}");
        }
    }
}
