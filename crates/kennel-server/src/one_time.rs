//! Secrets in memory that are valid for a short time: tickets, links and the cookies of browsers.
//!
//! Only hashes are stored, so that a dump of memory or a timing of the comparison gives nothing away.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, LimitReason};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many secrets of one kind there can be.
const MOST: usize = 10_000;

/// Secrets, each with what it gives access to.
pub(crate) struct Secrets<T> {
    entries: Mutex<HashMap<[u8; 32], (T, Instant)>>,
}

impl<T> Default for Secrets<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T: Clone> Secrets<T> {
    /// Creates a secret. Returns its text, and when it expires in milliseconds since 1970.
    pub(crate) fn create(&self, value: T, valid: Duration) -> Result<(String, u64)> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("read random bytes for a secret: {error}")))?;
        let secret = bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.len() >= MOST {
            entries.retain(|_, (_, until)| *until > now);
        }
        if entries.len() >= MOST {
            return Err(Error::limit(LimitReason::TooManyRequests, format!("there are {MOST} of them already")));
        }
        entries.insert(hash(&secret), (value, now + valid));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + valid;
        Ok((secret, since.as_millis().try_into().unwrap_or(u64::MAX)))
    }

    /// Returns what a secret gives access to. It is not valid any more.
    pub(crate) fn take(&self, secret: &str) -> Option<T> {
        let (value, until) = self.entries().remove(&hash(secret))?;
        (until > Instant::now()).then_some(value)
    }

    /// Returns what a secret gives access to.
    pub(crate) fn get(&self, secret: &str) -> Option<T> {
        let entries = self.entries();
        let (value, until) = entries.get(&hash(secret))?;
        (*until > Instant::now()).then(|| value.clone())
    }

    /// Removes a secret.
    pub(crate) fn remove(&self, secret: &str) {
        self.entries().remove(&hash(secret));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<[u8; 32], (T, Instant)>> {
        // No code panics while it holds the lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_taken_once_and_in_time() {
        let secrets = Secrets::default();
        let (first, _) = secrets.create("a", Duration::from_mins(1)).unwrap();
        let (second, _) = secrets.create("b", Duration::ZERO).unwrap();
        assert_eq!(secrets.get(&first), Some("a"));
        assert_eq!(secrets.take(&first), Some("a"));
        assert_eq!(secrets.take(&first), None);
        assert_eq!(secrets.get(&second), None, "it has expired");
        assert_eq!(secrets.take(&second), None);
        assert_eq!(secrets.take("something else"), None);
    }

    #[test]
    fn there_is_a_cap_and_expired_secrets_do_not_count() {
        let secrets = Secrets::default();
        for _ in 0..MOST {
            secrets.create((), Duration::ZERO).unwrap();
        }
        for _ in 0..MOST {
            secrets.create((), Duration::from_mins(10)).unwrap();
        }
        let error = secrets.create((), Duration::from_mins(10)).unwrap_err();
        assert_eq!(error.reason(), Some(LimitReason::TooManyRequests));
    }
}
