//! Passes input, output and signals between the terminal and a running command, until one of them ends.
//!
//! More output is requested only after the previous output was written. So a slow reader slows down the command, and
//! memory is bounded. Signals are handled at any time.

mod remote;
mod stdin;

use crate::output::Stream;
use crate::report;
use crate::signals::{ENDING, INTERRUPT, Signals, WINDOW, interrupted};
use crate::terminal::{Raw, size};
use kennel_core::{Collector, Error, Exec, ExecEvent, Result, Sandbox};
use kennel_engine::{Reattached, reattach};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExitStatus, TermSize};
pub(crate) use remote::{interact_at, terminal};
use rustix::io::Errno;
use std::pin::pin;
use std::time::{Duration, Instant};
use stdin::{Keys, StdinForwarder};

/// How long a keeper may take to end a command after its time limit. Then this process stops waiting for it.
pub(crate) const KEEPER_GRACE: Duration = Duration::from_secs(30);

/// How a command is connected to this process's terminal and streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interaction {
    /// Whether standard input is passed to the command.
    pub(crate) input: bool,
    /// Whether the terminal is in raw mode, so that each key is passed as it is pressed.
    pub(crate) raw: bool,
    /// Whether this process only attaches to the command: the command outlives it, and Ctrl-P Ctrl-Q detaches.
    pub(crate) visiting: bool,
    /// When to stop waiting for a keeper that should have ended the command.
    pub(crate) until: Option<Instant>,
}

/// The destination of a command's output.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Standard output and standard error of this process.
    Pass,
    /// Memory, up to a cap.
    Collect(Collector),
}

/// How the interaction with a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended.
    Exited(ExitStatus),
    /// This process received a signal that asks it to end, passed it on, and the command then failed.
    Aborted(ExitStatus, i32),
    /// The user detached, and the command keeps running.
    Detached,
    /// The reader of this process's output has closed it.
    ReaderGone,
}

