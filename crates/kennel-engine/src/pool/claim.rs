//! Claims a member of a pool for a new sandbox.

use super::wire::{self, ForSession, MemberSession, PoolReply, PoolRequest};
use super::{ClaimLock, PoolResult, PoolUse, read_all};
use crate::Engine;
use kennel_core::{Error, Prepared, Provider, Result, Sandbox, new_id};
use kennel_types::{ErrorCode, NextStep, SandboxId, SandboxSpec};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::UnixStream;

/// Where members are claimed.
#[derive(Clone, Debug)]
pub struct PoolClaims {
    definitions: PathBuf,
    socket: PathBuf,
    lock: PathBuf,
}

/// A member that was claimed for a sandbox, or the reason why there is none. The member ends when this is dropped before
/// the sandbox is created.
pub struct Claimed {
    /// The id of the sandbox: a new one, or that of the member.
    pub id: SandboxId,
    /// Whether a pool had a member. `None` if it was not asked.
    pub result: Option<PoolResult>,
    usage: PoolUse,
    member: Option<Member>,
}

/// A member of a pool.
enum Member {
    /// A part of a sandbox, which is created from it.
    Part(Prepared),
    /// A whole sandbox, which runs. The resident process removes it if the connection is closed before it is renamed.
    Whole { id: SandboxId, session: Option<MemberSession>, _connection: UnixStream, _lock: ClaimLock },
}

impl Engine {
    /// Returns what claims members of pools.
    pub fn pool_claims(&self) -> Result<PoolClaims> {
        let directories = self.directories()?;
        let (definitions, socket) = (directories.pools(), directories.pool_socket());
        Ok(PoolClaims { definitions, socket, lock: directories.pool_claims() })
    }
}

impl PoolClaims {
    /// Claims a member for a sandbox that will be created and started now. If a pool is required and has no member, this
    /// fails with `not_available`.
    pub async fn claim(&self, provider: &dyn Provider, spec: &SandboxSpec, usage: PoolUse) -> Result<Claimed> {
        self.claim_for(provider, spec, None, usage).await
    }

    /// Claims a member for the sandbox of a session, which must take over the ids of the member
    /// ([`Claimed::member_session`]).
    pub(crate) async fn claim_for_session(
        &self,
        provider: &dyn Provider,
        spec: &SandboxSpec,
        session: ForSession,
        usage: PoolUse,
    ) -> Result<Claimed> {
        self.claim_for(provider, spec, Some(session), usage).await
    }

    async fn claim_for(
        &self,
        provider: &dyn Provider,
        spec: &SandboxSpec,
        session: Option<ForSession>,
        usage: PoolUse,
    ) -> Result<Claimed> {
        let mut claimed = Claimed { usage, ..Claimed::none()? };
        if usage != PoolUse::Never {
            let result = match self.ask(provider, spec, session).await {
                Ok((pool, member)) => {
                    if let Member::Whole { id, .. } = &member {
                        claimed.id = id.clone();
                    }
                    claimed.member = Some(member);
                    PoolResult::Hit { pool }
                }
                Err(reason) => PoolResult::miss(reason),
            };
            claimed.note(result)?;
        }
        Ok(claimed)
    }

    /// Returns a member and the name of its pool, or why there is none.
    async fn ask(
        &self,
        provider: &dyn Provider,
        spec: &SandboxSpec,
        session: Option<ForSession>,
    ) -> std::result::Result<(String, Member), String> {
        if !self.socket.exists() {
            return Err(self.without_resident());
        }
        let lock = ClaimLock::shared(&self.lock).map_err(|error| error.to_string())?;
        let lock = lock.ok_or("members of a resident process that was killed are being removed")?;
        let kind = provider.mode().key.provider;
        let request = PoolRequest::Claim { provider: kind, spec: Box::new(spec.clone()), session };
        match wire::ask(&self.socket, &request).await {
            Ok((PoolReply::Part { pool, description }, descriptors, _)) => {
                Ok((pool, Member::Part(Prepared { description, descriptors })))
            }
            Ok((PoolReply::Sandbox { pool, id, session }, _, connection)) => {
                Ok((pool, Member::Whole { id, session, _connection: connection, _lock: lock }))
            }
            Ok((PoolReply::Miss { reason }, ..)) => Err(reason),
            Ok(_) => Err("the resident process is another version of Kennel".to_owned()),
            Err(error) if error.code() == ErrorCode::Timeout => Err(error.to_string()),
            Err(error) => {
                tracing::debug!(%error, "no resident process");
                Err(self.without_resident())
            }
        }
    }

    fn without_resident(&self) -> String {
        let none = read_all(&self.definitions).is_ok_and(|pools| pools.is_empty());
        if none { NO_POOL.to_owned() } else { "no resident process runs, which would keep its members".to_owned() }
    }
}

/// The reason of a miss if there is no pool at all.
pub(crate) const NO_POOL: &str = "there is no pool";

impl Claimed {
    /// Describes a sandbox for which no pool is asked.
    pub fn none() -> Result<Self> {
        Ok(Self::none_for(new_id()?))
    }

    /// Describes a sandbox with this id, for which no pool is asked.
    pub fn none_for(id: SandboxId) -> Self {
        Self { id, result: None, usage: PoolUse::Never, member: None }
    }

    /// Describes a sandbox that cannot come from a pool, for this reason. If a pool is required, this fails.
    pub fn impossible(reason: &str, usage: PoolUse) -> Result<Self> {
        let mut claimed = Self { usage, ..Self::none()? };
        if usage != PoolUse::Never {
            claimed.note(PoolResult::miss(reason))?;
        }
        Ok(claimed)
    }

    /// Returns the session that the member was made for, if it was made for one.
    pub(crate) fn member_session(&self) -> Option<MemberSession> {
        match &self.member {
            Some(Member::Whole { session, .. }) => session.clone(),
            _ => None,
        }
    }

    fn note(&mut self, result: PoolResult) -> Result<()> {
        if let (PoolUse::Require, PoolResult::Miss { reason }) = (self.usage, &result) {
            let message = format!("no pool has a member for this sandbox: {reason}");
            return Err(Error::new(ErrorCode::NotAvailable, message).suggest(NextStep::FillPool));
        }
        self.result = Some(result);
        Ok(())
    }

    /// Creates the sandbox, from the member if there is one. It must still be started, unless the member runs.
    pub async fn create(&mut self, provider: Arc<dyn Provider>, spec: &SandboxSpec) -> Result<Sandbox> {
        match self.member.take() {
            Some(Member::Part(part)) => {
                if let Err(reason) = provider.use_part(&self.id, spec, part) {
                    self.note(PoolResult::miss(format!("the member does not fit: {reason}")))?;
                }
            }
            Some(Member::Whole { id, _connection, _lock, .. }) => {
                let name = spec.name.clone().unwrap_or_else(|| id.to_string());
                provider.rename(&id, &name).await?;
                return Sandbox::find(provider, id.as_str()).await;
            }
            None => {}
        }
        Sandbox::create_with_id(provider, &self.id, spec).await
    }
}
