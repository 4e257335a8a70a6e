//! The workspace of a session: a directory of the user, or one of its own, perhaps with a clone of a git repository.
//!
//! The clone runs in a sandbox, because git on the host would handle data of a stranger with the user's rights. The
//! user's credentials are asked for on the host, and are passed only to that one git process.

use crate::Cancel;
use crate::create::remove_sandbox;
use crate::pool::wire::ForWorkspace;
use crate::session::SessionId;
use kennel_core::{Error, ExecEvent, Provider, Result, Sandbox, new_id};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExecSpec, Field, NextStep, SandboxSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a session's workspace comes from.
#[derive(Clone, Default)]
pub enum SessionWorkspace {
    /// The workspace of the spec: a directory of the user, or none.
    #[default]
    AsSpecified,
    /// A new directory `<base>/<session id>`. It is kept when the session ends.
    Own {
        /// The directory of all such directories.
        base: PathBuf,
    },
    /// A git repository, cloned into a new directory `<base>/<session id>`. It is kept when the session ends.
    Clone {
        /// The directory of all such directories.
        base: PathBuf,
        /// The address of the repository: `https`, `http` or `git`.
        url: String,
        /// Returns the user's credentials. Without them, only public repositories can be cloned.
        credentials: Option<Arc<dyn GitCredentials>>,
    },
}

/// Asks for the user's git credentials on the host, for example with `git credential fill`.
pub trait GitCredentials: Send + Sync {
    /// Returns user name and password for a repository, or `None` if there are none.
    fn credentials(&self, url: &str) -> Result<Option<(String, String)>>;
}

/// Only the result of git matters; its output is progress.
const LINE: usize = 4096;
/// How many of git's last lines an error contains.
const LAST_LINES: usize = 5;
/// The environment variables that carry the credentials to git's helper.
const USER: &str = "KENNEL_GIT_USER";
const PASSWORD: &str = "KENNEL_GIT_PASSWORD";
/// A credential helper that returns these variables. It resets those of the image first.
const HELPER: &str =
    r#"!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$KENNEL_GIT_USER" "$KENNEL_GIT_PASSWORD"; }; f"#;

impl SessionWorkspace {
    /// Refuses what cannot be cloned safely.
    pub(super) fn check(&self) -> Result<()> {
        let Self::Clone { url, .. } = self else { return Ok(()) };
        let after_scheme = ["https://", "http://", "git://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let Some(rest) = after_scheme else {
            let message = format!("invalid repository {url:?}: expected an address with https, http or git");
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .advise("a repository on this machine can be mounted as the workspace"));
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.contains('@') {
            // It would be recorded with the session, and git would write it into the workspace.
            let message = "invalid repository: its address contains a user name or password";
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .advise("store the password with git's credential helper, and leave it out of the address"));
        }
        Ok(())
    }

    /// The directory that is the session's own.
    pub(super) fn directory(&self, session: &SessionId) -> Option<PathBuf> {
        match self {
            Self::AsSpecified => None,
            Self::Own { base } | Self::Clone { base, .. } => Some(base.join(session.as_str())),
        }
    }

    /// What a member of a pool must have for it.
    pub(super) fn wanted(&self) -> ForWorkspace {
        match self {
            Self::AsSpecified => ForWorkspace::AsSpecified,
            Self::Own { base } => ForWorkspace::Own(base.clone()),
            Self::Clone { .. } => ForWorkspace::Clone,
        }
    }

    /// The repository that is cloned.
    pub(super) fn source(&self) -> Option<&str> {
        match self {
            Self::Clone { url, .. } => Some(url),
            _ => None,
        }
    }
}

/// Makes the directory, and clones the repository into it. If that fails, nothing is left of the directory.
pub(super) async fn prepare(
    workspace: &SessionWorkspace,
    provider: &Arc<dyn Provider>,
    spec: &SandboxSpec,
    cancel: &Cancel,
    tell: &(dyn Fn(String) + Sync),
) -> Result<()> {
    let Some(dir) = spec.workspace.as_deref().filter(|_| !matches!(workspace, SessionWorkspace::AsSpecified)) else {
        return Ok(());
    };
    make_directory(dir, spec)?;
    let SessionWorkspace::Clone { url, credentials, .. } = workspace else { return Ok(()) };
    let cloned = async {
        let credentials = match credentials {
            Some(source) => cancel.interrupts(ask(source.clone(), url.clone())).await?,
            None => None,
        };
        clone(provider, spec, url, credentials, cancel, tell).await
    };
    let cloned = cloned.await;
    if cloned.is_err()
        && let Err(error) = std::fs::remove_dir_all(dir)
    {
        tracing::warn!(dir = %dir.display(), %error, "the workspace of a failed clone is left");
    }
    cloned
}