/// Passes input, output and signals until the command ends, the user detaches, or the reader of the output is gone.
pub(crate) async fn interact(
    sandbox: &Sandbox,
    exec: Exec,
    interaction: Interaction,
    sink: &mut Sink,
    signals: &mut Signals,
) -> Result<Ending> {
    // Before any input is read, because everything typed from now on is for the command.
    let _raw = if interaction.raw { Some(Raw::enter()?) } else { None };
    let forwarder = interaction
        .input
        .then(|| StdinForwarder::start(exec.stdin(), interaction.visiting, interaction.visiting && interaction.raw));
    let mut attached = Attached { sandbox, exec, interaction, pressed: None, hard: false, aborted: None };
    // The size may have changed since the command was started, because no signal was received until now.
    if let Some(size) = terminal_size(interaction) {
        attached.exec.resize(size);
    }
    let mut impatient = pin!(async {
        match interaction.until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    });
    loop {
        let event = tokio::select! {
            event = attached.exec.next() => event,
            signal = signals.next() => match attached.hear(signal)? {
                Some(ending) => return Ok(ending),
                None => continue,
            },
            () = detached(forwarder.as_ref()) => return Ok(Ending::Detached),
            () = &mut impatient => return Err(unresponsive()),
        };
        match event {
            Ok(ExecEvent::Exited(status)) => return Ok(attached.ended(status)),
            Ok(ExecEvent::Output(channel, bytes)) => {
                let mut writing = pin!(sink.take(channel, bytes));
                loop {
                    tokio::select! {
                        done = &mut writing => match done {
                            Ok(()) => break,
                            Err(Errno::PIPE) => return Ok(Ending::ReaderGone),
                            Err(error) => return Err(Error::io("write the command's output", error)),
                        },
                        signal = signals.next() => if let Some(ending) = attached.hear(signal)? {
                            return Ok(ending);
                        },
                        () = detached(forwarder.as_ref()) => return Ok(Ending::Detached),
                    }
                }
            }
            Err(error) if interaction.visiting && error.code() == ErrorCode::Stopped => {
                match reattach(sandbox, &attached.exec, terminal_size(interaction)).await? {
                    Reattached::Again(exec) => attached.exec = exec,
                    Reattached::Ended(status) => return Ok(Ending::Exited(status)),
                }
                report_lost(attached.exec.lost());
                if let Some(forwarder) = &forwarder {
                    forwarder.reconnect(attached.exec.stdin());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reports how much output was lost, because the keeper no longer had it.
fn report_lost(bytes: u64) {
    if bytes > 0 {
        report::warning(&format!("{bytes} bytes of older output are no longer available"));
    }
}

fn terminal_size(interaction: Interaction) -> Option<TermSize> {
    interaction.raw.then(size)
}

async fn detached(forwarder: Option<&StdinForwarder>) {
    match forwarder {
        Some(forwarder) => forwarder.detached().await,
        None => std::future::pending().await,
    }
}

/// The error for a keeper that did not end a command at its time limit.
fn unresponsive() -> Error {
    Error::new(ErrorCode::Timeout, "the time limit was reached, but the keeper did not end the command")
}

/// A command that the user interacts with, and the signals that it got so far.
struct Attached<'a> {
    sandbox: &'a Sandbox,
    exec: Exec,
    interaction: Interaction,
    /// When the user last pressed Ctrl-C.
    pressed: Option<Instant>,
    /// Whether a second Ctrl-C has killed the command.
    hard: bool,
    /// The last signal that asked this process to end.
    aborted: Option<i32>,
}

impl Attached<'_> {
    /// Handles a signal. Returns an ending if the interaction is over.
    fn hear(&mut self, signal: i32) -> Result<Option<Ending>> {
        const TWICE_WITHIN: Duration = Duration::from_secs(2);
        if signal == WINDOW {
            self.exec.resize(size());
            return Ok(None);
        }
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
            // The terminal is closing, or this process is asked to end. A shell on a terminal ignores these signals, so
            // passing them on would not help.
            return Err(interrupted(signal));
        }
        self.exec.signal(signal);
        Ok(None)
    }

    /// Returns the ending for a command's exit status. A command that received a signal and still succeeded was not
    /// aborted.
    fn ended(&self, status: ExitStatus) -> Ending {
        match self.aborted {
            Some(signal) if status.shell_code() != 0 && !status.timed_out => Ending::Aborted(status, signal),
            _ => Ending::Exited(status),
        }
    }

    fn kill(&self) {
        const KILL: i32 = 9;
        let (sandbox, process) = (self.sandbox.clone(), self.exec.process());
        // The exit status of the command shows whether this worked.
        tokio::spawn(async move { drop(sandbox.kill(process, KILL).await) });
    }
}

impl Sink {
    async fn take(&mut self, channel: Channel, bytes: Vec<u8>) -> Result<(), Errno> {
        match self {
            Self::Pass if channel == Channel::Stderr => Stream::Stderr.write(bytes).await,
            Self::Pass => Stream::Stdout.write(bytes).await,
            Self::Collect(collector) => {
                collector.push(channel, &bytes);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_core::Provider;
    use kennel_mock::{Answer, Fault, Gate, Mock};
    use kennel_types::{ExecSpec, SandboxSpec};
    use std::sync::Arc;

    async fn sandbox(mock: &Mock) -> Sandbox {
        let provider: Arc<dyn Provider> = Arc::new(mock.clone());
        let sandbox = Sandbox::create(provider, &SandboxSpec::default()).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }

    async fn visited(mock: &Mock, spec: &ExecSpec) -> (Result<Ending>, String) {
        let sandbox = sandbox(mock).await;
        let exec = sandbox.exec(spec).await.unwrap();
        let mut sink = Sink::Collect(Collector::new(1 << 20));
        let interaction = Interaction { visiting: true, ..Interaction::default() };
        let ending = interact(&sandbox, exec, interaction, &mut sink, &mut Signals::listen().unwrap()).await;
        let Sink::Collect(collector) = sink else { unreachable!("it was made to collect") };
        (ending, collector.finish(ExitStatus::default()).stdout_text())
    }

    #[tokio::test]
    async fn a_lost_connection_is_renewed_without_losing_a_byte() {
        let mock = Mock::new();
        let gate = Gate::new();
        let answer = Answer::exit(3).stdout("one ").stdout("two ").hold(&gate).stdout("three ").stdout("four");
        mock.on(["talk"], answer);
        gate.open();
        // The first two frames are the welcome and the start. After them, the connection is cut at each place in the
        // output.
        for frames in 2..7 {
            mock.fault(Fault::HangUpAfter(frames));
            let spec = ExecSpec { detached: true, ..ExecSpec::argv(["talk"]) };
            let (ending, text) = visited(&mock, &spec).await;
            let status = ExitStatus { code: Some(3), ..ExitStatus::default() };
            assert_eq!(ending.unwrap(), Ending::Exited(status), "after {frames} frames");
            assert_eq!(text, "one two three four", "after {frames} frames");
        }
    }

    #[tokio::test]
    async fn a_tied_command_is_not_attached_again() {
        let mock = Mock::new();
        mock.on(["talk"], Answer::exit(0).stdout("one").hold(&Gate::new()));
        mock.fault(Fault::HangUpAfter(3));
        let sandbox = sandbox(&mock).await;
        let exec = sandbox.exec(&ExecSpec::argv(["talk"])).await.unwrap();
        let mut signals = Signals::listen().unwrap();
        let error = interact(&sandbox, exec, Interaction::default(), &mut Sink::Pass, &mut signals).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stopped);
    }

    #[tokio::test]
    async fn a_keeper_that_ignores_the_timeout_is_given_up() {
        let mock = Mock::new();
        mock.on(["hang"], Answer::exit(0).hold(&Gate::new()));
        let sandbox = sandbox(&mock).await;
        let exec = sandbox.exec(&ExecSpec::argv(["hang"])).await.unwrap();
        let interaction =
            Interaction { until: Some(Instant::now() + Duration::from_millis(20)), ..Interaction::default() };
        let mut signals = Signals::listen().unwrap();
        let error = interact(&sandbox, exec, interaction, &mut Sink::Pass, &mut signals).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout);
    }
}
