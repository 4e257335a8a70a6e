//! Kills the process at every named step of every operation, reconciles, and compares the providers with the store: no
//! orphan, no loss, no duplicate, and the store can be read.
//!
//! A step lies between two effects, and what a crash leaves depends only on the effects before it. So these kills
//! represent a kill at any moment, and no test has to guess a delay. The providers' own steps are tested with the
//! providers.

mod common;

use common::check_history;
use common::kill::{self, FORCE, Sandboxes};
use kennel_core::Provider;
use kennel_engine::{
    Cause, Effect, Failpoints, OpenSession, STOP_GRACE, SessionFilter, SessionState, SessionSummary, SessionWorkspace,
    Sessions, Store, Wanted,
};
use kennel_testkit::Home;
use kennel_types::{NetworkMode, SandboxSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// An operation whose process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    Open,
    OpenWithWorkspace,
    Start,
    Stop,
    StopAndRemoveSandbox,
    Remove,
    /// Completes an opening that was killed after its sandbox was created.
    ReconcileOpen,
    /// Completes a removal that was killed before its sandbox was removed.
    ReconcileRemove,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Open,
        Self::OpenWithWorkspace,
        Self::Start,
        Self::Stop,
        Self::StopAndRemoveSandbox,
        Self::Remove,
        Self::ReconcileOpen,
        Self::ReconcileRemove,
    ];

    /// The number of steps, and so of kills. SPECIFICATION.md states the sum.
    fn steps(self, engine: bool) -> usize {
        match self {
            // An engine also pulls the image.
            Self::Open | Self::OpenWithWorkspace => 8 + if engine { 2 } else { 0 },
            Self::StopAndRemoveSandbox => 8,
            _ => 6,
        }
    }
}

/// The instructions for the process that is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Instructions {
    paths: Paths,
    operation: Operation,
    /// The step at which it is killed.
    kill_at: Option<usize>,
}

/// Where sandboxes and store are.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Paths {
    sandboxes: Sandboxes,
    store: PathBuf,
    workspaces: PathBuf,
}

impl Paths {
    fn new(home: &Home, engine: Option<kill::ContainerEngine>) -> Self {
        Self {
            sandboxes: Sandboxes::new(home, engine),
            store: home.path().join("store/kennel.db"),
            workspaces: home.path().join("workspaces"),
        }
    }

    /// The name of the session. It is unique, because all tests share one container engine.
    fn name(&self) -> String {
        self.sandboxes.mark.to_ascii_lowercase()
    }

    fn provider(&self) -> Arc<dyn Provider> {
        self.sandboxes.provider()
    }

    async fn sessions(&self, failpoints: &Failpoints) -> Sessions {
        let store = Store::open(&self.store).await.expect("the store can be read");
        Sessions::with_failpoints(store, vec![self.provider()], failpoints)
    }

    fn request(&self, operation: Operation) -> OpenSession {
        let spec = SandboxSpec {
            image: self.sandboxes.image(),
            env: [("KENNEL_TEST_HOME".to_owned(), self.sandboxes.mark.clone())].into(),
            network: Some(NetworkMode::None),
            auto_remove: operation == Operation::StopAndRemoveSandbox,
            startup_ms: Some(60_000),
            ..SandboxSpec::default()
        };
        let provider = self.sandboxes.provider_name();
        let workspace = if operation == Operation::OpenWithWorkspace {
            SessionWorkspace::Own { base: self.workspaces.clone() }
        } else {
            SessionWorkspace::AsSpecified
        };
        OpenSession { name: Some(self.name()), provider: provider.into(), spec, workspace, ..OpenSession::default() }
    }
}

/// The process that is killed. Only the other tests of this file start it.
#[test]
#[ignore = "the tests of this file start it, and kill it"]
fn killed() {
    let instructions: Instructions = kill::instructions();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let failpoints = Failpoints::kill_at(instructions.kill_at);
        let sessions = instructions.paths.sessions(&failpoints).await;
        match instructions.operation {
            Operation::Open | Operation::OpenWithWorkspace => {
                sessions.open(instructions.paths.request(instructions.operation)).await.map(drop).unwrap();
            }
            Operation::Start => drop(sessions.start(&instructions.paths.name()).await.unwrap()),
            Operation::Stop | Operation::StopAndRemoveSandbox => {
                drop(sessions.stop(&instructions.paths.name(), STOP_GRACE).await.unwrap());
            }
            Operation::Remove => sessions.remove(&instructions.paths.name(), FORCE).await.unwrap(),
            Operation::ReconcileOpen | Operation::ReconcileRemove => {
                let plan = sessions.plan().await.unwrap();
                assert_eq!(plan.actions.len(), 1, "{plan:?}");
                for applied in sessions.apply(&plan).await.unwrap() {
                    assert_eq!(applied.result.unwrap(), Effect::Done);
                }
            }
        }
        instructions.paths.sandboxes.write_steps(&failpoints);
    });
}

/// Runs an operation in a process of its own. Returns whether it was killed.
fn run(paths: &Paths, operation: Operation, kill_at: Option<usize>) -> bool {
    kill::run(&Instructions { paths: paths.clone(), operation, kill_at })
}

/// The steps of an operation, from a run that is not killed.
fn steps(paths: &Paths, operation: Operation) -> Vec<String> {
    assert!(!run(paths, operation, None));
    paths.sandboxes.read_steps()
}

