//! The resident process, on sandboxes in memory.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_engine::{Caller, Directories, Engine, EngineEvent, EventReader, Resident};
use kennel_mock::Mock;
use kennel_types::{ErrorCode, EventKind, SandboxSpec, Status};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn engine(dir: &Path, mock: &Mock) -> Engine {
    let directories = Directories::new(dir.join("state"), dir.join("data"), None);
    Engine::with_providers(Caller::default(), directories, [Arc::new(mock.clone()) as Arc<dyn Provider>])
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
