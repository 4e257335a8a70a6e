//! A store in its own directory, and sessions on sandboxes in memory.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses a part of it")]

pub(crate) mod kill;
pub(crate) mod pausable;

use kennel_core::Provider;
use kennel_engine::{EventFilter, OpenSession, SessionId, SessionState, Sessions, Store};
use kennel_mock::Mock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) mock: Mock,
    pub(crate) sessions: Sessions,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
        let sessions = engine(dir.path().join("kennel.db"), &mock).await;
        Self { dir, mock, sessions }
    }

    /// Another engine on the same store and the same sandboxes, as in another process.
    pub(crate) async fn another(&self) -> Sessions {
        engine(self.store(), &self.mock).await
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("kennel.db")
    }

    pub(crate) async fn open(&self, request: OpenSession) -> SessionId {
        self.sessions.open(request).await.unwrap().summary.id
    }

    /// How many sessions are being changed right now.
    pub(crate) fn claims(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("kennel.db.claims")).map_or(0, Iterator::count)
    }

    /// Checks what must hold at any time.
    pub(crate) async fn check(&self) {
        check_history(&self.sessions).await;
        assert_eq!(self.claims(), 0);
    }
}

async fn engine(store: PathBuf, mock: &Mock) -> Sessions {
    Sessions::new(Store::open(store).await.unwrap(), vec![Arc::new(mock.clone()) as Arc<dyn Provider>])
}

/// A session on the mock.
pub(crate) fn request() -> OpenSession {
    OpenSession { provider: "mock".into(), ..OpenSession::default() }
}

/// Checks that the events of every session follow the state machine without a gap, and lead to its state.
pub(crate) async fn check_history(sessions: &Sessions) {
    let mut states: BTreeMap<SessionId, (u64, Option<SessionState>)> = BTreeMap::new();
    let mut last = 0;
    for event in sessions.events(&EventFilter::default()).await.unwrap() {
        assert!(event.number > last, "{event:?}");
        last = event.number;
        let (sequence, state) = states.entry(event.session.clone()).or_default();
        assert_eq!((event.sequence, event.from), (*sequence + 1, *state), "{event:?}");
        assert!(event.from == event.to || SessionState::may_become(event.from, event.to), "{event:?}");
        (*sequence, *state) = (event.sequence, event.to);
    }
    let listed = sessions.list(&kennel_engine::SessionFilter::default()).await.unwrap();
    for session in &listed {
        assert_eq!(states.remove(&session.id).expect("it has a history").1, Some(session.state), "{session:?}");
    }
    for (id, (_, state)) in states {
        assert_eq!(state, None, "session {id} is gone");
    }
}
