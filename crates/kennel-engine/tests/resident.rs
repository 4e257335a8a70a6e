//! The resident process, on sandboxes in memory.

mod common;

use common::pausable::Pausable;
use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_engine::{Caller, Directories, Engine, EngineEvent, EventReader, Resident};
use kennel_mock::{Call, Fault, Mock};
use kennel_types::{EndCause, ErrorCode, EventKind, ExecSpec, ProviderKind, SandboxSpec, Status};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

fn engine(dir: &Path, mock: &Mock) -> Engine {
    engine_with(dir, [Arc::new(mock.clone()) as Arc<dyn Provider>])
}

fn engine_with(dir: &Path, providers: impl IntoIterator<Item = Arc<dyn Provider>>) -> Engine {
    let directories = Directories::new(dir.join("state"), dir.join("data"), None);
    Engine::with_providers(Caller::default(), directories, providers)
}

/// An engine with two providers whose sandboxes can be paused.
struct Two {
    dir: tempfile::TempDir,
    native: Pausable,
    docker: Pausable,
    engine: Engine,
}

impl Two {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (native, docker) = (Pausable::named(ProviderKind::Native), Pausable::named(ProviderKind::Docker));
        let providers = [&native, &docker].map(|provider| Arc::new(provider.clone()) as Arc<dyn Provider>);
        let engine = engine_with(dir.path(), providers);
        Self { dir, native, docker, engine }
    }

    /// Starts a sandbox that is paused after one second without use, and stopped after this many.
    async fn sandbox(&self, kind: ProviderKind, stop: Option<u64>) -> Sandbox {
        let spec = SandboxSpec { idle_pause_ms: Some(1000), idle_seconds: stop, ..SandboxSpec::default() };
        let sandbox = Sandbox::create(self.engine.provider(kind).unwrap(), &spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }

    async fn resident(&self) -> JoinHandle<kennel_core::Result<()>> {
        tokio::spawn(Resident::begin(&self.engine).await.unwrap().run(std::future::pending()))
    }

    /// Whether the resident process has noted that it has paused a sandbox.
    fn is_noted(&self, sandbox: &Sandbox) -> bool {
        self.dir.path().join(format!("state/idle/{}.paused", sandbox.id())).exists()
    }
}

async fn end(resident: JoinHandle<kennel_core::Result<()>>) {
    resident.abort();
    let _ = resident.await;
}

async fn echo(sandbox: &Sandbox) -> String {
    sandbox.run(&ExecSpec::argv(["echo", "awake"]), None, 100).await.unwrap().stdout_text()
}

/// While the resident process stops a sandbox, nobody can use it. So a keeper that never replies is given up.
#[tokio::test(start_paused = true)]
async fn silent_keeper_does_not_keep_its_sandbox_from_use() {
    let two = Two::new();
    let resident = two.resident().await;
    let hostile = two.sandbox(ProviderKind::Native, Some(60)).await;
    kennel_testkit::eventually("it is paused", async || two.native.is_paused(hostile.id())).await;
    hostile.hang_up().await;
    two.native.silence(true);
    kennel_testkit::eventually("it was to be stopped", async || !two.native.is_paused(hostile.id())).await;
    assert!(two.is_noted(&hostile), "the resident process waits for the keeper's reply");
    // Others are watched meanwhile.
    let other = two.sandbox(ProviderKind::Docker, None).await;
    kennel_testkit::eventually("the other is paused", async || two.docker.is_paused(other.id())).await;
    kennel_testkit::eventually("it is given up", async || !two.is_noted(&hostile)).await;
    two.native.silence(false);
    assert_eq!(echo(&hostile).await, "awake\n");
    // Now the keeper replies. It is asked again, and the sandbox is paused and stopped after all.
    hostile.hang_up().await;
    kennel_testkit::eventually("it is stopped", async || {
        hostile.inspect().await.is_ok_and(|info| info.status == Status::Stopped)
    })
    .await;
    assert_eq!(hostile.inspect().await.unwrap().end_cause, Some(EndCause::Idle));
    end(resident).await;
}

