//! The main process and its log.

use crate::inside::{SOON, log, ok};
use crate::{Stage, eventually};
use futures_util::StreamExt;
use kennel_core::{LogOptions, Position, Sandbox, WriteOptions};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, SandboxSpec, Status, Support};
use std::time::Duration;

const ALL: LogOptions = LogOptions { tail: None, follow: false };

async fn with_main(stage: &Stage, script: &str) -> Sandbox {
    let command = ["sh", "-c", script].map(ToOwned::to_owned).to_vec();
    stage.started(&SandboxSpec { command: Some(command), ..stage.spec() }).await
}

async fn ended(sandbox: &Sandbox) {
    eventually("the sandbox ends with its main process", async || {
        sandbox.inspect().await.unwrap().status == Status::Stopped
    })
    .await;
}

/// The log keeps both streams apart, and `get` returns the exit code, also to a later process.
pub async fn log_separates_streams_and_exit_code_is_returned(stage: &Stage) {
    let sandbox = with_main(stage, "echo out; echo err >&2; exit 7").await;
    ended(&sandbox).await;
    assert_eq!(sandbox.inspect().await.unwrap().exit_code, Some(7));
    assert_eq!(log(&sandbox, ALL).await, ("out\n".into(), "err\n".into()));
    let later = stage.again(stage.reopen(), &sandbox).await;
    assert_eq!(later.info().exit_code, Some(7));
    assert_eq!(log(&later, ALL).await, ("out\n".into(), "err\n".into()));
}

/// The log returns at most the requested number of last lines.
pub async fn last_lines_are_returned(stage: &Stage) {
    let sandbox = with_main(stage, "echo 1; echo 2; echo 3; echo 4; echo 5").await;
    ended(&sandbox).await;
    for (lines, expected) in [(0, ""), (1, "5\n"), (2, "4\n5\n"), (5, "1\n2\n3\n4\n5\n"), (50, "1\n2\n3\n4\n5\n")] {
        let options = LogOptions { tail: Some(lines), follow: false };
        assert_eq!(log(&sandbox, options).await.0, expected, "the last {lines}");
    }
}

/// A followed log returns existing lines, then new lines, and ends with the sandbox.
pub async fn followed_log_ends_with_the_sandbox(stage: &Stage) {
    let real = stage.mode().processes == Support::Given;
    let script =
        if real { "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two" } else { "echo one; sleep 1000" };
    let sandbox = with_main(stage, script).await;
    let mut chunks = sandbox.logs(LogOptions { tail: None, follow: true }).await.unwrap();
    let mut next = async || tokio::time::timeout(SOON, chunks.next()).await.expect("something comes");
    let first = next().await.expect("the first line").unwrap();
    assert_eq!((first.channel, first.bytes.as_slice()), (Channel::Stdout, b"one\n".as_slice()));
    if real {
        let go = crate::inside::at(&sandbox, "go");
        crate::inside::files(&sandbox).await.write(go, b"", WriteOptions::default()).await.unwrap();
        assert_eq!(next().await.expect("the second line").unwrap().bytes, b"two\n");
    } else {
        sandbox.stop(Duration::ZERO).await.unwrap();
    }
    assert!(next().await.is_none(), "the log ends with the sandbox");
}

/// Without a main process, the log is empty. The output of commands is not logged.
pub async fn log_is_empty_without_a_main_process(stage: &Stage) {
    let sandbox = stage.running().await;
    ok(&sandbox, "echo not for the log").await;
    assert_eq!(log(&sandbox, ALL).await, (String::new(), String::new()));
    assert_eq!(sandbox.main_process().await.unwrap(), None);
}

/// A client can attach to the main process like to any other command.
pub async fn main_process_can_be_attached(stage: &Stage) {
    let sandbox = with_main(stage, "echo hello; sleep 1000").await;
    let main = sandbox.main_process().await.unwrap().expect("there is one");
    let mut exec = sandbox.attach(main, Position::default(), None).await.unwrap();
    let seen = crate::inside::read_until(&mut exec, |seen| seen.ends_with(b"\n")).await;
    assert!(b"hello\n".ends_with(&seen));
    exec.signal(9);
    // The sandbox ends with it, so the connection may close before the exit status arrives.
    match tokio::time::timeout(SOON, exec.next()).await.expect("it ends") {
        Ok(event) => assert!(matches!(event, kennel_core::ExecEvent::Exited(status) if status.signal == Some(9))),
        Err(error) => assert_eq!(error.code(), ErrorCode::Stopped),
    }
    ended(&sandbox).await;
    assert_eq!(sandbox.inspect().await.unwrap().exit_code, Some(137));
    // After a restart, the main process runs again.
    sandbox.start().await.unwrap();
    let main = sandbox.main_process().await.unwrap().expect("there is one");
    let mut exec = sandbox.attach(main, Position::default(), None).await.unwrap();
    crate::inside::read_until(&mut exec, |seen| seen.ends_with(b"hello\n")).await;
}

/// A start fails if the program of the main process is missing. It succeeds if the main process ends quickly by itself.
pub async fn start_fails_if_the_main_program_is_missing(stage: &Stage) {
    let with = |words: &[&str]| {
        let command = Some(words.iter().map(|word| (*word).to_owned()).collect());
        SandboxSpec { command, ..stage.spec() }
    };
    let sandbox = stage.create(&with(&["no-such-program"])).await;
    let error = sandbox.start().await.unwrap_err();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::StartFailed, 127), "{error}");
    assert!(error.to_string().contains("no-such-program"), "{error}");
    assert_ne!(sandbox.inspect().await.unwrap().status, Status::Running);
    let sandbox = stage.create(&with(&["sh", "-c", "exit 127"])).await;
    sandbox.start().await.unwrap();
    ended(&sandbox).await;
    assert_eq!(sandbox.inspect().await.unwrap().exit_code, Some(127));
}
