//! Tokens of the server: who may call it, and what they may do. The store has only their hashes.

use crate::store::{Store, now_ms, random_hex, sql};
use kennel_core::{Error, Result, printable};
use kennel_types::{ErrorCode, Scope};
use rusqlite::{OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::Path;

/// What every token begins with, so that people and programs recognize one that has leaked.
const PREFIX: &str = "kennel_";

/// The longest name of a token.
const LONGEST_NAME: usize = 128;

/// The tokens of a store.
#[derive(Clone)]
pub struct Tokens {
    store: Store,
}

/// A token to create.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// A name for people.
    pub name: String,
    /// What it allows.
    pub scope: Scope,
    /// The only project whose sandboxes it can see.
    pub project: Option<String>,
    /// The directories of the host below which workspaces and mounts must be.
    pub directories: Vec<String>,
    /// What its sandboxes may use.
    pub limits: TokenLimits,
}

/// What the sandboxes of a token may use. Without a limit, nothing is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenLimits {
    /// The largest memory limit of a sandbox, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The largest CPU limit of a sandbox in thousandths of a CPU, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millicpus: Option<u32>,
    /// How many sandboxes there may be in its project; without a project, how many on the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u32>,
}

/// A token, without its secret.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenInfo {
    /// The id.
    pub id: String,
    /// The name.
    pub name: String,
    /// What it allows.
    pub scope: Scope,
    /// The only project whose sandboxes it can see.
    pub project: Option<String>,
    /// The directories of the host below which workspaces and mounts must be.
    pub directories: Vec<String>,
    /// What its sandboxes may use.
    pub limits: TokenLimits,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
}

impl Tokens {
    /// The tokens of a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Creates a token. Returns its text, which is not stored and cannot be shown again, and its description.
    pub async fn create(&self, new: NewToken) -> Result<(String, TokenInfo)> {
        check(&new)?;
        let secret = format!("{PREFIX}{}", random_hex::<32>()?);
        let hash = hash(&secret);
        let info = TokenInfo {
            id: random_hex::<6>()?,
            name: new.name,
            scope: new.scope,
            project: new.project,
            directories: new.directories,
            limits: new.limits,
            created_ms: now_ms(),
        };
        let row = info.clone();
        self.store
            .write(move |transaction| {
                let name = row.name.clone();
                let inserted = transaction.execute(
                    "INSERT INTO tokens (id, name, hash, scope, project, directories, limits, created_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (name) DO NOTHING",
                    params![
                        row.id,
                        row.name,
                        hash,
                        row.scope.name(),
                        row.project,
                        json(&row.directories)?,
                        json(&row.limits)?,
                        row.created_ms as i64
                    ],
                );
                match sql(transaction, inserted)? {
                    1 => Ok(()),
                    _ => Err(Error::new(ErrorCode::AlreadyExists, format!("there is a token {name:?} already"))),
                }
            })
            .await?;
        Ok((secret, info))
    }

    /// Returns all tokens, oldest first.
    pub async fn list(&self) -> Result<Vec<TokenInfo>> {
        self.store
            .read(|connection| {
                let mut query = sql(connection, connection.prepare_cached(&select("ORDER BY created_ms, id")))?;
                let rows = sql(connection, query.query_map([], read))?;
                rows.map(|row| sql(connection, row)?).collect()
            })
            .await
    }

    /// Removes a token by its id or name. It is refused from now on.
    pub async fn revoke(&self, id_or_name: &str) -> Result<TokenInfo> {
        let text = id_or_name.to_owned();
        self.store
            .write(move |transaction| {
                let found = transaction.query_row(&select("WHERE id = ?1 OR name = ?1"), [&text], read);
                let Some(found) = sql(transaction, found.optional())? else {
                    return Err(Error::new(ErrorCode::NotFound, format!("there is no token {}", printable(&text))));
                };
                let token = found?;
                for statement in ["DELETE FROM tokens WHERE id = ?1", "DELETE FROM idempotency WHERE token = ?1"] {
                    sql(transaction, transaction.execute(statement, [&token.id]))?;
                }
                Ok(token)
            })
            .await
    }

    /// Returns the token with this text, or `None` if there is none.
    pub async fn verify(&self, secret: &str) -> Result<Option<TokenInfo>> {
        if !secret.starts_with(PREFIX) {
            return Ok(None);
        }
        let hash = hash(secret);
        self.store
            .read(move |connection| {
                let mut query = sql(connection, connection.prepare_cached(&select("WHERE hash = ?1")))?;
                sql(connection, query.query_row([hash], read).optional())?.transpose()
            })
            .await
    }
}

fn check(new: &NewToken) -> Result<()> {
    let invalid = |message: String| Error::new(ErrorCode::InvalidConfig, message);
    if new.name.is_empty() || new.name.len() > LONGEST_NAME || new.name.chars().any(char::is_control) {
        return Err(invalid(format!("invalid token name {:?}: expected 1 to {LONGEST_NAME} bytes", new.name)));
    }
    match new.directories.iter().find(|dir| !Path::new(dir).is_absolute()) {
        Some(dir) => Err(invalid(format!("invalid directory {dir:?}: expected an absolute path"))),
        None => Ok(()),
    }
}

/// The hash of a token. A token has 32 random bytes, so a fast hash is enough.
fn hash(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn select(rest: &str) -> String {
    format!("SELECT id, name, scope, project, directories, limits, created_ms FROM tokens {rest}")
}

/// Reads a row of [`select`].
fn read(row: &Row<'_>) -> rusqlite::Result<Result<TokenInfo>> {
    let (scope, directories, limits): (String, String, String) = (row.get(2)?, row.get(4)?, row.get(5)?);
    let (id, name, project, created): (String, String, Option<String>, i64) =
        (row.get(0)?, row.get(1)?, row.get(3)?, row.get(6)?);
    let parsed = || -> Result<TokenInfo> {
        let broken = |what: &str| Error::new(ErrorCode::Internal, format!("the token {id} has an invalid {what}"));
        Ok(TokenInfo {
            scope: scope.parse().map_err(|_| broken("scope"))?,
            directories: serde_json::from_str(&directories).map_err(|_| broken("list of directories"))?,
            limits: serde_json::from_str(&limits).map_err(|_| broken("limit"))?,
            id: id.clone(),
            name,
            project,
            created_ms: created as u64,
        })
    };
    Ok(parsed())
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::new(ErrorCode::Internal, format!("store a token: {error}")))
}
