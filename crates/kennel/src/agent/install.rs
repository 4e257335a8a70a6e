//! Installs an agent's npm package into a cache volume, the first time that it is used on native without an image.
//!
//! A sandbox without the workspace does this, because npm runs scripts of the packages. The agent's own sandbox has the
//! volume read-only, so an agent cannot change the program that other projects start.

use crate::environment::npm_variables;
use crate::lifecycle::{Deadline, create};
use crate::next_step::Hint;
use crate::progress::while_waiting;
use kennel_acp::Preset;
use kennel_core::{Error, Result, Sandbox};
use kennel_engine::{Claimed, discard};
use kennel_types::{Cache, Command, ErrorCode, ExecSpec, NetworkMode, SandboxSpec};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Where the volume is inside.
const TARGET: &str = "/opt/kennel-agent";
/// How long the installation may take.
const LONGEST: Duration = Duration::from_mins(15);
/// The part of a volume's name that says what is in it, in characters.
const READABLE: usize = 48;
/// What is kept of npm's output, in bytes.
const OUTPUT: usize = 64 * 1024;
/// The lines of npm's output that an error repeats.
const SHOWN: usize = 20;

/// Installs a package beside others of the same name, and moves it to its place when it is complete. Of two installations at
/// the same time, the first wins. The option `--prefix` would keep npm from the settings of the machine.
const SCRIPT: &str = r#"set -e
find . -maxdepth 1 -name 'new-*' -mmin +1440 -exec rm -rf {} +
new=$(mktemp -d ./new-XXXXXX)
trap 'rm -rf "$new"' EXIT
cd "$new"
echo '{}' > package.json
npm install --cache "$PWD/.npm" --no-audit --no-fund --no-save --no-progress --loglevel=error "$1" >&2
cd ..
mv -T "$new/node_modules" node_modules || [ -d node_modules ]
"#;

/// A package that an agent needs.
pub(super) struct Package {
    /// The agent.
    agent: String,
    /// Its name with the version, for npm.
    full_name: String,
    version: String,
}

impl Package {
    /// Returns the package of an agent, if npm has it.
    pub(super) fn of(preset: &Preset) -> Option<Self> {
        let (full_name, version) = (preset.package()?, preset.version.clone()?);
        Some(Self { agent: preset.name.clone(), full_name, version })
    }

    /// Returns the command with the program in the volume.
    pub(super) fn command(mut argv: Vec<String>) -> Command {
        if let Some(program) = argv.first_mut() {
            *program = format!("{TARGET}/node_modules/.bin/{program}");
        }
        Command::Argv(argv)
    }

    /// Returns the volume. All projects share it: its name says what is in it.
    pub(super) fn volume(&self, read_only: bool) -> Cache {
        // The name of a volume has only letters, digits and hyphens. The hash tells apart what looks the same in it.
        let readable = format!("{}-{}", self.agent, self.version).to_lowercase();
        let readable: String =
            readable.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).take(READABLE).collect();
        let hash = Sha256::digest(&self.full_name);
        let hash = hash[..4].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let name = format!("agent-{readable}-{hash}");
        Cache { name, target: TARGET.to_owned(), read_only }
    }

    /// Installs the package, unless the volume has it. `sandbox` is that of the agent, with the volume, and `spec` describes it.
    pub(super) async fn install(&self, sandbox: &Sandbox, spec: &SandboxSpec, deadline: &mut Deadline) -> Result<()> {
        let modules = format!("{TARGET}/node_modules");
        let look = ExecSpec::argv(["test", "-d", &modules]);
        if deadline.unless_ended(sandbox.run(&look, None, OUTPUT)).await?.status.success() {
            return Ok(());
        }
        let spec = SandboxSpec {
            // A network that is only for the agent would keep npm from its registry.
            network: spec.network.filter(|network| *network == NetworkMode::Host),
            caches: vec![self.volume(false)],
            limits: spec.limits,
            toolchains: spec.toolchains.clone(),
            user: spec.user.clone(),
            owner: spec.owner,
            project: spec.project.clone(),
            startup_ms: spec.startup_ms,
            tied: true,
            ..SandboxSpec::default()
        };
        let (installer, _) = create(Claimed::none()?, sandbox.provider().clone(), &spec, deadline).await?;
        let what = format!("installing {} (only the first time)", self.full_name);
        let installed = while_waiting(&what, Box::pin(deadline.unless_ended(self.run_npm(&installer)))).await;
        let removed = discard(&installer).await;
        installed.and(removed)
    }

    async fn run_npm(&self, sandbox: &Sandbox) -> Result<()> {
        let _line = sandbox.launch().await?;
        let spec = ExecSpec {
            env: npm_variables(),
            cwd: Some(TARGET.to_owned()),
            ..ExecSpec::argv(["sh", "-c", SCRIPT, "sh", &self.full_name])
        };
        let what = format!("install {} of the agent {}", self.full_name, self.agent);
        let failed = |code, lines: Vec<String>| {
            Error::of_lines(code, [what.clone()].into_iter().chain(lines)).hint(format!(
                "check that Node and npm are installed, or use an image: kennel agent image {}",
                self.agent
            ))
        };
        let Ok(output) = tokio::time::timeout(LONGEST, sandbox.run(&spec, None, OUTPUT)).await else {
            return Err(failed(ErrorCode::Timeout, vec![format!("npm did not end within {LONGEST:?}")]));
        };
        let output = output.map_err(|error| error.context(&what))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        Err(failed(ErrorCode::ExecFailed, lines[lines.len().saturating_sub(SHOWN)..].to_vec()))
    }
}
