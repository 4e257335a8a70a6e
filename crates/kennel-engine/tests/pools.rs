//! Pools of whole sandboxes, on sandboxes in memory. Pools of native sandboxes are tested with the command line.

use kennel_core::{Provider, Sandbox};
use kennel_engine::{
    Caller, Claimed, Directories, Engine, EngineEvent, OpenProgress, OpenSession, Pool, PoolResult, PoolUse, Resident,
    Session, SessionMembers, SessionState, SessionWorkspace,
};
use kennel_mock::Mock;
use kennel_testkit::eventually;
use kennel_types::{ErrorCode, EventKind, ExecSpec, Mount, ProviderKind, SandboxSpec, Status};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

fn engine(dir: &Path, mock: &Mock) -> Engine {
    let directories = Directories::new(dir.join("state"), dir.join("data"), None);
    Engine::with_providers(Caller::default(), directories, [Arc::new(mock.clone()) as Arc<dyn Provider>])
}

fn pool(min: u32) -> Pool {
    let spec = SandboxSpec { env: [("A".into(), "1".into())].into(), ..SandboxSpec::default() };
    Pool {
        name: "warm".into(),
        min,
        max: min.max(1),
        provider: ProviderKind::Mock,
        profile: None,
        sessions: None,
        spec,
    }
}

async fn resident(engine: &Engine) -> JoinHandle<()> {
    let resident = Resident::begin(engine).await.unwrap();
    tokio::spawn(async move { resident.run(std::future::pending()).await.unwrap() })
}

/// Ends the resident process as a kill would: nothing is cleaned up.
async fn kill(running: JoinHandle<()>) {
    running.abort();
    let _ = running.await;
}

async fn until_ready(engine: &Engine, count: u32) {
    let ready = async || engine.pools().unwrap().list().await.unwrap()[0].ready == Some(count);
    eventually("the pool is filled", ready).await;
}

fn provider(engine: &Engine) -> Arc<dyn Provider> {
    engine.provider(ProviderKind::Mock).unwrap()
}

async fn claim(engine: &Engine, spec: &SandboxSpec) -> Claimed {
    engine.pool_claims().unwrap().claim(&*provider(engine), spec, PoolUse::Prefer).await.unwrap()
}

fn reason(claimed: &Claimed) -> &str {
    match &claimed.result {
        Some(PoolResult::Miss { reason }) => reason,
        other => panic!("it is {other:?}"),
    }
}

#[tokio::test]
async fn claimed_member_becomes_a_sandbox_of_its_own() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let running = resident(&engine).await;
    engine.pools().unwrap().set(&pool(2)).await.unwrap();
    until_ready(&engine, 2).await;
    assert_eq!(mock.list().await.unwrap().len(), 2);
    assert_eq!(engine.list().await.unwrap().found, [], "members are nobody's sandboxes");

    let spec = SandboxSpec { name: Some("box".into()), ..pool(2).spec };
    let mut claimed = claim(&engine, &spec).await;
    assert_eq!(claimed.result, Some(PoolResult::Hit { pool: "warm".into() }));
    let sandbox = claimed.create(provider(&engine), &spec).await.unwrap();
    drop(claimed);
    assert_eq!((sandbox.info().name.as_str(), sandbox.info().status), ("box", Status::Running));
    sandbox.start().await.unwrap();
    assert_eq!(sandbox.run(&ExecSpec::argv(["printenv", "A"]), None, 100).await.unwrap().stdout_text(), "1\n");
    until_ready(&engine, 2).await;
    let names = || async { engine.list().await.unwrap().found.into_iter().map(|info| info.name).collect::<Vec<_>>() };
    assert_eq!(names().await, ["box"]);

    // It does not belong to the resident process any more, but the other members do.
    kill(running).await;
    let waiting = async || {
        let listed = mock.list().await.unwrap();
        listed.iter().filter(|info| info.name != "box" && info.status == Status::Running).count()
    };
    eventually("the members have ended", async || waiting().await == 0).await;
    assert_eq!(engine.remove_pool_members(false).await.unwrap().len(), 2);
    assert_eq!(mock.list().await.unwrap().len(), 3, "nothing was done");
    assert_eq!(engine.remove_pool_members(true).await.unwrap().len(), 2);
    let left = mock.list().await.unwrap();
    assert_eq!(
        left.iter().map(|info| (info.name.as_str(), info.status)).collect::<Vec<_>>(),
        [("box", Status::Running)]
    );
}

#[tokio::test]
async fn next_resident_removes_the_members_of_a_killed_one() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    engine.pools().unwrap().set(&pool(3)).await.unwrap();
    let running = resident(&engine).await;
    until_ready(&engine, 3).await;
    let before: Vec<_> = mock.list().await.unwrap().into_iter().map(|info| info.id).collect();
    assert_eq!(engine.remove_pool_members(true).await.unwrap(), [], "they belong to the resident process");
    kill(running).await;
    let running = resident(&engine).await;
    assert!(mock.list().await.unwrap().iter().all(|info| !before.contains(&info.id)));
    until_ready(&engine, 3).await;
    engine.pools().unwrap().remove("warm").await.unwrap();
    eventually("its members are removed", async || mock.list().await.unwrap().is_empty()).await;
    kill(running).await;
}

