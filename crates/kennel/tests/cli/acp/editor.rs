//! An editor that runs `kennel acp`, and agents that are shell scripts.

use crate::support::{CALL, Finished, Kennel, wait};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// What every agent can do: read the next message, and append it to the file `seen`; and send one.
pub(crate) const AGENT: &str = "next() { IFS= read -r line || exit 0; printf '%s\\n' \"$line\" >> seen; }\n\
    say() { printf '%s\\n' \"$1\"; }\n";

/// An editor with a running agent.
pub(crate) struct Editor {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Editor {
    /// Runs an agent of this script, in the workspace.
    pub(crate) fn open(kennel: &Kennel, script: &str, options: &[&str]) -> Self {
        agent_script(kennel, script);
        Self::run(kennel, options, &["sh", "agent.sh"])
    }

    /// Runs an agent, with these variables of the caller.
    pub(crate) fn run_with(kennel: &Kennel, options: &[&str], agent: &[&str], variables: &[(&str, &str)]) -> Self {
        let image = kennel.image().map(|image| vec!["--image", image]).unwrap_or_default();
        let mut call = kennel.call(&[&["acp"], &image[..], options, &["--"], agent].concat());
        call.envs(variables.iter().copied());
        Self::start(call)
    }

    /// Runs an agent.
    pub(crate) fn run(kennel: &Kennel, options: &[&str], agent: &[&str]) -> Self {
        Self::with(kennel, false, options, agent)
    }

    /// Runs an agent. If `has_image`, the options name the image.
    pub(crate) fn with(kennel: &Kennel, has_image: bool, options: &[&str], agent: &[&str]) -> Self {
        let image = kennel.image().filter(|_| !has_image).map(|image| vec!["--image", image]).unwrap_or_default();
        Self::call(kennel, &[&["acp"], &image[..], options, &["--"], agent].concat())
    }

    /// Runs a command that speaks ACP.
    pub(crate) fn call(kennel: &Kennel, words: &[&str]) -> Self {
        Self::start(kennel.call(words))
    }

    fn start(mut call: Command) -> Self {
        let mut child = call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                if sender.send(String::from_utf8(std::mem::take(&mut line)).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, stderr: Some(stderr) }
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")).and_then(|()| stdin.flush()).unwrap();
    }

    /// Waits for the next line.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        match self.lines.recv_timeout(CALL) {
            Ok(line) => line,
            Err(error) => {
                let _ = self.child.kill();
                panic!("{error}: {}", self.stderr.take().map(|stderr| stderr.join().unwrap()).unwrap_or_default());
            }
        }
    }

    /// Waits for the next line, as JSON.
    #[track_caller]
    pub(crate) fn hear_json(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.hear()).unwrap()
    }

    /// Closes the agent's standard input, and waits for the end. Standard output is what was not heard before.
    #[track_caller]
    pub(crate) fn leave(mut self) -> Finished {
        drop(self.stdin.take());
        self.end()
    }

    /// Kills the command, which can do nothing about it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end, without leaving.
    #[track_caller]
    pub(crate) fn end(mut self) -> Finished {
        let status = wait(&mut self.child, "kennel acp");
        let stdout = self.lines.iter().collect::<String>().into_bytes();
        Finished { status, stdout, stderr: self.stderr.take().unwrap().join().unwrap() }
    }
}

/// Writes an agent of this script, as `agent.sh` in the workspace.
pub(crate) fn agent_script(kennel: &Kennel, script: &str) {
    std::fs::write(kennel.here().join("agent.sh"), format!("{AGENT}{script}")).unwrap();
}

/// What the agent has read so far.
pub(crate) fn seen(kennel: &Kennel) -> String {
    std::fs::read_to_string(kennel.here().join("seen")).unwrap_or_default()
}

/// What the agent has read so far, as JSON.
pub(crate) fn seen_json(kennel: &Kennel) -> Vec<serde_json::Value> {
    seen(kennel).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
