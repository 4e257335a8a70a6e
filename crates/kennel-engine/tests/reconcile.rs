//! Reconciliation on sandboxes in memory: what is repaired, and what is not changed.

mod common;

use common::{Bench, request};
use kennel_core::{Provider, RemoveOptions, new_id};
use kennel_engine::{
    Action, Cause, Effect, OpenSession, Plan, STOP_GRACE, SessionFilter, SessionState, Sessions, Store, Unneeded,
    Wanted,
};
use kennel_mock::{Call, Fault, Mock};
use kennel_types::{ErrorCode, SandboxId, SandboxSpec, Status};
use std::sync::Arc;

const FORCE: RemoveOptions = RemoveOptions { force: true, volumes: false };

impl Bench {
    /// Creates a sandbox with these labels, as a killed process would have left it.
    async fn stray(&self, session: Option<&str>, store: Option<&str>) -> SandboxId {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        let spec = SandboxSpec { session: owned(session), store: owned(store), ..SandboxSpec::default() };
        let id = new_id().unwrap();
        self.mock.create(&id, &spec).await.unwrap();
        id
    }

    /// Reconciles, expects that each action is done, and that nothing is left to do.
    async fn reconcile(&self) -> Vec<Action> {
        let plan = self.sessions.plan().await.unwrap();
        assert_eq!(self.sessions.plan().await.unwrap(), plan, "a plan changes nothing");
        for applied in self.sessions.apply(&plan).await.unwrap() {
            assert_eq!(applied.result.unwrap(), Effect::Done, "{:?}", applied.action);
        }
        let left = self.sessions.plan().await.unwrap().actions;
        assert_eq!(left, [], "nothing is left to do");
        self.check().await;
        plan.actions
    }

    /// Changes a record directly in the database, to what a killed process would have left.
    fn forge(&self, change: &str) {
        let connection = rusqlite::Connection::open(self.store()).unwrap();
        assert_eq!(connection.execute(&format!("UPDATE sessions SET {change}"), []).unwrap(), 1);
    }

    /// Adapts the history to a forged state.
    fn forge_state(&self, from: &str, to: &str) {
        self.forge(&format!("state = '{to}'"));
        let connection = rusqlite::Connection::open(self.store()).unwrap();
        let sql = format!(
            "INSERT INTO events (session, sequence, time_ms, before, after, cause) \
             SELECT id, (SELECT max(sequence) + 1 FROM events), 0, '{from}', '{to}', 'requested' FROM sessions"
        );
        connection.execute(&sql, []).unwrap();
    }

