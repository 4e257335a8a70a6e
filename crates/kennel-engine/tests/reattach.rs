//! Restores lost connections to commands that outlive them.

use kennel_core::{Exec, ExecEvent, Provider, Sandbox};
use kennel_engine::{Reattached, reattach};
use kennel_mock::{Answer, Call, Fault, Mock};
use kennel_types::{ErrorCode, ExecSpec, NextStep, SandboxSpec};
use std::sync::Arc;

async fn start(mock: &Mock, words: &[&str]) -> (Sandbox, Exec) {
    let provider: Arc<dyn Provider> = Arc::new(mock.clone());
    let sandbox = Sandbox::create(provider, &SandboxSpec::default()).await.unwrap();
    sandbox.start().await.unwrap();
    let exec = sandbox.exec(&ExecSpec { detached: true, ..ExecSpec::argv(words.iter().copied()) }).await.unwrap();
    (sandbox, exec)
}

#[tokio::test]
async fn output_continues_where_the_connection_was_lost() {
    let mock = Mock::new();
    mock.on(["talk"], Answer::exit(3).stdout("one ").stdout("two ").stdout("three"));
    let mut lost = 0;
    for frames in 2..6 {
        mock.fault(Fault::HangUpAfter(frames));
        let (sandbox, mut exec) = start(&mock, &["talk"]).await;
        let mut text = Vec::new();
        let status = loop {
            match exec.next().await {
                Ok(ExecEvent::Output(_, bytes)) => text.extend(bytes),
                Ok(ExecEvent::Exited(status)) => break status,
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::Stopped, "{error}");
                    lost += 1;
                    match reattach(&sandbox, &exec, None).await.unwrap() {
                        Reattached::Again(again) => exec = again,
                        Reattached::Ended(status) => break status,
                    }
                }
            }
        };
        let text = String::from_utf8(text).unwrap();
        assert_eq!((status.code, text.as_str()), (Some(3), "one two three"), "after {frames} frames");
    }
    assert!(lost > 0, "no connection was lost");
}

#[tokio::test(start_paused = true)]
async fn after_several_attempts_the_caller_is_told_how_to_go_on() {
    let mock = Mock::new();
    mock.on(["hang"], Answer::exit(0).hold(&kennel_mock::Gate::new()));
    let (sandbox, exec) = start(&mock, &["hang"]).await;
    for _ in 0..6 {
        mock.fault(Fault::Fails(Call::Dial, ErrorCode::NotAvailable));
    }
    let error = reattach(&sandbox, &exec, None).await.err().expect("nobody responds");
    assert_eq!(error.code(), ErrorCode::AttachFailed, "{error}");
    assert_eq!(error.next_step(), Some(&NextStep::AttachAgain { name: sandbox.info().name.clone() }));
    // A later attempt works.
    assert!(matches!(reattach(&sandbox, &exec, None).await, Ok(Reattached::Again(_))));
}
