//! `kennel acp` with scripted agents: what passes, what is served inside, and how everything ends.

mod editor;
mod ends;
mod inside;
mod paths;
mod published;
mod secrets;
mod stored;

use crate::support::Kennel;
use editor::{Editor, agent_script};
use sha2::{Digest, Sha256};

/// What the editor sends after `initialize`, and what the agent says to each.
const TURN: [(&str, &str); 7] = [
    (
        r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s-1","_meta":{"big":12345678901234567890.50}}}"#,
    ),
    (
        "{ \"method\" : \"session/prompt\",\t\"id\":\"1\", \"params\":{\"prompt\":[{\"type\":\"text\",\"text\":\"caf\\u00e9 \u{1f980} fs/read_text_file\"}]} , \"jsonrpc\":\"2.0\"}",
        r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"text":"method"}}}}"#,
    ),
    // The same id in the other direction, and a response to it.
    (
        r#"{"jsonrpc":"2.0","id":"1","result":{"outcome":{"outcome":"selected","optionId":"allow"}}}"#,
        r#"{"jsonrpc":"2.0","id":"1","method":"session/request_permission","params":{"options":[]}}"#,
    ),
    (
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s-1"}}"#,
        r#"{"jsonrpc":"2.0","id":"1","result":{"stopReason":"cancelled"}}"#,
    ),
    (
        r#"{"jsonrpc":"2.0","id":-3,"method":"_vendor/unknown","params":[[[[]]]]}"#,
        r#"{"jsonrpc":"2.0","id":-3,"error":{"code":-32601,"message":"no"}}"#,
    ),
    (
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#,
        r#"{"_auth/status_update":true,"method":"_auth/status_update"}"#,
    ),
    (
        "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"craft/drainMidTurnQueue\"}\r",
        "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":null}\r",
    ),
];

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":false}}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}"#;

/// The turn is played on each provider. Everything that passes is the same, to the byte.
#[test]
fn messages_pass_unchanged_on_every_provider() {
    let replies = std::iter::once(INITIALIZED).chain(TURN.iter().map(|(_, said)| *said));
    let script = replies.map(|said| format!("next; say '{said}'\n")).collect::<Vec<_>>().concat();
    let sent = TURN.iter().map(|(sent, _)| format!("{sent}\n")).collect::<Vec<_>>().concat();
    let said = TURN.iter().map(|(_, said)| format!("{said}\n")).collect::<Vec<_>>().concat();
    let hashes = ["local", "native", "docker"].map(|provider| {
        let kennel = Kennel::on(provider);
        let mut editor = Editor::open(&kennel, &script, &[]);
        editor.send(INITIALIZE);
        assert_eq!(editor.hear(), format!("{INITIALIZED}\n"));
        let mut heard = String::new();
        for (line, _) in TURN {
            editor.send(line);
            heard.push_str(&editor.hear());
        }
        let done = editor.leave();
        assert_eq!(done.status, 0, "{provider}: {done:?}");
        let seen = editor::seen(&kennel);
        let (first, rest) = seen.split_once('\n').unwrap();
        let stated: serde_json::Value = serde_json::from_str(first).unwrap();
        let capabilities =
            serde_json::json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true });
        assert_eq!(stated["params"]["clientCapabilities"], capabilities);
        assert_eq!((rest, heard.as_str()), (sent.as_str(), said.as_str()), "{provider}");
        format!("{:x}", Sha256::digest(format!("{rest}{heard}")))
    });
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

/// Draft version 2 of the protocol has no requests for files, so nothing is stated.
#[test]
fn version_2_passes_unchanged() {
    let kennel = Kennel::on("local");
    let mut editor = Editor::open(&kennel, &format!("next; say '{INITIALIZED}'\n"), &[]);
    let line = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":2,"capabilities":{}}}"#;
    editor.send(line);
    editor.hear();
    editor.leave();
    assert_eq!(editor::seen(&kennel), format!("{line}\n"));
}

#[test]
fn fifty_mebibytes_pass_and_a_line_over_the_cap_does_not() {
    const BIG: usize = 50 << 20;
    let kennel = Kennel::on("native");
    // The agent counts what it gets, and then sends as much.
    let script = format!(
        "next; say '{INITIALIZED}'\n\
         printf '{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":%s}}\\n' $(head -n 1 | wc -c)\n\
         printf '{{\"method\":\"x\",\"params\":\"'; head -c {BIG} /dev/zero | tr '\\0' x; printf '\"}}\\n'\n\
         printf '{{\"id\":7,\"method\":\"x\",\"params\":\"'; head -c 70000000 /dev/zero | tr '\\0' x; printf '\"}}\\n'\n\
         next; say '{{\"method\":\"after\"}}'\n"
    );
    let mut editor = Editor::open(&kennel, &script, &[]);
    editor.send(INITIALIZE);
    editor.hear();
    let over = format!("{{\"id\":3,\"method\":\"x\",\"params\":\"{}\"}}", "x".repeat(64 << 20));
    editor.send(&over);
    let refused: serde_json::Value = serde_json::from_str(&editor.hear()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&3.into(), &(-32600).into()), "{refused}");
    let big = format!("{{\"id\":1,\"method\":\"x\",\"params\":\"{}\"}}", "x".repeat(BIG));
    editor.send(&big);
    assert_eq!(editor.hear(), format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}}\n", big.len() + 1));
    assert_eq!(editor.hear().len(), "{\"method\":\"x\",\"params\":\"\"}\n".len() + BIG);
    // The agent's own line over the cap is an error to it.
    assert_eq!(editor.hear(), "{\"method\":\"after\"}\n");
    let done = editor.leave();
    assert_eq!(done.status, 0, "{done:?}");
    assert!(done.stderr.contains("longer than"), "{done:?}");
    let seen = editor::seen(&kennel);
    let refused: serde_json::Value = serde_json::from_str(seen.lines().last().unwrap()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&7.into(), &(-32600).into()), "{refused}");
}

/// Standard output carries messages only. What the agent prints beside them, and on standard error, is escaped.
#[test]
fn other_output_goes_to_standard_error() {
    let kennel = Kennel::on("local");
    let script = format!(
        "next; say '{INITIALIZED}'; echo 'a stray line'; printf 'log \\033[31m red\\n' >&2; \
         say '[{{\"id\":9,\"method\":\"fs/read_text_file\",\"params\":{{\"path\":\"/etc/passwd\"}}}}]'; say '{{\"method\":\"x\"}}'\n"
    );
    let mut editor = Editor::open(&kennel, &script, &[]);
    editor.send(INITIALIZE);
    assert_eq!(editor.hear(), format!("{INITIALIZED}\n"));
    assert_eq!(editor.hear(), "{\"method\":\"x\"}\n");
    let done = editor.leave();
    assert_eq!((done.status, done.stdout.len()), (0, 0), "{done:?}");
    assert!(done.stderr.contains("log \\u{1b}[31m red"), "{done:?}");
    assert_eq!(done.stderr.matches("not a message").count(), 2, "{done:?}");
}
