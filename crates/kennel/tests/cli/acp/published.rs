//! Published agents and clients, from npm and PyPI, play whole turns through `kennel acp`: the agent edits a file and runs a
//! command. The model is a server of the tests, which runs beside the agent.

use super::editor::Editor;
use crate::support::{Finished, Kennel, finish};
use kennel_testkit::{acp, docker, node_image, python};
use serde_json::{Value, json};
use std::process::Command;

const PORT: u16 = 18_080;
/// The command that the model asks for.
const COMMAND: &str = "cat hello.txt && touch shell-ran.txt";

/// A published agent.
#[derive(Clone, Copy)]
struct Published {
    /// How it starts, after the directory of its program.
    command: &'static str,
    /// The variables with which it uses the model of the tests.
    variables: &'static [&'static str],
    /// What it needs before it starts.
    prepare: &'static str,
    /// Whether it is told that files are served.
    files: bool,
    /// The code of the error with which it refuses a session without a login, if it does.
    refuses: Option<i64>,
}

const CLAUDE: Published = Published {
    command: "claude-code-acp",
    // The last one is for root, for whom the agent starts only in a sandbox.
    variables: &[
        "ANTHROPIC_BASE_URL=http://127.0.0.1:18080",
        "ANTHROPIC_API_KEY=not-a-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
        "IS_SANDBOX=1",
    ],
    prepare: "",
    files: true,
    refuses: None,
};
const GEMINI: Published = Published {
    command: "gemini --acp",
    variables: &[
        "GEMINI_API_KEY=not-a-key",
        "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:18080",
        "GEMINI_CLI_NO_RELAUNCH=true",
    ],
    prepare: "",
    // As in its preset: it does not recognise the error for a missing file.
    files: false,
    refuses: Some(-32000),
};
/// Codex without its own sandbox, because it runs in one.
const CODEX: Published = Published {
    command: "codex-acp",
    variables: &["TEST_KEY=not-a-key"],
    prepare: "mkdir -p $HOME/.codex; printf '%s\\n' 'model = \"test\"' 'model_provider = \"test\"' \
        'approval_policy = \"untrusted\"' \"sandbox_mode = \\\"${SANDBOX:-danger-full-access}\\\"\" \
        '[model_providers.test]' 'name = \"test\"' 'base_url = \"http://127.0.0.1:18080/v1\"' \
        'wire_api = \"responses\"' 'env_key = \"TEST_KEY\"' > $HOME/.codex/config.toml\n",
    files: true,
    refuses: Some(-32000),
};

/// A workspace in which a published agent can be started.
struct Stage {
    kennel: Kennel,
    options: Vec<String>,
    image: Option<String>,
}

impl Stage {
    /// Prepares an agent. It plays with the model of the tests, unless it is `bare`. Then it has no login.
    fn new(provider: &'static str, agent: Published, bare: bool) -> Self {
        let packages = acp::directory();
        assert!(
            acp::is_installed(),
            "npm's packages are not in {}: cargo xtask test installs them",
            packages.display()
        );
        let kennel = Kennel::on(provider);
        let here = kennel.here();
        std::fs::write(here.join("model.mjs"), include_str!("model.mjs")).unwrap();
        std::fs::write(here.join("client.mjs"), include_str!("client.mjs")).unwrap();
        std::fs::write(here.join("client.py"), include_str!("client.py")).unwrap();
        // For the client, which runs outside.
        std::os::unix::fs::symlink(packages.join("node_modules"), here.join("node_modules")).unwrap();
        let mut options: Vec<String> = ["--startup-timeout", "90s"].map(String::from).into();
        let inside = if provider == "local" {
            packages.display().to_string()
        } else {
            options.extend(["--network", "none", "-v"].map(String::from));
            options.push(format!("{}:/agents:ro", packages.display()));
            "/agents".to_owned()
        };
        let home = if provider == "local" { "export HOME=$PWD/home; mkdir -p home\n" } else { "" };
        let model = format!(
            "{}node model.mjs {PORT} $PWD/hello.txt '{COMMAND}' ready &\n\
             until [ -e ready ]; do sleep 0.1; done\n",
            agent.prepare
        );
        let model = if bare { "" } else { &model };
        let script = format!("{home}{model}exec node {inside}/node_modules/.bin/{}\n", agent.command);
        std::fs::write(here.join("agent.sh"), script).unwrap();
        let presets = kennel.home.path().join("config/agents");
        std::fs::create_dir_all(&presets).unwrap();
        let preset = format!("command = [\"sh\", \"agent.sh\"]\nfiles = {}\n", agent.files);
        std::fs::write(presets.join("published.toml"), preset).unwrap();
        if !bare {
            options.extend(agent.variables.iter().flat_map(|variable| ["-e".to_owned(), (*variable).to_owned()]));
        }
        let image = (provider == "docker").then(|| node_image::node_image_on(&docker::socket()));
        options.extend(image.iter().flat_map(|image| ["--image".to_owned(), image.clone()]));
        Self { kennel, options, image }
    }

    fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// The call that an editor would make.
    fn call(&self) -> Command {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.kennel.call(&[&["acp"], &options[..], &["--", "sh", "agent.sh"]].concat())
    }

    /// Runs a client with this call as its agent.
    fn drive(&self, mut client: Command) -> Finished {
        let call = self.call();
        client.arg(call.get_program()).args(call.get_args()).current_dir(self.kennel.here()).env_clear();
        client.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
        finish(client, None)
    }

    fn node_client(&self, decision: &str) -> Finished {
        let mut client = Command::new("node");
        client.arg("client.mjs").arg(self.kennel.here()).args(["make a file", decision, "--"]);
        self.drive(client)
    }

    fn python_client(&self, decision: &str) -> Finished {
        assert!(python::is_installed(), "PyPI's packages are missing: cargo xtask test installs them");
        let mut client = Command::new(python::program());
        client.arg("client.py").arg(self.kennel.here()).args(["make a file", decision, "--"]);
        self.drive(client)
    }

    /// Plays a turn with `kennel agent run`.
    fn run(&self) -> Finished {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let words =
            [&["agent", "run", "--permission", "allow", "--agent", "published"], &options[..], &["make a file"]];
        self.kennel.kennel(&words.concat())
    }

    #[track_caller]
    fn is_played(&self, done: &Finished) {
        let here = self.kennel.here();
        let written =
            std::fs::read_to_string(here.join("hello.txt")).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        assert_eq!(written, "hello\n");
        assert!(here.join("shell-ran.txt").exists(), "{done:?}");
    }
}

/// What a client of the tests has seen of a turn.
#[track_caller]
fn seen(done: &Finished, reason: &str) -> Value {
    assert_eq!(done.status, 0, "{done:?}");
    let seen = done.json();
    assert_eq!((&seen["protocol"], &seen["stopReason"]), (&1.into(), &reason.into()), "{done:?}");
    assert!(seen["permissions"].as_u64().unwrap() > 0 && seen["updates"]["tool_call"].is_number(), "{seen}");
    assert_eq!(seen["files"], 0, "the client was asked for a file: {seen}");
    seen
}

/// The agent asks for files and terminals, which are served inside.
fn agent_and_client_play_a_turn(provider: &'static str) {
    let stage = Stage::new(provider, CLAUDE, false);
    let done = stage.node_client("allow");
    seen(&done, "end_turn");
    stage.is_played(&done);
}

#[test]
fn published_agent_plays_a_turn_on_local() {
    agent_and_client_play_a_turn("local");
}

#[test]
fn published_agent_plays_a_turn_on_native() {
    agent_and_client_play_a_turn("native");
}

#[test]
fn published_agent_plays_a_turn_on_docker() {
    agent_and_client_play_a_turn("docker");
}

#[test]
fn published_python_client_plays_and_cancels_a_turn() {
    let stage = Stage::new("native", CLAUDE, false);
    let done = stage.python_client("allow");
    seen(&done, "end_turn");
    stage.is_played(&done);
    for file in ["hello.txt", "shell-ran.txt", "ready"] {
        std::fs::remove_file(stage.kennel.here().join(file)).unwrap();
    }
    seen(&stage.python_client("cancel"), "cancelled");
    assert!(!stage.kennel.here().join("hello.txt").exists(), "a cancelled turn writes nothing");
}

/// `acpx` gets the whole command as one argument, and prints the messages of both directions.
#[test]
fn published_acpx_plays_a_turn() {
    let stage = Stage::new("native", CLAUDE, false);
    let call = stage.call();
    let words = std::iter::once(call.get_program()).chain(call.get_args()).map(|word| word.to_str().unwrap());
    let command = words.map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let mut client = Command::new("node");
    client.arg("node_modules/.bin/acpx").arg("--cwd").arg(stage.kennel.here());
    client.args(["--approve-all", "--format", "json", "--agent", &command, "exec", "make a file"]);
    client.current_dir(stage.kennel.here()).env_clear();
    client.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = finish(client, None);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(done.text().contains("end_turn") && done.text().contains("session/request_permission"), "{done:?}");
    stage.is_played(&done);
}

fn plays_a_turn(provider: &'static str, agent: Published) {
    let stage = Stage::new(provider, agent, false);
    let done = stage.run();
    assert_eq!(done.status, 0, "{done:?}");
    stage.is_played(&done);
}

