//! Waits for conditions. This is the only module of the tests that sleeps.

use std::time::{Duration, Instant};

/// The time limit for a condition. It is long, for busy machines: only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(90);

/// Waits until the condition holds. Panics with `what` at the time limit.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(within(DEADLINE, condition).await, "not within {DEADLINE:?}: {what}");
}

/// Waits until the condition holds, and returns whether it did within a time.
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
        #[expect(clippy::disallowed_methods, reason = "the backoff between two checks of the condition")]
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Waits until the condition holds, without a runtime, and returns whether it did within a time.
pub fn within_blocking(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > deadline {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "the backoff between two checks of the condition")]
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Waits for a time, so that the rounds of a race hit different moments. No test may depend on what happens meanwhile.
pub fn wait_in_race(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the moment at which the two sides of a race meet")]
    std::thread::sleep(time);
}
