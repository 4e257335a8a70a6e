//! `terminal/*`: commands that run inside while the agent goes on. They end with the agent.

use super::{Inside, Refusal, lock};
use kennel_core::{Exec, ExecEvent};
use kennel_types::{Command, ErrorCode, ExecSpec, ExitStatus};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The terminals that an agent may have at once.
const MOST: usize = 64;
/// The output that is kept of a terminal by default, and at most, in bytes.
const KEPT: usize = 1 << 20;
const KEPT_AT_MOST: usize = 8 << 20;
/// KILL.
const KILL: i32 = 9;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Create {
    session_id: Option<String>,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    cwd: Option<String>,
    output_byte_limit: Option<usize>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Which {
    terminal_id: String,
}

/// The terminals of an agent.
#[derive(Default)]
pub(super) struct Terminals(Mutex<Table>);

#[derive(Default)]
struct Table {
    created: u64,
    /// The terminals that were not released, and those that are being created, as `None`.
    terminals: HashMap<String, Option<Arc<Terminal>>>,
}

/// A command of an agent, and what it printed.
struct Terminal {
    /// The command's id, for the keeper.
    process: u64,
    printed: Arc<Mutex<Printed>>,
    exit: watch::Receiver<Option<Exit>>,
    reader: AbortHandle,
}

/// How a command ended. `None` if its sandbox ended first.
type Exit = Option<ExitStatus>;

impl Drop for Terminal {
    fn drop(&mut self) {
        // The reader owns the command, which ends with it.
        self.reader.abort();
    }
}

/// The last output of a command.
struct Printed {
    limit: usize,
    bytes: Vec<u8>,
    truncated: bool,
}

impl Printed {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(self.limit);
        self.truncated |= over > 0;
        // Moving what is kept costs time, so it is not done for each piece.
        if over > self.limit.max(64 * 1024) {
            self.bytes.drain(..over);
        }
    }

    /// Returns the output as text, which begins at a character.
    fn text(&self) -> String {
        let mut kept = &self.bytes[self.bytes.len().saturating_sub(self.limit)..];
        if self.truncated {
            let continues = |byte: &u8| byte & 0xc0 == 0x80;
            let cut = kept.iter().take(3).take_while(|byte| continues(byte)).count();
            kept = &kept[cut..];
        }
        String::from_utf8_lossy(kept).into_owned()
    }
}

impl Terminals {
    fn find(&self, which: &Which) -> Result<Arc<Terminal>, Refusal> {
        let found = lock(&self.0).terminals.get(&which.terminal_id).cloned().flatten();
        found.ok_or_else(|| Refusal::new(Refusal::NOT_FOUND, format!("there is no terminal {:?}", which.terminal_id)))
    }

    /// Reserves the id of a terminal.
    fn reserve(&self) -> Result<String, Refusal> {
        let mut table = lock(&self.0);
        if table.terminals.len() >= MOST {
            return Err(Refusal::new(Refusal::INTERNAL, format!("there are {MOST} terminals; release one first")));
        }
        table.created += 1;
        let id = format!("kennel-{}", table.created);
        table.terminals.insert(id.clone(), None);
        Ok(id)
    }

    pub(super) fn output(&self, which: &Which) -> Result<Value, Refusal> {
        let terminal = self.find(which)?;
        // The exit is read first, so that the output is complete if there is one.
        let exit = terminal.exit.borrow().map(exit_status);
        let printed = lock(&terminal.printed);
        Ok(json!({ "output": printed.text(), "truncated": printed.truncated, "exitStatus": exit }))
    }

    pub(super) async fn wait_for_exit(&self, which: &Which) -> Result<Value, Refusal> {
        let mut exit = self.find(which)?.exit.clone();
        let released = |_| Refusal::new(Refusal::INTERNAL, "the terminal was released before its command ended");
        let exit = exit.wait_for(Option::is_some).await.map_err(released)?.flatten();
        Ok(exit_status(exit))
    }

    pub(super) fn release(&self, which: &Which) -> Result<Value, Refusal> {
        self.find(which)?;
        lock(&self.0).terminals.remove(&which.terminal_id);
        Ok(json!({}))
    }
}

