//! Passes input, output and signals between the terminal and a command on a server.

use super::{Ending, Interaction, Keys, Sink, report_lost, terminal_size, unresponsive};
use crate::input;
use crate::signals::{ENDING, INTERRUPT, Signals, WINDOW, interrupted};
use crate::terminal::{Raw, size};
use kennel_api::TerminalSize;
use kennel_api::stream::StreamChannel;
use kennel_client::{Client, CommandEvent, CommandInput, CommandStream};
use kennel_core::{Error, Result};
use kennel_proto::Channel;
use kennel_types::{ExitStatus, TermSize};
use rustix::io::Errno;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Passes input, output and signals until the command ends, the user detaches, or the reader of the output is gone.
pub(crate) async fn interact_at(
    client: &Client,
    sandbox: &str,
    mut stream: CommandStream,
    interaction: Interaction,
    sink: &mut Sink,
    signals: &mut Signals,
) -> Result<Ending> {
    let _raw = if interaction.raw { Some(Raw::enter()?) } else { None };
    let left = Arc::<Notify>::default();
    let typing = stream.take_input().filter(|_| interaction.input).map(|to| {
        let keys = (interaction.visiting && interaction.raw).then(Keys::default);
        Typing(tokio::spawn(forward(to, keys, left.clone())).abort_handle())
    });
    let control = stream.control();
    if let Some(size) = terminal_size(interaction) {
        control.resize(terminal(size));
    }
    let mut hearing =
        Hearing { client, sandbox, process: stream.process(), interaction, pressed: None, hard: false, aborted: None };
    let mut impatient = pin!(async {
        match interaction.until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    });
    let ending = loop {
        let event = tokio::select! {
            event = stream.next() => event?,
            signal = signals.next() => {
                if signal == WINDOW {
                    control.resize(terminal(size()));
                } else if let Some(ending) = hearing.hear(signal, |signal| control.signal(signal))? {
                    break ending;
                }
                continue;
            }
            () = left.notified() => break Ending::Detached,
            () = &mut impatient => return Err(unresponsive()),
        };
        match event {
            CommandEvent::Exited(status) => break hearing.ended(status),
            CommandEvent::Lost(_, bytes) => report_lost(bytes),
            CommandEvent::Output(channel, bytes) => {
                let channel = if channel == StreamChannel::Stderr { Channel::Stderr } else { Channel::Stdout };
                let mut writing = pin!(sink.take(channel, bytes));
                let written = loop {
                    tokio::select! {
                        done = &mut writing => break done,
                        signal = signals.next() => if signal != WINDOW
                            && let Some(ending) = hearing.hear(signal, |signal| control.signal(signal))?
                        {
                            return Ok(ending);
                        },
                        () = left.notified() => return Ok(Ending::Detached),
                    }
                };
                match written {
                    Ok(()) => {}
                    Err(Errno::PIPE) => break Ending::ReaderGone,
                    Err(error) => return Err(Error::io("write the command's output", error)),
                }
            }
        }
    };
    drop(typing);
    Ok(ending)
}

/// The size of a terminal, for the API.
pub(crate) fn terminal(size: TermSize) -> TerminalSize {
    TerminalSize { rows: size.rows, cols: size.cols }
}

/// The task that passes on what is typed. It ends when this is dropped.
struct Typing(tokio::task::AbortHandle);

impl Drop for Typing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn forward(to: CommandInput, mut keys: Option<Keys>, left: Arc<Notify>) {
    let mut from = input::open();
    while let Some(bytes) = from.next().await {
        let (bytes, leaves) = match &mut keys {
            Some(keys) => keys.filter(&bytes),
            None => (bytes, false),
        };
        if to.write(bytes).await.is_err() {
            return;
        }
        if leaves {
            left.notify_one();
            return;
        }
    }
    let _ = to.close().await;
    // The input stays open until the command ends, so that the end is not taken for a lost client.
    std::future::pending::<()>().await;
}

/// The signals that a command got so far.
struct Hearing<'a> {
    client: &'a Client,
    sandbox: &'a str,
    process: u64,
    interaction: Interaction,
    /// When the user last pressed Ctrl-C.
    pressed: Option<Instant>,
    /// Whether a second Ctrl-C has killed the command.
    hard: bool,
    /// The last signal that asked this process to end.
    aborted: Option<i32>,
}

impl Hearing<'_> {
    /// Handles a signal. Returns an ending if the interaction is over.
    fn hear(&mut self, signal: i32, pass_on: impl Fn(i32)) -> Result<Option<Ending>> {
        const TWICE_WITHIN: Duration = Duration::from_secs(2);
        if ENDING.contains(&signal) && !self.interaction.visiting {
            self.aborted = Some(signal);
        }
        if signal == INTERRUPT {
            let again = self.pressed.replace(Instant::now()).is_some_and(|before| before.elapsed() < TWICE_WITHIN);
            if again && self.interaction.visiting {
                return Ok(Some(Ending::Detached));
            }
            if again && self.hard {
                return Err(interrupted(signal));
            }
            if again {
                self.hard = true;
                self.kill();
                return Ok(None);
            }
        } else if self.interaction.raw {
            return Err(interrupted(signal));
        }
        pass_on(signal);
        Ok(None)
    }

    fn ended(&self, status: ExitStatus) -> Ending {
        match self.aborted {
            Some(signal) if status.shell_code() != 0 && !status.timed_out => Ending::Aborted(status, signal),
            _ => Ending::Exited(status),
        }
    }

    fn kill(&self) {
        const KILL: i32 = 9;
        let (client, sandbox, process) = (self.client.clone(), self.sandbox.to_owned(), self.process);
        // The exit status of the command shows whether this worked.
        tokio::spawn(async move { drop(client.signal(&sandbox, process, KILL).await) });
    }
}
