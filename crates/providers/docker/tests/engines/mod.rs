//! A provider in its own home, on Docker or on root's Podman, for tests that both must pass.

#![allow(dead_code)] // not every test program uses everything

pub(crate) use kennel_docker::EngineKind;

use kennel_core::{ImageBuild, Provider, RemoveOptions, Sandbox};
use kennel_docker::{Docker, DockerOptions, NamePrefix, UnixDialer};
use kennel_image::Credentials;
use kennel_testkit::podman::Service;
use kennel_testkit::{Home, docker};
use kennel_types::{NetworkMode, SandboxSpec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Options that also remove the volumes.
pub(crate) const ALL: RemoveOptions = RemoveOptions { volumes: true, force: true };

/// A build that ignores other images: Podman fails if one that it looks at is removed meanwhile, as other tests do.
pub(crate) fn alone() -> ImageBuild {
    ImageBuild { no_cache: true, ..ImageBuild::default() }
}

/// Creates a test of each case on each engine.
#[allow(unused_macros)] // the same
macro_rules! on_every_engine {
    ($($case:ident),* $(,)?) => {
        mod on_docker {
            $(#[tokio::test] async fn $case() { super::$case(&super::engines::Fixture::new(super::engines::EngineKind::Docker)).await; })*
        }
        mod on_podman {
            $(#[tokio::test] async fn $case() { super::$case(&super::engines::Fixture::new(super::engines::EngineKind::Podman)).await; })*
        }
    };
}
#[allow(unused_imports)] // the same
pub(crate) use on_every_engine;

/// An engine with an image for the test.
pub(crate) struct Fixture {
    pub(crate) home: Home,
    pub(crate) provider: Arc<Docker>,
    pub(crate) kind: EngineKind,
    /// The engine's socket, for direct queries.
    pub(crate) socket: PathBuf,
    /// A small image that exists already.
    pub(crate) image: String,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Left by a test that failed.
            let host = format!("unix://{}", self.socket.display());
            let docker = |arguments: &[&str]| Command::new("docker").args(["--host", &host]).args(arguments).output();
            let label = format!("label=kennel.installation={}", self.mark());
            let found = docker(&["ps", "--all", "--quiet", "--filter", &label]);
            for id in found.iter().flat_map(|found| std::str::from_utf8(&found.stdout).unwrap_or_default().lines()) {
                let _ = docker(&["rm", "--force", "--volumes", id]);
            }
            let found = docker(&["volume", "ls", "--quiet", "--filter", &label]);
            for name in found.iter().flat_map(|found| std::str::from_utf8(&found.stdout).unwrap_or_default().lines()) {
                let _ = docker(&["volume", "rm", "--force", name]);
            }
            let _ = docker(&["rmi", "--force", &self.own_image()]);
        }
    }
}

impl Fixture {
    pub(crate) fn new(kind: EngineKind) -> Self {
        let socket = match kind {
            EngineKind::Docker => docker::socket(),
            EngineKind::Podman => Service::Root.socket(),
        };
        Self::on(kind, socket)
    }

    /// Opens a provider on the engine at this socket.
    pub(crate) fn on(kind: EngineKind, socket: PathBuf) -> Self {
        let home = Home::new();
        let image = docker::image_on(&socket);
        let options = DockerOptions {
            state_dir: home.state(),
            program_dir: home.programs(),
            expected: kind,
            installation: home.mark().to_lowercase(),
            name_prefix: NamePrefix::default(),
        };
        let provider = Arc::new(Docker::new(options, Arc::new(UnixDialer::new(&socket))));
        Self { home, provider, kind, socket, image }
    }

    /// Returns a name that no other test uses.
    pub(crate) fn mark(&self) -> String {
        self.home.mark().to_lowercase()
    }

    /// Returns the name of an image that the test creates.
    pub(crate) fn own_image(&self) -> String {
        format!("kennel-test/own-{}", self.mark())
    }

    /// Opens the same installation on the engine at this socket, with these logins.
    pub(crate) fn open(&self, socket: &Path, logins: Credentials) -> Arc<Docker> {
        Arc::new(self.made(socket, self.home.programs()).with_logins(logins))
    }

    /// Opens the same installation, with another program directory.
    pub(crate) fn open_from(&self, programs: &Path) -> Arc<Docker> {
        Arc::new(self.made(&self.socket, programs.to_owned()))
    }

    fn made(&self, socket: &Path, program_dir: PathBuf) -> Docker {
        let options = DockerOptions {
            state_dir: self.home.state(),
            program_dir,
            expected: self.kind,
            installation: self.mark(),
            name_prefix: NamePrefix::default(),
        };
        Docker::new(options, Arc::new(UnixDialer::new(socket)))
    }

    /// Queries the engine directly, not through the provider.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        docker::docker(&self.socket, arguments)
    }

    /// Returns a spec with an image of these files, each a copy of busybox, and these changes.
    pub(crate) fn with_image(&self, files: &[&str], changes: &[&str]) -> SandboxSpec {
        let root = self.home.path().join("image");
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::copy("/bin/busybox", path).unwrap();
        }
        let archive = self.home.path().join("image.tar");
        let packed = Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&root).arg(".").status();
        assert!(packed.unwrap().success());
        let name = self.own_image();
        let mut arguments = vec!["import"];
        for change in changes {
            arguments.extend(["--change", change]);
        }
        arguments.extend([archive.to_str().unwrap(), &name]);
        docker::docker(&self.socket, &arguments);
        SandboxSpec { image: Some(name), ..self.spec() }
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec { image: Some(self.image.clone()), network: Some(NetworkMode::None), ..SandboxSpec::default() }
    }

    pub(crate) async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = Sandbox::create(self.provider.clone(), spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }

    pub(crate) async fn clean(&self, own_image: bool) {
        for info in self.provider.list().await.unwrap() {
            self.provider.remove(&info.id, ALL).await.unwrap();
        }
        if own_image {
            self.ask(&["rmi", &self.own_image()]);
        }
    }

    pub(crate) fn volumes(&self) -> Vec<String> {
        let label = format!("label=kennel.installation={}", self.mark());
        let list = self.ask(&["volume", "ls", "-q", "--filter", &label]);
        list.lines().map(ToOwned::to_owned).collect()
    }
}