#[tokio::test]
async fn member_that_differs_is_a_miss() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let running = resident(&engine).await;
    assert_eq!(reason(&claim(&engine, &pool(1).spec).await), "there is no pool");
    engine.pools().unwrap().set(&pool(1)).await.unwrap();
    until_ready(&engine, 1).await;
    let mounts = vec![Mount { host: "/srv".into(), target: "/srv".into(), read_only: true }];
    let wanted = SandboxSpec { labels: [("a".into(), "b".into())].into(), mounts, ..pool(1).spec };
    assert_eq!(reason(&claim(&engine, &wanted).await), "the members of pool warm differ in: labels, mounts");
    let wanted = SandboxSpec { workspace: Some("/srv".into()), ..pool(1).spec };
    assert_eq!(reason(&claim(&engine, &wanted).await), "the members of pool warm differ in: workspace");
    let required = engine.pool_claims().unwrap().claim(&*provider(&engine), &wanted, PoolUse::Require).await;
    assert_eq!(required.err().expect("it is required").code(), ErrorCode::NotAvailable);
    kill(running).await;
    assert_eq!(reason(&claim(&engine, &pool(1).spec).await), "no resident process runs, which would keep its members");
}

/// A client that dies between the claim and the rename leaves nothing.
#[tokio::test]
async fn claim_that_is_given_up_removes_the_member() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let running = resident(&engine).await;
    engine.pools().unwrap().set(&Pool { min: 0, ..pool(1) }).await.unwrap();
    assert_eq!(reason(&claim(&engine, &pool(1).spec).await), "pool warm is empty");
    until_ready(&engine, 1).await;
    let claimed = claim(&engine, &pool(1).spec).await;
    assert!(matches!(claimed.result, Some(PoolResult::Hit { .. })));
    let id = claimed.id.clone();
    drop(claimed);
    eventually("the member is removed", async || mock.get(id.as_str()).await.is_err()).await;
    kill(running).await;
}

/// A member that does not reply is not handed out.
#[tokio::test]
async fn member_that_has_ended_is_not_handed_out() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let running = resident(&engine).await;
    engine.pools().unwrap().set(&pool(2)).await.unwrap();
    until_ready(&engine, 2).await;
    let members: Vec<_> = mock.list().await.unwrap().into_iter().map(|info| info.id).collect();
    for id in &members {
        mock.stop(id, Duration::ZERO).await.unwrap();
    }
    let spec = pool(2).spec;
    let mut claimed = claim(&engine, &spec).await;
    assert!(!members.contains(&claimed.id));
    let sandbox: Sandbox = claimed.create(provider(&engine), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    eventually("what has ended is removed", async || {
        let listed = mock.list().await.unwrap();
        members.iter().all(|id| listed.iter().all(|info| info.id != *id))
    })
    .await;
    kill(running).await;
}

/// Opens a session with a workspace of its own. Returns it, and whether it came from the pool.
async fn open(engine: &Engine, base: &Path) -> (Session, PoolResult) {
    let result: Arc<Mutex<Option<PoolResult>>> = Arc::default();
    let told = result.clone();
    let progress = move |progress| {
        if let OpenProgress::Pool(result) = progress {
            *told.lock().unwrap() = Some(result);
        }
    };
    let request = OpenSession {
        provider: "mock".into(),
        spec: pool(1).spec,
        workspace: SessionWorkspace::Own { base: base.to_owned() },
        progress: Some(Arc::new(progress)),
        ..OpenSession::default()
    };
    let session = engine.sessions().await.unwrap().0.open(request).await.unwrap();
    let result = result.lock().unwrap().take().unwrap();
    (session, result)
}

