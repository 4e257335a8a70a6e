//! An engine under test, in its own home.

use kennel_core::Provider;
use kennel_docker::{Dialer, Docker, DockerOptions, EngineKind, NamePrefix, UnixDialer};
use kennel_testkit::{Home, Subject, become_ordinary_user, docker, programs, testers_ids};
use kennel_types::{IdScheme, Mode, ModeKey, NetworkMode, SandboxSpec};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) struct Containers {
    pub(crate) home: Home,
    pub(crate) programs: PathBuf,
    /// The engine's socket, for direct queries.
    pub(crate) socket: PathBuf,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) kind: EngineKind,
    pub(crate) spec: SandboxSpec,
}

impl Containers {
    /// Switches this thread to an ordinary user, and uses that user's engine.
    #[allow(dead_code)] // not every test program uses everything
    pub(crate) fn of_a_user(kind: EngineKind, socket: PathBuf) -> Self {
        let image = docker::image_on(&socket);
        programs::prepare();
        become_ordinary_user(testers_ids());
        let home = Home::new();
        Self {
            programs: home.path().join("programs"),
            home,
            dialer: Arc::new(UnixDialer::new(&socket)),
            socket,
            kind,
            // A separate network for each sandbox takes time, and only the cases about networks need it.
            spec: SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() },
        }
    }
}

impl Subject for Containers {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        let options = DockerOptions {
            state_dir: self.home.state(),
            program_dir: self.programs.clone(),
            expected: self.kind,
            installation: self.home.mark(),
            name_prefix: NamePrefix::default(),
        };
        Arc::new(Docker::new(options, self.dialer.clone()).hiding([self.home.settings()]))
    }

    fn mode(&self, provider: &dyn Provider) -> &'static Mode {
        let usual = provider.mode();
        let id_scheme = match self.spec.userns.as_deref() {
            Some("auto") => IdScheme::Auto,
            Some("keep-id") => IdScheme::KeepId,
            Some(other) => panic!("no mode for the user namespace {other}"),
            None => return usual,
        };
        Mode::with(ModeKey { id_scheme, ..usual.key }).expect("a row for it")
    }

    fn spec(&self) -> SandboxSpec {
        self.spec.clone()
    }

    fn socket_inside(&self) -> Option<String> {
        Some("/.kennel/run/sock".into())
    }

    fn leftovers(&self) -> Vec<String> {
        docker::leftovers(&self.socket, &format!("kennel.installation={}", self.home.mark()))
    }
}
