//! Since when the sandbox has not been used. The keeper ends itself after a time without use, and a host can ask for it.
//!
//! Time in which the keeper did not run does not count, because a frozen sandbox cannot be used. A freeze interrupts the
//! wait of the event loop ([`Usage::resume`]), or happens while the keeper works, and the time of work does not count
//! either ([`Usage::sleep`]). So the keeper needs no timer to notice a freeze, and an idle sandbox wakes nobody.

use std::time::Instant;

pub(crate) struct Usage {
    /// The end of the last use, moved by the time in which the keeper worked since.
    since: Instant,
    in_use: bool,
    /// When the keeper woke up.
    awake: Instant,
}

impl Usage {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, in_use: false, awake: now }
    }

    /// The start of the idle time.
    pub(crate) fn idle_since(&self) -> Instant {
        self.since
    }

    /// The keeper waits for events from now on.
    pub(crate) fn sleep(&mut self) {
        let now = Instant::now();
        self.since = (self.since + now.saturating_duration_since(self.awake)).min(now);
        self.awake = now;
    }

    /// The wait is over.
    pub(crate) fn wake(&mut self) {
        self.awake = Instant::now();
    }

    /// The keeper was frozen, or a host starts the idle time again.
    pub(crate) fn resume(&mut self) {
        let now = Instant::now();
        (self.since, self.awake) = (now, now);
    }

    /// Says whether the sandbox is in use now. The idle time starts at the end of the use.
    pub(crate) fn update(&mut self, in_use: bool) {
        if in_use || self.in_use {
            self.since = Instant::now();
        }
        self.in_use = in_use;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn idle_time_starts_when_use_ends() {
        let long_ago = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        let mut usage = Usage::new(long_ago);
        usage.update(false);
        assert_eq!(usage.idle_since(), long_ago, "it was never used");
        usage.update(true);
        let used = usage.idle_since();
        assert!(used > long_ago);
        usage.update(false);
        let ended = usage.idle_since();
        assert!(ended >= used);
        usage.update(false);
        assert_eq!(usage.idle_since(), ended, "only the end of a use starts it again");
    }

    #[test]
    fn time_of_a_freeze_does_not_count() {
        let long_ago = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        let before = Instant::now();
        // Frozen while it waited.
        let mut usage = Usage::new(long_ago);
        usage.resume();
        assert!(usage.idle_since() >= before);
        // Frozen while it worked, which it has done since a minute ago.
        let mut usage = Usage::new(long_ago);
        usage.sleep();
        assert!(usage.idle_since() >= before);
        // Control: what it waited for counts.
        let mut usage = Usage::new(long_ago);
        usage.wake();
        usage.sleep();
        assert!(usage.idle_since() < before);
    }
}