/// Asks for credentials on another thread, because a credential helper may wait for a key or a network.
async fn ask(source: Arc<dyn GitCredentials>, url: String) -> Result<Option<(String, String)>> {
    let asked = tokio::task::spawn_blocking(move || source.credentials(&url)).await;
    asked.unwrap_or_else(|_| Err(Error::new(ErrorCode::Internal, "ask for git credentials: panic")))
}

/// Makes the directory of a session, for the owner of its sandbox.
pub(crate) fn make_directory(dir: &Path, spec: &SandboxSpec) -> Result<()> {
    let failed = |error| Error::io(format!("create the workspace {}", dir.display()), error);
    if let Some(base) = dir.parent() {
        std::fs::create_dir_all(base).map_err(failed)?;
    }
    std::fs::create_dir(dir).map_err(failed)?;
    if let Some(owner) = spec.owner {
        std::os::unix::fs::chown(dir, Some(owner.uid), Some(owner.gid)).map_err(failed)?;
    }
    Ok(())
}

/// Clones a repository in a sandbox of its own. It has the labels of the session, so that it is found after a crash.
async fn clone(
    provider: &Arc<dyn Provider>,
    spec: &SandboxSpec,
    url: &str,
    credentials: Option<(String, String)>,
    cancel: &Cancel,
    tell: &(dyn Fn(String) + Sync),
) -> Result<()> {
    let with = SandboxSpec {
        name: None,
        command: None,
        image_main: false,
        workdir: None,
        ports: Vec::new(),
        mounts: Vec::new(),
        caches: Vec::new(),
        data: false,
        read_only: false,
        auto_remove: false,
        idle_seconds: None,
        ..spec.clone()
    };
    let id = new_id()?;
    let cloned = async {
        let sandbox = Sandbox::create_with_id(provider.clone(), &id, &with).await?;
        sandbox.start().await?;
        cancel.interrupts(git_clone(&sandbox, url, credentials, tell)).await
    };
    let cloned = cloned.await;
    let removed = remove_sandbox(&**provider, &id, true).await;
    cloned.and(removed).map_err(|error| error.context(format_args!("clone {url}")))
}

async fn git_clone(
    sandbox: &Sandbox,
    url: &str,
    credentials: Option<(String, String)>,
    tell: &(dyn Fn(String) + Sync),
) -> Result<()> {
    let private = credentials.is_some();
    let mut argv = vec!["git"];
    if private {
        argv.extend(["-c", "credential.helper=", "-c"]);
    }
    let helper = format!("credential.helper={HELPER}");
    if private {
        argv.push(&helper);
    }
    argv.extend(["clone", "--progress", "--", url, "."]);
    let mut command = ExecSpec::argv(argv);
    // Git fails at once where it would ask.
    command.env.insert("GIT_TERMINAL_PROMPT".into(), "0".into());
    if let Some((user, password)) = credentials {
        command.env.extend([(USER.into(), user), (PASSWORD.into(), password)]);
    }
    let mut exec = sandbox.exec(&command).await.map_err(no_git)?;
    let mut lines = Lines::default();
    loop {
        match exec.next().await? {
            ExecEvent::Output(Channel::Stderr, bytes) => lines.push(&bytes, tell),
            ExecEvent::Output(..) => {}
            ExecEvent::Exited(status) if status.code == Some(0) => return Ok(()),
            ExecEvent::Exited(_) => return Err(lines.error(private)),
        }
    }
}

/// Git's lines, which end with a newline or, while it counts, with a carriage return.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    last: Vec<String>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], tell: &(dyn Fn(String) + Sync)) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => {
                    let line = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).trim_end().to_owned();
                    // The first line says only what was requested.
                    if *byte == b'\n' && !line.is_empty() && !line.starts_with("Cloning into ") {
                        self.last.push(line.clone());
                        let over = self.last.len().saturating_sub(LAST_LINES);
                        self.last.drain(..over);
                    }
                    tell(line);
                }
                byte if self.partial.len() < LINE => self.partial.push(*byte),
                _ => {}
            }
        }
    }

    fn error(&self, private: bool) -> Error {
        let asked = self.last.iter().any(|line| {
            ["could not read Username", "could not read Password", "Authentication failed"]
                .iter()
                .any(|words| line.contains(words))
        });
        let message = format!("git: {}", self.last.join("; "));
        match (asked, private) {
            // Git ran. That it failed is not the failure of a command that the user runs.
            (false, _) => Error::new(ErrorCode::ExecFailed, message).exit_code(125),
            (true, true) => Error::new(ErrorCode::PermissionDenied, message)
                .advise("check the credentials that git's credential helper stores for this host"),
            (true, false) => Error::new(ErrorCode::PermissionDenied, message)
                .advise("store credentials for this host with git's credential helper"),
        }
    }
}

fn no_git(error: Error) -> Error {
    if error.exit_status() == 127 {
        return error.suggest(NextStep::either([
            NextStep::set(Field::Image),
            NextStep::advice("install git in the image that the session uses"),
        ]));
    }
    error
}
