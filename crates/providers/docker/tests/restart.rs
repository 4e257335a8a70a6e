//! A private engine that is killed and started again, while commands run in ten sandboxes and a watcher reads events.

use futures_util::StreamExt;
use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix, UnixDialer};
use kennel_testkit::docker::Private;
use kennel_testkit::{Home, docker, eventually, inside};
use kennel_types::{ErrorCode, EventKind, ExecSpec, NetworkMode, SandboxSpec, Status};
use std::collections::BTreeSet;
use std::sync::Arc;

const FORCE: RemoveOptions = RemoveOptions { volumes: true, force: true };

fn provider(home: &Home, engine: &Private) -> Arc<Docker> {
    let options = DockerOptions {
        state_dir: home.state(),
        program_dir: home.programs(),
        expected: EngineKind::Docker,
        installation: home.mark(),
        name_prefix: NamePrefix::default(),
    };
    Arc::new(Docker::new(options, Arc::new(UnixDialer::new(engine.socket()))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_loses_no_sandbox() {
    let mut engine = Private::start();
    let home = Home::new();
    let image = docker::image_on(&engine.socket());
    let ours = provider(&home, &engine);
    let spec = SandboxSpec { image: Some(image), network: Some(NetworkMode::None), ..SandboxSpec::default() };
    let mut events = ours.watch().await.unwrap();
    // A watcher reads events until each sandbox was started twice.
    let listener = tokio::spawn(async move {
        let mut told: Vec<(String, EventKind)> = Vec::new();
        while told.iter().filter(|(_, kind)| *kind == EventKind::Started).count() < 20 {
            let event = events.next().await.unwrap().unwrap();
            told.push((event.sandbox.expect("every event here has a sandbox").to_string(), event.kind));
        }
        told
    });
    let made = (0..10).map(async |number| {
        let named = SandboxSpec { name: Some(format!("box-{number}")), ..spec.clone() };
        let sandbox = Sandbox::create(ours.clone(), &named).await.unwrap();
        sandbox.start().await.unwrap();
        let exec = sandbox.exec(&ExecSpec::shell("echo up; sleep 1000")).await.unwrap();
        (sandbox, exec)
    });
    let (sandboxes, mut running): (Vec<_>, Vec<_>) = futures_util::future::join_all(made).await.into_iter().unzip();
    for exec in &mut running {
        inside::read_until(exec, |seen| seen == b"up\n").await;
    }
    engine.kill();
    let error = ours.list().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAvailable, "not an empty list: {error}");
    engine.restart();
    let found: BTreeSet<String> = ours.list().await.unwrap().into_iter().map(|info| info.id.to_string()).collect();
    let made: BTreeSet<String> = sandboxes.iter().map(|sandbox| sandbox.id().to_string()).collect();
    assert_eq!(found, made, "none lost, none twice");
    // An engine ends the containers of the previous one and reports it, so that waiting clients are told.
    eventually("all have ended", async || {
        let infos = ours.list().await.unwrap();
        infos.iter().all(|info| info.status == Status::Stopped)
    })
    .await;
    for mut exec in running {
        let (_, ended) = tokio::time::timeout(inside::SOON, async {
            loop {
                match exec.next().await {
                    Ok(kennel_core::ExecEvent::Output(..)) => {}
                    Ok(kennel_core::ExecEvent::Exited(status)) => return (true, status.signal.is_some()),
                    Err(error) => return (true, error.code() == ErrorCode::Stopped),
                }
            }
        })
        .await
        .expect("a running call ends");
        assert!(ended, "with a clear error");
    }
    let again = sandboxes.iter().map(async |sandbox| {
        sandbox.start().await.unwrap();
        assert_eq!(inside::ok(sandbox, "echo again").await, "again");
    });
    futures_util::future::join_all(again).await;
    // The watcher has received every event exactly once.
    let told = tokio::time::timeout(inside::SOON, listener).await.expect("the watch goes on").unwrap();
    for id in &made {
        let of_it: Vec<EventKind> = told.iter().filter(|(told, _)| told == id).map(|(_, kind)| *kind).collect();
        use EventKind::{Created, Started, Stopped};
        assert_eq!(of_it, [Created, Started, Stopped, Started]);
    }
    let removed = futures_util::future::join_all(sandboxes.iter().map(|sandbox| sandbox.remove(FORCE))).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
}
