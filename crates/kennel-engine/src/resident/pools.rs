//! Keeps the members of pools, and hands them out.
//!
//! Members are made one after another, while nobody claims any: a claim must not wait for them. A member is a part of a
//! sandbox (see [`Prepared`]) or a whole one (`members`). Both end themselves when this process ends, in whatever way. What
//! has ended of a whole one is removed by the next resident process, or by [`Engine::remove_pool_members`].
//!
//! [`Engine::remove_pool_members`]: crate::Engine::remove_pool_members

use super::members::{Member, Surroundings, Unclaimed, Whole};
use crate::directories::Directories;
use crate::pool::wire::{self, ForSession, PoolReply, PoolRequest};
use crate::pool::{ClaimLock, MemberWorkspaces, NO_POOL, Pool, PoolStatus, read_all, unfit};
use crate::steps::Steps;
use kennel_core::{Prepared, Provider as _, Result};
use kennel_types::{Event, ProviderKind, SandboxInfo, SandboxSpec};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long nobody may have claimed a member before the next one is made, unless a claim found a pool empty. To make a
/// member would slow the claim, and the first command in the sandbox.
const QUIET: Duration = Duration::from_millis(20);
/// For how long a claim counts: a pool has as many members as were claimed in this time, within its bounds.
const COUNTED: Duration = Duration::from_mins(1);
/// How long to wait after a member could not be made.
const RETRY: Duration = Duration::from_secs(5);
/// How long a member may take to be made after this process was asked to end.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The pools of the resident process.
pub(super) struct PoolKeeper {
    definitions: PathBuf,
    socket: PathBuf,
    claims: PathBuf,
    around: Surroundings,
    providers: Mutex<Vec<(ProviderKind, Arc<Steps>)>>,
    state: Mutex<State>,
    /// Notified when there may be something to do.
    changed: Notify,
    /// Held while a member is made.
    making: tokio::sync::Mutex<()>,
    pub(super) counts: PoolCounts,
}

/// How many claims found a member, and how many did not. Clones count the same claims.
#[derive(Clone, Debug, Default)]
pub struct PoolCounts(Arc<[AtomicU64; 2]>);

impl PoolCounts {
    /// The claims that found a member.
    pub fn hits(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// The claims that found none although there is a pool.
    pub fn misses(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    fn count(&self, is_hit: bool) {
        self.0[usize::from(!is_hit)].fetch_add(1, Ordering::Relaxed);
    }
}

/// The socket of the resident process. It is gone when this is dropped.
pub(super) struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    /// Members that are not needed any more, or have ended.
    gone: Vec<Member>,
    last_claim: Option<Instant>,
}

/// A pool and its members.
struct Kept {
    pool: Pool,
    /// Those that wait, oldest first.
    ready: VecDeque<Member>,
    /// When members were claimed lately, or would have been.
    claims: VecDeque<Instant>,
    /// Whether a claim found no member since the last one was made.
    is_missed: bool,
    /// Why the last member could not be made, and when the next attempt is.
    failed: Option<(String, Instant)>,
}

impl PoolKeeper {
    /// Reads the definitions. Nothing is made yet.
    pub(super) fn new(directories: &Directories, providers: Vec<(ProviderKind, Arc<Steps>)>) -> Self {
        let keeper = Self {
            definitions: directories.pools(),
            socket: directories.pool_socket(),
            claims: directories.pool_claims(),
            around: Surroundings {
                unclaimed: Unclaimed::default(),
                database: directories.database(),
                workspaces: MemberWorkspaces::new(directories.pool_workspaces()),
            },
            providers: Mutex::new(providers),
            state: Mutex::default(),
            changed: Notify::new(),
            making: tokio::sync::Mutex::default(),
            counts: PoolCounts::default(),
        };
        keeper.reload();
        keeper
    }

    /// Makes the members of a provider too that was not there before.
    pub(super) fn arrive(&self, kind: ProviderKind, provider: Arc<Steps>) {
        self.providers.lock().unwrap_or_else(PoisonError::into_inner).push((kind, provider));
        // Pools that have failed without it are filled at once.
        self.reload();
    }

    /// Returns what a reader of events should see of this one: members that nobody has claimed have none.
    pub(super) fn visible(&self, event: Event) -> Vec<Event> {
        self.around.unclaimed.visible(event)
    }

