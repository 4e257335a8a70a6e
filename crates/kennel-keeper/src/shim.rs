//! The shim: a small process between the keeper and each command.
//!
//! It is a child subreaper, so all processes that the command starts stay below it, however they fork and whatever
//! sessions they create. When the command ends by itself, the shim reports it, waits until the keeper closes their socket,
//! and exits. The remaining processes become children of process 1 and continue. When the command must be ended (it timed out, its owner disconnected, the keeper
//! is gone), everything below the shim is ended too.
//!
//! ```text
//!              command ends
//!   running ----------------> report, exit          (remaining processes continue)
//!      |  Kill, or the keeper is gone
//!      v
//!   TERM to all --- all gone ---> report, exit
//!      |  grace is over
//!      v
//!   STOP and KILL until nothing is left ---> report, exit
//! ```

use crate::launch::{self, Stdio};
use crate::report::Report;
use crate::{sys, tree};
use kennel_proto::{ExitReport, Failure, KeeperConfig, Spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::RecvFlags;
use rustix::process::WaitOptions;
use std::time::{Duration, Instant};

/// An order of the keeper to a shim: a byte for the kind, and a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Send a signal to the command's process group.
    Signal(i32),
    /// Send a signal to all processes below.
    SignalTree(i32),
    /// End everything: TERM, this many milliseconds, KILL.
    Kill(u32),
}

impl Order {
    pub(crate) const SIZE: usize = 5;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let (tag, number) = match self {
            Self::Signal(signal) => (0, signal as u32),
            Self::SignalTree(signal) => (1, signal as u32),
            Self::Kill(grace) => (2, grace),
        };
        let number = number.to_le_bytes();
        [tag, number[0], number[1], number[2], number[3]]
    }

    fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let number = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        match bytes[0] {
            0 => Self::Signal(number as i32),
            1 => Self::SignalTree(number as i32),
            _ => Self::Kill(number),
        }
    }
}

/// How long killing may take before the shim reports anyway.
const KILL_WITHIN: Duration = Duration::from_secs(30);

/// The main function of the shim. Called in a new fork of the keeper; never returns.
pub(crate) fn run(config: &KeeperConfig, spawn: &Spawn, stdio: Stdio, status: &OwnedFd) -> ! {
    let keep = [&stdio.stdin, &stdio.stdout, &stdio.stderr, status].map(AsRawFd::as_raw_fd);
    sys::close_all_but(&keep);
    match start(config, spawn, stdio, status) {
        Ok((command, signals)) => {
            Report::Ready.send(status);
            let stop = spawn.stop_signal.filter(|signal| (1..=64).contains(signal)).unwrap_or(libc::SIGTERM);
            let report = attend(command, stop, &signals, status);
            Report::Exited(report).send(status);
            wait_for_release(status);
        }
        Err(failure) => Report::Failed(failure).send(status),
    }
    sys::exit_now(0)
}

/// Waits until the keeper has passed on the report. A process that ends keeps its CPU busy, and the keeper may have to
/// wait for that CPU.
fn wait_for_release(keeper: &OwnedFd) {
    const AT_MOST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    // The keeper sends nothing to a shim that has reported. It closes the socket.
    let _ = poll(&mut [PollFd::new(keeper, PollFlags::RDHUP)], Some(&AT_MOST));
}

/// Starts the command, and returns once its program was executed.
fn start(config: &KeeperConfig, spawn: &Spawn, stdio: Stdio, status: &OwnedFd) -> Result<(i32, OwnedFd), Failure> {
    let failed = |error| crate::task::system("start a process", error);
    sys::become_subreaper().map_err(failed)?;
    let signals = sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map_err(failed)?;
    let mut failure = None;
    let command =
        sys::fork_until_exec(|| failure = Some(launch::run(config, spawn, &stdio, status))).map_err(failed)?;
    // The shim must not hold the command's streams: they end with the command.
    drop(stdio);
    sys::forget_standard_streams();
    match failure {
        None => Ok((command, signals)),
        Some(failure) => Err(failure),
    }
}

/// Waits for the command to end, or ends it.
fn attend(command: i32, stop: i32, signals: &OwnedFd, keeper: &OwnedFd) -> ExitReport {
    let mut ended = None;
    let mut kill_at: Option<Instant> = None;
    let mut orders = Vec::new();
    loop {
        let children_left = reap(command, &mut ended);
        match (ended, kill_at) {
            (Some(report), None) => return report,
            (Some(report), Some(_)) if !children_left => return report,
            (_, Some(at)) if Instant::now() >= at => {
                // This also reaps the command itself, so its status must have been taken before, if available.
                tree::kill_all_below_me(KILL_WITHIN);
                return ended.unwrap_or(ExitReport { signal: Some(libc::SIGKILL), ..ExitReport::default() });
            }
            _ => {}
        }
        wait(signals, keeper, kill_at);
        sys::read_signals(signals);
        match read_orders(keeper, &mut orders) {
            Some(received) => {
                for order in received {
                    match order {
                        Order::Signal(signal) => sys::kill(-command, signal),
                        Order::SignalTree(signal) => below_me().for_each(|pid| sys::kill(pid, signal)),
                        Order::Kill(grace) if kill_at.is_none() => {
                            below_me().for_each(|pid| {
                                sys::kill(pid, if pid == command { stop } else { libc::SIGTERM });
                                sys::kill(pid, libc::SIGCONT);
                            });
                            kill_at = Some(Instant::now() + Duration::from_millis(grace.into()));
                        }
                        Order::Kill(_) => {}
                    }
                }
            }
            // The keeper is gone, so no further order will arrive.
            None => kill_at = Some(Instant::now()),
        }
    }
}

fn below_me() -> impl Iterator<Item = i32> {
    tree::descendants(rustix::process::getpid().as_raw_nonzero().get()).into_iter()
}

/// Reaps ended processes, and returns whether any children are left.
fn reap(command: i32, ended: &mut Option<ExitReport>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Err(_) => return false,
            Ok(None) => return true,
            Ok(Some((pid, status))) => {
                if pid.as_raw_nonzero().get() == command {
                    *ended = Some(ExitReport {
                        code: status.exit_status(),
                        signal: status.terminating_signal(),
                        ..ExitReport::default()
                    });
                }
            }
        }
    }
}

fn wait(signals: &OwnedFd, keeper: &OwnedFd, until: Option<Instant>) {
    let timeout = until.map(|at| {
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(keeper, PollFlags::IN)];
    let _ = poll(&mut fds, timeout.as_ref());
}

/// Returns the received orders, or `None` if the keeper is gone.
fn read_orders(keeper: &OwnedFd, pending: &mut Vec<u8>) -> Option<Vec<Order>> {
    let mut buffer = [0; 64];
    loop {
        match rustix::net::recv(keeper, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return None,
            Ok((count, _)) => pending.extend_from_slice(&buffer[..count]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    let whole = pending.len() / Order::SIZE * Order::SIZE;
    let orders = pending[..whole].as_chunks().0.iter().map(|bytes| Order::from_bytes(*bytes)).collect();
    pending.drain(..whole);
    Some(orders)
}
