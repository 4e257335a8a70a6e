//! Registry logins: those that `docker login` and `podman login` stored, and their credential helpers.

use crate::Reference;
use crate::error::{Error, Result, shown};
use base64::Engine;
use kennel_types::{ErrorCode, NextStep};
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a credential helper may take. It may ask the user.
const PATIENCE: Duration = Duration::from_mins(1);
/// Bytes in the longest reply of a credential helper, and in the largest login file.
const LONGEST: u64 = 1 << 20;
/// The name of Docker's own registry in login files.
const HUB: &str = "https://index.docker.io/v1/";

/// Where logins are searched for.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Login files in Docker's format. The first one that has a login is used. Missing files are skipped.
    pub files: Vec<PathBuf>,
    /// Directories that are searched for credential helpers (`docker-credential-…`).
    pub programs: Vec<PathBuf>,
}

/// A login.
#[derive(Clone, Debug)]
pub enum Login {
    /// A user name and a password.
    Basic {
        /// The user name.
        user: String,
        /// The password.
        secret: SecretString,
    },
    /// An identity token, which is exchanged for other tokens.
    Identity(SecretString),
    /// A bearer token, which is sent as it is.
    Bearer(SecretString),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: HashMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: HashMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(rename = "auth")]
    packed: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// The reply of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

impl Credentials {
    /// Returns the login for pulling an image from its own registry, or `None` if there is none.
    pub async fn login(&self, image: &Reference) -> Result<Option<Login>> {
        self.find(image.registry(), image).await
    }

    /// Returns the login for a repository, or `None` if there is none, which is normal for public ones.
    pub(crate) async fn find(&self, registry: &str, image: &Reference) -> Result<Option<Login>> {
        let keys = keys(registry, image.repository());
        for path in &self.files {
            let Some(file) = read(path)? else { continue };
            let helper = keys.iter().find_map(|key| Some((file.cred_helpers.get(key)?, key)));
            let helper = helper.or_else(|| file.creds_store.as_ref().zip(keys.first()));
            if let Some((helper, key)) = helper
                && let Some(login) = self.ask(helper, if *key == keys[0] { server(registry) } else { key }).await?
            {
                return Ok(Some(login));
            }
            let mut found = keys.iter().filter_map(|key| file.auths.get(key));
            if let Some(login) = found.find_map(|auth| login(auth, path).transpose()) {
                return login.map(Some);
            }
        }
        Ok(None)
    }

    /// Asks a credential helper for a login. Returns `None` if it has none.
    async fn ask(&self, helper: &str, server: &str) -> Result<Option<Login>> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if helper.is_empty() || !helper.bytes().all(plain) {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("invalid name of a credential helper: {}", shown(helper.as_bytes())),
            ));
        }
        let name = format!("docker-credential-{helper}");
        let program = self.programs.iter().map(|dir| dir.join(&name)).find(|path| path.is_file()).ok_or_else(|| {
            Error::new(ErrorCode::NotAvailable, format!("the credential helper {name} is not installed"))
                .advise("install it, or remove it from Docker's config.json")
        })?;
        let asked = tokio::time::timeout(PATIENCE, call(&program, server)).await;
        let (success, said) = asked
            .map_err(|_| Error::new(ErrorCode::Timeout, format!("{name} did not reply within {PATIENCE:?}")))?
            .map_err(|error| Error::io(format!("run {name}"), error))?;
        if !success {
            // All credential helpers use these words.
            if String::from_utf8_lossy(&said).contains("credentials not found") {
                return Ok(None);
            }
            let why = shown(said.trim_ascii());
            return Err(Error::new(
                ErrorCode::PermissionDenied,
                format!("{name} returned no login for {server}: {why}"),
            )
            .suggest(NextStep::LogIn { program: "docker".into(), registry: Some(server.to_owned()) }));
        }
        let wrong = |_| {
            Error::new(
                ErrorCode::InvalidConfig,
                format!("{name} returned an invalid reply: expected a user name and a secret"),
            )
        };
        let Answer { username, secret } = serde_json::from_slice(&said).map_err(wrong)?;
        Ok(Some(match username.as_str() {
            "<token>" => Login::Identity(secret.into()),
            _ => Login::Basic { user: username, secret: secret.into() },
        }))
    }
}

