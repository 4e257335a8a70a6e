//! Kills the process at every named step while a pool is filled and a session is opened from it. What is left must be
//! complete or gone: no member, no workspace without a session, no session without its sandbox.
//!
//! A step lies between two effects; see `crash.rs`.

mod common;

use common::check_history;
use common::kill::{self, ContainerEngine, Sandboxes};
use kennel_core::Sandbox;
use kennel_engine::{
    Caller, Directories, Engine, Failpoints, OpenProgress, OpenSession, Pool, PoolResult, PoolUse, Resident,
    SessionFilter, SessionMembers, SessionState, SessionWorkspace, labels,
};
use kennel_testkit::{Home, eventually, host};
use kennel_types::{ExecSpec, NetworkMode, ProviderKind, SandboxSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Which process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Killed {
    /// The one that opens the session. The resident process lives.
    Client,
    /// One that is both: it fills the pool, opens the session, fills the pool again, and ends.
    Both,
}

impl Killed {
    /// The number of steps, and so of kills. SPECIFICATION.md states the sum.
    fn steps(self, engine: bool) -> usize {
        match (self, engine) {
            // A member is made twice: pull, workspace, create, start, tie. One is untied, the other is removed.
            (Self::Both, true) => 8 + 2 * 10 + 2 + 2,
            // Two records of the store. On native, the sandbox is created and started; on an engine, the image is pulled and
            // the sandbox is renamed.
            _ => 8,
        }
    }
}

/// The instructions for the process that is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Instructions {
    paths: Paths,
    killed: Killed,
    /// The step at which it is killed.
    kill_at: Option<usize>,
}

/// Where everything is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Paths {
    sandboxes: Sandboxes,
    home: PathBuf,
}

impl Paths {
    fn new(home: &Home, engine: Option<ContainerEngine>) -> Self {
        Self { sandboxes: Sandboxes::new(home, engine), home: home.path().to_owned() }
    }

    fn directories(&self) -> Directories {
        Directories::new(self.home.join("engine/state"), self.home.join("engine/data"), None)
    }

    fn engine(&self, failpoints: &Failpoints) -> Engine {
        let provider = self.sandboxes.provider();
        Engine::with_providers(Caller::default(), self.directories(), [provider]).with_failpoints(failpoints.clone())
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            image: self.sandboxes.image(),
            env: [("KENNEL_TEST_HOME".to_owned(), self.sandboxes.mark.clone())].into(),
            network: Some(NetworkMode::None),
            startup_ms: Some(60_000),
            ..SandboxSpec::default()
        }
    }

    fn pool(&self) -> Pool {
        let kind = if self.sandboxes.image().is_some() { ProviderKind::Docker } else { ProviderKind::Native };
        let members = SessionMembers { workspaces: Some(self.directories().workspaces()) };
        let sessions = (kind == ProviderKind::Docker).then_some(members);
        Pool { name: "warm".into(), min: 1, max: 1, provider: kind, profile: None, sessions, spec: self.spec() }
    }

    /// Opens the session from the pool.
    async fn open(&self, engine: &Engine) {
        let result: Arc<Mutex<Option<PoolResult>>> = Arc::default();
        let told = result.clone();
        let progress = move |progress| {
            if let OpenProgress::Pool(result) = progress {
                *told.lock().unwrap() = Some(result);
            }
        };
        let request = OpenSession {
            name: Some(self.sandboxes.mark.to_ascii_lowercase()),
            provider: self.sandboxes.provider_name().into(),
            spec: self.spec(),
            workspace: SessionWorkspace::Own { base: self.directories().workspaces() },
            pool: PoolUse::Require,
            progress: Some(Arc::new(progress)),
            ..OpenSession::default()
        };
        let (sessions, _) = engine.sessions().await.unwrap();
        sessions.open(request).await.unwrap();
        assert_eq!(*result.lock().unwrap(), Some(PoolResult::Hit { pool: "warm".into() }));
    }
}

/// A resident process, as a task of this process.
struct Running {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Running {
    async fn begin(engine: &Engine) -> Self {
        let resident = Resident::begin(engine).await.unwrap();
        let (end, ended) = oneshot::channel();
        let until = async move { drop(ended.await) };
        Self { task: tokio::spawn(async move { resident.run(until).await.unwrap() }), end }
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        self.task.await.unwrap();
    }
}

async fn until_filled(engine: &Engine) {
    let filled = async || engine.pools().unwrap().list().await.unwrap()[0].ready == Some(1);
    eventually("the pool is filled", filled).await;
}

/// The process that is killed. Only the other tests of this file start it.
#[test]
#[ignore = "the tests of this file start it, and kill it"]
fn killed() {
    let Instructions { paths, killed, kill_at } = kill::instructions();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let failpoints = Failpoints::kill_at(kill_at);
        let engine = paths.engine(&failpoints);
        match killed {
            Killed::Client => paths.open(&engine).await,
            Killed::Both => {
                let running = Running::begin(&engine).await;
                until_filled(&engine).await;
                paths.open(&engine).await;
                until_filled(&engine).await;
                running.end().await;
            }
        }
        paths.sandboxes.write_steps(&failpoints);
    });
}

