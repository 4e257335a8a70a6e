//! Passes an agent's requests for files and terminals to its client, if the user chose that. The client works on the host, so
//! only paths in the workspace are passed, after symlinks are resolved.
//!
//! What is passed is written anew from what was checked, so that the client cannot read another path from the same message. The
//! agent can replace a directory by a symlink between the check and the moment when the client opens the file: who does not
//! accept that leaves these requests in the sandbox.

use crate::inside::Refusal;
use crate::paths::PathMap;
use crate::splice;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// What is passed to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToClient {
    /// Requests for files.
    pub files: bool,
    /// Requests for terminals: the client runs commands of the agent on the host.
    pub terminals: bool,
    /// The workspace on the host.
    pub workspace: PathBuf,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    session_id: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    session_id: String,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<HashMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_byte_limit: Option<u64>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Which {
    session_id: String,
    terminal_id: String,
}

impl ToClient {
    /// Whether requests of this method are passed.
    pub(crate) fn takes(&self, method: &str) -> bool {
        (self.files && method.starts_with("fs/")) || (self.terminals && method.starts_with("terminal/"))
    }

    /// Returns the request to pass, as a line. `directory` returns the working directory of a session, inside.
    pub(crate) fn request(
        &self,
        id: &str,
        method: &str,
        line: &[u8],
        map: Option<&PathMap>,
        directory: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<u8>, Refusal> {
        let params = match method {
            "fs/read_text_file" | "fs/write_text_file" => {
                let mut file: File = read(line)?;
                let path = absolute(&file.path, directory(&file.session_id));
                file.path = self.resolve(&path, map)?;
                written(&file)
            }
            "terminal/create" => {
                let mut create: Create = read(line)?;
                let base = directory(&create.session_id);
                // Without a directory, the client's own choice may be any.
                let cwd = create.cwd.or_else(|| base.clone());
                let cwd = cwd.unwrap_or_else(|| map.map_or_else(String::new, |map| map.inside.clone()));
                let cwd = if cwd.is_empty() { self.workspace.display().to_string() } else { absolute(&cwd, base) };
                create.cwd = Some(self.resolve(&cwd, map)?);
                written(&create)
            }
            "terminal/output" | "terminal/wait_for_exit" | "terminal/kill" | "terminal/release" => {
                written(&read::<Which>(line)?)
            }
            _ => return Err(Refusal::new(Refusal::NO_METHOD, format!("the method {method:?} is not passed on"))),
        }?;
        Ok(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n").into_bytes())
    }

    /// Returns the path on the host without symlinks. Refuses any that is not in the workspace.
    fn resolve(&self, path: &str, map: Option<&PathMap>) -> Result<String, Refusal> {
        let refused = |why: &str| {
            Err(Refusal::new(Refusal::INVALID_PARAMS, format!("{path}: {why}, so it is not passed to the client")))
        };
        let outside = match map {
            Some(map) => map.outside_of(path),
            None => Some(path.to_owned()),
        };
        let Some(outside) = outside.map(PathBuf::from).filter(|path| path.is_absolute()) else {
            return refused("it is not in the workspace");
        };
        let Ok(workspace) = self.workspace.canonicalize() else {
            return refused("the workspace cannot be resolved");
        };
        let Some(real) = real_path(&outside) else {
            return refused("it cannot be resolved");
        };
        match real.to_str().filter(|_| real.starts_with(&workspace)) {
            Some(real) => Ok(real.to_owned()),
            None => refused("it is not in the workspace"),
        }
    }
}

/// Returns a path without symlinks. Its last components may not exist.
fn real_path(path: &Path) -> Option<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) {
        return path.canonicalize().ok();
    }
    let mut existing = path;
    loop {
        match existing.canonicalize() {
            Ok(real) => return Some(real.join(path.strip_prefix(existing).ok()?).components().collect()),
            // A symlink that leads nowhere would be followed when the file is created.
            Err(_) if existing.symlink_metadata().is_ok() => return None,
            Err(_) => existing = existing.parent()?,
        }
    }
}