async fn call(program: &Path, server: &str) -> std::io::Result<(bool, Vec<u8>)> {
    let mut command = tokio::process::Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (mut stdin, stdout) = pipes.ok_or_else(|| std::io::Error::other("it has no standard input and output"))?;
    // It is no error if a helper replies without reading its input.
    let _ = stdin.write_all(server.as_bytes()).await;
    drop(stdin);
    let mut said = Vec::new();
    stdout.take(LONGEST).read_to_end(&mut said).await?;
    Ok((child.wait().await?.success(), said))
}

fn read(path: &Path) -> Result<Option<File>> {
    use std::io::Read;
    let what = |error| Error::io(format!("read {}", path.display()), error);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(what(error)),
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).map_err(what)?;
    let read = serde_json::from_slice(&text);
    // The error does not contain the text, because that has secrets in it.
    read.map(Some).map_err(|error| {
        let at = format!("line {}, column {}", error.line(), error.column());
        Error::new(ErrorCode::InvalidConfig, format!("parse the login file {}: {at}", path.display()))
    })
}

/// The names under which a registry can occur in login files. Docker's own registry has a special name, and Podman's
/// files can name repositories too.
fn keys(registry: &str, repository: &str) -> Vec<String> {
    let mut keys = Vec::new();
    if registry == "docker.io" {
        keys.push(HUB.to_owned());
    }
    let mut path = format!("{registry}/{repository}");
    loop {
        keys.push(path.clone());
        match path.rfind('/') {
            Some(at) => path.truncate(at),
            None => break,
        }
    }
    for scheme in ["https://", "http://"] {
        keys.extend(["", "/", "/v1/", "/v2/"].map(|end| format!("{scheme}{registry}{end}")));
    }
    keys
}

/// The name of a registry for credential helpers.
fn server(registry: &str) -> &str {
    if registry == "docker.io" { HUB } else { registry }
}