/// Brings new directories to the state in which the operation starts. A process is killed here only to leave something for reconciliation.
async fn prepare(paths: &Paths, operation: Operation) -> Option<SessionSummary> {
    let sessions = paths.sessions(&Failpoints::default()).await;
    match operation {
        Operation::Open | Operation::OpenWithWorkspace => return None,
        Operation::Start => {
            sessions.open(paths.request(operation)).await.unwrap();
            sessions.stop(&paths.name(), STOP_GRACE).await.unwrap();
        }
        Operation::Stop | Operation::StopAndRemoveSandbox | Operation::Remove => {
            sessions.open(paths.request(operation)).await.unwrap();
        }
        // The steps of an opening are: two of the store, two of `create`, and so on.
        Operation::ReconcileOpen => {
            let pull = if paths.sandboxes.image().is_some() { 2 } else { 0 };
            assert!(run(paths, Operation::Open, Some(3 + pull)), "killed after `create`");
        }
        Operation::ReconcileRemove => {
            sessions.open(paths.request(operation)).await.unwrap();
            assert!(run(paths, Operation::Remove, Some(2)), "killed before `remove`");
        }
    }
    Some(sessions.show(&paths.name()).await.unwrap().summary)
}

/// Reconciles as a later process would, and checks that one pass is enough.
async fn reconcile(paths: &Paths) -> Sessions {
    let sessions = paths.sessions(&Failpoints::default()).await;
    let plan = sessions.plan().await.unwrap();
    assert_eq!((&plan.foreign[..], &plan.unlisted[..]), (&[][..], &[][..]));
    for applied in sessions.apply(&plan).await.unwrap() {
        assert_eq!(applied.result.unwrap(), Effect::Done, "{:?}", applied.action);
    }
    assert!(sessions.plan().await.unwrap().is_empty());
    sessions
}

/// Compares the provider with the store.
async fn compare(paths: &Paths, sessions: &Sessions, operation: Operation, before: Option<&SessionSummary>) {
    check_history(sessions).await;
    let sandboxes = paths.provider().list().await.unwrap();
    let all = sessions.list(&SessionFilter::default()).await.unwrap();
    assert!(all.len() <= 1 && sandboxes.len() <= 1, "no duplicate: {all:?} {sandboxes:?}");
    let session = all.first();
    for sandbox in &sandboxes {
        let session = session.expect("no orphan");
        assert_eq!(session.sandbox, sandbox.id);
        assert_eq!(sandbox.status.is_up(), session.state == SessionState::Running, "{session:?}");
    }
    if let (Some(before), Some(session)) = (before, session) {
        assert_eq!((&before.id, &before.sandbox), (&session.id, &session.sandbox));
    }
    let found = session.map(|session| (session.state, sandboxes.len()));
    let expected: &[Option<(SessionState, usize)>] = match operation {
        // Not yet recorded; recorded, but nothing created; created.
        Operation::Open | Operation::OpenWithWorkspace => {
            &[None, Some((SessionState::Failed, 0)), Some((SessionState::Running, 1))]
        }
        Operation::Start => &[Some((SessionState::Stopped, 1)), Some((SessionState::Running, 1))],
        Operation::Stop => &[Some((SessionState::Running, 1)), Some((SessionState::Stopped, 1))],
        Operation::StopAndRemoveSandbox => &[Some((SessionState::Running, 1)), Some((SessionState::Stopped, 0))],
        Operation::Remove => &[Some((SessionState::Running, 1)), None],
        Operation::ReconcileOpen => &[Some((SessionState::Running, 1))],
        Operation::ReconcileRemove => &[None],
    };
    assert!(expected.contains(&found), "{found:?} after {operation:?}");
    if let Some(session) = session {
        assert_eq!(session.wanted == Wanted::Running, session.state == SessionState::Running, "{session:?}");
        assert!(session.state != SessionState::Failed || session.cause == Cause::Interrupted, "{session:?}");
    }
    if operation == Operation::OpenWithWorkspace {
        let workspaces = std::fs::read_dir(&paths.workspaces).map_or(0, Iterator::count);
        assert_eq!(workspaces, sandboxes.len(), "no empty directory is left");
    }
    let claims = paths.store.with_extension("db.claims");
    assert_eq!(std::fs::read_dir(claims).map_or(0, Iterator::count), 0, "no claim is left");
}

async fn crash_everywhere(engine: Option<kill::ContainerEngine>, operation: Operation) {
    let names = {
        let home = Home::new();
        let paths = Paths::new(&home, engine.clone());
        prepare(&paths, operation).await;
        let names = steps(&paths, operation);
        paths.sandboxes.clean_up().await;
        names
    };
    assert_eq!(names.len(), operation.steps(engine.is_some()), "{names:?}");
    for (index, name) in names.iter().enumerate() {
        let home = Home::new();
        let paths = Paths::new(&home, engine.clone());
        let before = prepare(&paths, operation).await;
        assert!(run(&paths, operation, Some(index)), "{operation:?} reaches {name:?}");
        let sessions = reconcile(&paths).await;
        compare(&paths, &sessions, operation, before.as_ref()).await;
        drop(sessions);
        paths.sandboxes.clean_up().await;
    }
}

common::kill::crash_tests! {
    open Open,
    open_with_workspace OpenWithWorkspace,
    start Start,
    stop Stop,
    stop_and_remove_sandbox StopAndRemoveSandbox,
    remove Remove,
    reconcile_open ReconcileOpen,
    reconcile_remove ReconcileRemove,
}
