//! Requests that create something, and may be repeated.
//!
//! A client gives such a request a key. The first request with a key records the id of what it is about to create, creates
//! it with this id, and records its response. A later request with the same key gets that response. If the server was killed
//! in between, the next request with the key finds the id, and looks whether the thing exists.

use crate::store::{Store, now_ms, sql};
use kennel_core::Result;
use rusqlite::{OptionalExtension as _, params};
use std::time::Duration;

/// How long a key is kept.
const KEPT: Duration = Duration::from_hours(24);

/// The keys of a store.
#[derive(Clone)]
pub struct IdempotencyKeys {
    store: Store,
}

/// What is known about a request when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is the first with its key. The thing is created with the id that the caller has given.
    New,
    /// A request with the same key has begun, and its response was not recorded. The thing has, or gets, this id.
    Unfinished(String),
    /// A request with the same key has ended, with this status and body.
    Finished(u16, String),
    /// A request with the same key asked for something else.
    Different,
}

impl IdempotencyKeys {
    /// The keys of a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Begins a request of a token. `request` is the hash of what it asks for, and `subject` the id of what it creates.
    pub async fn begin(&self, token: &str, key: &str, request: &str, subject: &str) -> Result<Begun> {
        let [token, key, request, subject] = [token, key, request, subject].map(ToOwned::to_owned);
        self.store
            .write(move |transaction| {
                let oldest = now_ms().saturating_sub(KEPT.as_millis() as u64) as i64;
                sql(transaction, transaction.execute("DELETE FROM idempotency WHERE created_ms < ?1", [oldest]))?;
                let found = transaction.query_row(
                    "SELECT request, subject, status, response FROM idempotency WHERE token = ?1 AND key = ?2",
                    [&token, &key],
                    |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<u16>>(2)?, row.get::<_, Option<String>>(3)?)),
                );
                Ok(match sql(transaction, found.optional())? {
                    Some((asked, ..)) if asked != request => Begun::Different,
                    Some((_, _, Some(status), Some(response))) => Begun::Finished(status, response),
                    Some((_, subject, ..)) => Begun::Unfinished(subject),
                    None => {
                        let inserted = transaction.execute(
                            "INSERT INTO idempotency (token, key, request, subject, created_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
                            params![token, key, request, subject, now_ms() as i64],
                        );
                        sql(transaction, inserted)?;
                        Begun::New
                    }
                })
            })
            .await
    }

    /// Records the response of a request that has succeeded.
    pub async fn finish(&self, token: &str, key: &str, status: u16, response: &str) -> Result<()> {
        let [token, key, response] = [token, key, response].map(ToOwned::to_owned);
        self.store
            .write(move |transaction| {
                let statement = "UPDATE idempotency SET status = ?3, response = ?4 WHERE token = ?1 AND key = ?2";
                sql(transaction, transaction.execute(statement, params![token, key, status, response])).map(drop)
            })
            .await
    }

    /// Forgets a request that has failed, and has created nothing. A repeated request tries again.
    pub async fn forget(&self, token: &str, key: &str) -> Result<()> {
        let [token, key] = [token, key].map(ToOwned::to_owned);
        self.store
            .write(move |transaction| {
                let statement = "DELETE FROM idempotency WHERE token = ?1 AND key = ?2";
                sql(transaction, transaction.execute(statement, [token, key])).map(drop)
            })
            .await
    }
}
