//! The resident process, which watches sandboxes while no command runs.
//!
//! There is at most one resident process for each state directory. It pauses and stops idle sandboxes, keeps the members of
//! pools, and numbers the events of all providers. It wakes up only when something happens: an event of a provider, a
//! container engine that was not there before, a claim, or the end of an idle time. Any number of other processes can use
//! the engine at the same time. Plain commands need no resident process.

mod arrivals;
mod idle;
mod lock;
mod members;
mod mounted;
mod pools;

use crate::create::remove_sandbox;
use crate::directories::Directories;
use crate::engine::Engine;
use crate::events::{EngineEvent, Events};
use crate::idle::Idle;
use crate::lock_file;
use crate::pool::{ClaimLock, MemberWorkspaces, is_member, without_members};
use crate::session::SessionId;
use crate::steps::Steps;
use arrivals::arrivals;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use idle::Watches;
use kennel_core::{Provider as _, Result};
use kennel_provider::labels::SESSION;
use kennel_types::{ErrorCode, Event, ProviderKind, SandboxId, SandboxInfo};
use lock::ResidentLock;
pub use pools::PoolCounts;
use pools::{Listening, PoolKeeper};
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Removes the members of pools that a resident process has left, which was killed, or only returns them if `apply` is
    /// false. If there is a resident process, the members are its own, and none is returned.
    pub async fn remove_pool_members(&self, apply: bool) -> Result<Vec<(ProviderKind, SandboxId)>> {
        let directories = self.directories()?;
        if !directories.pool_claims().exists() {
            return Ok(Vec::new());
        }
        let _lock = match ResidentLock::take(&directories.resident()) {
            Err(error) if error.code() == ErrorCode::Conflict => return Ok(Vec::new()),
            lock => lock?,
        };
        remove_members(&self.existing_providers(), &directories, apply).await
    }

    /// Resumes the sandboxes that a resident process has paused before it was killed, or only returns them if `apply` is
    /// false. If there is a resident process, there are none.
    pub async fn wake_sleeping(&self, apply: bool) -> Result<Vec<SandboxId>> {
        let directories = self.directories()?;
        // Without this directory, nothing was ever paused.
        if !directories.idle().exists() {
            return Ok(Vec::new());
        }
        let _lock = match ResidentLock::take(&directories.resident()) {
            Err(error) if error.code() == ErrorCode::Conflict => return Ok(Vec::new()),
            lock => lock?,
        };
        if !apply {
            let idle = Idle::new(directories.idle());
            return Ok(idle.list()?.into_iter().filter(|id| idle.is_paused(id)).collect());
        }
        let mut woken = Vec::new();
        for (kind, provider) in self.existing_providers() {
            match provider.wake_all().await {
                Ok(resumed) => woken.extend(resumed),
                Err(error) => tracing::warn!(provider = kind.name(), %error, "could not resume its sleeping sandboxes"),
            }
        }
        Ok(woken)
    }
}

/// Removes the members that resident processes before this one have left, or only returns them. The caller holds the lock
/// of the resident process.
async fn remove_members(
    providers: &[(ProviderKind, Arc<Steps>)],
    directories: &Directories,
    apply: bool,
) -> Result<Vec<(ProviderKind, SandboxId)>> {
    let mut found = Vec::new();
    let lock = &directories.pool_claims();
    // Without this file, no member was ever made.
    if !lock.exists() {
        return Ok(found);
    }
    // A client of the killed process may just be renaming one.
    let mut alone = ClaimLock::exclusive(lock)?;
    let began = tokio::time::Instant::now();
    while alone.is_none() && began.elapsed() < CLAIMED_WITHIN {
        #[expect(clippy::disallowed_methods, reason = "the time between two attempts to get a lock")]
        tokio::time::sleep(Duration::from_millis(50)).await;
        alone = ClaimLock::exclusive(lock)?;
    }
    let Some(_alone) = alone else { return Ok(found) };
    for (kind, provider) in providers {
        let listed = match provider.list().await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(provider = kind.name(), %error, "could not list the members of its pools");
                continue;
            }
        };
        for info in listed.iter().filter(|info| is_member(info)) {
            if apply {
                remove_sandbox(&**provider, &info.id, false).await?;
            }
            found.push((*kind, info.id.clone()));
        }
        if apply {
            let workspaces = MemberWorkspaces::new(directories.pool_workspaces());
            let claimed = listed.iter().filter(|info| !is_member(info));
            let claimed: Vec<&String> = claimed.filter_map(|info| info.labels.get(SESSION)).collect();
            for session in workspaces.list(*kind)? {
                let is_claimed = |session: &SessionId| claimed.iter().any(|id| *id == session.as_str());
                if is_claimed(&session) {
                    workspaces.hand_over(*kind, &session);
                } else {
                    workspaces.remove(*kind, &session);
                }
            }
        }
    }
    Ok(found)
}

