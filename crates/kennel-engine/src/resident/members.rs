//! The members of pools, as the resident process holds them.

use super::mounted::Mounted;
use crate::create::remove_sandbox;
use crate::pool::wire::MemberSession;
use crate::pool::{MemberWorkspaces, Pool, SessionMembers, is_member, member_name};
use crate::session::SessionId;
use crate::steps::Steps;
use crate::store::random_hex;
use crate::{SECRET_VARIABLE, SESSION_VARIABLE, Store};
use kennel_core::{Error, Keeper, Prepared, Provider as _, Result, new_id};
use kennel_types::{ErrorCode, Event, EventKind, ProviderKind, Pull, SandboxId, SandboxInfo, SandboxSpec};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a member may take to reply before it is handed out.
const REPLY: Duration = Duration::from_secs(1);
/// How long the removal of a member may take.
const REMOVE: Duration = Duration::from_secs(30);

/// A member of a pool. It ends when this is dropped.
pub(super) enum Member {
    /// A part of a sandbox.
    Part(Prepared),
    /// A whole sandbox.
    Whole(Box<Whole>),
}

/// A sandbox that runs and waits to be claimed. It is tied to a connection of this process.
pub(super) struct Whole {
    pub(super) id: SandboxId,
    /// The session that it is made for.
    session: Option<FutureSession>,
    provider: Arc<Steps>,
    keeper: Keeper,
    spec: SandboxSpec,
    mounted: Mounted,
    /// The engine's id of its image.
    image: Option<String>,
}

/// A member that was started.
struct Started {
    keeper: Keeper,
    spec: SandboxSpec,
    mounted: Mounted,
    image: Option<String>,
}

/// What members share.
pub(super) struct Surroundings {
    /// The members that nobody has claimed.
    pub(super) unclaimed: Unclaimed,
    /// The database of the sessions.
    pub(super) database: PathBuf,
    /// The workspaces that members have made.
    pub(super) workspaces: MemberWorkspaces,
}

/// The members that nobody has claimed, so that their events can be left out: they are nobody's sandboxes. An id is
/// forgotten when the event of its removal or renaming arrives.
#[derive(Default)]
pub(super) struct Unclaimed {
    ids: Mutex<HashSet<SandboxId>>,
}

