//! Since when something has not been used: a mock sandbox is in use while a command runs or a stream is open.

use kennel_proto::IdleReport;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Counts uses, and knows when the last one ended.
pub(crate) struct Usage(watch::Sender<Uses>);

struct Uses {
    count: usize,
    /// The end of the last use.
    since: Instant,
}

impl Default for Usage {
    fn default() -> Self {
        Self(watch::Sender::new(Uses { count: 0, since: Instant::now() }))
    }
}

impl Usage {
    /// Counts as a use while the result lives.
    pub(crate) fn begin(&self) -> Busy {
        self.0.send_modify(|uses| uses.count += 1);
        Busy(self.0.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.borrow().count
    }

    /// Returns the idle time. `reset` starts it again.
    pub(crate) fn report(&self, reset: bool) -> IdleReport {
        if reset {
            self.0.send_modify(|uses| uses.since = Instant::now());
        }
        let uses = self.0.borrow();
        let idle = if uses.count > 0 { Duration::ZERO } else { uses.since.elapsed() };
        IdleReport { in_use: uses.count > 0, idle_ms: idle.as_millis().try_into().unwrap_or(u64::MAX) }
    }

    /// Waits until there was no use for this long.
    pub(crate) async fn unused_for(&self, after: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let due = {
                let uses = changes.borrow_and_update();
                (uses.count == 0).then(|| uses.since + after)
            };
            // The sender is in `self`, so waiting for a change cannot fail.
            match due {
                Some(due) if due <= Instant::now() => return,
                Some(due) => drop(tokio::time::timeout_at(due, changes.changed()).await),
                None => drop(changes.changed().await),
            }
        }
    }
}

/// A use. It ends when this is dropped.
pub(crate) struct Busy(watch::Sender<Uses>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|uses| *uses = Uses { count: uses.count - 1, since: Instant::now() });
    }
}