/// How long a client of a killed resident process may take to rename the member that it has claimed.
const CLAIMED_WITHIN: Duration = Duration::from_secs(10);

/// How long to wait before a provider that failed is asked for events again.
const RETRY: Duration = Duration::from_secs(5);

/// The resident process of a state directory. It is one as long as this value exists.
pub struct Resident {
    providers: Vec<(ProviderKind, Arc<Steps>)>,
    /// Providers that are not here yet.
    arrivals: BoxStream<'static, (ProviderKind, Arc<Steps>)>,
    directories: Directories,
    idle: Idle,
    events: Events,
    pools: Arc<PoolKeeper>,
    /// Where members of pools are claimed, until it runs.
    listening: Option<Listening>,
    _lock: ResidentLock,
}

impl Resident {
    /// Makes this process the resident process of the engine's state directory, and wakes the sandboxes that a resident
    /// process before it has paused. Fails with `conflict` if there is a resident process already.
    pub async fn begin(engine: &Engine) -> Result<Self> {
        let directories = engine.directories()?;
        let lock = ResidentLock::take(&directories.resident())?;
        let idle = Idle::new(directories.idle());
        let events = Events::continue_from(directories.event_numbers())?;
        let providers = engine.existing_providers();
        let arrivals = arrivals(engine.clone(), &providers);
        for (_, provider) in &providers {
            wake(provider).await;
        }
        remove_members(&providers, &directories, true).await?;
        engine.reconcile(true).await?;
        let pools = Arc::new(PoolKeeper::new(&directories, providers.clone()));
        let listening = Some(pools.listen()?);
        Ok(Self { providers, arrivals, directories, idle, events, pools, listening, _lock: lock })
    }

    /// Whether a process is the resident process of the engine's state directory. It cannot be told for a state directory
    /// that cannot be read, and then there is none that helps.
    pub fn is_running(engine: &Engine) -> bool {
        engine.directories().is_ok_and(|directories| lock_file::is_locked(&directories.resident()).unwrap_or(false))
    }

    /// The numbered stream of events. It is filled by [`Self::run`].
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// How many claims found a member of a pool.
    pub fn pool_counts(&self) -> PoolCounts {
        self.pools.counts.clone()
    }

