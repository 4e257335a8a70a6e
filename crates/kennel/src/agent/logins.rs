//! Keeps what an agent writes below its home directory, such as logins, in a volume. Its preset says what that is.
//!
//! The volume has one path inside, and the home directory has symlinks into it: files cannot be volumes, and the home directory
//! is known only inside.

use kennel_acp::Preset;
use kennel_core::{Error, Result, Sandbox};
use kennel_engine::request::project_hash;
use kennel_types::{Cache, ErrorCode, ExecSpec, SandboxSpec};

/// Where the volume is inside.
const TARGET: &str = "/.agent";
/// What is kept of the output of the script, in bytes.
const OUTPUT: usize = 4096;

/// Links each path below the home directory into the volume. A directory ends with a slash.
const SCRIPT: &str = r#"set -e
cd
for path; do
  name=${path%/}
  case $name in */*) mkdir -p "${name%/*}" "$0/${name%/*}" ;; esac
  case $path in */) mkdir -p "$0/$name" ;; esac
  [ -e "$name" ] || [ -L "$name" ] || ln -s "$0/$name" "$name"
done
"#;

/// Whose agents share their logins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Login {
    /// All your projects
    #[default]
    User,
    /// The sandboxes of this workspace
    Project,
    /// Nothing is kept
    None,
}

/// The volume with the logins of an agent.
pub(super) struct Logins {
    agent: String,
    writes: Vec<String>,
    login: Login,
}

impl Logins {
    /// Returns what is kept of an agent, unless that is nothing.
    pub(super) fn of(preset: &Preset, login: Login) -> Option<Self> {
        let writes = preset.writes.clone();
        (login != Login::None && !writes.is_empty()).then(|| Self { agent: preset.name.clone(), writes, login })
    }

    /// Adds the volume to a sandbox.
    pub(super) fn add_to(&self, spec: &mut SandboxSpec) {
        let project = match (self.login, &spec.workspace) {
            (Login::Project, Some(workspace)) => format!("{}-", project_hash(workspace)),
            _ => String::new(),
        };
        spec.caches.push(Cache::new(format!("{project}login-{}", self.agent), TARGET));
    }

    /// Links the paths of the agent into the volume.
    pub(super) async fn link(&self, sandbox: &Sandbox) -> Result<()> {
        let words = ["sh", "-c", SCRIPT, TARGET].into_iter().chain(self.writes.iter().map(String::as_str));
        let output = sandbox.run(&ExecSpec::argv(words), None, OUTPUT).await;
        let output = output.map_err(|error| error.context("prepare the home directory of the agent"))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let message = "prepare the home directory of the agent, to keep its logins".to_owned();
        let lines = [message].into_iter().chain(text.lines().map(ToOwned::to_owned));
        Err(Error::of_lines(ErrorCode::StartFailed, lines).advise("start the agent without kept logins"))
    }
}
