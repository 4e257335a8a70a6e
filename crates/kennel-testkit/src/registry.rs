//! A real image registry on loopback: Debian's `docker-registry`. It ends when its value is dropped.

use crate::{docker, within_blocking};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running registry.
pub struct Registry {
    program: Child,
    port: u16,
    storage: tempfile::TempDir,
}

/// User name and password of a private registry.
pub const LOGIN: (&str, &str) = ("ann", "secret");
/// [`LOGIN`] as login files contain it.
const PACKED: &str = "YW5uOnNlY3JldA==";
/// [`LOGIN`] as the registry's password file contains it.
const PASSWORDS: &str = "ann:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

impl Registry {
    /// Starts an empty registry on a free port.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts an empty registry that requires [`LOGIN`].
    pub fn start_private() -> Self {
        Self::start_with("auth:\n  htpasswd:\n    realm: kennel\n    path: PASSWORDS\n")
    }

    fn start_with(more: &str) -> Self {
        let storage = tempfile::tempdir().expect("make a directory for the registry");
        let passwords = storage.path().join("passwords");
        std::fs::write(&passwords, PASSWORDS).expect("write the registry's passwords");
        let more = more.replace("PASSWORDS", &passwords.display().to_string());
        let port = free_port();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n{more}",
            storage.path().join("data").display()
        );
        let file = storage.path().join("config.yml");
        std::fs::write(&file, config).expect("write the registry's settings");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let program = command.spawn().unwrap_or_else(|error| {
            panic!("start docker-registry: {error}; install it: apt-get install docker-registry")
        });
        let registry = Self { program, port, storage };
        let up = within_blocking(Duration::from_secs(90), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(up, "the registry does not come up");
        registry
    }

    /// Returns the full name of an image in this registry.
    pub fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    /// Returns the registry's host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the file of a blob, for tests that damage it.
    pub fn blob(&self, hex: &str) -> PathBuf {
        let blobs = self.storage.path().join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    /// Writes a login file in Docker's format with [`LOGIN`] for this registry, and returns its path.
    pub fn logins(&self) -> PathBuf {
        let file = self.storage.path().join("login/config.json");
        std::fs::create_dir_all(file.parent().expect("it has a directory")).expect("make a place for logins");
        let text = format!(r#"{{"auths": {{"{}": {{"auth": "{PACKED}"}}}}}}"#, self.address());
        std::fs::write(&file, text).expect("write the logins");
        file
    }

    /// Pushes an image of a Docker engine to this registry, removes the tag that this needs on the engine, and returns
    /// the image's full name.
    pub fn push(&self, socket: &Path, image: &str, name: &str) -> String {
        let name = self.name(name);
        let logins = self.logins();
        let config = logins.parent().and_then(Path::to_str).expect("a path of ours is text");
        docker::docker(socket, &["tag", image, &name]);
        docker::docker(socket, &["--config", config, "push", "--quiet", &name]);
        docker::docker(socket, &["rmi", &name]);
        name
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("find a free port");
    listener.local_addr().expect("a listener has an address").port()
}
