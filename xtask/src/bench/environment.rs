//! The environment of the measurements: a separate home directory, the release build of Kennel, the providers as a
//! library, and the programs to compare with. Everything is removed when it is dropped, also after an error.

use super::sample::succeed;
use anyhow::{Context, Result, bail};
use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix, UnixDialer};
use kennel_native::Native;
use kennel_testkit::podman::Service;
use kennel_testkit::{Net, become_ordinary_user, docker as engine, host, testers_ids, within_blocking};
use kennel_types::{ErrorCode, NetworkMode, SandboxSpec};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Everything that the measurements need.
pub(super) struct BenchEnvironment {
    home: tempfile::TempDir,
    /// The provider and its user, for the names of rows.
    who: &'static str,
    busybox: PathBuf,
    native: Arc<dyn Provider>,
    docker: Option<Containers>,
    podman: Option<Containers>,
    /// A runtime with one thread, like that of the command line.
    runtime: tokio::runtime::Runtime,
}

/// An engine, its test image, and Kennel's provider for it.
pub(super) struct Containers {
    kind: EngineKind,
    socket: PathBuf,
    pub(super) image: String,
    pub(super) provider: Arc<dyn Provider>,
}

impl BenchEnvironment {
    /// Creates the home directory and finds the programs. Engines are used only if environment variables name them.
    pub(super) fn set_up() -> Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let kennel = own.with_file_name("kennel");
        if !kennel.is_file() {
            bail!("{} is not there: use cargo xtask bench", kennel.display());
        }
        let program = std::fs::read(&kennel).with_context(|| format!("read {}", kennel.display()))?;
        Self::with(&program, "native", true)
    }

    /// Measures as the ordinary user `kennel-tester`, who has subordinate ids and a separate home directory, in a
    /// private network with a simulated internet.
    pub(super) fn as_user<T: Send>(&self, measure: impl FnOnce(&Self) -> Result<T> + Send) -> Result<T> {
        let program = std::fs::read(self.program()).context("read the command line's program")?;
        let play = || {
            let _net = Net::for_users();
            become_ordinary_user(testers_ids());
            measure(&Self::with(&program, "native, ordinary user", false)?)
        };
        apart(play)
    }

    /// Measures in a private network with a simulated internet, so that no rule or interface of this machine is
    /// changed.
    pub(super) fn with_internet<T: Send>(&self, measure: impl FnOnce(&Self) -> Result<T> + Send) -> Result<T> {
        let program = std::fs::read(self.program()).context("read the command line's program")?;
        let who = self.who;
        let play = || {
            let _net = Net::with_internet();
            measure(&Self::with(&program, who, false)?)
        };
        apart(play)
    }

    /// Creates a home directory with Kennel's program in it. The program is written anew, like the jail, which the
    /// first sandbox installs, because the age of a file in the page cache makes a difference of up to a millisecond.
    fn with(program: &[u8], who: &'static str, engines: bool) -> Result<Self> {
        let busybox = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
        let busybox = busybox.context("find a static busybox: apt-get install busybox-static")?;
        let home = tempfile::Builder::new().prefix("kennel-bench-").tempdir().context("make a home")?;
        for dir in ["state", "workspace"] {
            std::fs::create_dir(home.path().join(dir)).with_context(|| format!("make {dir}"))?;
        }
        let kennel = home.path().join(PROGRAM);
        std::fs::write(&kennel, program).with_context(|| format!("write {}", kennel.display()))?;
        std::fs::set_permissions(&kennel, PermissionsExt::from_mode(0o755)).context("make it a program")?;
        // The command line uses the same directories, so it finds the sandboxes that the library creates.
        let (state, programs) = (home.path().join("state"), home.path().join("data/programs"));
        let installation = format!("{:016x}", std::process::id());
        std::fs::write(state.join("installation"), &installation).context("write the installation's id")?;
        let containers = |variable: &str, kind: EngineKind, word: &str| {
            let socket = kennel_testkit::environment::variable(variable).filter(|_| engines).map(PathBuf::from)?;
            let options = DockerOptions {
                state_dir: state.join(word),
                program_dir: programs.clone(),
                expected: kind,
                installation: installation.clone(),
                name_prefix: NamePrefix::default(),
            };
            let provider: Arc<dyn Provider> = Arc::new(Docker::new(options, Arc::new(UnixDialer::new(&socket))));
            Some(Containers { kind, image: engine::image_on(&socket), socket, provider })
        };
        let docker = containers(engine::SOCKET_VARIABLE, EngineKind::Docker, "docker");
        let podman = containers(Service::Root.variable(), EngineKind::Podman, "podman");
        let native = Arc::new(Native::new(state.join("native"), programs));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        Ok(Self { home, who, busybox, native, docker, podman, runtime })
    }

    pub(super) fn path(&self) -> &Path {
        self.home.path()
    }

    /// Returns the provider and its user, for the names of rows.
    pub(super) fn who(&self) -> &'static str {
        self.who
    }

    fn program(&self) -> PathBuf {
        self.path().join(PROGRAM)
    }

    /// Returns the path of a static busybox, which is the same on the host and in native sandboxes.
    pub(super) fn busybox(&self) -> &str {
        self.busybox.to_str().expect("its path is one of two that are text")
    }

    pub(super) fn native(&self) -> &Arc<dyn Provider> {
        &self.native
    }

    pub(super) fn docker(&self) -> Option<&Containers> {
        self.docker.as_ref()
    }

    pub(super) fn podman(&self) -> Option<&Containers> {
        self.podman.as_ref()
    }

    /// Returns the state directory of native sandboxes.
    pub(super) fn native_state(&self) -> PathBuf {
        self.path().join("state/native")
    }

    /// Blocks until a future of the library is ready.
    pub(super) fn wait<T>(&self, future: impl Future<Output = kennel_core::Result<T>>) -> Result<T> {
        Ok(self.runtime.block_on(future)?)
    }

    /// Returns a command that runs `kennel` in the home's workspace, with an empty environment.
    pub(super) fn kennel(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(arguments).current_dir(self.path().join("workspace")).env_clear();
        command.env("KENNEL_HOME", self.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        if let Some(docker) = &self.docker {
            command.env("DOCKER_HOST", format!("unix://{}", docker.socket.display()));
        }
        command
    }

    /// Runs a static `true` on the host.
    pub(super) fn host_true(&self) -> Result<()> {
        succeed(Command::new(&self.busybox).arg("true"))
    }

    /// Creates and starts a sandbox, and connects to it. It is tied, so it ends with this process.
    pub(super) fn sandbox(&self, provider: &Arc<dyn Provider>, image: Option<&str>) -> Result<Sandbox> {
        self.wait(self.begin(provider, image))
    }

    /// Creates and starts a tied sandbox, and connects to it. Several can be created at the same time.
    pub(super) async fn begin(
        &self,
        provider: &Arc<dyn Provider>,
        image: Option<&str>,
    ) -> kennel_core::Result<Sandbox> {
        let spec = SandboxSpec {
            image: image.map(ToOwned::to_owned),
            network: Some(NetworkMode::None),
            workspace: Some(self.path().join("workspace")),
            tied: true,
            ..SandboxSpec::default()
        };
        let sandbox = Sandbox::create(provider.clone(), &spec).await?;
        sandbox.start().await?;
        // A tied sandbox belongs to its first connection, which exists after the handshake.
        sandbox.keeper().await?.welcome().await?;
        Ok(sandbox)
    }

    /// Waits until nothing is left of these native sandboxes, because tied ones are removed in the background. Returns
    /// whether this was the case in time.
    pub(super) fn is_gone(&self, ids: &[String]) -> bool {
        let mark = self.path().display().to_string();
        within_blocking(Duration::from_secs(30), || host::leftovers(&mark, ids, &self.native_state()).is_empty())
    }

    /// Removes a sandbox.
    pub(super) fn remove(&self, sandbox: &Sandbox) -> Result<()> {
        self.wait(async { gone(sandbox.remove(EVERYTHING).await) })
    }
}