fn login(auth: &Auth, path: &Path) -> Result<Option<Login>> {
    let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(token) = said(&auth.registrytoken) {
        return Ok(Some(Login::Bearer(token.into())));
    }
    if let Some(token) = said(&auth.identitytoken) {
        return Ok(Some(Login::Identity(token.into())));
    }
    if let Some(packed) = said(&auth.packed) {
        let plain = base64::engine::general_purpose::STANDARD.decode(packed.trim()).ok();
        let plain = plain.and_then(|bytes| String::from_utf8(bytes).ok());
        let parts = plain.as_deref().and_then(|text| text.split_once(':'));
        let (user, secret) = parts.ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidConfig,
                format!("invalid login in {}: expected a user name and a password", path.display()),
            )
            .suggest(NextStep::run_on_host("docker logout && docker login"))
        })?;
        let secret = secret.trim_end_matches('\0').to_owned();
        return Ok(Some(Login::Basic { user: user.to_owned(), secret: secret.into() }));
    }
    Ok(said(&auth.username).map(|user| {
        let secret = auth.password.clone().unwrap_or_default();
        Login::Basic { user, secret: secret.into() }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;
    use std::os::unix::fs::PermissionsExt;

    fn written(dir: &Path, text: &str) -> Credentials {
        let path = dir.join("config.json");
        std::fs::write(&path, text).unwrap();
        Credentials { files: vec![dir.join("missing.json"), path], programs: vec![dir.to_owned()] }
    }

    fn helper(dir: &Path, name: &str, script: &str) {
        let path = dir.join(format!("docker-credential-{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    async fn found(credentials: &Credentials, image: &str) -> Option<String> {
        let image: Reference = image.parse().unwrap();
        let login = credentials.find(image.registry(), &image).await.unwrap()?;
        assert!(!format!("{login:?}").contains("pass"), "a secret is not shown");
        Some(match login {
            Login::Basic { user, secret } => format!("{user}:{}", secret.expose_secret()),
            Login::Identity(token) => format!("identity {}", token.expose_secret()),
            Login::Bearer(token) => format!("bearer {}", token.expose_secret()),
        })
    }

    #[tokio::test]
    async fn docker_and_podman_logins_are_read() {
        let dir = tempfile::tempdir().unwrap();
        // ann:pass
        let credentials = written(
            dir.path(),
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "YW5uOnBhc3M="},
                "quay.io/team": {"auth": "dGVhbTpwYXNz"},
                "quay.io": {"username": "all", "password": "pass"},
                "https://old.example/v1/": {"identitytoken": "pass-1"},
                "localhost:5000": {"registrytoken": "pass-2"},
                "empty.example": {}
            }, "other": 1}"#,
        );
        for (image, login) in [
            ("debian", Some("ann:pass")),
            ("quay.io/team/app", Some("team:pass")),
            ("quay.io/other/app", Some("all:pass")),
            ("old.example/app", Some("identity pass-1")),
            ("localhost:5000/app", Some("bearer pass-2")),
            ("empty.example/app", None),
            ("nowhere.example/app", None),
        ] {
            assert_eq!(found(&credentials, image).await.as_deref(), login, "{image}");
        }
    }

    #[tokio::test]
    async fn credential_helpers_are_used() {
        let dir = tempfile::tempdir().unwrap();
        helper(dir.path(), "own", r#"read server; echo "{\"Username\": \"at-$server\", \"Secret\": \"pass\"}""#);
        helper(dir.path(), "tokens", r#"echo '{"Username": "<token>", "Secret": "pass"}'"#);
        helper(dir.path(), "none", "echo credentials not found in native keychain; exit 1");
        helper(dir.path(), "locked", "echo the keychain is locked; exit 1");
        helper(dir.path(), "silly", "echo hello");
        let credentials = written(
            dir.path(),
            r#"{"credsStore": "own", "credHelpers": {"a.example": "tokens", "b.example": "none", "c.example": "locked",
                "d.example": "silly", "e.example": "missing", "f.example": "../../bin/sh"},
                "auths": {"b.example": {"auth": "YW5uOnBhc3M="}}}"#,
        );
        assert_eq!(found(&credentials, "debian").await.as_deref(), Some("at-https://index.docker.io/v1/:pass"));
        assert_eq!(found(&credentials, "x.example/app").await.as_deref(), Some("at-x.example:pass"));
        assert_eq!(found(&credentials, "a.example/app").await.as_deref(), Some("identity pass"));
        assert_eq!(found(&credentials, "b.example/app").await.as_deref(), Some("ann:pass"));
        for (registry, code, why) in [
            ("c.example", ErrorCode::PermissionDenied, "the keychain is locked"),
            ("d.example", ErrorCode::InvalidConfig, "expected a user name and a secret"),
            ("e.example", ErrorCode::NotAvailable, "docker-credential-missing is not installed"),
            ("f.example", ErrorCode::InvalidConfig, "invalid name"),
        ] {
            let image: Reference = format!("{registry}/app").parse().unwrap();
            let error = credentials.find(registry, &image).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn an_invalid_login_file_is_an_error_that_does_not_show_it() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["{\"auths\": {\"debian\": \"pass\"}}", "pass"] {
            let credentials = written(dir.path(), text);
            let image: Reference = "debian".parse().unwrap();
            let error = credentials.find("docker.io", &image).await.unwrap_err();
            assert!(!error.to_string().contains("pass") && error.to_string().contains("config.json"), "{error}");
        }
    }
}
