//! Complete example files, as users write them.

mod common;

use common::{config, read};
use kennel_config::{AgentMode, OnUnavailable, Port, Provider};
use kennel_types::Pull;
use kennel_types::{ByteSize, NetworkMode};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[test]
fn a_project_with_a_sandbox_section() {
    let home = common::Home::new();
    home.write("project/.openagents/project.json", include_str!("fixtures/openagents-project.json"));
    let sandbox = config(&home.load()).sandbox;
    assert!(sandbox.enabled);
    assert_eq!(sandbox.provider, Provider::Apple);
    assert_eq!(sandbox.image.as_deref(), Some("oven/bun:latest"));
    assert_eq!(sandbox.memory, Some(ByteSize(4 << 30)));
    assert_eq!(sandbox.cpus.map(|cpus| cpus.0), Some(4000));
    assert_eq!(sandbox.on_unavailable, OnUnavailable::Error);
}

#[test]
fn a_project_with_a_profile() {
    let home = common::Home::new();
    home.write("project/opencode.json", include_str!("fixtures/opencode.json"));
    let container = config(&home.load()).container;
    assert!(container.enabled);
    assert_eq!(container.runtime, Some(Provider::Podman));
    assert_eq!(container.default_profile.as_deref(), Some("dev"));
    let dev = &container.profiles["dev"];
    assert_eq!(dev.image.as_deref(), Some("ubuntu:22.04"));
    assert_eq!(dev.keep_alive, Some(true));
    assert_eq!(dev.idle_timeout.map(|time| time.0), Some(Duration::from_mins(30)));
    assert_eq!(dev.network.map(|network| network.0), Some(NetworkMode::Bridge));
    assert_eq!(dev.env["TERM"], "xterm-256color");
    assert_eq!(dev.volumes[0].host, home.path("project"));
    assert_eq!(dev.volumes[0].container, "/workspace");
    assert!(!dev.volumes[0].readonly);
}

#[test]
fn a_relay_with_an_agent() {
    let mut home = common::Home::new();
    home.write("project/config.yaml", include_str!("fixtures/relay-config.yaml"));
    let error = home.try_load().unwrap_err().to_string();
    let file = home.path("project/config.yaml");
    let file = file.display();
    assert_eq!(
        error,
        format!(
            "{file}:8:24: agent.env.ANTHROPIC_API_KEY: the environment variable ANTHROPIC_API_KEY is not set; set it, \
             or write ${{ANTHROPIC_API_KEY:-default}}"
        )
    );

    home.variable("ANTHROPIC_API_KEY", "secret");
    let loaded = home.load();
    let agent = config(&loaded).agent;
    assert_eq!(agent.mode, AgentMode::Process);
    assert_eq!(agent.command.as_deref(), Some("npx"));
    assert_eq!(agent.args, ["@zed-industries/claude-code-acp"]);
    assert_eq!(agent.env["ANTHROPIC_API_KEY"], "secret");
    let container = agent.container;
    assert_eq!(container.image.as_deref(), Some("acp-relay-agent:latest"));
    assert_eq!(container.docker_host.as_deref(), Some("unix:///var/run/docker.sock"));
    assert_eq!(container.network.0, NetworkMode::Bridge);
    assert_eq!(container.memory, Some(ByteSize(512 << 20)));
    assert_eq!(container.cpus.map(|cpus| cpus.0), Some(1000));
    assert_eq!(container.workspace_host_base.as_deref(), Some(Path::new("/tmp/acp-workspaces")));
    assert_eq!(container.workspace_container_path.as_deref(), Some("/workspace"));
    assert!(container.auto_remove);
    assert_eq!(container.startup_timeout.0, Duration::from_secs(10));
    // The displayed settings never contain the value of a variable.
    assert!(!loaded.layered.show().to_string().contains("secret"));
}

#[test]
fn a_tool_with_its_own_name_prefix() {
    let sandbox = read("docker-tool.toml", include_str!("fixtures/docker-tool.toml")).sandbox;
    assert_eq!(sandbox.name_prefix, "coding-agent-");
    assert_eq!(sandbox.command_timeout.0, Duration::from_mins(1));
}