/// A provider that does not respond keeps no sandbox of another one asleep, and loses nothing.
#[tokio::test(start_paused = true)]
async fn engine_that_is_down_keeps_no_other_asleep() {
    let two = Two::new();
    let (one, other) = (two.sandbox(ProviderKind::Native, None).await, two.sandbox(ProviderKind::Docker, None).await);
    let until_paused = async || {
        let resident = two.resident().await;
        kennel_testkit::eventually("both are paused", async || {
            two.native.is_paused(one.id()) && two.docker.is_paused(other.id())
        })
        .await;
        end(resident).await;
    };
    let down = || two.docker.mock().fault(Fault::Fails(Call::Get, ErrorCode::NotAvailable));

    until_paused().await;
    let mut planned = two.engine.wake_sleeping(false).await.unwrap();
    planned.sort();
    let mut both = vec![one.id().clone(), other.id().clone()];
    both.sort();
    assert_eq!(planned, both);
    down();
    assert_eq!(two.engine.wake_sleeping(true).await.unwrap(), [one.id().clone()]);
    assert!(!two.native.is_paused(one.id()) && two.docker.is_paused(other.id()) && two.is_noted(&other));
    assert_eq!(two.engine.wake_sleeping(true).await.unwrap(), [other.id().clone()], "once it responds");
    assert_eq!(two.engine.wake_sleeping(true).await.unwrap(), []);

    until_paused().await;
    down();
    let resident = Resident::begin(&two.engine).await.expect("the other provider is here");
    assert!(!two.native.is_paused(one.id()) && two.docker.is_paused(other.id()));
    assert_eq!(echo(&other).await, "awake\n", "its next use wakes it");
    drop(resident);
}

/// Returns the next event: its number, its kind, and the sandbox or its state.
async fn next(reader: &mut EventReader) -> (u64, String) {
    let event = tokio::time::timeout(Duration::from_mins(1), reader.next()).await.expect("an event");
    let what = match event.event {
        EngineEvent::Happened(event) => event.kind.name().to_owned(),
        EngineEvent::Listed(listed) => format!("listed {}", listed.status),
    };
    (event.number, what)
}

#[tokio::test]
async fn events_are_numbered_over_restarts_of_the_resident() {
    let (dir, mock) = (tempfile::tempdir().unwrap(), Mock::new());
    let engine = engine(dir.path(), &mock);
    let resident = Resident::begin(&engine).await.unwrap();
    let refused = Resident::begin(&engine).await.err().expect("there is one already");
    assert_eq!(refused.code(), ErrorCode::Conflict);

    let mut reader = resident.events().after(Some(0));
    let running = tokio::spawn(resident.run(std::future::pending()));
    assert_eq!(next(&mut reader).await.1, EventKind::Missed.name(), "earlier events are unknown");
    let provider = engine.provider(kennel_types::ProviderKind::Mock).unwrap();
    let sandbox = Sandbox::create(provider.clone(), &SandboxSpec::default()).await.unwrap();
    sandbox.start().await.unwrap();
    let (first, created) = next(&mut reader).await;
    let (last, started) = next(&mut reader).await;
    assert_eq!((created.as_str(), started.as_str()), ("created", "started"));
    assert!(last > first);

    running.abort();
    let _ = running.await;
    let unseen = Sandbox::create(provider, &SandboxSpec::default()).await.unwrap();
    sandbox.stop(Duration::ZERO).await.unwrap();

    let resident = Resident::begin(&engine).await.unwrap();
    let mut reader = resident.events().after(Some(last));
    let running = tokio::spawn(resident.run(std::future::pending()));
    let (number, missed) = next(&mut reader).await;
    assert_eq!(missed, "missed");
    assert!(number > last);
    let mut listed = Vec::new();
    while listed.len() < 2 {
        let (_, what) = next(&mut reader).await;
        // The stream contains it too, because a reader may start here.
        if what != "missed" {
            listed.push(what);
        }
    }
    listed.sort();
    assert_eq!(listed, [format!("listed {}", Status::Created), format!("listed {}", Status::Stopped)]);
    unseen.remove(RemoveOptions::default()).await.unwrap();
    assert_eq!(next(&mut reader).await.1, "removed");
    running.abort();
}