impl Unclaimed {
    fn ids(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets these, which are no members any more.
    pub(super) fn forget(&self, sandboxes: &[SandboxInfo]) {
        let mut ids = self.ids();
        for info in sandboxes {
            ids.remove(&info.id);
        }
    }

    /// Returns what a reader of events should see of this one. A member that was claimed has been created and started just
    /// now.
    pub(super) fn visible(&self, event: Event) -> Vec<Event> {
        let Some(id) = &event.sandbox else { return vec![event] };
        let mut ids = self.ids();
        if !ids.contains(id) {
            return vec![event];
        }
        match event.kind {
            EventKind::Renamed => {
                ids.remove(id);
                [EventKind::Created, EventKind::Started].map(|kind| Event { kind, name: None, ..event.clone() }).into()
            }
            EventKind::Removed => {
                ids.remove(id);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// A session that will claim a member.
struct FutureSession {
    ids: MemberSession,
    /// The store that will record it, by its id.
    store: String,
    kind: ProviderKind,
    /// The workspace that was made for it.
    workspace: Option<PathBuf>,
    workspaces: MemberWorkspaces,
}

impl Member {
    /// Whether it still waits. If not, it has ended.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Self::Part(part) => part.is_waiting(),
            Self::Whole(member) => !member.keeper.is_closed(),
        }
    }

    /// Returns the id of the store that records its session, if it was made for a session.
    pub(super) fn store(&self) -> Option<&str> {
        match self {
            Self::Part(_) => None,
            Self::Whole(member) => member.session.as_ref().map(|session| session.store.as_str()),
        }
    }

    /// Ends it, and removes what it leaves.
    pub(super) async fn end(self) {
        match self {
            Self::Part(part) => drop(part),
            Self::Whole(member) => member.remove().await,
        }
    }
}

impl Whole {
    /// Creates and starts a member. If that fails, nothing is left.
    pub(super) async fn make(provider: Arc<Steps>, pool: &Pool, around: &Surroundings) -> Result<Self> {
        let id = new_id()?;
        let mut session = None;
        let made = async {
            if let Some(image) = &pool.spec.image {
                provider.pull(image, Pull::Missing, &|_| {}).await?;
            }
            if let Some(members) = &pool.sessions {
                session = Some(FutureSession::new(pool, members, around).await?);
            }
            Self::start(&provider, pool, &id, session.as_ref(), &around.unclaimed).await
        };
        let made = made.await;
        if made.is_err() {
            discard(&provider, &id, session.as_ref()).await;
        }
        let Started { keeper, spec, mounted, image } = made?;
        Ok(Self { id, session, provider, keeper, spec, mounted, image })
    }

    async fn start(
        provider: &Arc<Steps>,
        pool: &Pool,
        id: &SandboxId,
        session: Option<&FutureSession>,
        unclaimed: &Unclaimed,
    ) -> Result<Started> {
        let mut spec = SandboxSpec { name: Some(member_name(id)), pool: Some(pool.name.clone()), ..pool.spec.clone() };
        if let Some(session) = session {
            session.complete(&mut spec);
            if let Some(dir) = &session.workspace {
                provider.make_workspace(dir, &spec).await?;
            }
        }
        let (mounted, image) = (Mounted::look_up(&spec)?, image_of(provider, &spec).await?);
        unclaimed.ids().insert(id.clone());
        if let Err(error) = provider.create(id, &spec).await {
            unclaimed.ids().remove(id);
            return Err(error);
        }
        provider.start(id).await?;
        let keeper = Keeper::connect(provider.dial(id).await?).await?;
        provider.tie(&keeper).await?;
        Ok(Started { keeper, spec, mounted, image })
    }

    /// Returns the session that it was made for.
    pub(super) fn session(&self) -> Option<MemberSession> {
        self.session.as_ref().map(|session| session.ids.clone())
    }

    /// Checks that a new sandbox would have the same mounts and image, and that it replies, and lets it live without this
    /// process. Returns whether it can be handed out.
    pub(super) async fn untie(&self) -> bool {
        if !Mounted::look_up(&self.spec).is_ok_and(|mounts| mounts == self.mounted) {
            return false;
        }
        let checked = async { tokio::join!(self.provider.untie(&self.keeper), image_of(&self.provider, &self.spec)) };
        matches!(tokio::time::timeout(REPLY, checked).await, Ok((Ok(()), Ok(image))) if image == self.image)
    }

    /// Removes it.
    pub(super) async fn remove(&self) {
        discard(&self.provider, &self.id, self.session.as_ref()).await;
    }

    /// Removes it, unless somebody has renamed it.
    pub(super) async fn remove_unless_claimed(&self) {
        match self.provider.get(self.id.as_str()).await {
            Ok(info) if is_member(&info) => self.remove().await,
            Ok(_) => {
                if let Some(session) = &self.session {
                    session.workspaces.hand_over(session.kind, &session.ids.id);
                }
            }
            Err(error) if error.code() == ErrorCode::NotFound => self.remove().await,
            Err(error) => tracing::warn!(sandbox = %self.id, %error, "a member that was handed out may be left"),
        }
    }
}

impl FutureSession {
    /// Chooses the ids of a session, and notes its workspace, if it has one of its own.
    async fn new(pool: &Pool, members: &SessionMembers, around: &Surroundings) -> Result<Self> {
        let store = Store::open(&around.database).await?.id().to_owned();
        let id = SessionId::random()?;
        let (kind, workspaces) = (pool.provider, around.workspaces.clone());
        let workspace = members.workspaces.as_ref().map(|base| workspaces.note(kind, &id, base)).transpose()?;
        let ids = MemberSession { id, secret: random_hex::<32>()?, has_workspace: workspace.is_some() };
        Ok(Self { ids, store, kind, workspace, workspaces })
    }

    /// Adds to a specification what belongs to the session.
    fn complete(&self, spec: &mut SandboxSpec) {
        let MemberSession { id, secret, .. } = &self.ids;
        spec.session = Some(id.to_string());
        spec.store = Some(self.store.clone());
        spec.env.insert(SESSION_VARIABLE.into(), id.to_string());
        spec.env.insert(SECRET_VARIABLE.into(), secret.clone());
        if self.workspace.is_some() {
            spec.workspace.clone_from(&self.workspace);
        }
    }
}

/// Returns the engine's id of the image that a new sandbox would have.
async fn image_of(provider: &Steps, spec: &SandboxSpec) -> Result<Option<String>> {
    match &spec.image {
        Some(image) => provider.image_id(image).await,
        None => Ok(None),
    }
}

/// Removes a member and its workspace. If it cannot be removed, the next resident process finds both.
async fn discard(provider: &Arc<Steps>, id: &SandboxId, session: Option<&FutureSession>) {
    let removed = tokio::time::timeout(REMOVE, remove_sandbox(&**provider, id, false)).await;
    let late = |_| Error::new(ErrorCode::Timeout, "it took too long");
    match (removed.map_err(late).and_then(|removed| removed), session) {
        (Err(error), _) => tracing::warn!(sandbox = %id, %error, "a member of a pool is left"),
        (Ok(()), Some(session)) => session.workspaces.remove(session.kind, &session.ids.id),
        (Ok(()), None) => {}
    }
}