#[test]
fn published_gemini_plays_a_turn_on_native() {
    plays_a_turn("native", GEMINI);
}

#[test]
fn published_codex_plays_a_turn_on_docker() {
    plays_a_turn("docker", CODEX);
}

/// Combinations whose parts are tested above. They are part of `cargo xtask extended`.
mod extended {
    use super::*;

    #[test]
    fn published_gemini_plays_a_turn_on_docker() {
        plays_a_turn("docker", GEMINI);
    }

    #[test]
    fn published_codex_plays_a_turn_on_local() {
        plays_a_turn("local", CODEX);
    }

    #[test]
    fn published_node_client_cancels_a_turn() {
        let stage = Stage::new("native", CLAUDE, false);
        seen(&stage.node_client("cancel"), "cancelled");
        assert!(!stage.kennel.here().join("hello.txt").exists(), "a cancelled turn writes nothing");
    }
}

/// Codex runs commands in its own sandbox, inside that of Kennel. It may write in the workspace, and nowhere else.
#[test]
fn published_codex_runs_its_own_sandbox_with_nesting() {
    let stage = Stage::new("native", CODEX, false).with(&["--nesting", "-e", "SANDBOX=workspace-write"]);
    let script = std::fs::read_to_string(stage.kennel.here().join("agent.sh")).unwrap();
    let outside = "cat hello.txt && touch shell-ran.txt; touch /var/escaped $HOME/escaped 2> refused";
    std::fs::write(stage.kennel.here().join("agent.sh"), script.replace(COMMAND, outside)).unwrap();
    // With nesting, a workspace of root is refused. The agent runs as the workspace's owner.
    let owner = 1000;
    std::os::unix::fs::chown(stage.kennel.here(), Some(owner), Some(owner)).unwrap();
    let done = stage.run();
    assert_eq!(done.status, 0, "{done:?}");
    stage.is_played(&done);
    let refused = std::fs::read_to_string(stage.kennel.here().join("refused")).unwrap();
    assert!(refused.contains("Read-only") || refused.contains("denied"), "{refused:?} {done:?}");
}

/// Without a login, each agent replies to `initialize`, and then opens a session or refuses it with its documented error.
fn agents_open_a_session_or_ask_for_a_login(provider: &'static str) {
    for agent in [CLAUDE, GEMINI, CODEX] {
        let stage = Stage::new(provider, agent, true);
        let options: Vec<&str> = stage.options.iter().map(String::as_str).collect();
        let mut editor = Editor::with(&stage.kennel, stage.image.is_some(), &options, &["sh", "agent.sh"]);
        editor.send(super::INITIALIZE);
        let begun = response(&mut editor, 0);
        assert_eq!(begun["result"]["protocolVersion"], 1, "{}: {begun}", agent.command);
        let params = json!({ "cwd": stage.kennel.here(), "mcpServers": [] });
        editor.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params }).to_string());
        let opened = response(&mut editor, 1);
        match agent.refuses {
            Some(code) => assert_eq!(opened["error"]["code"], code, "{}: {opened}", agent.command),
            None => assert!(opened["result"]["sessionId"].is_string(), "{}: {opened}", agent.command),
        }
        editor.leave();
    }
}

#[test]
fn published_agents_open_a_session_or_ask_for_a_login_on_local() {
    agents_open_a_session_or_ask_for_a_login("local");
}

#[test]
fn published_agents_open_a_session_or_ask_for_a_login_on_native() {
    agents_open_a_session_or_ask_for_a_login("native");
}

#[test]
fn published_agents_open_a_session_or_ask_for_a_login_on_docker() {
    agents_open_a_session_or_ask_for_a_login("docker");
}

/// Waits for the response to a request.
fn response(editor: &mut Editor, id: u64) -> Value {
    loop {
        let heard = editor.hear_json();
        if heard["id"] == id && heard.get("method").is_none() {
            return heard;
        }
    }
}

/// Plain bubblewrap runs inside with nesting, and not without.
#[test]
fn bubblewrap_runs_inside_with_nesting() {
    let kennel = Kennel::on("native");
    let inner = [
        "--",
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--unshare-all",
        "--die-with-parent",
    ];
    let inner = [&inner[..], &["sh", "-c", "touch /x 2>/dev/null || echo read-only"]].concat();
    let options = ["run", "--network", "none", "--no-workspace", "--workdir", "/"];
    let nested = kennel.kennel(&[&options[..], &["--nesting"], &inner].concat());
    assert_eq!(nested.ok(), "read-only");
    assert_ne!(kennel.kennel(&[&options[..], &inner].concat()).status, 0);
}