#[test]
fn a_virtual_machine() {
    let vm = read("virtual-machine.yaml", include_str!("fixtures/virtual-machine.yaml")).sandbox.vm;
    assert_eq!(vm.cpus.map(|cpus| cpus.0), Some(2000));
    assert_eq!(vm.memory, Some(ByteSize(2 << 30)));
    assert_eq!(vm.idle_timeout.0, Duration::from_mins(30));
    assert_eq!(vm.console_log_dir, Some(PathBuf::from("/here/logs")));
}

#[test]
fn every_key_of_a_sandbox() {
    let config = read("everything.toml", include_str!("fixtures/everything.toml"));
    let sandbox = config.sandbox;
    assert_eq!(sandbox.provider, Provider::Docker);
    assert_eq!(sandbox.on_unavailable, OnUnavailable::RunDirectly);
    assert_eq!(sandbox.pull, Pull::Always);
    assert_eq!(sandbox.command.unwrap(), ["sleep", "infinity"]);
    assert_eq!(sandbox.workspace.as_deref(), Some(Path::new("/here")));
    assert_eq!(sandbox.volumes[0].host, Path::new("/here/cache"));
    assert!(sandbox.volumes[0].readonly);
    assert_eq!(sandbox.volumes[1].host, Path::new("/here/../data"));
    assert_eq!(sandbox.network.map(|network| network.0), Some(NetworkMode::None));
    assert_eq!(sandbox.ports, ["8080".parse().unwrap(), "3000:3001".parse::<Port>().unwrap()]);
    assert_eq!(sandbox.cpus.map(|cpus| cpus.0), Some(1500));
    assert_eq!(sandbox.pids, Some(200));
    assert_eq!(sandbox.timeout.0, Duration::from_mins(5));
    assert_eq!(sandbox.command_timeout.0, Duration::from_secs(90));
    assert_eq!(sandbox.startup_timeout.0, Duration::from_secs(20));
    assert!(!sandbox.auto_remove);
    assert_eq!(sandbox.idle_timeout.map(|time| time.0), Some(Duration::from_mins(30)));
    assert_eq!(sandbox.labels["com.example.team"], "red");
    assert!(!config.container.enabled);
    assert_eq!(config.container.default_profile.as_deref(), Some("dev"));
    assert_eq!(config.agent.mode, AgentMode::Container);
    assert_eq!(config.agent.container.memory, Some(ByteSize(512 << 20)));
}

#[test]
fn with_no_file_at_all() {
    let home = common::Home::new();
    let config = config(&home.load());
    assert_eq!(config, kennel_config::Config::default());
    assert_eq!(config.sandbox.command_timeout.0, Duration::from_mins(1));
    assert_eq!(config.agent.mode, AgentMode::Process);
}

#[test]
fn an_example_may_be_written_in_any_format() {
    let json: serde_json::Value = serde_json::from_str(include_str!("fixtures/opencode.json")).unwrap();
    let toml = "[container]\nenabled = true\nruntime = \"podman\"\ndefaultProfile = \"dev\"\n[container.profiles.dev]\n\
        name = \"dev\"\nimage = \"ubuntu:22.04\"\nworkdir = \"/workspace\"\nkeepAlive = true\nidleTimeoutMinutes = 30\n\
        network.mode = \"bridge\"\n[[container.profiles.dev.volumes]]\nhost = \".\"\ncontainer = \"/workspace\"\n\
        readonly = false\n[container.profiles.dev.environment]\nTERM = \"xterm-256color\"\n";
    let yaml = "container:\n  enabled: true\n  runtime: podman\n  default_profile: dev\n  profiles:\n    dev:\n      \
        name: dev\n      image: ubuntu:22.04\n      workdir: /workspace\n      keep_alive: true\n      \
        idle_timeout_minutes: 30\n      volumes: [\".:/workspace\"]\n      environment: {TERM: xterm-256color}\n      \
        network: bridge\n";
    let from_json = read("a.json", &json.to_string());
    assert_eq!(from_json, read("a.toml", toml));
    assert_eq!(from_json, read("a.yaml", yaml));
}
