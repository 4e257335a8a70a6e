//! Sessions on sandboxes in memory: their lifecycle, and what is left when something fails.

mod common;

use common::{Bench, request};
use kennel_core::{Provider, RemoveOptions};
use kennel_engine::{
    Cause, EventFilter, OpenSession, SECRET_VARIABLE, SESSION_VARIABLE, STOP_GRACE, SessionFilter, SessionState,
    SessionWorkspace, Wanted,
};
use kennel_mock::{Answer, Call, Fault, Gate};
use kennel_types::{ErrorCode, ExecSpec, NextStep, SandboxSpec, Status};
use std::time::Duration;

fn command(words: &[&str]) -> OpenSession {
    let argv = words.iter().map(ToString::to_string).collect();
    OpenSession { spec: SandboxSpec { command: Some(argv), ..SandboxSpec::default() }, ..request() }
}

#[tokio::test]
async fn a_session_is_recorded_and_its_sandbox_carries_its_ids() {
    let bench = Bench::new().await;
    let spec = SandboxSpec { project: Some("/p".into()), profile: Some("dev".into()), ..SandboxSpec::default() };
    let opened = bench.sessions.open(OpenSession { name: Some("work".into()), spec, ..request() }).await.unwrap();
    let summary = &opened.summary;
    assert_eq!(
        (summary.state, summary.cause, summary.wanted),
        (SessionState::Running, Cause::Started, Wanted::Running)
    );
    assert_eq!((summary.project.as_deref(), summary.profile.as_deref()), (Some("/p"), Some("dev")));
    let info = bench.mock.get(summary.sandbox.as_str()).await.unwrap();
    assert_eq!((info.status, info.name.as_str()), (Status::Running, "work"));
    let label = |name: &str| info.labels.get(name).map(String::as_str);
    assert_eq!(label("kennel.session"), Some(summary.id.as_str()));
    assert_eq!(label("kennel.store"), Some(bench.sessions.store().id()));
    assert_eq!(label("kennel.project"), Some("/p"));

    assert_eq!(bench.sessions.show("work").await.unwrap(), opened);
    assert_eq!(bench.sessions.show(summary.id.as_str()).await.unwrap(), opened);
    let other = bench.sessions.open(request()).await.unwrap();
    let listed = bench.sessions.list(&SessionFilter::default()).await.unwrap();
    assert_eq!(listed, [other.summary.clone(), summary.clone()]);
    let of_project = SessionFilter { project: Some("/p".into()), ..SessionFilter::default() };
    assert_eq!(bench.sessions.list(&of_project).await.unwrap(), std::slice::from_ref(summary));
    let stopped = SessionFilter { states: vec![SessionState::Stopped], ..SessionFilter::default() };
    assert_eq!(bench.sessions.list(&stopped).await.unwrap(), []);
    let page = SessionFilter { limit: Some(1), before: Some(other.summary.number), ..SessionFilter::default() };
    assert_eq!(bench.sessions.list(&page).await.unwrap(), std::slice::from_ref(summary));

    let error = bench.sessions.open(OpenSession { name: Some("work".into()), ..request() }).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AlreadyExists, "{error}");
    let error = bench.sessions.show("other").await.unwrap_err();
    assert_eq!((error.code(), error.next_step()), (ErrorCode::NotFound, Some(&NextStep::ListSessions)));
}

#[tokio::test]
async fn commands_go_to_the_sessions_sandbox_with_its_secret() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    let sandbox = bench.sessions.sandbox(id.as_str()).await.unwrap();
    let print = async |name: &str| {
        let output = sandbox.run(&ExecSpec::argv(["printenv", name]), None, 1000).await.unwrap();
        output.stdout_text().trim().to_owned()
    };
    assert_eq!(print(SESSION_VARIABLE).await, id.as_str());
    let secret = bench.sessions.secret(id.as_str()).await.unwrap().expect("it has one");
    assert_eq!((print(SECRET_VARIABLE).await.as_str(), secret.len()), (secret.as_str(), 64));
    // Neither the record nor its events contain it.
    let shown = serde_json::to_string(&bench.sessions.show(id.as_str()).await.unwrap()).unwrap();
    assert!(!shown.contains(&secret), "{shown}");
    let other = bench.open(request()).await;
    assert_ne!(bench.sessions.secret(other.as_str()).await.unwrap(), Some(secret));
}

