//! `kennel session acp`: the agent of a session, for a client on standard input and output.

use super::sessions;
use crate::input;
use crate::lifecycle::Deadline;
use crate::output::Stdout;
use crate::signals::interrupted;
use kennel_acp::{Client, Join, LINE, Relays, Sender, SessionEnded};
use kennel_core::{Error, Result};
use kennel_engine::Engine;
use kennel_types::{ErrorCode, LimitReason};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

const EXAMPLES: &str = "\
Examples:
  kennel session acp fix                what an editor runs to talk to the session's agent
  kennel session acp --after 0 fix      also what the agent has sent before
  kennel session acp --watch fix        only watch

Exit status: 0 if the client has left or the agent has ended, that of the agent if it failed, 125 if
Kennel failed.";

/// Talk to the agent of a session
///
/// Speaks the Agent Client Protocol on standard input and output, like `kennel acp`, with the agent of a session
/// (`kennel session create --agent`). Every message is stored. The agent goes on when this command ends, also if it is killed:
/// the next one continues, and no message is lost. A relay of `kennel serve` for the same session ends meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Acp {
    /// Id or name of the session
    id: String,
    /// Continue after this many messages of the agent; 0 is the beginning [default: begin with new messages]
    #[arg(long, value_name = "POSITION")]
    after: Option<u64>,
    /// Only watch: print all messages of the agent, and send none
    #[arg(long)]
    watch: bool,
}

impl Acp {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let mut deadline = Deadline::begin(None)?;
        let relays = Relays::new(sessions(engine).await?);
        let relay = deadline.unless_ended(relays.open(&self.id)).await?;
        let mut client = relay.join(Join { after: self.after, watch: self.watch });
        let sender = client.sender();
        let ended = tokio::select! {
            sent = send(sender, self.watch) => return sent.map(|()| 0),
            ended = receive(&mut client) => ended?,
            signal = deadline.signals.end() => return Err(interrupted(signal)),
        };
        if ended.is_some() {
            relay.closed().await;
        }
        match ended {
            None | Some(SessionEnded::Agent) => Ok(0),
            Some(SessionEnded::Failed(error)) => Err(copy(&error)),
            Some(SessionEnded::Relay) => {
                Err(Error::new(ErrorCode::Conflict, "another relay has taken over this session"))
            }
        }
    }
}

/// Passes lines of standard input to the agent, until it ends.
async fn send(sender: Sender, only_watches: bool) -> Result<()> {
    let mut lines = BufReader::new(input::open());
    loop {
        let mut line = Vec::new();
        // One byte more than a message may have, so that its sender gets an error.
        let count = (&mut lines).take(LINE as u64 + 1).read_until(b'\n', &mut line).await;
        let count = count.map_err(|error| Error::io("read standard input", error))?;
        if count == 0 {
            return Ok(());
        }
        if line.len() > LINE && !line.ends_with(b"\n") {
            let message = format!("a line of standard input is longer than {LINE} bytes");
            return Err(Error::limit(LimitReason::TooLarge, message));
        }
        if !only_watches && !line.trim_ascii().is_empty() && sender.send(line).await.is_err() {
            // The relay has ended. The other direction says why.
            std::future::pending::<()>().await;
        }
    }
}

/// Prints what the agent sends. Returns how the relay has ended, or `None` if nobody reads any more.
async fn receive(client: &mut Client) -> Result<Option<SessionEnded>> {
    let mut out = Stdout::default();
    loop {
        match client.next().await? {
            Ok(message) => {
                if out.write_all(&message.bytes).await.is_err() || out.flush().await.is_err() {
                    return Ok(None);
                }
            }
            Err(ended) => return Ok(Some(ended)),
        }
    }
}

/// Returns the same error again: the relay shares it with its other clients.
fn copy(error: &Error) -> Error {
    let copy = Error::of_lines(error.code(), error.to_string().lines()).exit_code(error.exit_status());
    match error.next_step() {
        Some(step) => copy.suggest(step.clone()),
        None => copy,
    }
}
