//! Measures one message through `kennel acp` and back, compared with socat. The agent is `cat`: each message comes back.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{once, take_turns};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A message of the usual size: a chunk of an agent's text.
const MESSAGE: &str = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"0f5c1e4a-7d0b-4c55-9c3e-5a1f4d8e2b61","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"The test fails because the file is read twice."}}}}"#;

/// A program that passes messages to `cat`, and back.
struct Relay {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    line: String,
}

impl Relay {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).context("its streams are pipes")?;
        Ok(Self { child, to, from: BufReader::new(from), line: String::new() })
    }

    /// Sends a message, and waits until it is back.
    fn pass(&mut self) -> Result<()> {
        self.to.write_all(MESSAGE.as_bytes())?;
        self.to.write_all(b"\n")?;
        self.line.clear();
        self.from.read_line(&mut self.line)?;
        if self.line.trim_end() == MESSAGE { Ok(()) } else { bail!("another message came back: {:?}", self.line) }
    }

    fn end(mut self) -> Result<()> {
        drop(self.to);
        self.child.wait().context("wait for its end")?;
        Ok(())
    }
}

/// Compares the relay with socat, on the same message.
pub(super) fn message(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let words = ["--provider", "native", "acp", "--network", "none", "--", environment.busybox(), "cat"];
    let mut ours = Relay::start(environment.kennel(&words))?;
    let mut socat = Command::new("socat");
    socat.args(["-", &format!("EXEC:{} cat", environment.busybox())]);
    let mut theirs = Relay::start(socat)?;
    let [relay, socat] = take_turns(effort.times(2000), [once(|| ours.pass()), once(|| theirs.pass())])?;
    ours.end()?;
    theirs.end()?;
    let what = "one message through kennel acp, and back (native)";
    Ok(vec![Row::times(what, &relay, "socat", &socat).at_most_more(0.2)])
}
