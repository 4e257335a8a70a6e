//! Waits for operations of the engine, until they end, a signal arrives, or their time is over.

use crate::progress::while_waiting;
use crate::report;
use crate::signals::{Signals, interrupted};
use kennel_core::{Error, Provider, Result, Sandbox};
use kennel_engine::{Cancel, Claimed, Engine, PoolResult, Resident, create_claimed};
use kennel_types::{ErrorCode, Field, NextStep, SandboxSpec};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit of an operation, and the signals that arrive during it.
pub(crate) struct Deadline {
    pub(crate) signals: Signals,
    /// The time limit, for messages.
    pub(crate) limit: Option<Duration>,
    began: Instant,
}

impl Deadline {
    /// Starts the time limit now.
    pub(crate) fn begin(limit: Option<Duration>) -> Result<Self> {
        Ok(Self { signals: Signals::listen()?, limit, began: Instant::now() })
    }

    /// Returns the time at which the limit is reached.
    pub(crate) fn instant(&self) -> Option<Instant> {
        self.limit.and_then(|limit| self.began.checked_add(limit))
    }

    /// Returns the remaining time, or `None` without a limit. It is an error if no time is left.
    pub(crate) fn left(&self) -> Result<Option<Duration>> {
        let Some(deadline) = self.instant() else { return Ok(None) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late()) } else { Ok(Some(left)) }
    }

    /// Waits for `work`. Fails if a signal arrives or the time limit is reached first.
    pub(crate) async fn unless_ended<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            reason = self.ended() => Err(reason),
        }
    }

    /// Waits for `work`. After a signal or at the time limit, cancels it, and waits until it has cleaned up. After a
    /// second signal, it does not wait.
    pub(crate) async fn or_cancel<T>(&mut self, cancel: &Cancel, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        let reason = tokio::select! {
            done = &mut work => return done,
            reason = self.ended() => reason,
        };
        cancel.cancel();
        tokio::select! {
            done = &mut work => match done {
                Err(error) if error.code() != ErrorCode::Aborted => report::error(&error),
                _ => {}
            },
            _ = self.signals.end() => {}
        }
        Err(reason)
    }

    /// Waits for a signal or the time limit, and returns the error for it.
    async fn ended(&mut self) -> Error {
        let deadline = self.instant();
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = self.signals.end() => interrupted(signal),
            () = late => self.late(),
        }
    }

    fn late(&self) -> Error {
        let limit = self.limit.unwrap_or_default();
        Error::new(ErrorCode::Timeout, format!("the sandbox was not ready within {limit:?}"))
            .suggest(NextStep::set(Field::Timeout))
    }
}

/// Creates a sandbox, from the member of a pool if one was claimed, and shows progress. Also returns whether it came from
/// a pool.
pub(crate) async fn create(
    claimed: Claimed,
    provider: Arc<dyn Provider>,
    spec: &SandboxSpec,
    deadline: &mut Deadline,
) -> Result<(Sandbox, Option<PoolResult>)> {
    let cancel = Cancel::default();
    let creating = while_waiting("creating the sandbox", create_claimed(claimed, provider, spec, &cancel));
    let (sandbox, pool) = deadline.or_cancel(&cancel, creating).await?;
    say_network(&sandbox, spec);
    Ok((sandbox, pool))
}

/// Warns if the provider's default network is not available, so that the sandbox has another one.
fn say_network(sandbox: &Sandbox, spec: &SandboxSpec) {
    let usual = sandbox.provider().mode().default_network();
    let network = sandbox.info().network;
    if spec.network.is_none() && network != usual {
        report::warning(&format!(
            "network: using {network}, because {usual} is not available here (kennel doctor shows why)"
        ));
    }
}

/// Says that a sandbox with an idle pause is not paused, if no resident process runs.
pub(crate) fn say_idle_pause(engine: &Engine, is_set: bool) {
    if is_set && !Resident::is_running(engine) {
        report::note("idle sandboxes are paused only while `kennel serve` runs, and it does not");
    }
}

/// Prints the host ports of published ports for which the user chose none.
pub(crate) async fn say_ports(sandbox: &Sandbox, spec: &SandboxSpec) -> Result<()> {
    if spec.ports.iter().any(|port| port.host.is_none()) {
        for port in sandbox.inspect().await?.ports {
            report::note(&format!(
                "{} forwards to port {}/{} of the sandbox",
                port.address, port.inside, port.protocol
            ));
        }
    }
    Ok(())
}