/// Runs everything in new directories, kills the process at a step, cleans up as a later process would, and compares.
/// Returns the steps, if it was not killed.
async fn crash(engine: Option<ContainerEngine>, killed: Killed, kill_at: Option<usize>) -> Vec<String> {
    let home = Home::new();
    let paths = Paths::new(&home, engine);
    let engine = paths.engine(&Failpoints::default());
    engine.pools().unwrap().set(&paths.pool()).await.unwrap();
    let resident = if killed == Killed::Client { Some(Running::begin(&engine).await) } else { None };
    if resident.is_some() {
        until_filled(&engine).await;
    }
    let was_killed = kill::run(&Instructions { paths: paths.clone(), killed, kill_at });
    assert_eq!(was_killed, kill_at.is_some(), "{killed:?} {kill_at:?}");
    if let Some(resident) = resident {
        // It removes the member of the killed process itself, and makes another one.
        until_filled(&engine).await;
        let waiting = async || {
            let listed = paths.sandboxes.provider().list().await.unwrap();
            listed.iter().filter(|info| info.name.starts_with("pool-")).count()
        };
        eventually("the killed process has no member", async || waiting().await <= 1).await;
        resident.end().await;
    }
    engine.pools().unwrap().remove("warm").await.unwrap();
    if kill_at.unwrap_or(0).is_multiple_of(2) {
        // As `gc` does.
        engine.reconcile(true).await.unwrap();
        engine.remove_pool_members(true).await.unwrap();
    } else {
        Running::begin(&engine).await.end().await;
    }
    compare(&paths, &engine, kill_at).await;
    paths.sandboxes.clean_up().await;
    eventually("no process is left", async || host::processes(&home.mark()).is_empty()).await;
    if was_killed { Vec::new() } else { paths.sandboxes.read_steps() }
}

/// Compares the provider, the store and the directories.
async fn compare(paths: &Paths, engine: &Engine, kill_at: Option<usize>) {
    let (sessions, _) = engine.sessions().await.unwrap();
    check_history(&sessions).await;
    assert!(sessions.plan().await.unwrap().is_empty(), "one pass is enough");
    let provider = paths.sandboxes.provider();
    let sandboxes = provider.list().await.unwrap();
    let all = sessions.list(&SessionFilter::default()).await.unwrap();
    let found = (all.len(), all.first().map(|session| session.state), sandboxes.len());
    let expected = [(0, None, 0), (1, Some(SessionState::Failed), 0), (1, Some(SessionState::Running), 1)];
    assert!(expected.contains(&found), "{found:?} after {kill_at:?}: {sandboxes:?}");
    if kill_at.is_none() {
        assert_eq!(found, expected[2]);
    }
    for (sandbox, session) in sandboxes.iter().zip(&all) {
        assert_eq!((&sandbox.id, &sandbox.name), (&session.sandbox, session.name.as_ref().unwrap()));
        assert_eq!(sandbox.labels[labels::SESSION], session.id.as_str());
        // It runs without the process that was killed.
        let opened = Sandbox::find(provider.clone(), sandbox.id.as_str()).await.unwrap();
        let printed = opened.run(&ExecSpec::shell("echo $KENNEL_SESSION"), None, 100).await.unwrap();
        assert_eq!(printed.stdout_text().trim_end(), session.id.as_str());
    }
    let workspaces = std::fs::read_dir(paths.directories().workspaces()).map_or(0, Iterator::count);
    assert_eq!(workspaces, sandboxes.len(), "no empty directory is left after {kill_at:?}");
    let notes = host::walk(&paths.home.join("engine/state/pool-workspaces"), false);
    assert!(notes.iter().all(|path| path.is_dir() && !path.is_symlink()), "{notes:?}");
}

async fn crash_everywhere(engine: Option<ContainerEngine>, killed: Killed) {
    let names = crash(engine.clone(), killed, None).await;
    assert_eq!(names.len(), killed.steps(engine.is_some()), "{names:?}");
    for index in 0..names.len() {
        crash(engine.clone(), killed, Some(index)).await;
    }
}

mod native {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn client() {
        crash_everywhere(None, Killed::Client).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn both() {
        crash_everywhere(None, Killed::Both).await;
    }
}

mod engine {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn client() {
        crash_everywhere(Some(kill::container_engine()), Killed::Client).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn both() {
        crash_everywhere(Some(kill::container_engine()), Killed::Both).await;
    }
}