impl Inside {
    pub(super) async fn create_terminal(&self, create: Create) -> Result<Value, Refusal> {
        let id = self.terminals.reserve()?;
        let terminal = self.start(create).await;
        let mut table = lock(&self.terminals.0);
        match terminal {
            Ok(terminal) => table.terminals.insert(id.clone(), Some(Arc::new(terminal))),
            Err(refusal) => {
                table.terminals.remove(&id);
                return Err(refusal);
            }
        };
        Ok(json!({ "terminalId": id }))
    }

    async fn start(&self, create: Create) -> Result<Terminal, Refusal> {
        // Some agents send a whole line for a shell, without arguments.
        let mut spec = if create.args.is_empty() {
            ExecSpec::shell(create.command)
        } else {
            ExecSpec::new(Command::Argv([create.command].into_iter().chain(create.args).collect()))
        };
        let session = create.session_id.as_deref();
        spec.cwd = match create.cwd {
            Some(cwd) => Some(self.absolute(session, &cwd)),
            None => self.directory(session),
        };
        spec.env = create.env.into_iter().map(|variable| (variable.name, variable.value)).collect();
        let exec = self.sandbox.exec(&spec).await?;
        let limit = create.output_byte_limit.unwrap_or(KEPT).min(KEPT_AT_MOST);
        let (ended, exit) = watch::channel(None);
        let process = exec.process();
        let printed = Arc::new(Mutex::new(Printed { limit, bytes: Vec::new(), truncated: false }));
        let reader = tokio::spawn(read(exec, printed.clone(), ended)).abort_handle();
        Ok(Terminal { process, printed, exit, reader })
    }

    pub(super) async fn kill_terminal(&self, which: &Which) -> Result<Value, Refusal> {
        let terminal = self.terminals.find(which)?;
        if terminal.exit.borrow().is_none() {
            match self.sandbox.kill(terminal.process, KILL).await {
                // It has just ended.
                Err(error) if error.code() == ErrorCode::NotFound => {}
                done => done?,
            }
        }
        Ok(json!({}))
    }
}

/// Reads the output of a command to its end.
async fn read(mut exec: Exec, printed: Arc<Mutex<Printed>>, ended: watch::Sender<Option<Exit>>) {
    loop {
        match exec.next().await {
            Ok(ExecEvent::Output(_, bytes)) => lock(&printed).push(&bytes),
            Ok(ExecEvent::Exited(status)) => {
                ended.send_replace(Some(Some(status)));
                return;
            }
            Err(_) => {
                ended.send_replace(Some(None));
                return;
            }
        }
    }
}

/// Returns an exit status as ACP states it.
fn exit_status(exit: Exit) -> Value {
    let status = exit.unwrap_or_default();
    json!({ "exitCode": status.code, "signal": status.signal.map(signal_name) })
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        _ => return format!("SIG{signal}"),
    };
    format!("SIG{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_output_is_kept_and_begins_at_a_character() {
        let mut printed = Printed { limit: 5, bytes: Vec::new(), truncated: false };
        printed.push("abc".as_bytes());
        assert_eq!((printed.text().as_str(), printed.truncated), ("abc", false));
        printed.push("dé".as_bytes());
        assert_eq!((printed.text().as_str(), printed.truncated), ("bcdé", true));
        printed.push("fghi".as_bytes());
        assert_eq!(printed.text(), "fghi", "a part of a character is left out");
        printed.push(&vec![b'x'; 200_000]);
        assert_eq!(printed.text(), "xxxxx");
        assert!(printed.bytes.len() < 100_000);
        let none = Printed { limit: 0, bytes: b"x".to_vec(), truncated: true };
        assert_eq!(none.text(), "");
    }

    #[test]
    fn signals_have_names() {
        let killed = ExitStatus { signal: Some(9), ..ExitStatus::default() };
        assert_eq!(exit_status(Some(killed)), json!({ "exitCode": null, "signal": "SIGKILL" }));
        assert_eq!(exit_status(None), json!({ "exitCode": null, "signal": null }));
    }
}
