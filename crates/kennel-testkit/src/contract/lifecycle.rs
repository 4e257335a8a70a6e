//! The lifecycle of a sandbox, from creation to removal.

use crate::inside::{SOON, at, code, files, ok};
use crate::{Stage, eventually};
use futures_util::StreamExt;
use kennel_core::{LogOptions, RemoveOptions, Sandbox, WriteOptions};
use kennel_types::{EndCause, ErrorCode, EventKind, ExecSpec, SandboxId, SandboxSpec, Status, Support};
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(2);
const FORCE: RemoveOptions = RemoveOptions { volumes: false, force: true };

/// The provider is available. A missing engine is a failure, not a skip.
pub async fn provider_is_available(stage: &Stage) {
    let availability = stage.provider().probe().await;
    assert!(availability.available, "{availability:?}");
    assert!(!availability.detail.is_empty());
}

/// A sandbox passes through its states in order, and `get` reports each.
pub async fn sandbox_is_created_started_stopped_and_removed(stage: &Stage) {
    let sandbox = stage.create(&stage.spec()).await;
    assert_eq!(sandbox.info().status, Status::Created);
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Created);
    sandbox.start().await.unwrap();
    let info = sandbox.inspect().await.unwrap();
    assert_eq!(info.status, Status::Running);
    assert_eq!(info.provider, stage.mode().provider());
    assert_eq!(info.enforcement.mode, stage.mode().name());
    assert_eq!(info.network, stage.spec().network.unwrap_or(stage.mode().default_network()));
    let expected = stage.mode().layers_with(info.network);
    assert!(expected.iter().all(|layer| info.enforcement.layers.contains(layer)), "{:?}", info.enforcement);
    assert_eq!(ok(&sandbox, "echo hello").await, "hello");
    sandbox.stop(GRACE).await.unwrap();
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Stopped);
    sandbox.remove(RemoveOptions::default()).await.unwrap();
    assert_eq!(code(sandbox.inspect().await), ErrorCode::NotFound);
}

/// A sandbox is found by id and by name. Without a name, the id is the name.
pub async fn sandbox_is_found_by_id_and_by_name(stage: &Stage) {
    let named = stage.create(&SandboxSpec { name: Some(stage.name("by-name")), ..stage.spec() }).await;
    let unnamed = stage.create(&stage.spec()).await;
    let provider = stage.provider();
    assert_eq!(provider.get(&stage.name("by-name")).await.unwrap().id, *named.id());
    assert_eq!(provider.get(named.id().as_str()).await.unwrap().name, stage.name("by-name"));
    assert_eq!(provider.get(unnamed.id().as_str()).await.unwrap().name, unnamed.id().as_str());
}

/// All sandboxes are listed once, whatever their state.
pub async fn all_sandboxes_are_listed(stage: &Stage) {
    assert_eq!(stage.provider().list().await.unwrap(), []);
    let created = stage.create(&stage.spec()).await;
    let running = stage.running().await;
    let mut listed: Vec<_> =
        stage.provider().list().await.unwrap().into_iter().map(|info| (info.id, info.status)).collect();
    let mut expected = vec![(created.id().clone(), Status::Created), (running.id().clone(), Status::Running)];
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(listed, expected);
}

/// If several sandboxes request a name at the same time, exactly one gets it. The name is free again after its removal.
pub async fn name_is_given_to_one_sandbox_only(stage: &Stage) {
    let spec = SandboxSpec { name: Some(stage.name("only-one")), ..stage.spec() };
    let attempts = futures_util::future::join_all((0..4).map(|_| stage.try_create(&spec))).await;
    let (made, refused): (Vec<_>, Vec<_>) = attempts.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1);
    assert!(refused.into_iter().all(|attempt| code(attempt) == ErrorCode::AlreadyExists));
    assert_eq!(stage.provider().list().await.unwrap().len(), 1);
    let first = made.into_iter().next().unwrap().unwrap();
    assert_eq!(code(stage.try_create(&spec).await), ErrorCode::AlreadyExists);
    first.remove(FORCE).await.unwrap();
    stage.create(&spec).await;
}

