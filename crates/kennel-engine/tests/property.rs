//! Random operations of several engines at once, on one store and one provider with faults. Whatever happens, the state
//! machine holds, nothing of others is touched, and reconciliation leaves no orphan.

mod common;

use common::{Bench, check_history, request};
use kennel_core::{Provider, RemoveOptions, Result, new_id};
use kennel_engine::{OpenSession, SessionFilter, SessionState, Sessions};
use kennel_mock::{Answer, Call, Fault, Mock};
use kennel_types::{ErrorCode, SandboxId, SandboxSpec};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Open {
        name: u8,
        main: Option<i32>,
        auto_remove: bool,
    },
    Start(u8),
    Stop(u8),
    Remove {
        name: u8,
        force: bool,
    },
    Settle(u8),
    Reconcile,
    /// Another program stops or removes the sandbox of a session.
    StopSandbox(u8),
    RemoveSandbox(u8),
    Fault(Fault),
}

fn name() -> impl Strategy<Value = u8> {
    0..3_u8
}

fn fault() -> impl Strategy<Value = Fault> {
    let call = prop::sample::select(vec![
        Call::Create,
        Call::Start,
        Call::Stop,
        Call::Remove,
        Call::Get,
        Call::List,
        Call::Logs,
    ]);
    let code = prop::sample::select(vec![ErrorCode::NotAvailable, ErrorCode::Timeout, ErrorCode::StartFailed]);
    prop_oneof![(call.clone(), code).prop_map(|(call, code)| Fault::Fails(call, code)), call.prop_map(Fault::ReplyLost)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (name(), prop::option::of(0..2), any::<bool>())
            .prop_map(|(name, main, auto_remove)| Op::Open { name, main, auto_remove }),
        2 => name().prop_map(Op::Start),
        2 => name().prop_map(Op::Stop),
        2 => (name(), any::<bool>()).prop_map(|(name, force)| Op::Remove { name, force }),
        1 => name().prop_map(Op::Settle),
        2 => Just(Op::Reconcile),
        1 => name().prop_map(Op::StopSandbox),
        1 => name().prop_map(Op::RemoveSandbox),
        4 => fault().prop_map(Op::Fault),
    ]
}

/// An error of the provider, or a refusal, is accepted. A defect is not.
fn expected<T>(op: &Op, done: Result<T>) {
    if let Err(error) = done {
        assert_ne!(error.code(), ErrorCode::Internal, "{op:?}: {error}");
    }
}

async fn carry_out(sessions: &Sessions, mock: &Mock, op: &Op) {
    let called = |name: &u8| format!("s-{name}");
    match op {
        Op::Open { name, main, auto_remove } => {
            let command = main.map(|code| vec!["main".to_owned(), code.to_string()]);
            let spec = SandboxSpec { command, auto_remove: *auto_remove, ..SandboxSpec::default() };
            expected(op, sessions.open(OpenSession { name: Some(called(name)), spec, ..request() }).await);
        }
        Op::Start(name) => expected(op, sessions.start(&called(name)).await),
        Op::Stop(name) => expected(op, sessions.stop(&called(name), Duration::ZERO).await),
        Op::Remove { name, force } => {
            let options = RemoveOptions { force: *force, volumes: false };
            expected(op, sessions.remove(&called(name), options).await);
        }
        Op::Settle(name) => expected(op, sessions.settle(&called(name)).await),
        Op::Reconcile => reconcile(sessions).await,
        Op::StopSandbox(name) | Op::RemoveSandbox(name) => {
            let Ok(session) = sessions.show(&called(name)).await else { return };
            let sandbox = session.summary.sandbox;
            if matches!(op, Op::StopSandbox(_)) {
                let _ = mock.stop(&sandbox, Duration::ZERO).await;
            } else {
                let _ = mock.remove(&sandbox, RemoveOptions { force: true, volumes: false }).await;
            }
        }
        Op::Fault(fault) => mock.fault(fault.clone()),
    }
}

async fn reconcile(sessions: &Sessions) {
    let plan = sessions.plan().await.unwrap();
    assert!(plan.unlisted.is_empty() || plan.actions.is_empty(), "a failed listing changes nothing: {plan:?}");
    for applied in sessions.apply(&plan).await.unwrap() {
        if let Err(error) = applied.result {
            assert_ne!(error.code(), ErrorCode::Internal, "{:?}: {error}", applied.action);
        }
    }
}

/// Creates sandboxes that do not belong to this store: without a session, with a session's name only, and of another
/// store.
async fn others(mock: &Mock) -> Vec<SandboxId> {
    let mut made = Vec::new();
    for (session, store) in [(None, None), (Some("s-0"), None), (Some("s-1"), Some("another"))] {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        let spec = SandboxSpec { session: owned(session), store: owned(store), ..SandboxSpec::default() };
        let id = new_id().unwrap();
        mock.create(&id, &spec).await.unwrap();
        made.push(id);
    }
    made
}

/// Waits until all remaining faults have occurred, and nothing is left to do.
async fn settle_everything(bench: &Bench) {
    for _ in 0..200 {
        reconcile(&bench.sessions).await;
        let plan = bench.sessions.plan().await.unwrap();
        if plan.actions.is_empty() && plan.unlisted.is_empty() {
            return;
        }
    }
    panic!("there is always something left to do: {:?}", bench.sessions.plan().await);
}

async fn case(programs: Vec<Vec<Op>>) {
    let bench = Bench::new().await;
    bench.mock.on(["main", "0"], Answer::exit(0).stdout("done\n"));
    bench.mock.on(["main", "1"], Answer::exit(1).stderr("failed\n"));
    let others = others(&bench.mock).await;
    let mut engines = Vec::new();
    for program in programs {
        let (sessions, mock) = (bench.another().await, bench.mock.clone());
        engines.push(tokio::spawn(async move {
            for op in &program {
                carry_out(&sessions, &mock, op).await;
            }
        }));
    }
    for engine in engines {
        engine.await.unwrap();
    }
    check_history(&bench.sessions).await;
    let sandboxes = loop {
        settle_everything(&bench).await;
        let sandboxes = bench.mock.list().await.unwrap();
        // A main process may have ended just before the listing.
        if bench.sessions.plan().await.unwrap().actions.is_empty() {
            break sandboxes;
        }
    };
    bench.check().await;
    for other in &others {
        assert!(sandboxes.iter().any(|info| info.id == *other), "a sandbox of others was removed");
    }
    let sessions = bench.sessions.list(&SessionFilter::default()).await.unwrap();
    for info in sandboxes.iter().filter(|info| !others.contains(&info.id)) {
        let session = sessions.iter().find(|session| session.sandbox == info.id).expect("no orphan");
        assert_eq!(info.labels.get("kennel.session").map(String::as_str), Some(session.id.as_str()));
        assert_eq!(info.status.is_up(), session.state == SessionState::Running, "{session:?}");
    }
    for session in &sessions {
        let there = sandboxes.iter().any(|info| info.id == session.sandbox);
        match session.state {
            SessionState::Creating | SessionState::Removing => panic!("it is settled: {session:?}"),
            SessionState::Running => assert!(there, "no loss: {session:?}"),
            SessionState::Stopped => assert_eq!(there, !session.auto_remove, "{session:?}"),
            SessionState::Completed | SessionState::Failed => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_engines_at_once_keep_the_store_and_the_provider_consistent(
        programs in prop::collection::vec(prop::collection::vec(op(), 1..12), 1..4)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(case(programs));
    }
}