    /// Notes that these are no members, because events may have been missed.
    pub(super) fn reveal(&self, sandboxes: &[SandboxInfo]) {
        self.around.unclaimed.forget(sandboxes);
    }

    fn provider(&self, kind: ProviderKind) -> Option<Arc<Steps>> {
        let providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        providers.iter().find(|(other, _)| *other == kind).map(|(_, provider)| provider.clone())
    }

    /// Listens for requests.
    pub(super) fn listen(&self) -> Result<Listening> {
        Ok(Listening { listener: wire::listen(&self.socket)?, path: self.socket.clone() })
    }

    /// Fills the pools and serves requests, until this is dropped.
    pub(super) async fn run(self: Arc<Self>, listening: Listening) {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().fill());
        loop {
            tokio::select! {
                Some(_) = tasks.join_next() => {}
                accepted = listening.listener.accept() => match accepted {
                    Ok((stream, _)) => drop(tasks.spawn(self.clone().serve(stream))),
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a request for a pool");
                        sleep(RETRY).await;
                    }
                },
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time until members may be made, unless they may be made now.
    fn quiet_in(&self) -> Option<Duration> {
        self.state().quiet_in()
    }

    async fn serve(self: Arc<Self>, stream: UnixStream) {
        if let Err(error) = self.handle(&stream).await {
            tracing::debug!(%error, "a request for a pool failed");
        }
    }

    async fn handle(&self, stream: &UnixStream) -> Result<()> {
        let reply = match wire::read_request(stream).await? {
            PoolRequest::Claim { provider, spec, session } => {
                return self.hand_out(provider, &spec, session.as_ref(), stream).await;
            }
            PoolRequest::List => PoolReply::Listed { pools: self.list() },
            PoolRequest::Reload => {
                self.reload();
                PoolReply::Done
            }
        };
        wire::write_reply(stream, &reply, &[]).await
    }

    /// Gives a member to the client, if one fits.
    async fn hand_out(
        &self,
        provider: ProviderKind,
        spec: &SandboxSpec,
        session: Option<&ForSession>,
        stream: &UnixStream,
    ) -> Result<()> {
        loop {
            let claimed = self.claim(provider, spec, session, stream);
            if claimed.as_ref().err().is_none_or(|reason| reason != NO_POOL) {
                self.counts.count(claimed.is_ok());
            }
            match claimed {
                Err(reason) => return wire::write_reply(stream, &PoolReply::Miss { reason }, &[]).await,
                Ok((pool, Member::Part(Prepared { description, descriptors }))) => {
                    return wire::write_reply(stream, &PoolReply::Part { pool, description }, &descriptors).await;
                }
                Ok((pool, Member::Whole(member))) => {
                    if !member.untie().await {
                        member.remove().await;
                        continue;
                    }
                    let reply = PoolReply::Sandbox { pool, id: member.id.clone(), session: member.session() };
                    let sent = wire::write_reply(stream, &reply, &[]).await;
                    if sent.is_ok() {
                        wire::closed(stream).await;
                    }
                    // The client has renamed it by now, or has given up.
                    member.remove_unless_claimed().await;
                    return sent;
                }
            }
        }
    }

    /// Takes a member for a sandbox. Returns the name of its pool, or why there is none.
    fn claim(
        &self,
        provider: ProviderKind,
        spec: &SandboxSpec,
        session: Option<&ForSession>,
        stream: &UnixStream,
    ) -> Result<(String, Member), String> {
        // A member sees what this process sees.
        if !is_beside_me(stream) {
            return Err("the resident process has other namespaces than this process".to_owned());
        }
        let mut state = self.state();
        let State { kept, gone, last_claim } = &mut *state;
        *last_claim = Some(Instant::now());
        if kept.is_empty() {
            return Err(NO_POOL.to_owned());
        }
        let mut fitting: Vec<&mut Kept> = kept.iter_mut().filter(|kept| kept.pool.provider == provider).collect();
        if fitting.is_empty() {
            return Err(format!("there is no pool for {}", provider.name()));
        }
        let reason = fitting.iter().find_map(|kept| unfit(&kept.pool, spec, session));
        fitting.retain(|kept| unfit(&kept.pool, spec, session).is_none());
        if fitting.is_empty() {
            return Err(reason.unwrap_or_default());
        }
        // A pool of the profile comes first.
        fitting.sort_by_key(|kept| kept.pool.spec.profile.is_none());
        let mut reason = String::new();
        for kept in fitting {
            kept.count_claim();
            self.changed.notify_one();
            if let Some(session) = session {
                // The store was lost since they were made.
                gone.extend(kept.take_all(|member| member.store().is_some_and(|store| store != session.store)));
            }
            if let Some(member) = kept.take() {
                return Ok((kept.pool.name.clone(), member));
            }
            kept.is_missed = true;
            if reason.is_empty() {
                reason = kept.why_empty();
            }
        }
        Err(reason)
    }

    fn list(&self) -> Vec<PoolStatus> {
        let mut state = self.state();
        let State { kept, gone, .. } = &mut *state;
        let status = |kept: &mut Kept| {
            let ended = kept.take_ended();
            if !ended.is_empty() {
                gone.extend(ended);
                self.changed.notify_one();
            }
            let ready = u32::try_from(kept.ready.len()).ok();
            let problem = kept.failed.as_ref().map(|(why, _)| why.clone());
            PoolStatus { ready, problem, ..PoolStatus::of(&kept.pool) }
        };
        kept.iter_mut().map(status).collect()
    }

    /// Reads the definitions again. Members of pools that have changed end.
    fn reload(&self) {
        let pools = match read_all(&self.definitions) {
            Ok(pools) => pools,
            Err(error) => {
                tracing::warn!(%error, "the pools stay as they are");
                return;
            }
        };
        let mut state = self.state();
        let mut before = std::mem::take(&mut state.kept);
        for pool in pools {
            let same = |kept: &Kept| kept.pool.has_same_members(&pool);
            let known = before.iter().position(same).map(|at| before.swap_remove(at));
            let (ready, claims) = known.map(|kept| (kept.ready, kept.claims)).unwrap_or_default();
            state.kept.push(Kept { is_missed: ready.is_empty(), pool, ready, claims, failed: None });
        }
        state.gone.extend(before.into_iter().flat_map(|kept| kept.ready));
        self.changed.notify_one();
    }

    /// Makes members whenever some are missing.
    async fn fill(self: Arc<Self>) {
        loop {
            let next = self.fill_now().await;
            let later = async {
                match next {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = later => {}
            }
        }
    }

    /// Makes members until none is missing. Returns when to look again, if nothing happens before.
    async fn fill_now(self: &Arc<Self>) -> Option<Instant> {
        loop {
            while let Some(rest) = self.quiet_in() {
                sleep(rest).await;
            }
            let next = self.state().next_to_make();
            let gone = std::mem::take(&mut self.state().gone);
            for member in gone {
                member.end().await;
            }
            let pool = match next {
                Ok(pool) => pool,
                Err(next) => return next,
            };
            // A request to an engine that is cut off may still have its effect. So this goes on if this process is asked to
            // end meanwhile, and `end` waits for it.
            let keeper = self.clone();
            let making = tokio::spawn(async move {
                let _making = keeper.making.lock().await;
                let made = keeper.make(&pool).await;
                keeper.keep(&pool, made);
            });
            if let Err(error) = making.await {
                tracing::warn!(%error, "a member of a pool could not be made");
                sleep(RETRY).await;
            }
        }
    }

    /// Adds a member to its pool.
    fn keep(&self, pool: &Pool, made: Result<Member, String>) {
        let mut state = self.state();
        let is_same = |kept: &&mut Kept| kept.pool.has_same_members(pool);
        let Some(kept) = state.kept.iter_mut().find(is_same) else {
            // The pool has changed meanwhile.
            state.gone.extend(made.ok());
            return;
        };
        match made {
            Ok(member) => {
                kept.ready.push_back(member);
                (kept.is_missed, kept.failed) = (false, None);
            }
            Err(why) => {
                tracing::warn!(pool = pool.name, why, "a member of a pool could not be made");
                kept.failed = Some((why, Instant::now() + RETRY));
            }
        }
    }

    async fn make(&self, pool: &Pool) -> Result<Member, String> {
        let provider = self.provider(pool.provider);
        let provider = provider.ok_or_else(|| format!("{} is not available", pool.provider.name()))?;
        if let Some(part) = provider.prepare_part(&pool.spec).await.map_err(|error| error.to_string())? {
            return Ok(Member::Part(part));
        }
        // Whoever cleans up after this process looks for members only if this file exists.
        drop(ClaimLock::shared(&self.claims).map_err(|error| error.to_string())?);
        Whole::make(provider, pool, &self.around)
            .await
            .map(|member| Member::Whole(Box::new(member)))
            .map_err(|error| error.to_string())
    }

    /// Ends all members, and removes what they leave.
    pub(super) async fn end(&self) {
        // If a member takes too long, the next resident process removes it.
        let _made = tokio::time::timeout(LAST_WAIT, self.making.lock()).await;
        let State { kept, gone, .. } = std::mem::take(&mut *self.state());
        for member in kept.into_iter().flat_map(|kept| kept.ready).chain(gone) {
            member.end().await;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl State {
    /// Returns the rest of the time in which nobody may claim a member before the next one is made, if any.
    fn quiet_in(&self) -> Option<Duration> {
        let is_urgent = self.kept.iter().any(|kept| kept.is_missed && kept.failed.is_none());
        let rest = QUIET.saturating_sub(self.last_claim?.elapsed());
        (!is_urgent && !rest.is_zero()).then_some(rest)
    }

    /// Returns the pool that needs a member most. If none does, returns when one may.
    fn next_to_make(&mut self) -> Result<Pool, Option<Instant>> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut emptiest: Option<(usize, &Pool)> = None;
        for kept in &mut self.kept {
            self.gone.extend(kept.take_ended());
            kept.claims.retain(|claim| now.duration_since(*claim) < COUNTED);
            let target = kept.claims.len().clamp(kept.pool.min as usize, kept.pool.max as usize);
            self.gone.extend(kept.ready.drain(target.min(kept.ready.len())..));
            let expires = kept.claims.front().filter(|_| target > kept.pool.min as usize).map(|claim| *claim + COUNTED);
            let retry = kept.failed.as_ref().map(|(_, retry)| *retry).filter(|retry| *retry > now);
            next = [next, expires, retry].into_iter().flatten().min();
            let is_emptier = emptiest.is_none_or(|(count, _)| kept.ready.len() < count);
            if kept.ready.len() < target && retry.is_none() && is_emptier {
                emptiest = Some((kept.ready.len(), &kept.pool));
            }
        }
        emptiest.map(|(_, pool)| pool.clone()).ok_or(next)
    }
}

impl Kept {
    fn count_claim(&mut self) {
        self.claims.push_back(Instant::now());
        if self.claims.len() > self.pool.max as usize {
            self.claims.pop_front();
        }
    }

    /// Takes a member that still waits.
    fn take(&mut self) -> Option<Member> {
        let first = self.ready.iter().position(Member::is_waiting)?;
        self.ready.remove(first)
    }

    /// Takes the members that have ended.
    fn take_ended(&mut self) -> Vec<Member> {
        self.take_all(|member| !member.is_waiting())
    }

    /// Takes the members for which this is true.
    fn take_all(&mut self, is_taken: impl Fn(&Member) -> bool) -> Vec<Member> {
        let (taken, ready): (VecDeque<Member>, VecDeque<Member>) =
            std::mem::take(&mut self.ready).into_iter().partition(is_taken);
        self.ready = ready;
        taken.into()
    }

    fn why_empty(&self) -> String {
        let problem = self.failed.as_ref().map(|(why, _)| format!(": {why}")).unwrap_or_default();
        format!("pool {} is empty{problem}", self.pool.name)
    }
}

/// Whether the process at the other end of a connection has the same view of files, networks and users as this one.
fn is_beside_me(stream: &UnixStream) -> bool {
    let Some(peer) = stream.peer_cred().ok().and_then(|peer| peer.pid()) else { return false };
    let same = |what: &str| {
        let mine = std::fs::read_link(format!("/proc/self/{what}"));
        let theirs = std::fs::read_link(format!("/proc/{peer}/{what}"));
        matches!((mine, theirs), (Ok(mine), Ok(theirs)) if mine == theirs)
    };
    ["ns/mnt", "ns/net", "ns/user", "root"].into_iter().all(same)
}

#[expect(clippy::disallowed_methods, reason = "the time between two attempts, and the time without claims")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