/// A renamed sandbox keeps running. Every process finds it only by its new name.
pub async fn renamed_sandbox_is_found_by_its_new_name_only(stage: &Stage) {
    let (old, new) = (stage.name("old"), stage.name("new"));
    let sandbox = stage.started(&SandboxSpec { name: Some(old.clone()), ..stage.spec() }).await;
    sandbox.rename(&new).await.unwrap();
    let provider = stage.reopen();
    assert_eq!(provider.get(&new).await.unwrap().id, *sandbox.id());
    assert_eq!(sandbox.inspect().await.unwrap().name, new);
    assert_eq!(code(provider.get(&old).await), ErrorCode::NotFound);
    assert_eq!(ok(&sandbox, "echo hello").await, "hello");
    sandbox.rename(&new).await.unwrap();
    // A name that is in use cannot be taken. The old name is free.
    let other = stage.create(&SandboxSpec { name: Some(old.clone()), ..stage.spec() }).await;
    assert_eq!(code(other.rename(&new).await), ErrorCode::AlreadyExists);
    assert_eq!(code(other.rename("not/a/name").await), ErrorCode::InvalidConfig);
    assert_eq!(provider.get(&old).await.unwrap().id, *other.id());
    assert_eq!(provider.get(&new).await.unwrap().id, *sandbox.id());
    other.remove(FORCE).await.unwrap();
    assert_eq!(code(other.rename("gone").await), ErrorCode::NotFound);
    // It keeps the name after a restart.
    sandbox.stop(GRACE).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(provider.get(&new).await.unwrap().status, Status::Running);
    // A tied sandbox cannot be renamed, because it belongs to a command.
    let tied = stage.create(&SandboxSpec { tied: true, ..stage.spec() }).await;
    assert_eq!(code(tied.rename(&stage.name("mine")).await), ErrorCode::Conflict);
    tied.remove(FORCE).await.unwrap();
}

/// A paused sandbox runs nothing and loses nothing. It can be resumed, stopped and removed.
pub async fn paused_sandbox_runs_nothing_and_resumes(stage: &Stage) {
    let sandbox = stage.running().await;
    if stage.mode().pause == Support::Refused {
        assert_eq!(code(sandbox.pause().await), ErrorCode::Unsupported);
        assert_eq!(code(sandbox.unpause().await), ErrorCode::Unsupported);
        return;
    }
    ok(&sandbox, "(i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.02; done) > /dev/null 2>&1 &").await;
    let count = async || ok(&sandbox, "cat /tmp/count 2> /dev/null || echo 0").await.parse::<u64>().unwrap_or(0);
    eventually("it counts", async || count().await > 10).await;
    for _ in 0..2 {
        sandbox.pause().await.unwrap();
    }
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Paused);
    sandbox.hang_up().await;
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["true"])).await), ErrorCode::Stopped);
    assert_eq!(code(sandbox.remove(RemoveOptions::default()).await), ErrorCode::Conflict);
    for _ in 0..2 {
        sandbox.unpause().await.unwrap();
    }
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Running);
    let before = count().await;
    eventually("it goes on", async || count().await > before).await;
    // A tied sandbox cannot be paused: whoever waits for its command would wait forever.
    let tied = stage.create(&SandboxSpec { tied: true, ..stage.spec() }).await;
    tied.start().await.unwrap();
    assert_eq!(code(tied.pause().await), ErrorCode::Conflict);
    tied.remove(FORCE).await.unwrap();
    // A paused sandbox can be stopped, and removed by force.
    sandbox.pause().await.unwrap();
    sandbox.stop(GRACE).await.unwrap();
    assert_eq!(sandbox.inspect().await.unwrap().status, Status::Stopped);
    assert_eq!(code(sandbox.pause().await), ErrorCode::Stopped);
    sandbox.start().await.unwrap();
    sandbox.pause().await.unwrap();
    sandbox.remove(FORCE).await.unwrap();
    assert_eq!(code(sandbox.inspect().await), ErrorCode::NotFound);
}

/// A name that is not valid in paths and labels is refused.
pub async fn invalid_name_is_refused(stage: &Stage) {
    for name in ["", "../x", "a/b", "UPPER", "new\nline", "-dash"] {
        let spec = SandboxSpec { name: Some(name.into()), ..stage.spec() };
        assert_eq!(code(stage.try_create(&spec).await), ErrorCode::InvalidConfig, "{name:?}");
    }
}

/// Every call for an unknown sandbox fails with "not found".
pub async fn unknown_sandbox_is_not_found(stage: &Stage) {
    let provider = stage.provider();
    let id = SandboxId::new("no-such-sandbox").unwrap();
    assert_eq!(code(provider.get(id.as_str()).await), ErrorCode::NotFound);
    assert_eq!(code(provider.start(&id).await), ErrorCode::NotFound);
    assert_eq!(code(provider.stop(&id, GRACE).await), ErrorCode::NotFound);
    assert_eq!(code(provider.remove(&id, FORCE).await), ErrorCode::NotFound);
    assert_eq!(code(provider.dial(&id).await), ErrorCode::NotFound);
    assert_eq!(code(provider.logs(&id, LogOptions::default()).await), ErrorCode::NotFound);
}

