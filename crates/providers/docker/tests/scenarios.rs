//! Common problems with engines, and their error messages: on Docker and on Podman.

mod engines;

use engines::{EngineKind, Fixture, on_every_engine};
use kennel_core::{Provider, Sandbox};
use kennel_image::Credentials;
use kennel_testkit::inside;
use kennel_types::{EndCause, ErrorCode, ExecSpec, NextStep, SandboxSpec, Status};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

on_every_engine!(
    a_missing_image_is_an_error_with_a_hint,
    a_stopped_engine_is_an_error_with_a_hint,
    an_early_exit_shows_the_last_lines_of_the_log,
    a_command_that_takes_too_long_is_ended,
    commands_in_a_stopped_sandbox_fail,
    changes_by_other_programs_are_seen_at_once,
);

fn word(fixture: &Fixture) -> &'static str {
    match fixture.kind {
        EngineKind::Docker => "docker",
        EngineKind::Podman => "podman",
    }
}

async fn a_missing_image_is_an_error_with_a_hint(fixture: &Fixture) {
    let image = "localhost/kennel-test/no-such-image";
    let spec = SandboxSpec { image: Some(image.into()), ..fixture.spec() };
    let error = fixture.provider.create(&kennel_core::new_id().unwrap(), &spec).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
    assert_eq!(error.to_string(), format!("there is no image {image} on this engine"));
    let steps = [
        NextStep::run_on_host(format!("{} pull {image}", word(fixture))),
        NextStep::BuildImage { image: image.to_owned() },
    ];
    assert_eq!(error.next_step(), Some(&NextStep::either(steps)));
    fixture.clean(false).await;
}

async fn a_stopped_engine_is_an_error_with_a_hint(fixture: &Fixture) {
    let socket = fixture.home.path().join("engine.sock");
    let provider = fixture.open(&socket, Credentials::default());
    let title = if fixture.kind == EngineKind::Docker { "Docker" } else { "Podman" };
    for listened in [false, true] {
        if listened {
            // A socket file may be left of an engine that is gone.
            drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        }
        let error = provider.list().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotAvailable);
        assert_eq!(error.to_string(), format!("Cannot connect to {title} at {}. Is it running?", socket.display()));
        let Some(NextStep::RunOnHost { command, .. }) = error.next_step() else { panic!("{error:?}") };
        assert!(command.starts_with(word(fixture)) && command.contains("engine.sock"), "{command}");
        let probed = provider.probe().await;
        assert!(!probed.available && probed.next_step.is_some(), "{probed:?}");
    }
}

async fn an_early_exit_shows_the_last_lines_of_the_log(fixture: &Fixture) {
    let main = fixture.home.workspace().join("main");
    std::fs::write(&main, "#!/bin/sh\nfor i in $(seq 60); do echo line $i; done\n").unwrap();
    std::fs::set_permissions(&main, PermissionsExt::from_mode(0o755)).unwrap();
    let command = Some(vec!["/workspace/main".into()]);
    let spec = SandboxSpec { command, workspace: Some(fixture.home.workspace()), ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    kennel_testkit::eventually("its main process is over", async || {
        sandbox.inspect().await.unwrap().status == Status::Stopped
    })
    .await;
    // Now there is no program to run any more.
    std::fs::remove_file(&main).unwrap();
    let error = sandbox.start().await.unwrap_err();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::StartFailed, 127), "{error}");
    let text = error.to_string();
    let (told, lines) = text.split_once(" of its log:\n").unwrap();
    assert!(told.contains("ended with exit code 127"), "{text}");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[48]), (50, "line 12", "line 60"), "{text}");
    assert!(lines[49].contains("/workspace/main"), "{text}");
    fixture.clean(false).await;
}

async fn a_command_that_takes_too_long_is_ended(fixture: &Fixture) {
    let sandbox = fixture.started(&fixture.spec()).await;
    let script = "sleep 1000 & echo begun; sleep 1000";
    let spec = ExecSpec { timeout: Some(Duration::from_millis(300)), ..ExecSpec::shell(script) };
    let output = sandbox.run(&spec, None, 100).await.unwrap();
    assert!(output.status.timed_out && output.stdout == b"begun\n", "{output:?}");
    // Its processes are gone, and the sandbox still exists.
    assert_eq!(inside::sh(&sandbox, "pgrep sleep").await.stdout_text(), "");
    fixture.clean(false).await;
}

async fn commands_in_a_stopped_sandbox_fail(fixture: &Fixture) {
    let sandbox = Sandbox::create(fixture.provider.clone(), &fixture.spec()).await.unwrap();
    let told = async || sandbox.exec(&ExecSpec::argv(["true"])).await.err().unwrap();
    assert_eq!(told().await.code(), ErrorCode::Stopped, "it was never started");
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "echo hello").await, "hello");
    sandbox.stop(Duration::from_secs(5)).await.unwrap();
    let error = told().await;
    assert_eq!(error.code(), ErrorCode::Stopped);
    assert!(matches!(error.next_step(), Some(NextStep::StartSandbox { .. })), "{error:?}");
    fixture.clean(false).await;
}

async fn changes_by_other_programs_are_seen_at_once(fixture: &Fixture) {
    let name = format!("behind-{}", fixture.mark());
    let sandbox = fixture.started(&SandboxSpec { name: Some(name.clone()), ..fixture.spec() }).await;
    let container = format!("kennel-{name}");
    let told = async || sandbox.exec(&ExecSpec::argv(["true"])).await.err().unwrap().code();
    assert_eq!(inside::ok(&sandbox, "echo hello").await, "hello");
    fixture.ask(&["kill", &container]);
    let info = sandbox.inspect().await.unwrap();
    assert_eq!((info.status, info.exit_code), (Status::Stopped, None), "it has no main process");
    assert_eq!(info.end_cause, Some(EndCause::Killed));
    assert_eq!(told().await, ErrorCode::Stopped);
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, "echo again").await, "again");
    let renamed = format!("renamed-{}", fixture.mark());
    fixture.ask(&["rename", &container, &renamed]);
    assert_eq!(fixture.provider.get(&name).await.unwrap().id, *sandbox.id());
    fixture.ask(&["rm", "-f", &renamed]);
    assert_eq!(sandbox.inspect().await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(told().await, ErrorCode::NotFound);
    // Files that it left on disk are still removed.
    sandbox.remove(engines::ALL).await.unwrap();
    fixture.clean(false).await;
}
