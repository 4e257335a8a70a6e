//! Making and removing a sandbox from the command line, where the user may lose patience at any moment: whatever was
//! begun is taken back.

use crate::progress::while_waiting;
use crate::report;
use crate::signals::{Signals, interrupted};
use kennel_core::{Error, Provider, RemoveOptions, Result, Sandbox};
use kennel_types::{ErrorCode, SandboxSpec};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Until when something must be done, and the user's signals meanwhile.
pub(crate) struct Watch {
    pub(crate) signals: Signals,
    /// The limit that was set, for messages.
    pub(crate) limit: Option<Duration>,
    began: Instant,
}

impl Watch {
    /// Counts from now.
    pub(crate) fn begin(limit: Option<Duration>) -> Result<Self> {
        Ok(Self { signals: Signals::listen()?, limit, began: Instant::now() })
    }

    /// When the time is up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.limit.and_then(|limit| self.began.checked_add(limit))
    }

    /// What is left of the time. None left is an error.
    pub(crate) fn left(&self) -> Result<Option<Duration>> {
        let Some(deadline) = self.deadline() else { return Ok(None) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late()) } else { Ok(Some(left)) }
    }

    /// Does something, unless a signal comes or the time is up first.
    pub(crate) async fn unless_ended<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            reason = self.ended() => Err(reason),
        }
    }

    /// Waits for a reason to stop.
    async fn ended(&mut self) -> Error {
        let deadline = self.deadline();
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
            .hint("give it more time with --timeout")
    }
}

/// Makes a sandbox. If the user gives up meanwhile, it is waited for and removed; a second signal does not wait.
pub(crate) async fn create(provider: Arc<dyn Provider>, spec: &SandboxSpec, watch: &mut Watch) -> Result<Sandbox> {
    const LAST_WAIT: Duration = Duration::from_secs(10);
    let mut creating = pin!(while_waiting("creating the sandbox", Sandbox::create(provider, spec)));
    let reason = tokio::select! {
        made = &mut creating => return made.inspect(|sandbox| say_network(sandbox, spec)),
        reason = watch.ended() => reason,
    };
    tokio::select! {
        made = tokio::time::timeout(LAST_WAIT, &mut creating) => if let Ok(Ok(sandbox)) = made {
            remove(&sandbox).await?;
        },
        _ = watch.signals.end() => {}
    }
    Err(reason)
}

/// Says what the sandbox has if it is less than usual: nobody asked for that.
fn say_network(sandbox: &Sandbox, spec: &SandboxSpec) {
    let usual = sandbox.provider().mode().default_network();
    let network = sandbox.info().network;
    if spec.network.is_none() && network != usual {
        report::warning(&format!(
            "network: using {network}, because {usual} is not available here (kennel doctor shows why)"
        ));
    }
}

/// Says where ports are published that were left to chance.
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

/// Removes a sandbox with all that is in it. One that is gone already is fine.
pub(crate) async fn remove(sandbox: &Sandbox) -> Result<()> {
    const WITHIN: Duration = Duration::from_secs(30);
    // A volume of its own outlives it: that is what it is for.
    let options = RemoveOptions { volumes: false, force: true };
    let (code, reason) = match tokio::time::timeout(WITHIN, sandbox.remove(options)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) if error.code() == ErrorCode::NotFound => return Ok(()),
        Ok(Err(error)) => (error.code(), error.to_string()),
        Err(_) => (ErrorCode::Timeout, format!("it took longer than {WITHIN:?}")),
    };
    let id = sandbox.id();
    Err(Error::new(code, format!("remove sandbox {id}: {reason}")).hint(format!("kennel rm --force {id}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_mock::{Fault, Mock};

    #[tokio::test]
    async fn a_failed_removal_keeps_its_code() {
        let mock = Mock::new();
        let sandbox = Sandbox::create(Arc::new(mock.clone()), &SandboxSpec::default()).await.unwrap();
        mock.fault(Fault::RemoveFails(ErrorCode::NotAvailable));
        let error = remove(&sandbox).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotAvailable, "{error}");
        assert_eq!(error.next_step(), Some(format!("kennel rm --force {}", sandbox.id()).as_str()));
        remove(&sandbox).await.unwrap();
        remove(&sandbox).await.unwrap();
    }
}
