//! Secrets for an agent: where each comes from, and how it is read. A value is returned to the caller, which sends it to the
//! agent's process only. It is in no error, and nothing here stores it.

use crate::Caller;
use kennel_core::{Error, Result, open_regular_file};
use kennel_types::ErrorCode;
use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdout, Command};

/// The longest secret, in bytes.
const LONGEST: usize = 64 * 1024;
/// How long a command may take. It may ask the user to unlock something.
const COMMAND: Duration = Duration::from_mins(1);
/// The lines of a command's standard error that an error repeats.
const SHOWN: usize = 5;

/// Where a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A variable of the caller.
    Variable(String),
    /// The content of a file, without a newline at its end.
    File(PathBuf),
    /// What a command prints on standard output, without a newline at its end. A shell of the host runs it.
    Command(String),
}

impl std::str::FromStr for SecretSource {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let source = text.split_once(':').filter(|(_, rest)| !rest.trim().is_empty());
        match source {
            Some(("env", name)) => Ok(Self::Variable(name.to_owned())),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("command", line)) => Ok(Self::Command(line.to_owned())),
            _ => Err("expected env:NAME, file:PATH or command:LINE".to_owned()),
        }
    }
}

impl SecretSource {
    /// Reads the secret. `name` is that of the variable it is for, which errors contain.
    pub async fn read(&self, name: &str, caller: &Caller) -> Result<String> {
        let failed = |error: Error| error.context(format!("secret {name}"));
        let bytes = match self {
            Self::Variable(from) => match caller.variables.get(OsStr::new(from)) {
                Some(value) => value.clone().into_encoded_bytes(),
                None => return Err(failed(invalid(format!("the variable {from} is not set")))),
            },
            Self::File(path) => {
                let mut bytes = Vec::new();
                let opened = open_regular_file(path, &[]);
                opened
                    .and_then(|file| file.take(LONGEST as u64 + 2).read_to_end(&mut bytes))
                    .map_err(|error| failed(Error::io(format!("read {}", path.display()), error)))?;
                without_newline(bytes)
            }
            Self::Command(line) => without_newline(output(line, caller).await.map_err(failed)?),
        };
        let refused = |why: &str| failed(invalid(why.to_owned()));
        if bytes.is_empty() {
            return Err(refused("it is empty"));
        }
        if bytes.len() > LONGEST {
            return Err(refused("it is longer than 64 KiB"));
        }
        let text = String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8 text"))?;
        if text.contains('\0') { Err(refused("it contains a null character")) } else { Ok(text) }
    }
}

fn invalid(why: String) -> Error {
    Error::new(ErrorCode::InvalidConfig, why)
}

fn without_newline(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.pop_if(|last| *last == b'\n').is_some() {
        bytes.pop_if(|last| *last == b'\r');
    }
    bytes
}

/// Runs a command, and returns its standard output.
async fn output(line: &str, caller: &Caller) -> Result<Vec<u8>> {
    let failed = |error| Error::io("run the command", error);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).env_clear().envs(&caller.variables).current_dir(&caller.current_dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let read = async {
        let (out, err) = tokio::join!(read_output(child.stdout.take()), read_errors(child.stderr.take()));
        Ok((out?, err, child.wait().await?))
    };
    let Ok(done) = tokio::time::timeout(COMMAND, read).await else {
        return Err(Error::new(ErrorCode::Timeout, format!("the command did not end within {COMMAND:?}")));
    };
    let (out, err, status) = done.map_err(failed)?;
    if status.success() {
        return Ok(out);
    }
    let lines: Vec<String> = String::from_utf8_lossy(&err).lines().map(ToOwned::to_owned).collect();
    let last = lines[lines.len().saturating_sub(SHOWN)..].to_vec();
    let message = format!("the command failed with {status}");
    Err(Error::of_lines(ErrorCode::InvalidConfig, [message].into_iter().chain(last)))
}

async fn read_output(from: Option<ChildStdout>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(LONGEST as u64 + 2).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Reads the beginning of standard error.
async fn read_errors(from: Option<ChildStderr>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What is read so far is enough for an error.
        let _ = (&mut from).take(LONGEST as u64).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(source: &str) -> Result<String> {
        let caller = Caller {
            variables: [("KEY".into(), "of the caller".into()), ("PATH".into(), "/usr/bin:/bin".into())].into(),
            current_dir: "/".into(),
            uid: 0,
        };
        source.parse::<SecretSource>().unwrap().read("NAME", &caller).await
    }

    #[tokio::test]
    async fn sources_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "in a file\r\n").unwrap();
        assert_eq!(read("env:KEY").await.unwrap(), "of the caller");
        assert_eq!(read(&format!("file:{}", file.display())).await.unwrap(), "in a file");
        assert_eq!(read("command:echo \"printed: $KEY\"").await.unwrap(), "printed: of the caller");
        assert_eq!(read("command:printf 'a\\nb\\n\\n'").await.unwrap(), "a\nb\n");
    }

    #[tokio::test]
    async fn errors_name_the_secret_and_contain_no_value() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("long");
        std::fs::write(&long, "x".repeat(LONGEST + 1)).unwrap();
        for (source, said) in [
            ("env:NOT_SET".to_owned(), "the variable NOT_SET is not set"),
            (format!("file:{}", dir.path().join("missing").display()), "missing"),
            (format!("file:{}", dir.path().display()), "read"),
            (format!("file:{}", long.display()), "longer than"),
            ("command:true".to_owned(), "it is empty"),
            ("command:echo locked >&2; echo value; exit 3".to_owned(), "locked"),
            ("command:printf 'value\\0x'".to_owned(), "null character"),
            ("command:printf '\\377value'".to_owned(), "not UTF-8"),
            // A command that prints without end is not read to its end.
            ("command:yes value".to_owned(), "secret NAME"),
        ] {
            let error = read(&source).await.unwrap_err().to_string();
            assert!(error.starts_with("secret NAME: ") && error.contains(said), "{source}: {error}");
            assert!(!error.contains("value"), "{source}: {error}");
        }
        for bad in ["KEY", "env:", "file: ", "vault:x", ""] {
            assert!(bad.parse::<SecretSource>().unwrap_err().contains("expected env:NAME"), "{bad}");
        }
    }
}
