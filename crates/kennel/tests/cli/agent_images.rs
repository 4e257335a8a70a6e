//! Agents that Kennel installs: in an image, or on native in a volume. npm's registry is a server of the tests.

use crate::support::{Finished, Kennel, finish, hear};
use kennel_testkit::{docker, node_image};
use std::process::{Child, Command, Stdio};

/// A registry with two versions of an agent, which says its version and what it finds in its home directory.
struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    /// Starts it in the network of the calling thread.
    fn start(kennel: &Kennel) -> Self {
        let dir = kennel.home.path();
        std::fs::write(dir.join("registry.py"), include_str!("agent_images/registry.py")).unwrap();
        std::fs::write(dir.join("agent.js"), include_str!("agent_images/agent.js")).unwrap();
        let mut command = Command::new("python3");
        command.arg("registry.py").current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let line = hear(child.stdout.as_mut().unwrap(), "\n");
        Self { child, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the preset of the agent.
fn preset(kennel: &Kennel, version: &str, base: &str) {
    let dir = kennel.home.path().join("config/agents");
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!(
        "command = [\"test-acp\"]\nnpm = \"kennel-test-agent\"\nversion = \"{version}\"\nbase = \"{base}\"\n\
         writes = [\".mine/\", \".config/mine.json\"]\n"
    );
    std::fs::write(dir.join("mine.toml"), text).unwrap();
}

/// Runs a call, with this address of the registry.
fn call(kennel: &Kennel, address: &str, words: &[&str]) -> Finished {
    let mut call = kennel.call(words);
    call.env("NPM_CONFIG_REGISTRY", address);
    finish(call, None)
}

#[test]
fn agent_is_installed_into_a_volume_on_native() {
    let kennel = Kennel::on("native");
    preset(&kennel, "1.0.0", "none");
    let registry = Registry::start(&kennel);
    let address = format!("http://127.0.0.1:{}/", registry.port);
    // The installation has the network of this machine too, in which the registry is.
    let run = |options: &[&str]| {
        let words = [&["agent", "run", "--agent", "mine", "--network", "host"], options, &["hello"]].concat();
        call(&kennel, &address, &words)
    };
    assert_eq!(run(&[]).ok(), "version 1.0.0, login: none, file: none, program: read-only");
    preset(&kennel, "2.0.0", "none");
    assert_eq!(run(&[]).ok(), "version 2.0.0, login: kept, file: kept, program: read-only");
    assert_eq!(run(&["--login", "none"]).ok(), "version 2.0.0, login: none, file: none, program: read-only");
    assert_eq!(run(&["--login", "project"]).ok(), "version 2.0.0, login: none, file: none, program: read-only");
    preset(&kennel, "3.0.0", "none");
    let failed = run(&[]).fails(126);
    assert!(
        failed.contains("install kennel-test-agent@3.0.0") && failed.contains("kennel agent image mine"),
        "{failed}"
    );
    // What is installed needs no registry.
    drop(registry);
    preset(&kennel, "1.0.0", "none");
    assert_eq!(run(&[]).ok(), "version 1.0.0, login: kept, file: kept, program: read-only");
    let volumes = kennel.kennel(&["volume", "ls", "-q"]).ok();
    for name in ["agent-mine-1-0-0-", "agent-mine-2-0-0-", "login-mine"] {
        assert!(volumes.contains(name), "{volumes}");
    }
}

#[test]
fn agent_image_is_built_once_and_used() {
    let kennel = Kennel::on("docker");
    let socket = docker::socket();
    let base = node_image::node_image_on(&socket);
    preset(&kennel, "1.0.0", &base);
    let shown = kennel.kennel(&["agent", "image", "--print", "mine"]).ok();
    assert!(shown.contains(&format!("FROM {base}\n")) && shown.contains("kennel-test-agent@1.0.0"), "{shown}");
    let missing = kennel.kennel(&["agent", "run", "--agent", "mine", "hello"]).fails(125);
    assert!(missing.contains("kennel agent image mine"), "{missing}");

    let registry = Registry::start(&kennel);
    let gateway =
        docker::docker(&socket, &["network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]);
    let address = format!("http://{gateway}:{}/", registry.port);
    let build = |words: &[&str]| call(&kennel, &address, &[&["agent", "image", "--json"], words, &["mine"]].concat());
    let first = build(&[]);
    assert_eq!(first.status, 0, "{first:?}");
    let (first, again) = (first.json(), build(&[]).json());
    let other = build(&["--version", "2.0.0"]).json();
    let images = Images(&[&first, &other].map(|built| built["image"].as_str().unwrap().to_owned()));
    assert_eq!((&first["built"], &again["built"], &other["built"]), (&true.into(), &false.into(), &true.into()));
    assert_eq!(first["image"], again["image"]);
    assert!(images.0[0].starts_with("kennel-agent/mine:1.0.0-") && images.0[1].starts_with("kennel-agent/mine:2.0.0-"));

    let run = |options: &[&str]| {
        kennel.kennel(&[&["agent", "run", "--agent", "mine", "--network", "none"], options, &["hello"]].concat())
    };
    assert_eq!(run(&[]).ok(), "version 1.0.0, login: none, file: none, program: writable");
    // The other version, by its image. The login is the same.
    assert_eq!(run(&["--image", &images.0[1]]).ok(), "version 2.0.0, login: kept, file: kept, program: writable");
    // The image's own command is the agent.
    let words = ["agent", "run", "--image", &images.0[0], "--network", "none", "hello"];
    assert_eq!(kennel.kennel(&words).ok(), "version 1.0.0, login: none, file: none, program: writable");
    for volume in kennel.kennel(&["volume", "ls", "-q"]).ok().lines() {
        kennel.kennel(&["volume", "rm", volume]).ok();
    }
}

/// Images that are removed at the end.
struct Images<'a>(&'a [String; 2]);

impl Drop for Images<'_> {
    fn drop(&mut self) {
        let socket = format!("unix://{}", docker::socket().display());
        let _ = Command::new("docker").args(["-H", &socket, "rmi", "--force"]).args(self.0).output();
    }
}