/// The name of Kennel's program in the home directory.
const PROGRAM: &str = "kennel";

/// Runs `work` in a separate thread, which may switch to another network namespace and user.
fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.map_err(|panic| std::panic::resume_unwind(panic)).and_then(|done| done)
}

const EVERYTHING: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// Treats a missing sandbox as removed, because a tied sandbox may end on its own at the same moment.
fn gone(removed: kennel_core::Result<()>) -> kennel_core::Result<()> {
    removed.or_else(|error| if error.code() == ErrorCode::NotFound { Ok(()) } else { Err(error) })
}

impl Containers {
    /// Returns a command of the engine's own command line.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let (program, words) = match self.kind {
            EngineKind::Docker => ("docker", &["--host"][..]),
            EngineKind::Podman => ("podman", &["--remote", "--url"][..]),
        };
        let mut command = Command::new(program);
        command.args(words).arg(format!("unix://{}", self.socket.display())).args(arguments);
        command
    }
}

impl Drop for BenchEnvironment {
    fn drop(&mut self) {
        let engines = [&self.docker, &self.podman].into_iter().flatten().map(|engine| &engine.provider);
        let providers = std::iter::once(&self.native).chain(engines);
        for provider in providers {
            let swept = self.wait(async {
                for sandbox in provider.list().await? {
                    gone(provider.remove(&sandbox.id, EVERYTHING).await)?;
                }
                Ok(())
            });
            if let Err(error) = swept {
                eprintln!("xtask: sandboxes of {} may be left: {error:#}", provider.name());
            }
        }
        // Jails remove the directories of tied sandboxes. Only then can an ordinary user remove the home.
        let sandboxes = || std::fs::read_dir(self.native_state()).into_iter().flatten().flatten();
        let is_empty = || !sandboxes().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        if !within_blocking(Duration::from_secs(30), is_empty) {
            eprintln!("xtask: something of a sandbox is left in {}", self.native_state().display());
        }
    }
}
