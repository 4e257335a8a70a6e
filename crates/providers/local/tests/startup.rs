//! A start that exceeds its time limit: it fails, and all its processes end.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_keeper_bin::KEEPER;
use kennel_local::Local;
use kennel_testkit::{Home, host, programs, within};
use kennel_types::{ErrorCode, ExecSpec, NextStep, SandboxSpec, Status};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_silent_keeper_fails_the_start() {
    let home = Home::new();
    let dir = home.path().join("programs");
    let provider: Arc<dyn Provider> = Arc::new(Local::new(home.state(), dir.clone()));
    let program = KEEPER.install(&dir).unwrap();
    // It reads nothing, not even the end of the connection.
    let real = programs::replace(&program, "exec tail -f \"$0\"");
    let spec = SandboxSpec { startup_ms: Some(200), ..SandboxSpec::default() };
    let sandbox = Sandbox::create(provider, &spec).await.unwrap();
    let error = sandbox.start().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
    assert_eq!(error.to_string(), format!("start sandbox {}: it took longer than 200ms", sandbox.id()));
    assert!(matches!(error.next_step(), Some(NextStep::AllowLongerStart { .. })), "{error:?}");
    let gone = within(Duration::from_secs(90), async || host::processes(&home.mark()).is_empty()).await;
    assert!(gone, "{:?}", host::leftovers(&home.mark(), &[], &home.state()));
    assert_ne!(sandbox.inspect().await.unwrap().status, Status::Running);
    // The sandbox is intact: with more time it starts.
    programs::put(&program, &real);
    let patient = SandboxSpec { startup_ms: None, ..spec };
    let patient = Sandbox::create(sandbox.provider().clone(), &patient).await.unwrap();
    patient.start().await.unwrap();
    assert!(patient.run(&ExecSpec::argv(["true"]), None, 100).await.unwrap().status.success());
    for sandbox in [sandbox, patient] {
        sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    }
}

#[tokio::test]
async fn a_silent_keeper_fails_the_first_command_of_its_creator() {
    let home = Home::new();
    let dir = home.path().join("programs");
    let provider: Arc<dyn Provider> = Arc::new(Local::new(home.state(), dir.clone()));
    programs::replace(&KEEPER.install(&dir).unwrap(), "exec cat \"$0\" -");
    let spec = SandboxSpec { startup_ms: Some(200), tied: true, ..SandboxSpec::default() };
    let sandbox = Sandbox::create(provider, &spec).await.unwrap();
    let keeper = sandbox.launch().await.unwrap();
    let error = sandbox.exec(&ExecSpec::argv(["true"])).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
    assert_eq!(error.to_string(), "start the sandbox: it took longer than 200ms");
    assert!(matches!(error.next_step(), Some(NextStep::AllowLongerStart { .. })), "{error:?}");
    drop(keeper);
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    let gone = within(Duration::from_secs(90), async || host::processes(&home.mark()).is_empty()).await;
    assert!(gone, "{:?}", host::leftovers(&home.mark(), &[], &home.state()));
}