/// Commands for a sandbox that does not run fail with "stopped", before its start and after its stop.
pub async fn commands_fail_unless_the_sandbox_runs(stage: &Stage) {
    let sandbox = stage.create(&stage.spec()).await;
    let echo = ExecSpec::argv(["echo"]);
    assert_eq!(code(sandbox.exec(&echo).await), ErrorCode::Stopped);
    sandbox.start().await.unwrap();
    sandbox.exec(&echo).await.unwrap();
    sandbox.stop(GRACE).await.unwrap();
    assert_eq!(code(sandbox.exec(&echo).await), ErrorCode::Stopped);
    assert_eq!(code(sandbox.files(None).await), ErrorCode::Stopped);
}

/// Starting a running sandbox and stopping a stopped one are no errors.
pub async fn starting_and_stopping_twice_succeeds(stage: &Stage) {
    let sandbox = stage.create(&stage.spec()).await;
    sandbox.stop(GRACE).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(ok(&sandbox, "echo still here").await, "still here");
    sandbox.stop(GRACE).await.unwrap();
    sandbox.stop(GRACE).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(ok(&sandbox, "echo back").await, "back");
}

/// Files survive a stop: those in the workspace, and all others if the sandbox has its own root filesystem.
pub async fn files_survive_a_stop(stage: &Stage) {
    let sandbox = stage.running().await;
    let mut paths = vec![at(&sandbox, "kept")];
    if stage.mode().backing != kennel_types::Backing::Host {
        paths.push("/var/deep/kept".into());
    }
    for path in &paths {
        files(&sandbox).await.write(path, path.as_bytes(), WriteOptions::default()).await.unwrap();
    }
    sandbox.stop(GRACE).await.unwrap();
    sandbox.start().await.unwrap();
    for path in &paths {
        assert_eq!(files(&sandbox).await.read(path, 1000).await.unwrap(), path.as_bytes());
    }
}

/// A later process finds the sandbox, uses it and removes it.
pub async fn sandbox_is_found_by_a_later_process(stage: &Stage) {
    let sandbox = stage.started(&SandboxSpec { name: Some(stage.name("lasting")), ..stage.spec() }).await;
    let later = stage.reopen();
    assert_eq!(later.list().await.unwrap().len(), 1);
    let found = Sandbox::find(later.clone(), &stage.name("lasting")).await.unwrap();
    assert_eq!(found.info().id, *sandbox.id());
    assert_eq!(found.info().workdir, sandbox.info().workdir);
    assert_eq!(found.info().status, Status::Running);
    assert_eq!(ok(&found, "echo found").await, "found");
    found.stop(GRACE).await.unwrap();
    found.start().await.unwrap();
    assert_eq!(ok(&sandbox, "echo restarted").await, "restarted");
    found.remove(FORCE).await.unwrap();
    assert_eq!(code(sandbox.inspect().await), ErrorCode::NotFound);
}

/// A running sandbox is removed only by force. Otherwise it keeps running.
pub async fn running_sandbox_is_removed_by_force_only(stage: &Stage) {
    let sandbox = stage.running().await;
    let error = sandbox.remove(RemoveOptions::default()).await.expect_err("it runs");
    assert_ne!(error.code(), ErrorCode::Internal, "{error}");
    assert_eq!(ok(&sandbox, "echo alive").await, "alive");
    sandbox.remove(FORCE).await.unwrap();
    assert_eq!(code(sandbox.inspect().await), ErrorCode::NotFound);
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["echo"])).await), ErrorCode::NotFound);
}

/// Stopping a sandbox ends its commands, and their readers are told.
pub async fn stopping_ends_commands(stage: &Stage) {
    let sandbox = stage.running().await;
    let mut sleep = ExecSpec::argv(["sleep", "1000"]);
    let mark = stage.mark(&mut sleep, "stopped");
    let mut exec = sandbox.exec(&sleep).await.unwrap();
    sandbox.stop(GRACE).await.unwrap();
    let end = tokio::time::timeout(SOON, exec.next()).await.expect("the reader learns of it");
    match end {
        Err(error) => assert_eq!(error.code(), ErrorCode::Stopped),
        Ok(event) => {
            assert!(matches!(event, kennel_core::ExecEvent::Exited(status) if status.signal.is_some()), "{event:?}");
        }
    }
    assert_eq!(crate::host::marked(&mark), [0; 0]);
}

