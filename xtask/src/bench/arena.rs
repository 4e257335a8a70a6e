//! Where it is measured: a home of its own, the program as it is released, the providers as a library, and the peers.
//! Nothing is left when it is dropped, also after an error.

use super::sample::succeed;
use anyhow::{Context, Result, bail};
use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_docker::{Docker, DockerOptions, Kind, NamePrefix, UnixDialer};
use kennel_native::Native;
use kennel_testkit::podman::Service;
use kennel_testkit::{docker as engine, host, within_blocking};
use kennel_types::{ErrorCode, NetworkMode, SandboxSpec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Everything that is needed to measure.
pub(super) struct Arena {
    home: tempfile::TempDir,
    kennel: PathBuf,
    busybox: PathBuf,
    native: Arc<dyn Provider>,
    docker: Option<Containers>,
    podman: Option<Containers>,
    /// One thread, as the command line has it.
    runtime: tokio::runtime::Runtime,
}

/// An engine, its image, and our provider on it.
pub(super) struct Containers {
    kind: Kind,
    socket: PathBuf,
    pub(super) image: String,
    pub(super) provider: Arc<dyn Provider>,
}

impl Arena {
    /// Makes the home and finds the programs. The engine is the one that the environment names; without, there is none.
    pub(super) fn set_up() -> Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let kennel = own.with_file_name("kennel");
        if !kennel.is_file() {
            bail!("{} is not there: use cargo xtask bench", kennel.display());
        }
        let busybox = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
        let busybox = busybox.context("find a static busybox: apt-get install busybox-static")?;
        let home = tempfile::Builder::new().prefix("kennel-bench-").tempdir().context("make a home")?;
        for dir in ["state", "workspace"] {
            std::fs::create_dir(home.path().join(dir)).with_context(|| format!("make {dir}"))?;
        }
        // The places that the command line uses too: it finds what the library made.
        let (state, programs) = (home.path().join("state"), home.path().join("data/programs"));
        let installation = format!("{:016x}", std::process::id());
        std::fs::write(state.join("installation"), &installation).context("write the installation's id")?;
        let containers = |variable: &str, kind: Kind, word: &str| {
            let socket = kennel_testkit::environment::variable(variable).map(PathBuf::from)?;
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
        let docker = containers(engine::SOCKET_VARIABLE, Kind::Docker, "docker");
        let podman = containers(Service::Root.variable(), Kind::Podman, "podman");
        let native = Arc::new(Native::new(state.join("native"), programs));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        Ok(Self { home, kennel, busybox, native, docker, podman, runtime })
    }

    pub(super) fn path(&self) -> &Path {
        self.home.path()
    }

    /// A static program with a `true` in it, at the same path on the host and in native sandboxes.
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

    /// Where native sandboxes have their directories.
    pub(super) fn native_state(&self) -> PathBuf {
        self.path().join("state/native")
    }

    /// Waits for the library.
    pub(super) fn wait<T>(&self, future: impl Future<Output = kennel_core::Result<T>>) -> Result<T> {
        Ok(self.runtime.block_on(future)?)
    }

    /// The command line, in the home's workspace, with nothing of the caller's environment.
    pub(super) fn kennel(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kennel);
        command.args(arguments).current_dir(self.path().join("workspace")).env_clear();
        command.env("KENNEL_HOME", self.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        if let Some(docker) = &self.docker {
            command.env("DOCKER_HOST", format!("unix://{}", docker.socket.display()));
        }
        command
    }

    /// A static `true`, spawned.
    pub(super) fn host_true(&self) -> Result<()> {
        succeed(Command::new(&self.busybox).arg("true"))
    }

    /// A sandbox that runs, and has been spoken to. It ends with this process, whatever becomes of it.
    pub(super) fn sandbox(&self, provider: &Arc<dyn Provider>, image: Option<&str>) -> Result<Sandbox> {
        self.wait(self.begin(provider, image))
    }

    /// The same, while others are made.
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
        // Who is spoken to first is the owner: the keeper has answered.
        sandbox.keeper().await?.welcome().await?;
        Ok(sandbox)
    }

    /// Whether nothing of these native sandboxes is left, a moment from now: tied ones are cleared away behind our back.
    pub(super) fn is_gone(&self, ids: &[String]) -> bool {
        let mark = self.path().display().to_string();
        within_blocking(Duration::from_secs(30), || host::leftovers(&mark, ids, &self.native_state()).is_empty())
    }

    /// Removes a sandbox.
    pub(super) fn remove(&self, sandbox: &Sandbox) -> Result<()> {
        self.wait(async { gone(sandbox.remove(EVERYTHING).await) })
    }
}

const EVERYTHING: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// A tied sandbox may go by itself in the moment it is removed: then it is gone too.
fn gone(removed: kennel_core::Result<()>) -> kennel_core::Result<()> {
    removed.or_else(|error| if error.code() == ErrorCode::NotFound { Ok(()) } else { Err(error) })
}

impl Containers {
    /// The engine's own command line.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let (program, words) = match self.kind {
            Kind::Docker => ("docker", &["--host"][..]),
            Kind::Podman => ("podman", &["--remote", "--url"][..]),
        };
        let mut command = Command::new(program);
        command.args(words).arg(format!("unix://{}", self.socket.display())).args(arguments);
        command
    }
}

impl Drop for Arena {
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
    }
}
