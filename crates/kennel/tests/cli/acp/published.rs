//! A published agent and a published client, from npm, play a whole turn through `kennel acp`: the agent edits a file and runs a
//! command. The model is a server of the tests, which runs beside the agent. Not on engines: their image has no Node.

use crate::support::{Kennel, finish};
use kennel_testkit::acp;
use std::process::Command;

const PORT: u16 = 18_080;

fn published_agent_plays_a_turn(provider: &'static str) {
    let packages = acp::directory();
    assert!(acp::is_installed(), "npm's packages are not in {}: cargo xtask test installs them", packages.display());
    let kennel = Kennel::on(provider);
    let here = kennel.here();
    std::fs::write(here.join("model.mjs"), include_str!("model.mjs")).unwrap();
    std::fs::write(here.join("client.mjs"), include_str!("client.mjs")).unwrap();
    // For the client, which runs outside.
    std::os::unix::fs::symlink(packages.join("node_modules"), here.join("node_modules")).unwrap();
    let volume = format!("{}:/agents:ro", packages.display());
    let (options, inside) = match provider {
        "local" => (vec![], packages.display().to_string()),
        _ => (vec!["--network", "none", "-v", &volume], "/agents".to_owned()),
    };
    let script = format!(
        "export HOME=$PWD/home; mkdir home\n\
         node model.mjs {PORT} $PWD/hello.txt 'cat hello.txt && touch shell-ran.txt' ready &\n\
         until [ -e ready ]; do sleep 0.1; done\n\
         exec node {inside}/node_modules/.bin/claude-code-acp\n"
    );
    std::fs::write(here.join("agent.sh"), script).unwrap();
    let url = format!("ANTHROPIC_BASE_URL=http://127.0.0.1:{PORT}");
    let mut variables = vec!["-e", &url, "-e", "ANTHROPIC_API_KEY=not-a-key"];
    // The second one is for root, for whom the agent starts only in a sandbox.
    variables.extend(["-e", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "-e", "IS_SANDBOX=1"]);
    let words =
        [&["acp", "--startup-timeout", "90s"], &options[..], &variables[..], &["--", "sh", "agent.sh"]].concat();
    let call = kennel.call(&words);
    let mut client = Command::new("node");
    client.arg("client.mjs").arg(&here).args(["make a file", "--"]).arg(call.get_program()).args(call.get_args());
    client.current_dir(&here).env_clear();
    client.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = finish(client, None);
    assert_eq!(done.status, 0, "{done:?}");
    let seen = done.json();
    assert_eq!((&seen["protocol"], &seen["stopReason"]), (&1.into(), &"end_turn".into()), "{done:?}");
    assert!(seen["permissions"].as_u64().unwrap() > 0 && seen["updates"]["tool_call"].is_number(), "{seen}");
    assert_eq!(seen["files"], 0, "the client was asked for a file: {seen}");
    assert_eq!(std::fs::read_to_string(here.join("hello.txt")).unwrap(), "hello\n");
    assert!(here.join("shell-ran.txt").exists(), "{done:?}");
}

#[test]
fn published_agent_plays_a_turn_on_local() {
    published_agent_plays_a_turn("local");
}

#[test]
fn published_agent_plays_a_turn_on_native() {
    published_agent_plays_a_turn("native");
}