    async fn only(&self) -> kennel_engine::SessionSummary {
        let mut all = self.sessions.list(&SessionFilter::default()).await.unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

#[tokio::test]
async fn an_orphan_of_this_store_is_removed_and_everything_else_stays() {
    let bench = Bench::new().await;
    let ours = bench.sessions.store().id().to_owned();
    let kept = bench.open(request()).await;
    let orphan = bench.stray(Some("gone"), Some(&ours)).await;
    let of_hand = bench.stray(None, None).await;
    let named = bench.stray(Some("a-name"), None).await;
    let foreign = bench.stray(Some("theirs"), Some("0123456789abcdef")).await;
    let plan = bench.sessions.plan().await.unwrap();
    assert_eq!(plan.foreign.len(), 1);
    assert_eq!((&plan.foreign[0].sandbox, plan.foreign[0].session.as_deref()), (&foreign, Some("theirs")));
    let [Action::RemoveSandbox { sandbox, why, .. }] = &bench.reconcile().await[..] else { panic!("{plan:?}") };
    assert_eq!((sandbox, *why), (&orphan, Unneeded::SessionGone));
    let mut left: Vec<SandboxId> = bench.mock.list().await.unwrap().into_iter().map(|info| info.id).collect();
    let mut expected = vec![of_hand, named, foreign, bench.sessions.show(kept.as_str()).await.unwrap().summary.sandbox];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
}

#[tokio::test]
async fn a_listing_that_fails_changes_nothing() {
    let bench = Bench::new().await;
    let lost = bench.sessions.open(request()).await.unwrap().summary;
    bench.mock.remove(&lost.sandbox, FORCE).await.unwrap();
    let ours = bench.sessions.store().id().to_owned();
    bench.stray(Some("gone"), Some(&ours)).await;
    for fault in [Fault::Fails(Call::List, ErrorCode::NotAvailable), Fault::ReplyLost(Call::List)] {
        bench.mock.fault(fault);
        let plan = bench.sessions.plan().await.unwrap();
        assert_eq!((plan.actions.len(), plan.unlisted.len()), (0, 1), "{plan:?}");
        assert_eq!((plan.unlisted[0].provider.as_str(), plan.unlisted[0].code), ("mock", ErrorCode::NotAvailable));
    }
    // An engine that does not have the provider at all knows nothing either.
    let without = Sessions::new(Store::open(bench.store()).await.unwrap(), Vec::new());
    let plan = without.plan().await.unwrap();
    assert_eq!((plan.actions.len(), plan.unlisted.len()), (0, 1), "{plan:?}");
    assert_eq!(bench.only().await, lost);
    assert_eq!(bench.mock.list().await.unwrap().len(), 1);
    assert_eq!(bench.reconcile().await.len(), 2, "once it can be listed, both are repaired");
}

#[tokio::test]
async fn a_plan_that_is_out_of_date_does_nothing() {
    let bench = Bench::new().await;
    let session = bench.sessions.open(request()).await.unwrap().summary;
    // The sandbox is gone when the plan is made, and an error of the provider hides it when the plan is applied.
    bench.mock.remove(&session.sandbox, FORCE).await.unwrap();
    let plan = bench.sessions.plan().await.unwrap();
    assert_eq!(plan.actions, [Action::MarkLost { session: session.id.clone() }]);
    bench.mock.fault(Fault::Fails(Call::Get, ErrorCode::Timeout));
    let applied = bench.sessions.apply(&plan).await.unwrap();
    assert_eq!(applied[0].result.as_ref().unwrap_err().code(), ErrorCode::Timeout);
    assert_eq!(bench.only().await, session);
    // The session is removed by another process before the plan is applied.
    bench.another().await.remove(session.id.as_str(), FORCE).await.unwrap();
    let applied = bench.sessions.apply(&plan).await.unwrap();
    assert_eq!(*applied[0].result.as_ref().unwrap(), Effect::NotNeeded);
    assert_eq!(bench.sessions.plan().await.unwrap(), Plan::default());
    bench.check().await;
}

#[tokio::test]
async fn lost_sessions_are_marked() {
    let bench = Bench::new().await;
    let session = bench.sessions.open(request()).await.unwrap().summary;
    bench.mock.remove(&session.sandbox, FORCE).await.unwrap();
    assert_eq!(bench.reconcile().await, [Action::MarkLost { session: session.id.clone() }]);
    let lost = bench.only().await;
    assert_eq!((lost.state, lost.cause), (SessionState::Failed, Cause::Lost));
    bench.sessions.remove(session.id.as_str(), RemoveOptions::default()).await.unwrap();

    let session = bench.sessions.open(request()).await.unwrap().summary;
    bench.sessions.stop(session.id.as_str(), STOP_GRACE).await.unwrap();
    bench.mock.remove(&session.sandbox, FORCE).await.unwrap();
    assert_eq!(bench.reconcile().await, [Action::MarkLost { session: session.id }]);
    assert_eq!(bench.only().await.cause, Cause::Lost);
}

#[tokio::test]
async fn an_interrupted_opening_is_completed_or_failed() {
    for (made, started) in [(true, true), (true, false), (false, false)] {
        let bench = Bench::new().await;
        let session = bench.sessions.open(request()).await.unwrap().summary;
        let connection = rusqlite::Connection::open(bench.store()).unwrap();
        connection
            .execute_batch("UPDATE sessions SET state = 'creating'; DELETE FROM events WHERE sequence = 2")
            .unwrap();
        if !made {
            bench.mock.remove(&session.sandbox, FORCE).await.unwrap();
        } else if !started {
            bench.mock.stop(&session.sandbox, STOP_GRACE).await.unwrap();
        }
        bench.reconcile().await;
        let after = bench.only().await;
        if made {
            assert_eq!((after.state, after.cause), (SessionState::Running, Cause::Found));
            assert_eq!(bench.mock.get(session.sandbox.as_str()).await.unwrap().status, Status::Running);
        } else {
            assert_eq!((after.state, after.cause), (SessionState::Failed, Cause::Interrupted));
        }
    }
}

#[tokio::test]
async fn an_opening_that_cannot_be_completed_has_failed() {
    let bench = Bench::new().await;
    let session = bench.sessions.open(request()).await.unwrap().summary;
    let connection = rusqlite::Connection::open(bench.store()).unwrap();
    connection.execute_batch("UPDATE sessions SET state = 'creating'; DELETE FROM events WHERE sequence = 2").unwrap();
    bench.mock.stop(&session.sandbox, STOP_GRACE).await.unwrap();
    bench.mock.fault(Fault::Fails(Call::Start, ErrorCode::StartFailed));
    bench.reconcile().await;
    let after = bench.only().await;
    assert_eq!((after.state, after.cause), (SessionState::Failed, Cause::StartFailed));
    assert_eq!(bench.mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn interrupted_stops_starts_and_removals_are_completed() {
    let bench = Bench::new().await;
    let session = bench.sessions.open(request()).await.unwrap().summary;
    bench.forge("wanted = 'stopped'");
    assert_eq!(bench.reconcile().await, [Action::FinishStop { session: session.id.clone() }]);
    assert_eq!(bench.only().await.state, SessionState::Stopped);

    bench.forge("wanted = 'running'");
    assert_eq!(bench.reconcile().await, [Action::DropStart { session: session.id.clone() }]);
    assert_eq!(bench.only().await.wanted, Wanted::Stopped);

    bench.mock.start(&session.sandbox).await.unwrap();
    assert_eq!(bench.reconcile().await, [Action::MarkRunning { session: session.id.clone() }]);
    assert_eq!(bench.only().await.state, SessionState::Running);

    bench.mock.stop(&session.sandbox, STOP_GRACE).await.unwrap();
    assert_eq!(bench.reconcile().await, [Action::RecordEnd { session: session.id.clone() }]);
    assert_eq!(bench.only().await.state, SessionState::Stopped);

    bench.forge_state("stopped", "removing");
    assert_eq!(bench.reconcile().await, [Action::FinishRemoval { session: session.id }]);
    assert_eq!(bench.sessions.list(&SessionFilter::default()).await.unwrap(), []);
    assert_eq!(bench.mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_sandbox_that_was_to_be_removed_is_removed_later() {
    let bench = Bench::new().await;
    let spec = SandboxSpec { auto_remove: true, ..SandboxSpec::default() };
    let session = bench.sessions.open(OpenSession { spec, ..request() }).await.unwrap().summary;
    bench.mock.fault(Fault::Fails(Call::Remove, ErrorCode::Timeout));
    assert!(bench.sessions.stop(session.id.as_str(), STOP_GRACE).await.is_err());
    assert_eq!(bench.only().await.state, SessionState::Stopped, "the result is recorded before the removal");
    let [Action::RemoveSandbox { why: Unneeded::AutoRemove, .. }] = bench.reconcile().await[..] else { panic!() };
    assert_eq!(bench.mock.list().await.unwrap(), []);

    // A session that could not be opened, whose sandbox could not be removed either.
    bench.mock.fault(Fault::ReplyLost(Call::Start));
    bench.mock.fault(Fault::Fails(Call::Remove, ErrorCode::Timeout));
    assert!(bench.sessions.open(request()).await.is_err());
    let [Action::RemoveSandbox { why: Unneeded::NotOpened, .. }] = bench.reconcile().await[..] else { panic!() };
    assert_eq!(bench.mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_session_that_somebody_is_changing_is_left_alone() {
    use kennel_engine::SessionWorkspace;
    let bench = Bench::new().await;
    let gate = kennel_mock::Gate::new();
    bench.mock.on(["git"], kennel_mock::Answer::exit(0).hold(&gate));
    let base = bench.dir.path().join("workspaces");
    let workspace = SessionWorkspace::Clone { base, url: "https://host/x.git".into(), credentials: None };
    let opening = bench.another().await;
    let opening = tokio::spawn(async move { opening.open(OpenSession { workspace, ..request() }).await });
    kennel_testkit::eventually("the clone runs", async || !bench.mock.ran().is_empty()).await;
    let (session, stray) = (bench.only().await.id, bench.mock.list().await.unwrap().remove(0).id);
    assert_eq!(bench.sessions.plan().await.unwrap(), Plan::default(), "a running process is changing it");
    // That process may have started after the plan was made. Then the session looks interrupted, and its sandbox looks
    // like an orphan.
    let why = Unneeded::NotTheSessions;
    let remove = Action::RemoveSandbox { provider: "mock".into(), sandbox: stray, session: session.clone(), why };
    let plan = Plan { actions: vec![Action::FailOpen { session }, remove], ..Plan::default() };
    for applied in bench.sessions.apply(&plan).await.unwrap() {
        assert_eq!(applied.result.unwrap(), Effect::Busy, "{:?}", applied.action);
    }
    gate.open();
    assert_eq!(opening.await.unwrap().unwrap().summary.state, SessionState::Running);
    assert_eq!(bench.sessions.plan().await.unwrap(), Plan::default());
}

#[tokio::test]
async fn the_sandboxes_of_a_lost_store_are_adopted() {
    let bench = Bench::new().await;
    let spec = SandboxSpec {
        labels: [("team".to_owned(), "a".to_owned())].into(),
        project: Some("/p".into()),
        ..SandboxSpec::default()
    };
    let running = bench.sessions.open(OpenSession { name: Some("work".into()), spec, ..request() }).await.unwrap();
    let stopped = bench.sessions.open(request()).await.unwrap();
    bench.sessions.stop(stopped.summary.id.as_str(), STOP_GRACE).await.unwrap();

    let new = bench.dir.path().join("new.db");
    let mock: Mock = bench.mock.clone();
    let sessions = Sessions::new(Store::open(&new).await.unwrap(), vec![Arc::new(mock) as Arc<dyn Provider>]);
    let plan = sessions.plan().await.unwrap();
    assert_eq!((plan.actions.len(), plan.foreign.len()), (0, 2), "reported, never removed: {plan:?}");
    for foreign in &plan.foreign {
        sessions.adopt(foreign).await.unwrap();
        assert_eq!(sessions.adopt(foreign).await.unwrap_err().code(), ErrorCode::AlreadyExists);
    }
    let adopted = sessions.show("work").await.unwrap();
    assert_eq!(adopted.summary.id, running.summary.id);
    assert_eq!((adopted.summary.state, adopted.summary.cause), (SessionState::Running, Cause::Adopted));
    assert_eq!((adopted.summary.project.as_deref(), &adopted.spec.labels), (Some("/p"), &running.spec.labels));
    assert_eq!(sessions.secret("work").await.unwrap(), None);
    let other = sessions.show(stopped.summary.id.as_str()).await.unwrap();
    assert_eq!(other.summary.state, SessionState::Stopped);
    assert_eq!(sessions.plan().await.unwrap(), Plan::default(), "they are its own now");
    common::check_history(&sessions).await;
    // They can be used, and removed.
    sessions.sandbox("work").await.unwrap().keeper().await.unwrap().welcome().await.unwrap();
    sessions.remove("work", FORCE).await.unwrap();
    sessions.remove(stopped.summary.id.as_str(), FORCE).await.unwrap();
    assert_eq!(bench.mock.list().await.unwrap(), []);
}
