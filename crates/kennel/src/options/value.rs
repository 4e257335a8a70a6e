//! Parses the values of options.

use super::host_path::existing_in;
use crate::environment::named;
use crate::next_step::Hint;
use kennel_config::Socket;
use kennel_core::{Error, Result, open_regular_file};
use kennel_engine::request::missing_socket;
use kennel_types::{ErrorCode, Mount, parse_duration};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A time limit, for example `30s` or `5m`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLimit(pub(crate) Option<Duration>);

impl std::str::FromStr for TimeLimit {
    type Err = kennel_types::InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches!(text, "none" | "0") { Ok(Self(None)) } else { parse_duration(text).map(|limit| Self(Some(limit))) }
    }
}

/// Variables for a command.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvironmentOptions {
    /// Set an environment variable; without VALUE, copy it from your environment
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Set the environment variables listed in this file, one NAME=VALUE per line
    #[arg(long = "env-file", value_name = "FILE")]
    env_files: Vec<PathBuf>,
}

impl EnvironmentOptions {
    /// Returns all variables. Those of later files override earlier ones, and `--env` overrides files.
    pub(crate) fn read(&self) -> Result<BTreeMap<String, String>> {
        let mut env = BTreeMap::new();
        for path in &self.env_files {
            env.extend(listed(path)?);
        }
        for entry in &self.env {
            let (name, value) = variable("-e", entry)?;
            env.insert(name, value);
        }
        Ok(env)
    }
}

/// Reads the variables in a file. A sandbox may have written the file, or replaced it by a symlink. So a relative path
/// must not lead out of the current directory, opening a FIFO does not block, no variable is copied from this process's
/// environment, and errors contain no text from the file.
fn listed(path: &Path) -> Result<Vec<(String, String)>> {
    const LONGEST: u64 = 1 << 20;
    let shown = path.display();
    let invalid = |why: String| Error::new(ErrorCode::InvalidConfig, why);
    let failed = |error: std::io::Error| invalid(format!("--env-file {shown}: {error}")).caused_by(error);
    let mut bytes = Vec::new();
    open_regular_file(path, &[]).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        return Err(invalid(format!("--env-file {shown}: it is larger than {LONGEST} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| invalid(format!("--env-file {shown}: it is not valid UTF-8")))?;
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('=') {
            Some((name, value)) if is_name(name) && !value.contains('\0') => {
                variables.push((name.to_owned(), value.to_owned()));
            }
            Some(_) => return Err(invalid(format!("--env-file {shown}: line {number}: expected NAME=VALUE"))),
            None => {
                let message = format!("--env-file {shown}: line {number}: expected NAME=VALUE, found no =");
                return Err(invalid(message).hint("use -e NAME to copy a variable from your environment"));
            }
        }
    }
    Ok(variables)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(char::is_whitespace) && !name.contains('\0')
}

/// Parses `NAME=VALUE`, or `NAME`, whose value is copied from this process's environment.
fn variable(at: &str, entry: &str) -> Result<(String, String)> {
    let (name, value) = match entry.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (entry, inherited(at, entry)?),
    };
    if !is_name(name) || value.contains('\0') {
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

/// Parses a label, `KEY=VALUE`.
pub(crate) fn label(entry: &str, option: &str) -> Result<(String, String)> {
    match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(wrong(option, entry, "KEY=VALUE")),
    }
}

/// Parses a mount, `HOST:TARGET[:ro]`. The host path must exist. A relative path starts at the current directory, and
/// must not lead out of it or out of the workspace.
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
        return Err(wrong("-v", entry, "HOST:TARGET with an absolute TARGET, for example ./data:/data"));
    }
    let host = existing_in(Path::new(host), "-v", workspace)?;
    Ok(Mount { host, target: target.to_owned(), read_only })
}

/// Parses a bridge to a socket, `HOST:TARGET`. The socket must exist. A relative path starts at the current directory, and
/// must not lead out of it or out of the workspace.
pub(super) fn socket(entry: &str, workspace: Option<&Path>) -> Result<Socket> {
    let expected = "HOST:TARGET with an absolute TARGET, for example $SSH_AUTH_SOCK:/run/ssh-agent.sock";
    let (host, target) = entry.rsplit_once(':').ok_or_else(|| wrong("--socket", entry, expected))?;
    if !target.starts_with('/') || host.is_empty() {
        return Err(wrong("--socket", entry, expected));
    }
    let host = Path::new(host);
    if let Err(error) = host.metadata() {
        return Err(missing_socket(host, "--socket", error));
    }
    Ok(Socket { host: existing_in(host, "--socket", workspace)?, container: target.to_owned() })
}

fn wrong(option: &str, given: &str, expected: &str) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("{option} {given:?}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits() {
        assert_eq!("none".parse(), Ok(TimeLimit(None)));
        assert_eq!("0".parse(), Ok(TimeLimit(None)));
        assert_eq!("2m".parse(), Ok(TimeLimit(Some(Duration::from_mins(2)))));
        assert!("soon".parse::<TimeLimit>().is_err());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test compares with the environment")]
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
        std::fs::write(&file, "# a comment\n\nA=from the file\n  B= kept \n").unwrap();
        let env = read(&["A=typed", "PATH"], vec![file.clone()]).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("typed", " kept "));
        assert_eq!(env["PATH"], std::env::var("PATH").unwrap(), "-e NAME passes on one of ours");
        for bad in ["A=1\nPATH\n", "A=1\nsecret word=x\n", "A=1\n=secret\n", "A=1\nsecret\n"] {
            std::fs::write(&file, bad).unwrap();
            let error = read(&[], vec![file.clone()]).unwrap_err().to_string();
            assert!(error.contains("line 2: expected NAME=VALUE"), "{error}");
            assert!(!error.contains("secret") && !error.contains("PATH"), "nothing of the file is shown: {error}");
        }
        std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(read(&[], vec![file.clone()]).is_err(), "too large");
        std::fs::write(&file, b"A=\xff").unwrap();
        assert!(read(&[], vec![file.clone()]).is_err(), "not text");
        assert!(read(&[], vec!["/dev/null".into()]).is_err(), "not a regular file");
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