    /// Watches the sandboxes and keeps the members of pools, until `end` is ready. The sandboxes go on running; those that
    /// sleep are woken by their next use. The members end.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<()> {
        let (pools, listening) = (self.pools.clone(), self.listening.take());
        let keeping = async {
            match listening {
                Some(listening) => pools.clone().run(listening).await,
                None => std::future::pending().await,
            }
        };
        let done = tokio::select! {
            done = self.watch(end) => done,
            () = keeping => Ok(()),
        };
        pools.end().await;
        done
    }

    async fn watch(&mut self, end: impl Future<Output = ()>) -> Result<()> {
        let mut watches = Watches::default();
        let mut noticed =
            stream::select_all(self.providers.iter().map(|(kind, provider)| events(*kind, provider.clone())));
        let arrivals = std::mem::replace(&mut self.arrivals, stream::empty().boxed());
        noticed.push(arrivals.map(|(kind, provider)| Noticed::Arrival(kind, provider)).boxed());
        tokio::pin!(end);
        loop {
            let next = tokio::select! {
                () = &mut end => return Ok(()),
                next = noticed.next() => next,
            };
            let Some(next) = next else {
                // There is no provider.
                end.await;
                return Ok(());
            };
            match next {
                Noticed::Arrival(kind, provider) => {
                    self.providers.push((kind, provider.clone()));
                    let (pools, directories) = (self.pools.clone(), self.directories.clone());
                    let awake = async move {
                        wake(&provider).await;
                        // Before this process makes members of its own there.
                        let arrived = [(kind, provider.clone())];
                        if let Err(error) = remove_members(&arrived, &directories, true).await {
                            tracing::warn!(provider = kind.name(), %error, "members of pools may be left");
                        }
                        pools.arrive(kind, provider.clone());
                        events(kind, provider)
                    };
                    noticed.push(stream::once(awake).flatten().boxed());
                }
                Noticed::Event(event) => {
                    if let Some(id) = &event.sandbox {
                        watches.notice(id);
                    }
                    for event in self.pools.visible(event) {
                        self.events.push(EngineEvent::Happened(event))?;
                    }
                }
                Noticed::Listing(kind, sandboxes) => {
                    let sandboxes = without_members(sandboxes);
                    self.pools.reveal(&sandboxes);
                    self.events.push_listing(kind.name(), sandboxes)?;
                }
            }
            self.watch_new(&mut watches)?;
        }
    }

    /// Watches the sandboxes with an idle pause that are not watched yet.
    fn watch_new(&self, watches: &mut Watches) -> Result<()> {
        for id in self.idle.list()? {
            let Some(entry) = self.idle.entry(&id) else { continue };
            let provider = self.providers.iter().find(|(kind, _)| *kind == entry.provider);
            if let Some((_, provider)) = provider {
                watches.watch(&self.idle, provider, id, entry.times);
            }
        }
        Ok(())
    }
}

/// Wakes the sandboxes of a provider that a resident process before this one has paused. If the provider does not respond,
/// they are woken by their next use.
async fn wake(provider: &Steps) {
    if let Err(error) = provider.wake_all().await {
        tracing::warn!(provider = provider.name(), %error, "could not wake the sandboxes that sleep");
    }
}

/// What the resident process has noticed.
enum Noticed {
    /// A container engine that was not there before.
    Arrival(ProviderKind, Arc<Steps>),
    /// An event of a sandbox.
    Event(Event),
    /// The events of a provider begin. What happened before is not among them. These are its sandboxes.
    Listing(ProviderKind, Vec<SandboxInfo>),
}

/// Returns the events of a provider, without an end. After a failure they begin again.
fn events(kind: ProviderKind, provider: Arc<Steps>) -> BoxStream<'static, Noticed> {
    let again = move |is_first: bool| {
        let provider = provider.clone();
        async move {
            if !is_first {
                #[expect(clippy::disallowed_methods, reason = "the time between two attempts to reach a provider")]
                tokio::time::sleep(RETRY).await;
            }
            let events = match provider.watch().await {
                Ok(events) => events,
                Err(error) => {
                    tracing::debug!(provider = kind.name(), %error, "no events from this provider");
                    return Some((stream::empty().boxed(), false));
                }
            };
            let events = events.take_while(|event| std::future::ready(event.is_ok()));
            let events = events.filter_map(|event| std::future::ready(event.ok())).map(Noticed::Event);
            // The list is read after the events have begun, so nothing is missing from both.
            let listed = provider.list().await.unwrap_or_default();
            Some((stream::once(async move { Noticed::Listing(kind, listed) }).chain(events).boxed(), false))
        }
    };
    stream::unfold(true, again).flatten().boxed()
}
