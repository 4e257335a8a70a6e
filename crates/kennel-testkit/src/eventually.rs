//! Waiting for a condition. The only place in the tests where time is let pass.

use std::time::{Duration, Instant};

/// How long a condition may take. Generous, for machines that are busy: only a test that fails waits for it.
const DEADLINE: Duration = Duration::from_secs(90);

/// Waits until the condition holds; panics with `what` if it does not come.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(within(DEADLINE, condition).await, "not within {DEADLINE:?}: {what}");
}

/// Whether the condition holds within a time.
pub async fn within(deadline: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if condition().await {
            return true;
        }
        if start.elapsed() > deadline {
            return false;
        }
        #[allow(clippy::disallowed_methods)] // the backoff between two looks at the condition
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// The same for a starter that runs before there is a runtime.
pub fn within_blocking(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > deadline {
            return false;
        }
        #[allow(clippy::disallowed_methods)] // the backoff between two looks at the condition
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}
