//! How much the server takes on: requests at once, and requests of one token in a time.

use crate::app::AppState;
use crate::error::Failure;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Semaphore;

/// How many requests are handled at once. A stream counts only until it has begun.
const AT_ONCE: usize = 1024;

/// How many requests of a token are handled each second on average.
const PER_SECOND: f64 = 1000.0;

/// How many requests of a token are handled at once after a pause.
const BURST: f64 = 2000.0;

/// How many tokens are remembered. The oldest has not been used for longer than a burst needs to fill up again.
const TOKENS: usize = 10_000;

/// The limits of a server.
pub(crate) struct Limits {
    requests: Semaphore,
    buckets: Mutex<HashMap<String, Bucket>>,
}

/// What a token may still do.
#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests: Semaphore::new(AT_ONCE), buckets: Mutex::default() }
    }
}

impl Limits {
    /// Counts a request of a caller. Fails if there were too many in a short time.
    pub(crate) fn count(&self, caller: &str) -> Result<(), Failure> {
        self.count_at(caller, Instant::now())
    }

    fn count_at(&self, caller: &str, now: Instant) -> Result<(), Failure> {
        // No code panics while it holds the lock.
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > TOKENS {
            buckets.retain(|_, bucket| (now - bucket.at).as_secs_f64() * PER_SECOND < BURST);
        }
        let bucket = buckets.entry(caller.to_owned()).or_insert(Bucket { left: BURST, at: now });
        let filled = now.saturating_duration_since(bucket.at).as_secs_f64() * PER_SECOND;
        *bucket = Bucket { left: (bucket.left + filled).min(BURST), at: now };
        if bucket.left < 1.0 {
            return Err(Failure::busy("this token has sent too many requests in a short time", 1));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

/// Refuses requests while too many are being handled.
pub(crate) async fn check(State(app): State<AppState>, request: Request, next: Next) -> Response {
    match app.limits.requests.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => Failure::busy("the server handles too many requests at once", 1).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_token_that_calls_too_often_waits_and_others_do_not() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut count = 0;
        while limits.count_at("a", now).is_ok() {
            count += 1;
        }
        assert_eq!(count, BURST as usize);
        assert!(limits.count_at("b", now).is_ok());
        assert!(limits.count_at("a", now + Duration::from_millis(10)).is_ok());
    }
}