/// A session takes over the ids, the secret and the workspace of its member. Members of a lost store are not handed out.
#[tokio::test]
async fn session_takes_over_what_its_member_has() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let (engine, base) = (engine(dir.path(), &mock), dir.path().join("work"));
    let running = resident(&engine).await;
    let sessions = Some(SessionMembers { workspaces: Some(base.clone()) });
    engine.pools().unwrap().set(&Pool { sessions, ..pool(1) }).await.unwrap();
    until_ready(&engine, 1).await;
    let member = mock.list().await.unwrap().remove(0);
    let plan = engine.reconcile(true).await.unwrap().unwrap().0;
    assert!(plan.is_empty(), "a member is no session's sandbox: {plan:?}");
    assert_eq!(reason(&claim(&engine, &pool(1).spec).await), "the members of pool warm are for sessions");
    let (_, elsewhere) = open(&engine, &dir.path().join("elsewhere")).await;
    let other = "the members of pool warm have a workspace of their own, and cannot get another";
    assert_eq!(elsewhere, PoolResult::Miss { reason: other.into() });

    let (session, hit) = open(&engine, &base).await;
    assert_eq!(hit, PoolResult::Hit { pool: "warm".into() });
    let Session { summary, spec, .. } = session;
    assert_eq!((&summary.sandbox, summary.id.as_str()), (&member.id, member.labels["kennel.session"].as_str()));
    assert_eq!((summary.state, summary.workspace), (SessionState::Running, Some(base.join(summary.id.as_str()))));
    assert_eq!(spec.workspace, member.workspace);
    let sandbox = Sandbox::find(provider(&engine), member.id.as_str()).await.unwrap();
    let printed = sandbox.run(&ExecSpec::argv(["printenv", "KENNEL_SESSION_SECRET"]), None, 100).await.unwrap();
    let secret = engine.sessions().await.unwrap().0.secret(summary.id.as_str()).await.unwrap();
    assert_eq!(Some(printed.stdout_text().trim_end()), secret.as_deref());

    // The store is lost, and the next one has another id.
    until_ready(&engine, 1).await;
    let stale = mock.list().await.unwrap().into_iter().find(|info| info.name.starts_with("pool-")).unwrap();
    for file in ["kennel.db", "kennel.db-wal", "kennel.db-shm"] {
        let _ = std::fs::remove_file(dir.path().join("state").join(file));
    }
    let (_, miss) = open(&engine, &base).await;
    assert_eq!(miss, PoolResult::Miss { reason: "pool warm is empty".into() });
    eventually("it is removed", async || mock.get(stale.id.as_str()).await.is_err()).await;
    until_ready(&engine, 1).await;
    let (_, hit) = open(&engine, &base).await;
    assert_eq!(hit, PoolResult::Hit { pool: "warm".into() });
    engine.pools().unwrap().remove("warm").await.unwrap();
    let kept = async || std::fs::read_dir(&base).unwrap().count() == 3;
    eventually("only workspaces of sessions are left", kept).await;
    kill(running).await;
}

/// A container keeps the mounts that it was created with. So a member is not handed out if a new one would have others.
#[tokio::test]
async fn member_with_outdated_mounts_is_not_handed_out() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let running = resident(&engine).await;
    let workspace = dir.path().join("work");
    std::fs::create_dir(&workspace).unwrap();
    let spec = SandboxSpec { workspace: Some(workspace.clone()), ..SandboxSpec::default() };
    engine.pools().unwrap().set(&Pool { spec: spec.clone(), ..pool(1) }).await.unwrap();
    until_ready(&engine, 1).await;
    let member = mock.list().await.unwrap().remove(0).id;
    std::fs::create_dir(workspace.join(".git")).unwrap();
    // The pool may have been filled again by then.
    assert_ne!(claim(&engine, &spec).await.id, member);
    assert!(mock.get(member.as_str()).await.is_err(), "it was removed");
    until_ready(&engine, 1).await;
    assert_eq!(claim(&engine, &spec).await.result, Some(PoolResult::Hit { pool: "warm".into() }));
    kill(running).await;
}

/// Members are nobody's sandboxes, so their events are left out. A claimed one is created and started by its claim.
#[tokio::test]
async fn events_of_members_are_left_out() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let resident = Resident::begin(&engine).await.unwrap();
    let mut reader = resident.events().after(Some(0));
    let running = tokio::spawn(async move { resident.run(std::future::pending()).await.unwrap() });
    let mut next = async || match reader.next().await.event {
        EngineEvent::Happened(event) => (event.sandbox, event.kind),
        EngineEvent::Listed(listed) => panic!("nothing was there: {listed:?}"),
    };
    assert_eq!(next().await, (None, EventKind::Missed));
    engine.pools().unwrap().set(&pool(2)).await.unwrap();
    until_ready(&engine, 2).await;
    let spec = SandboxSpec { name: Some("box".into()), ..pool(2).spec };
    let mut claimed = claim(&engine, &spec).await;
    let id = claimed.create(provider(&engine), &spec).await.unwrap().id().clone();
    drop(claimed);
    engine.pools().unwrap().remove("warm").await.unwrap();
    eventually("the other members are removed", async || mock.list().await.unwrap().len() == 1).await;
    mock.rename(&id, "other").await.unwrap();
    for kind in [EventKind::Created, EventKind::Started, EventKind::Renamed] {
        assert_eq!(next().await, (Some(id.clone()), kind));
    }
    kill(running).await;
}

#[tokio::test]
async fn members_cannot_have_what_belongs_to_one_sandbox() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    for spec in [
        SandboxSpec { data: true, ..SandboxSpec::default() },
        SandboxSpec { auto_remove: true, ..SandboxSpec::default() },
        SandboxSpec { idle_seconds: Some(1), ..SandboxSpec::default() },
        SandboxSpec { command: Some(vec!["true".into()]), ..SandboxSpec::default() },
    ] {
        let refused = engine.pools().unwrap().set(&Pool { spec, ..pool(1) }).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidConfig);
    }
    let own = Some(SessionMembers { workspaces: Some(dir.path().to_owned()) });
    let spec = SandboxSpec { workspace: Some(dir.path().to_owned()), ..SandboxSpec::default() };
    let refused = engine.pools().unwrap().set(&Pool { spec, sessions: own, ..pool(1) }).await.unwrap_err();
    assert!(refused.to_string().contains("both a workspace of its own and another one"), "{refused}");
    assert_eq!(engine.pools().unwrap().list().await.unwrap(), []);
}