fn absolute(path: &str, directory: Option<String>) -> String {
    match directory {
        Some(directory) if !path.starts_with('/') => format!("{}/{path}", directory.trim_end_matches('/')),
        _ => path.to_owned(),
    }
}

fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, Refusal> {
    let text = std::str::from_utf8(line).unwrap_or_default();
    let params = splice::get(text, &["params"]).unwrap_or("{}");
    serde_json::from_str(params)
        .map_err(|error| Refusal::new(Refusal::INVALID_PARAMS, format!("invalid params: {error}")))
}

fn written(params: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(params).map_err(|error| Refusal::new(Refusal::INTERNAL, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::symlink;

    fn passed(to: &ToClient, method: &str, params: &Value, map: Option<&PathMap>) -> Result<Value, Refusal> {
        let line = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        let directory = |session: &str| (session == "s").then(|| "/w/sub".to_owned());
        let line = to.request("7", method, line.as_bytes(), map, directory)?;
        Ok(serde_json::from_slice::<Value>(&line).unwrap()["params"].clone())
    }

    #[test]
    fn only_paths_in_the_workspace_are_passed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let workspace = root.join("workspace");
        std::fs::create_dir_all(workspace.join("sub")).unwrap();
        std::fs::write(root.join("secret"), "x").unwrap();
        for (to, at) in [("../secret", "out"), ("../missing", "dangling"), ("..", "up"), ("sub", "fine")] {
            symlink(to, workspace.join(at)).unwrap();
        }
        let to = ToClient { files: true, terminals: true, workspace: workspace.clone() };
        let map = PathMap { outside: workspace.display().to_string(), inside: "/w".into() };
        let read =
            |path: &str| passed(&to, "fs/read_text_file", &json!({ "sessionId": "s", "path": path }), Some(&map));
        let at = |name: &str| json!(workspace.join(name));
        assert_eq!(read("/w/new/file").unwrap()["path"], at("new/file"));
        assert_eq!(read("/w/fine/x").unwrap()["path"], at("sub/x"));
        assert_eq!(read("x").unwrap()["path"], at("sub/x"));
        for path in [
            "/w/out",
            "/w/dangling",
            "/w/up/secret",
            "/w/../secret",
            "/w/no/../../secret",
            "/etc/passwd",
            "/workspace/x",
            "/w2/x",
            "../../secret",
        ] {
            assert_eq!(read(path).unwrap_err().code, Refusal::INVALID_PARAMS, "{path}");
        }
        // Without a map, paths are the same inside and outside.
        let params = json!({ "sessionId": "t", "path": workspace.join("out") });
        assert!(passed(&to, "fs/read_text_file", &params, None).is_err());
        let params = json!({ "sessionId": "t", "path": "relative" });
        assert!(passed(&to, "fs/read_text_file", &params, None).is_err());
        let params = json!({ "sessionId": "t", "path": workspace.join("a"), "content": "c", "other": 1 });
        let written = passed(&to, "fs/write_text_file", &params, None).unwrap();
        assert_eq!(written, json!({ "sessionId": "t", "path": workspace.join("a"), "content": "c" }));
        let create = |cwd: Value| {
            passed(&to, "terminal/create", &json!({ "sessionId": "s", "command": "c", "cwd": cwd }), Some(&map))
        };
        assert_eq!(create(Value::Null).unwrap()["cwd"], at("sub"));
        assert!(create(json!("/w/up")).is_err() && create(json!("/")).is_err());
    }

    #[test]
    fn two_keys_are_refused() {
        let to = ToClient { files: true, terminals: false, workspace: "/".into() };
        let line = b"{\"params\":{\"sessionId\":\"s\",\"path\":\"/etc\",\"path\":\"/etc/shadow\"}}";
        assert!(to.request("1", "fs/read_text_file", line, None, |_| None).is_err());
        assert!(to.takes("fs/x") && !to.takes("terminal/create") && !to.takes("session/update"));
        assert!(to.request("1", "fs/x", b"{}", None, |_| None).is_err());
    }
}
