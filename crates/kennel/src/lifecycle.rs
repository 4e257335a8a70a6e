//! Creates and removes sandboxes for the command line. If the user interrupts this, an incomplete sandbox is removed.

use crate::progress::while_waiting;
use crate::report;
use crate::signals::{Signals, interrupted};
use kennel_core::{Error, Provider, RemoveOptions, Result, Sandbox};
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

/// Creates a sandbox. After a signal, it waits for the sandbox and removes it; after a second signal, it does not wait.
pub(crate) async fn create(
    provider: Arc<dyn Provider>,
    spec: &SandboxSpec,
    deadline: &mut Deadline,
) -> Result<Sandbox> {
    const LAST_WAIT: Duration = Duration::from_secs(10);
    let mut creating = pin!(while_waiting("creating the sandbox", Sandbox::create(provider, spec)));
    let reason = tokio::select! {
        made = &mut creating => return made.inspect(|sandbox| say_network(sandbox, spec)),
        reason = deadline.ended() => reason,
    };
    tokio::select! {
        made = tokio::time::timeout(LAST_WAIT, &mut creating) => if let Ok(Ok(sandbox)) = made {
            remove(&sandbox).await?;
        },
        _ = deadline.signals.end() => {}
    }
    Err(reason)
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

/// Removes a sandbox with everything in it. It is no error if the sandbox does not exist.
pub(crate) async fn remove(sandbox: &Sandbox) -> Result<()> {
    const WITHIN: Duration = Duration::from_secs(30);
    // The data volume is meant to outlive the sandbox.
    let options = RemoveOptions { volumes: false, force: true };
    let error = match tokio::time::timeout(WITHIN, sandbox.remove(options)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) if error.code() == ErrorCode::NotFound => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => Error::new(ErrorCode::Timeout, format!("it took longer than {WITHIN:?}")),
    };
    let name = sandbox.id().to_string();
    let error = error.context(format!("remove sandbox {name}"));
    Err(error.suggest(NextStep::RemoveSandbox { name, force: true, volumes: false }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_mock::{Call, Fault, Mock};

    #[tokio::test]
    async fn a_failed_removal_keeps_its_code() {
        let mock = Mock::new();
        let sandbox = Sandbox::create(Arc::new(mock.clone()), &SandboxSpec::default()).await.unwrap();
        mock.fault(Fault::Fails(Call::Remove, ErrorCode::NotAvailable));
        let error = remove(&sandbox).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotAvailable, "{error}");
        let name = sandbox.id().to_string();
        assert_eq!(error.next_step(), Some(&NextStep::RemoveSandbox { name, force: true, volumes: false }));
        remove(&sandbox).await.unwrap();
        remove(&sandbox).await.unwrap();
    }
}