#[tokio::test]
async fn a_session_stops_starts_again_and_is_removed() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    let stopped = bench.sessions.stop(id.as_str(), STOP_GRACE).await.unwrap();
    assert_eq!((stopped.summary.state, stopped.summary.cause), (SessionState::Stopped, Cause::Requested));
    let error = bench.sessions.sandbox(id.as_str()).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::Stopped);
    assert_eq!(error.next_step(), Some(&NextStep::StartSession { name: id.to_string() }));
    assert_eq!(bench.sessions.stop(id.as_str(), STOP_GRACE).await.unwrap(), stopped, "it is stopped already");

    let started = bench.sessions.start(id.as_str()).await.unwrap();
    assert_eq!((started.summary.state, started.summary.cause), (SessionState::Running, Cause::Started));
    let error = bench.sessions.remove(id.as_str(), RemoveOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    bench.sessions.remove(id.as_str(), RemoveOptions { force: true, volumes: false }).await.unwrap();
    assert_eq!(bench.sessions.show(id.as_str()).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(bench.mock.list().await.unwrap(), []);

    let events = bench.sessions.events(&EventFilter { session: Some(id), ..EventFilter::default() }).await.unwrap();
    let state = |state: Option<SessionState>| state.map_or("-", SessionState::name);
    let told: Vec<String> =
        events.iter().map(|event| format!("{} {} {}", state(event.from), state(event.to), event.cause)).collect();
    let expected = [
        "- creating requested",
        "creating running started",
        "running running requested",
        "running stopped requested",
        "stopped stopped requested",
        "stopped running started",
        "running removing requested",
        "removing - requested",
    ];
    assert_eq!(told, expected);
    assert!(events.iter().map(|event| event.sequence).eq(1..=8));
    assert!(events.is_sorted_by_key(|event| event.number));
    let later = EventFilter { after: events[5].number, limit: Some(1), ..EventFilter::default() };
    assert_eq!(bench.sessions.events(&later).await.unwrap(), [events[6].clone()]);
    bench.check().await;
}

#[tokio::test]
async fn the_end_of_the_main_process_is_the_result() {
    let bench = Bench::new().await;
    let lines: Vec<String> = (0..60).map(|n| format!("line {n}")).collect();
    bench.mock.on(["good"], Answer::exit(0).stdout(lines.join("\n")));
    bench.mock.on(["bad"], Answer::exit(7).stderr("no\n"));
    let good = bench.open(command(&["good"])).await;
    let done = bench.sessions.wait(good.as_str()).await.unwrap();
    assert_eq!((done.summary.state, done.summary.cause), (SessionState::Completed, Cause::Exited));
    assert_eq!(done.summary.exit_code, Some(0));
    assert_eq!(done.log.unwrap(), lines[10..], "the last fifty lines");

    let mut request = command(&["bad"]);
    request.spec.auto_remove = true;
    let bad = bench.open(request).await;
    let done = bench.sessions.wait(bad.as_str()).await.unwrap();
    assert_eq!((done.summary.state, done.summary.exit_code), (SessionState::Failed, Some(7)));
    assert_eq!(done.log.as_deref(), Some(&["no".to_owned()][..]));
    // Its sandbox is gone, but its result is kept.
    assert_eq!(bench.mock.get(done.summary.sandbox.as_str()).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(bench.sessions.show(bad.as_str()).await.unwrap(), done);
    let error = bench.sessions.start(bad.as_str()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    assert!(bench.sessions.plan().await.unwrap().is_empty());
    bench.check().await;
}

#[tokio::test]
async fn a_stop_removes_the_sandbox_where_that_was_requested() {
    let bench = Bench::new().await;
    let gate = Gate::new();
    bench.mock.on(["serve"], Answer::exit(0).stdout("ready\n").hold(&gate));
    let mut request = command(&["serve"]);
    request.spec.auto_remove = true;
    let id = bench.open(request).await;
    assert_eq!(bench.mock.list().await.unwrap().len(), 1);
    let stopped = bench.sessions.stop(id.as_str(), STOP_GRACE).await.unwrap();
    assert_eq!((stopped.summary.state, stopped.summary.cause), (SessionState::Stopped, Cause::Requested));
    assert_eq!(bench.mock.list().await.unwrap(), []);
    assert_eq!(stopped.log.as_deref(), Some(&["ready".to_owned()][..]));
    assert!(bench.sessions.plan().await.unwrap().is_empty());
    gate.open();
}

#[tokio::test]
async fn a_session_that_cannot_be_opened_leaves_no_sandbox() {
    let bench = Bench::new().await;
    let faults = [
        Fault::Fails(Call::Create, ErrorCode::NotAvailable),
        Fault::Fails(Call::Start, ErrorCode::StartFailed),
        Fault::ReplyLost(Call::Create),
        Fault::ReplyLost(Call::Start),
    ];
    for fault in faults {
        bench.mock.fault(fault.clone());
        let error = bench.sessions.open(OpenSession { name: Some("x".into()), ..request() }).await.unwrap_err();
        assert!(error.to_string().starts_with("open session x: "), "{error}");
        assert_eq!(bench.mock.list().await.unwrap(), [], "{fault:?}");
        let failed = bench.sessions.show("x").await.unwrap();
        assert_eq!((failed.summary.state, failed.summary.cause), (SessionState::Failed, Cause::StartFailed));
        assert!(failed.error.is_some_and(|error| error.contains("the mock was told to")));
        bench.sessions.remove("x", RemoveOptions::default()).await.unwrap();
    }
    bench.check().await;
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_sandbox() {
    give_up_everywhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gives_up_leaves_no_sandbox_on_several_threads() {
    give_up_everywhere().await;
}

async fn give_up_everywhere() {
    let bench = Bench::new().await;
    // Gives up at every point at which the future waits.
    for polls in 1..40 {
        let name = format!("s-{polls}");
        let mut opening = Box::pin(bench.sessions.open(OpenSession { name: Some(name.clone()), ..request() }));
        let mut done = None;
        for _ in 0..polls {
            done = futures_util::FutureExt::now_or_never(&mut opening);
            if done.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(opening);
        if let Some(opened) = done {
            opened.unwrap();
            let force = RemoveOptions { force: true, volumes: false };
            bench.sessions.remove(&name, force).await.unwrap();
            continue;
        }
        let tasks = tokio::runtime::Handle::current().metrics();
        kennel_testkit::eventually("nobody works any more", async || tasks.num_alive_tasks() == 0).await;
        assert_eq!(bench.mock.list().await.unwrap(), []);
        match bench.sessions.show(&name).await {
            Ok(session) => {
                let found = (session.summary.state, session.summary.cause);
                assert_eq!(found, (SessionState::Failed, Cause::Cancelled));
            }
            Err(error) => assert_eq!(error.code(), ErrorCode::NotFound, "it was not recorded at all"),
        }
    }
    bench.check().await;
}

#[tokio::test]
async fn a_session_ends_with_its_task_however_that_ends() {
    let bench = Bench::new().await;
    let named = |name: &str| {
        let spec = SandboxSpec { auto_remove: true, ..SandboxSpec::default() };
        OpenSession { name: Some(name.into()), spec, ..request() }
    };
    let done = bench
        .sessions
        .run(named("good"), async |sandbox| sandbox.run(&ExecSpec::argv(["echo", "hi"]), None, 100).await)
        .await
        .unwrap();
    assert_eq!(done.stdout_text(), "hi\n");
    let error = bench
        .sessions
        .run(named("bad"), async |_| Err::<(), _>(kennel_core::Error::new(ErrorCode::Timeout, "too slow")))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::Timeout);
    let sessions = bench.sessions.clone();
    let panicking = named("panics");
    let task =
        tokio::spawn(
            async move { sessions.run(panicking, async |_| -> kennel_core::Result<()> { panic!("oh no") }).await },
        );
    assert!(task.await.unwrap_err().is_panic());
    let sessions = bench.sessions.clone();
    let hanging = named("gives-up");
    let (started, is_started) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        sessions
            .run(hanging, async move |_| {
                let _ = started.send(());
                std::future::pending::<kennel_core::Result<()>>().await
            })
            .await
    });
    is_started.await.unwrap();
    task.abort();
    kennel_testkit::eventually("the session has ended", async || {
        bench.sessions.show("gives-up").await.unwrap().summary.state != SessionState::Running
    })
    .await;

    let expected = [
        ("good", SessionState::Completed, Cause::TaskDone, None),
        ("bad", SessionState::Failed, Cause::TaskFailed, Some("too slow")),
        ("panics", SessionState::Failed, Cause::Panicked, Some("oh no")),
        ("gives-up", SessionState::Stopped, Cause::Cancelled, None),
    ];
    kennel_testkit::eventually("no sandbox is left", async || bench.mock.list().await.unwrap().is_empty()).await;
    for (name, state, cause, error) in expected {
        let session = bench.sessions.show(name).await.unwrap();
        let found = (session.summary.state, session.summary.cause, session.error.as_deref());
        assert_eq!(found, (state, cause, error), "{name}");
    }
    bench.check().await;
}

#[tokio::test]
async fn a_session_removed_while_it_is_opened_leaves_nothing() {
    let bench = Bench::new().await;
    let gate = Gate::new();
    bench.mock.on(["git"], Answer::exit(0).hold(&gate));
    let base = bench.dir.path().join("workspaces");
    let workspace = SessionWorkspace::Clone { base: base.clone(), url: "https://host/x.git".into(), credentials: None };
    let sessions = bench.sessions.clone();
    let opening = OpenSession { name: Some("x".into()), workspace, ..request() };
    let opening = tokio::spawn(async move { sessions.open(opening).await });
    kennel_testkit::eventually("the clone runs", async || !bench.mock.ran().is_empty()).await;
    let error = bench.sessions.remove("x", RemoveOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    let sessions = bench.sessions.clone();
    let force = RemoveOptions { force: true, volumes: false };
    let removing = tokio::spawn(async move { sessions.remove("x", force).await });
    kennel_testkit::eventually("the removal is recorded", async || {
        bench.sessions.show("x").await.unwrap().summary.state == SessionState::Removing
    })
    .await;
    gate.open();
    removing.await.unwrap().unwrap();
    assert_eq!(opening.await.unwrap().unwrap_err().code(), ErrorCode::Conflict);
    assert_eq!(bench.mock.list().await.unwrap(), []);
    assert_eq!(bench.sessions.list(&SessionFilter::default()).await.unwrap(), []);
    bench.check().await;
}

#[tokio::test]
async fn a_cancelled_clone_is_undone_before_the_caller_continues() {
    let bench = Bench::new().await;
    bench.mock.on(["git"], Answer::exit(0).hold(&Gate::new()));
    let base = bench.dir.path().join("workspaces");
    let workspace = SessionWorkspace::Clone { base: base.clone(), url: "https://host/x.git".into(), credentials: None };
    let cancel = kennel_engine::Cancel::default();
    let opening = OpenSession { name: Some("x".into()), workspace, cancel: cancel.clone(), ..request() };
    let sessions = bench.sessions.clone();
    let opening = tokio::spawn(async move { sessions.open(opening).await });
    kennel_testkit::eventually("the clone runs", async || !bench.mock.ran().is_empty()).await;
    assert_eq!(std::fs::read_dir(&base).unwrap().count(), 1, "the control");
    cancel.cancel();
    assert_eq!(opening.await.unwrap().unwrap_err().code(), ErrorCode::Aborted);
    assert_eq!(bench.mock.list().await.unwrap(), []);
    assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0, "nothing is left of the workspace");
    let session = bench.sessions.show("x").await.unwrap().summary;
    assert_eq!((session.state, session.cause), (SessionState::Failed, Cause::Cancelled));
    bench.check().await;
}

#[tokio::test]
async fn a_workspace_is_created_below_its_base_and_kept() {
    let bench = Bench::new().await;
    let base = bench.dir.path().join("workspaces");
    let own = SessionWorkspace::Own { base: base.clone() };
    let session = bench.sessions.open(OpenSession { workspace: own, ..request() }).await.unwrap();
    let dir = base.join(session.summary.id.as_str());
    assert_eq!(session.summary.workspace.as_ref(), Some(&dir));
    assert!(dir.is_dir());
    let force = RemoveOptions { force: true, volumes: true };
    bench.sessions.remove(session.summary.id.as_str(), force).await.unwrap();
    assert!(dir.is_dir(), "it is kept");
}

struct Login;

impl kennel_engine::GitCredentials for Login {
    fn credentials(&self, url: &str) -> kennel_core::Result<Option<(String, String)>> {
        Ok(Some(("ann".into(), format!("password for {url}"))))
    }
}

#[tokio::test]
async fn a_repository_is_cloned_in_a_separate_sandbox() {
    let bench = Bench::new().await;
    bench.mock.on(["git"], Answer::exit(0).stderr("Cloning into '.'...\nReceiving: 50%\rReceiving: 100%\n"));
    let base = bench.dir.path().join("workspaces");
    let url = "https://host/x.git";
    let clone = |credentials| SessionWorkspace::Clone { base: base.clone(), url: url.into(), credentials };
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let progress = {
        let told = told.clone();
        std::sync::Arc::new(move |progress| told.lock().unwrap().push(progress))
    };
    let request_with = OpenSession { workspace: clone(None), progress: Some(progress), ..request() };
    let session = bench.sessions.open(request_with).await.unwrap();
    assert_eq!(session.source.as_deref(), Some(url));
    assert_eq!(bench.mock.ran(), [["git", "clone", "--progress", "--", url, "."]]);
    let lines = ["Cloning into '.'...", "Receiving: 50%", "Receiving: 100%"];
    let expected = lines.map(|line| kennel_engine::OpenProgress::Clone(line.into()));
    assert_eq!(*told.lock().unwrap(), expected);
    let sandboxes = bench.mock.list().await.unwrap();
    assert_eq!(sandboxes.len(), 1, "the sandbox of the clone is gone");

    // A password reaches git's process only: neither its arguments nor the record contain it.
    let login: std::sync::Arc<dyn kennel_engine::GitCredentials> = std::sync::Arc::new(Login);
    let private = bench.sessions.open(OpenSession { workspace: clone(Some(login)), ..request() }).await.unwrap();
    assert!(!bench.mock.ran()[1].concat().contains("password for"));
    assert!(!serde_json::to_string(&private).unwrap().contains("password for"));
}

#[tokio::test]
async fn a_clone_that_fails_says_why_and_leaves_no_sandbox() {
    let bench = Bench::new().await;
    let base = bench.dir.path().join("workspaces");
    let open = async |url: &str| {
        let workspace = SessionWorkspace::Clone { base: base.clone(), url: url.into(), credentials: None };
        bench.sessions.open(OpenSession { workspace, ..request() }).await.unwrap_err()
    };
    bench.mock.on(
        ["git"],
        Answer::exit(128).stderr("fatal: could not read Username for 'https://host': terminal prompts disabled\n"),
    );
    let error = open("https://host/private.git").await;
    assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
    assert!(error.to_string().contains("could not read Username"), "{error}");
    bench.mock.on(["git"], Answer::exit(128).stderr("fatal: repository not found\n"));
    assert_eq!(open("https://host/none.git").await.code(), ErrorCode::ExecFailed);
    bench.mock.on(["git"], Answer::fails(ErrorCode::NotFound));
    let error = open("https://host/x.git").await;
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127));
    assert!(error.next_step().is_some());
    for url in ["/etc", "file:///etc", "ext::sh -c id", "--upload-pack=x", "git@host:x.git", "https://ann:pw@host/x"] {
        let error = open(url).await;
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        assert!(!error.to_string().contains("pw"), "{error}");
    }
    assert_eq!(bench.mock.list().await.unwrap(), []);
    bench.check().await;
}

#[tokio::test]
async fn a_lost_reply_does_not_change_the_result() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    bench.mock.fault(Fault::ReplyLost(Call::Stop));
    let stopped = bench.sessions.stop(id.as_str(), Duration::ZERO).await.unwrap();
    assert_eq!(stopped.summary.state, SessionState::Stopped);
    bench.mock.fault(Fault::ReplyLost(Call::Start));
    assert_eq!(bench.sessions.start(id.as_str()).await.unwrap().summary.state, SessionState::Running);
    bench.mock.fault(Fault::ReplyLost(Call::Remove));
    bench.sessions.remove(id.as_str(), RemoveOptions { force: true, volumes: false }).await.unwrap();
    assert_eq!(bench.mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_provider_that_fails_changes_no_session() {
    let bench = Bench::new().await;
    let id = bench.open(request()).await;
    let before = bench.sessions.show(id.as_str()).await.unwrap();
    bench.mock.fault(Fault::Fails(Call::Get, ErrorCode::NotAvailable));
    assert_eq!(bench.sessions.settle(id.as_str()).await.unwrap_err().code(), ErrorCode::NotAvailable);
    assert_eq!(bench.sessions.show(id.as_str()).await.unwrap(), before);
    // A stop that failed stays requested, and can be repeated.
    bench.mock.fault(Fault::Fails(Call::Stop, ErrorCode::Timeout));
    assert_eq!(bench.sessions.stop(id.as_str(), STOP_GRACE).await.unwrap_err().code(), ErrorCode::Timeout);
    let asked = bench.sessions.show(id.as_str()).await.unwrap().summary;
    assert_eq!((asked.state, asked.wanted), (SessionState::Running, Wanted::Stopped));
    assert_eq!(bench.sessions.stop(id.as_str(), STOP_GRACE).await.unwrap().summary.state, SessionState::Stopped);
    // A start that failed is over.
    bench.mock.fault(Fault::Fails(Call::Start, ErrorCode::StartFailed));
    assert_eq!(bench.sessions.start(id.as_str()).await.unwrap_err().code(), ErrorCode::StartFailed);
    let asked = bench.sessions.show(id.as_str()).await.unwrap().summary;
    assert_eq!((asked.state, asked.wanted), (SessionState::Stopped, Wanted::Stopped));
    // A removal that failed is completed later.
    bench.mock.fault(Fault::Fails(Call::Remove, ErrorCode::Timeout));
    assert!(bench.sessions.remove(id.as_str(), RemoveOptions::default()).await.is_err());
    assert_eq!(bench.sessions.show(id.as_str()).await.unwrap().summary.state, SessionState::Removing);
    bench.sessions.remove(id.as_str(), RemoveOptions::default()).await.unwrap();
    assert_eq!(bench.sessions.show(id.as_str()).await.unwrap_err().code(), ErrorCode::NotFound);
    bench.check().await;
}