/// The events of a sandbox are reported in order.
pub async fn events_are_reported_in_order(stage: &Stage) {
    let mut events = stage.provider().watch().await.unwrap();
    // One step at a time: a provider without a daemon sees only states that last a moment.
    let mut next = async || {
        let event = tokio::time::timeout(SOON, events.next()).await.expect("an event comes");
        event.expect("the stream goes on").unwrap()
    };
    let sandbox = stage.create(&stage.spec()).await;
    let id = sandbox.id();
    let mut expect = async |kind: EventKind| {
        let event = next().await;
        assert_eq!((event.sandbox.as_ref(), event.kind), (Some(id), kind));
        assert_eq!(event.provider, stage.provider().name());
        assert!(event.time_ms > 1_600_000_000_000, "{}", event.time_ms);
        event
    };
    expect(EventKind::Created).await;
    sandbox.start().await.unwrap();
    expect(EventKind::Started).await;
    if stage.mode().pause == Support::Given {
        sandbox.pause().await.unwrap();
        expect(EventKind::Paused).await;
        sandbox.unpause().await.unwrap();
        expect(EventKind::Resumed).await;
    }
    let name = stage.name("renamed");
    sandbox.rename(&name).await.unwrap();
    assert_eq!(expect(EventKind::Renamed).await.name, Some(name));
    sandbox.stop(GRACE).await.unwrap();
    assert_eq!(expect(EventKind::Stopped).await.cause, Some(EndCause::Requested));
    assert_eq!(sandbox.inspect().await.unwrap().end_cause, Some(EndCause::Requested));
    sandbox.start().await.unwrap();
    expect(EventKind::Started).await;
    assert_eq!(sandbox.inspect().await.unwrap().end_cause, None);
    // If it is removed while it runs, a stop is reported first.
    sandbox.remove(FORCE).await.unwrap();
    expect(EventKind::Stopped).await;
    expect(EventKind::Removed).await;
    if stage.mode().keeper == Support::Refused {
        return;
    }
    let spec = SandboxSpec { command: Some(["sh", "-c", "exit 7"].map(Into::into).to_vec()), ..stage.spec() };
    let sandbox = stage.create(&spec).await;
    sandbox.start().await.unwrap();
    let ended = loop {
        let event = next().await;
        if (event.sandbox.as_ref(), event.kind) == (Some(sandbox.id()), EventKind::Stopped) {
            break event;
        }
    };
    assert_eq!((ended.exit_code, ended.cause), (Some(7), Some(EndCause::Exited)));
    assert_eq!(sandbox.inspect().await.unwrap().end_cause, Some(EndCause::Exited));
}

/// The caller chooses the id, and no two sandboxes have the same.
pub async fn caller_chooses_the_id(stage: &Stage) {
    let id = kennel_core::new_id().unwrap();
    let info = stage.provider().create(&id, &stage.spec()).await.unwrap();
    assert_eq!(info.id, id);
    for provider in [stage.provider(), stage.reopen()] {
        assert_eq!(provider.get(id.as_str()).await.unwrap().id, id);
        let error = provider.create(&id, &stage.spec()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AlreadyExists, "{error}");
    }
    assert_eq!(stage.provider().get(id.as_str()).await.unwrap().id, id, "the failed attempts changed nothing");
    stage.provider().remove(&id, FORCE).await.unwrap();
    stage.provider().create(&id, &stage.spec()).await.unwrap();
    stage.provider().remove(&id, FORCE).await.unwrap();
}

/// `get` returns the requested labels and settings, also to a later process.
pub async fn labels_and_settings_are_returned(stage: &Stage) {
    let mut spec = stage.spec();
    spec.labels.insert("colour".into(), "green".into());
    spec.project = Some("/home/someone/project".into());
    spec.profile = Some("dev".into());
    spec.workdir = Some(if stage.mode().backing == kennel_types::Backing::Host {
        stage.home().workspace().to_string_lossy().into_owned()
    } else {
        "/tmp".into()
    });
    let sandbox = stage.create(&spec).await;
    for provider in [stage.provider(), stage.reopen()] {
        let info = provider.get(sandbox.id().as_str()).await.unwrap();
        let label = |name: &str| info.labels.get(name).map(String::as_str);
        assert_eq!(label("colour"), Some("green"));
        assert_eq!((label("kennel"), label("kennel.session")), (Some("true"), None), "{:?}", info.labels);
        assert_eq!((label("kennel.project"), label("kennel.profile")), (spec.project.as_deref(), Some("dev")));
        assert!(label("kennel.owner").is_some_and(|owner| owner.contains(':')), "{:?}", info.labels);
        assert_eq!(Some(&info.workdir), spec.workdir.as_ref());
        assert_eq!(info.image, spec.image);
        assert_eq!(info.workspace, spec.workspace);
        assert!(info.created_ms > 1_600_000_000_000, "{}", info.created_ms);
    }
    let session = SandboxSpec { session: Some("s-1".into()), ..stage.spec() };
    let info = stage.create(&session).await.inspect().await.unwrap();
    assert_eq!(info.labels.get("kennel.session").map(String::as_str), Some("s-1"));
    assert_eq!((info.labels.get("kennel.project"), info.labels.get("kennel.store")), (None, None));
    let stored = SandboxSpec { store: Some("0123abcd".into()), ..session };
    let id = stage.create(&stored).await.id().clone();
    // A later process lists it with both labels: reconciliation depends on that.
    let listed = stage.reopen().list().await.unwrap();
    let labels = &listed.iter().find(|info| info.id == id).expect("it is listed").labels;
    let label = |name: &str| labels.get(name).map(String::as_str);
    assert_eq!((label("kennel.session"), label("kennel.store")), (Some("s-1"), Some("0123abcd")));
}

