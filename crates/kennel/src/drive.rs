//! A running command and this process's own streams, joined until one of them ends.
//!
//! Output is asked for again only after it was written, so a slow reader here slows the command there and nothing piles
//! up. Signals are heard all the while.

mod feed;
mod renew;

use crate::output::Stream;
use crate::signals::{ENDING, INTERRUPT, Signals, WINDOW, interrupted};
use crate::terminal::{Raw, size};
use feed::Feeder;
use kennel_core::{Collector, Error, Exec, ExecEvent, Result, Sandbox};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExitStatus, TermSize};
use rustix::io::Errno;
use std::pin::pin;
use std::time::{Duration, Instant};

/// How long a keeper may take to end a command whose time is up, before it is given up on.
pub(crate) const KEEPER_GRACE: Duration = Duration::from_secs(30);

/// How a command is joined to this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wiring {
    /// Standard input is passed.
    pub(crate) input: bool,
    /// Keys go through as they are pressed.
    pub(crate) raw: bool,
    /// The command is someone else's: it lives on without us, and Ctrl-P Ctrl-Q leaves it.
    pub(crate) visiting: bool,
    /// When to give up on a keeper that should have ended the command by itself.
    pub(crate) until: Option<Instant>,
}

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To our own standard output and error, all of it.
    Pass,
    /// Into memory, up to a cap.
    Collect(Collector),
}

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended.
    Exited(ExitStatus),
    /// This process got a signal that asks to end, passed it on, and the command failed after that.
    Aborted(ExitStatus, i32),
    /// The user left; the command goes on.
    Detached,
    /// Nobody reads our output any more.
    ReaderGone,
}

/// Passes everything on, both ways, until the command ends.
pub(crate) async fn drive(
    sandbox: &Sandbox,
    exec: Exec,
    wiring: Wiring,
    sink: &mut Sink,
    signals: &mut Signals,
) -> Result<Ending> {
    // Before anything is read: what is typed from now on is for the command.
    let _raw = if wiring.raw { Some(Raw::enter()?) } else { None };
    let feeder = wiring.input.then(|| Feeder::start(exec.stdin(), wiring.visiting, wiring.visiting && wiring.raw));
    let mut joint = Joint { sandbox, exec, wiring, pressed: None, hard: false, aborted: None };
    // What it was told when it was started may be of before, and nobody listened until now. If it is not, nothing happens.
    if let Some(size) = terminal_size(wiring) {
        joint.exec.resize(size);
    }
    let mut impatient = pin!(async {
        match wiring.until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    });
    loop {
        let event = tokio::select! {
            event = joint.exec.next() => event,
            signal = signals.next() => match joint.hear(signal)? {
                Some(ending) => return Ok(ending),
                None => continue,
            },
            () = detached(feeder.as_ref()) => return Ok(Ending::Detached),
            () = &mut impatient => return Err(unresponsive()),
        };
        match event {
            Ok(ExecEvent::Exited(status)) => return Ok(joint.ended(status)),
            Ok(ExecEvent::Output(channel, bytes)) => {
                let mut writing = pin!(sink.take(channel, bytes));
                loop {
                    tokio::select! {
                        done = &mut writing => match done {
                            Ok(()) => break,
                            Err(Errno::PIPE) => return Ok(Ending::ReaderGone),
                            Err(error) => return Err(Error::io("write the command's output", error)),
                        },
                        signal = signals.next() => if let Some(ending) = joint.hear(signal)? {
                            return Ok(ending);
                        },
                        () = detached(feeder.as_ref()) => return Ok(Ending::Detached),
                    }
                }
            }
            Err(error) if wiring.visiting && error.code() == ErrorCode::Stopped => {
                match renew::renew(sandbox, &joint.exec, terminal_size(wiring)).await? {
                    renew::Renewed::Again(exec) => joint.exec = exec,
                    renew::Renewed::Ended(status) => return Ok(Ending::Exited(status)),
                }
                if let Some(feeder) = &feeder {
                    feeder.renew(joint.exec.stdin());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn terminal_size(wiring: Wiring) -> Option<TermSize> {
    wiring.raw.then(size)
}

async fn detached(feeder: Option<&Feeder>) {
    match feeder {
        Some(feeder) => feeder.detached().await,
        None => std::future::pending().await,
    }
}

/// A keeper that ends commands in time never lets it come to this.
fn unresponsive() -> Error {
    Error::new(ErrorCode::Timeout, "the time limit was reached, but the keeper did not end the command")
}

/// The command's side, and what the user did to it so far.
struct Joint<'a> {
    sandbox: &'a Sandbox,
    exec: Exec,
    wiring: Wiring,
    /// When Ctrl-C was last pressed.
    pressed: Option<Instant>,
    /// Whether the command was killed.
    hard: bool,
    /// The last signal that asked to end.
    aborted: Option<i32>,
}

impl Joint<'_> {
    /// Does what a signal asks for.
    fn hear(&mut self, signal: i32) -> Result<Option<Ending>> {
        const TWICE_WITHIN: Duration = Duration::from_secs(2);
        if signal == WINDOW {
            self.exec.resize(size());
            return Ok(None);
        }
        if ENDING.contains(&signal) && !self.wiring.visiting {
            self.aborted = Some(signal);
        }
        if signal == INTERRUPT {
            let again = self.pressed.replace(Instant::now()).is_some_and(|before| before.elapsed() < TWICE_WITHIN);
            if again && self.wiring.visiting {
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
        } else if self.wiring.raw {
            // The terminal is going away, or we are asked to: a shell on a terminal ignores these, we must not.
            return Err(interrupted(signal));
        }
        self.exec.signal(signal);
        Ok(None)
    }

    /// How it came to an end, now that the command has ended. One that got a signal and succeeded all the same was not
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
        // Whether it worked shows in how the command ends.
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
        let wiring = Wiring { visiting: true, ..Wiring::default() };
        let ending = drive(&sandbox, exec, wiring, &mut sink, &mut Signals::listen().unwrap()).await;
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
        // Welcome, running, and output cut off at every place.
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
    async fn a_tied_command_is_not_asked_for_again() {
        let mock = Mock::new();
        mock.on(["talk"], Answer::exit(0).stdout("one").hold(&Gate::new()));
        mock.fault(Fault::HangUpAfter(3));
        let sandbox = sandbox(&mock).await;
        let exec = sandbox.exec(&ExecSpec::argv(["talk"])).await.unwrap();
        let mut signals = Signals::listen().unwrap();
        let error = drive(&sandbox, exec, Wiring::default(), &mut Sink::Pass, &mut signals).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stopped);
    }

    #[tokio::test]
    async fn a_keeper_that_keeps_no_time_is_given_up_on() {
        let mock = Mock::new();
        mock.on(["hang"], Answer::exit(0).hold(&Gate::new()));
        let sandbox = sandbox(&mock).await;
        let exec = sandbox.exec(&ExecSpec::argv(["hang"])).await.unwrap();
        let wiring = Wiring { until: Some(Instant::now() + Duration::from_millis(20)), ..Wiring::default() };
        let mut signals = Signals::listen().unwrap();
        let error = drive(&sandbox, exec, wiring, &mut Sink::Pass, &mut signals).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout);
    }
}
