//! A real registry of images, on loopback: Debian's `docker-registry`. It ends with the value that holds it.

use crate::{docker, within_blocking};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A registry that serves.
pub struct Registry {
    program: Child,
    port: u16,
    storage: tempfile::TempDir,
}

/// Who may use a registry that not everyone may use: name and password.
pub const LOGIN: (&str, &str) = ("ann", "secret");
/// The same, as it is written in files of logins.
const PACKED: &str = "YW5uOnNlY3JldA==";
/// The same, as the registry wants it.
const PASSWORDS: &str = "ann:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

impl Registry {
    /// Starts an empty one on a free port.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts one that only [`LOGIN`] may use.
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

    /// What an image of that name is called here.
    pub fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The file that holds a blob, for who wants to spoil it.
    pub fn blob(&self, hex: &str) -> PathBuf {
        let blobs = self.storage.path().join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    /// A file of logins, in Docker's form, with [`LOGIN`] for this registry.
    pub fn logins(&self) -> PathBuf {
        let file = self.storage.path().join("login/config.json");
        std::fs::create_dir_all(file.parent().expect("it has a directory")).expect("make a place for logins");
        let text = format!(r#"{{"auths": {{"{}": {{"auth": "{PACKED}"}}}}}}"#, self.address());
        std::fs::write(&file, text).expect("write the logins");
        file
    }

    /// Puts an image of a Docker engine here, and takes the name it needed there away again; answers its name.
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

/// A port that nobody listens on now.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("find a free port");
    listener.local_addr().expect("a listener has an address").port()
}