/// Labels with the prefix of Kennel's own are refused.
pub async fn reserved_labels_are_refused(stage: &Stage) {
    for name in ["", "kennel", "kennel.session", "kennel.anything"] {
        let labels = [(name.to_owned(), "x".to_owned())].into();
        let refused = stage.try_create(&SandboxSpec { labels, ..stage.spec() }).await;
        assert_eq!(code(refused), ErrorCode::InvalidConfig, "{name:?}");
    }
    assert_eq!(stage.provider().list().await.unwrap(), []);
}

/// Several sandboxes are created, used and removed at the same time.
pub async fn many_sandboxes_at_once(stage: &Stage) {
    let spec = stage.spec();
    let lives = (0..4).map(async |number| {
        let sandbox = stage.started(&spec).await;
        assert_eq!(ok(&sandbox, &format!("echo {number}")).await, number.to_string());
        sandbox.remove(FORCE).await.unwrap();
    });
    futures_util::future::join_all(lives).await;
    assert_eq!(stage.provider().list().await.unwrap(), []);
}

/// A sandbox with an idle timeout stops when it is not used, but not while a command runs.
pub async fn idle_sandbox_stops(stage: &Stage) {
    let sandbox = stage.started(&SandboxSpec { idle_seconds: Some(1), ..stage.spec() }).await;
    let mut exec = sandbox.exec(&ExecSpec::shell("sleep 2; echo done")).await.unwrap();
    let (printed, status) = crate::inside::read_to_end(&mut exec).await;
    assert_eq!((printed.as_slice(), status.code), (b"done\n".as_slice(), Some(0)));
    drop(exec);
    sandbox.hang_up().await;
    eventually("it stops by itself", async || sandbox.inspect().await.unwrap().status == Status::Stopped).await;
}

/// With auto-remove, a sandbox is removed when it ends, however it ends, and not before.
pub async fn ended_sandbox_is_auto_removed(stage: &Stage) {
    let gone = async |sandbox: &Sandbox| {
        eventually("it is gone", async || {
            sandbox.inspect().await.is_err_and(|error| error.code() == ErrorCode::NotFound)
        })
        .await;
    };
    let name = stage.name("goes");
    let asked = SandboxSpec { auto_remove: true, name: Some(name.clone()), ..stage.spec() };
    let stopped = stage.create(&asked).await;
    assert_eq!(stopped.inspect().await.unwrap().status, Status::Created);
    stopped.start().await.unwrap();
    ok(&stopped, "echo hi").await;
    stopped.hang_up().await;
    assert_eq!(stopped.inspect().await.unwrap().status, Status::Running, "it outlives its creator");
    stopped.stop(Duration::from_secs(5)).await.unwrap();
    gone(&stopped).await;
    // Its name is free again.
    let ended = SandboxSpec { command: Some(vec!["true".to_owned()]), ..asked.clone() };
    let ended = stage.create(&ended).await;
    ended.start().await.unwrap();
    gone(&ended).await;
    // If its command cannot be run, the start still fails with an error.
    let missing = SandboxSpec { command: Some(vec!["no-such-program".to_owned()]), ..asked.clone() };
    let missing = stage.create(&missing).await;
    let error = missing.start().await.unwrap_err();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::StartFailed, 127), "{error}");
    let _ = missing.remove(FORCE).await;
    gone(&missing).await;
    let removed = stage.started(&asked).await;
    removed.remove(FORCE).await.unwrap();
    gone(&removed).await;
    assert_eq!(stage.provider().list().await.unwrap(), []);
}
