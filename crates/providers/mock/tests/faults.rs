//! Faults of the mock, and how the library handles them: with an error in time, and never with a panic or a hang.

use kennel_core::{Error, ExecEvent, LogOptions, Piece, Provider, RemoveOptions, Sandbox, VolumeOptions, WriteOptions};
use kennel_mock::{Answer, Call, Fault, Gate, Mock};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExecSpec, NextStep, SandboxSpec, Status};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

async fn running(mock: &Mock) -> Sandbox {
    let sandbox = Sandbox::create(Arc::new(mock.clone()), &SandboxSpec::default()).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox
}

/// With paused time, this passes at once when nothing else can happen.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.expect("an answer in good time")
}

#[tokio::test]
async fn replies_are_scripted() {
    let mock = Mock::new();
    let gate = Gate::new();
    mock.on(["git"], Answer::exit(1).stderr("git: no\n"));
    mock.on(["git", "status"], Answer::exit(0).stdout("clean\n").hold(&gate).stdout("after\n"));
    mock.script(|argv| argv.contains(&"gone".to_owned()).then(|| Answer::fails(ErrorCode::NotFound)));
    let sandbox = running(&mock).await;

    let output = sandbox.run(&ExecSpec::argv(["git", "push"]), None, 100).await.unwrap();
    assert_eq!((output.status.code, output.stderr_text().as_str()), (Some(1), "git: no\n"));
    let mut exec = sandbox.exec(&ExecSpec::argv(["git", "status", "-s"])).await.unwrap();
    assert_eq!(exec.next().await.unwrap(), ExecEvent::Output(Channel::Stdout, b"clean\n".to_vec()));
    gate.open();
    let output = exec.collect(100).await.unwrap();
    assert_eq!((output.status.code, output.stdout_text().as_str()), (Some(0), "after\n"));
    let error = sandbox.exec(&ExecSpec::argv(["x", "gone"])).await.err().unwrap();
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127));
    let output = sandbox.run(&ExecSpec::argv(["echo", "toy"]), None, 100).await.unwrap();
    assert_eq!(output.stdout_text(), "toy\n");
    assert_eq!(mock.ran()[0], ["git", "push"]);
    assert_eq!(mock.ran().len(), 4);
}

/// The mock's keeper does not support sparse files, like an older one: all bytes are sent, and the file is the same.
#[tokio::test]
async fn a_keeper_without_sparse_files_gets_the_whole_file() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let sandbox = running(&Mock::new()).await;
    let files = sandbox.files(None).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(dir.path().join("x")).unwrap();
    file.set_len(3_000_000).unwrap();
    file.write_all_at(b"data", 1_234_567).unwrap();
    let meta = file.metadata().unwrap();
    assert!(meta.blocks() * 512 < meta.size(), "it has holes");
    let mut sent = 0;
    files.write_file("/x", &file, WriteOptions::default(), |count| sent += count).await.unwrap();
    assert_eq!(sent, 3_000_000);
    let mut expected = vec![0; 3_000_000];
    expected[1_234_567..1_234_571].copy_from_slice(b"data");
    assert!(files.read("/x", 4_000_000).await.unwrap() == expected);
    let mut reader = files.open_sparse("/x").await.unwrap();
    let mut back = Vec::new();
    while let Some(piece) = reader.piece().await.unwrap() {
        match piece {
            Piece::Data(bytes) => back.extend(bytes),
            Piece::Hole(_) => panic!("it knows of none"),
        }
    }
    assert!(back == expected);
}

#[tokio::test]
async fn a_fault_fails_one_lifecycle_call() {
    let mock = Mock::new();
    mock.fault(Fault::Fails(Call::Create, ErrorCode::NotAvailable));
    mock.fault(Fault::Fails(Call::Start, ErrorCode::StartFailed));
    mock.fault(Fault::Fails(Call::List, ErrorCode::NotAvailable));
    mock.fault(Fault::Fails(Call::Dial, ErrorCode::PermissionDenied));
    let code = |error: Option<Error>| error.map(|error| error.code());
    let spec = SandboxSpec::default();
    assert_eq!(code(mock.create(&kennel_core::new_id().unwrap(), &spec).await.err()), Some(ErrorCode::NotAvailable));
    let id = mock.create(&kennel_core::new_id().unwrap(), &spec).await.unwrap().id;
    assert_eq!(code(mock.start(&id).await.err()), Some(ErrorCode::StartFailed));
    assert_eq!(mock.get(id.as_str()).await.unwrap().status, Status::Created);
    mock.start(&id).await.unwrap();
    assert_eq!(code(mock.list().await.err()), Some(ErrorCode::NotAvailable));
    assert_eq!(mock.list().await.unwrap().len(), 1);
    assert_eq!(code(mock.dial(&id).await.err()), Some(ErrorCode::PermissionDenied));
    mock.dial(&id).await.unwrap();
    for call in [Call::Rename, Call::Get, Call::Logs, Call::Watch, Call::Stop, Call::Remove] {
        mock.fault(Fault::Fails(call, ErrorCode::Timeout));
    }
    assert_eq!(code(mock.rename(&id, "other").await.err()), Some(ErrorCode::Timeout));
    assert_eq!(code(mock.get("other").await.err()), Some(ErrorCode::Timeout));
    assert_eq!(code(mock.get("other").await.err()), Some(ErrorCode::NotFound));
    assert_eq!(code(mock.logs(&id, LogOptions::default()).await.err()), Some(ErrorCode::Timeout));
    assert_eq!(code(mock.watch().await.err()), Some(ErrorCode::Timeout));
    assert_eq!(code(mock.stop(&id, Duration::ZERO).await.err()), Some(ErrorCode::Timeout));
    let force = RemoveOptions { force: true, volumes: false };
    assert_eq!(code(mock.remove(&id, force).await.err()), Some(ErrorCode::Timeout));
    assert_eq!(mock.get(id.as_str()).await.unwrap().status, Status::Running);
}

/// The caller gets no reply, but the call has its effect.
#[tokio::test]
async fn a_call_has_its_effect_although_its_reply_is_lost() {
    let mock = Mock::new();
    for call in Call::ALL {
        mock.fault(Fault::ReplyLost(call));
    }
    let code = |error: Option<Error>| error.map(|error| error.code());
    let lost = Some(ErrorCode::NotAvailable);
    let id = kennel_core::new_id().unwrap();
    assert_eq!(code(mock.create(&id, &SandboxSpec::default()).await.err()), lost);
    assert_eq!(code(mock.get(id.as_str()).await.err()), lost);
    assert_eq!(mock.get(id.as_str()).await.unwrap().status, Status::Created);
    assert_eq!(code(mock.start(&id).await.err()), lost);
    assert_eq!(mock.get(id.as_str()).await.unwrap().status, Status::Running);
    assert_eq!(code(mock.rename(&id, "other").await.err()), lost);
    assert_eq!(mock.get("other").await.unwrap().id, id);
    assert_eq!(code(mock.dial(&id).await.err()), lost);
    assert_eq!(code(mock.logs(&id, LogOptions::default()).await.err()), lost);
    assert_eq!(code(mock.watch().await.err()), lost);
    assert_eq!(code(mock.list().await.err()), lost);
    assert_eq!(code(mock.stop(&id, Duration::ZERO).await.err()), lost);
    assert_eq!(mock.get(id.as_str()).await.unwrap().status, Status::Stopped);
    // A call that fails has no reply to lose: the fault applies to the next one that succeeds.
    let other = kennel_core::new_id().unwrap();
    assert_eq!(code(mock.remove(&other, RemoveOptions::default()).await.err()), Some(ErrorCode::NotFound));
    assert_eq!(code(mock.remove(&id, RemoveOptions::default()).await.err()), lost);
    assert_eq!(mock.list().await.unwrap(), []);
    let spec = SandboxSpec { name: Some("box".into()), data: true, ..SandboxSpec::default() };
    let id = mock.create(&kennel_core::new_id().unwrap(), &spec).await.unwrap().id;
    mock.remove(&id, RemoveOptions::default()).await.unwrap();
    let volumes = async || mock.volumes(VolumeOptions::default()).await;
    assert_eq!(code(volumes().await.err()), lost);
    assert_eq!(volumes().await.unwrap().len(), 1);
    assert_eq!(code(mock.remove_volume("data-box").await.err()), lost);
    assert_eq!(volumes().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_silent_keeper_is_a_timeout() {
    let mock = Mock::new();
    let sandbox = running(&mock).await;
    mock.fault(Fault::NeverAnswers);
    let welcome = async { sandbox.keeper().await?.welcome().await };
    assert_eq!(in_time(welcome).await.err().unwrap().code(), ErrorCode::Timeout);
    sandbox.keeper().await.unwrap().welcome().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_launch_ends_at_the_startup_timeout() {
    let mock = Mock::new();
    // Shorter and longer than any other timeout.
    for seconds in [1, 50] {
        let spec = SandboxSpec { startup_ms: Some(seconds * 1000), ..SandboxSpec::default() };
        let sandbox = Sandbox::create(Arc::new(mock.clone()), &spec).await.unwrap();
        mock.fault(Fault::NeverAnswers);
        let began = tokio::time::Instant::now();
        let error = in_time(async { sandbox.launch().await?.welcome().await }).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
        assert_eq!(error.to_string(), format!("start the sandbox: it took longer than {seconds}s"));
        assert!(matches!(error.next_step(), Some(NextStep::AllowLongerStart { .. })), "{error:?}");
        // Only this advances the paused time: nothing is measured here.
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_closed_after_any_frame_is_an_error() {
    let mock = Mock::new();
    let sandbox = running(&mock).await;
    // Welcome, running, output, two ends, exit.
    for frames in 0..6 {
        mock.fault(Fault::HangUpAfter(frames));
        let error = in_time(sandbox.run(&ExecSpec::argv(["echo", "x"]), None, 100)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stopped, "after {frames}: {error}");
    }
    mock.fault(Fault::HangUpAfter(6));
    in_time(sandbox.run(&ExecSpec::argv(["echo", "x"]), None, 100)).await.unwrap();
}

#[tokio::test]
async fn a_new_connection_is_made_after_a_lost_one() {
    let mock = Mock::new();
    let sandbox = running(&mock).await;
    mock.fault(Fault::HangUpAfter(2));
    let mut exec =
        sandbox.exec(&ExecSpec { detached: true, ..ExecSpec::shell("echo kept; sleep 1000") }).await.unwrap();
    assert_eq!(exec.next().await.unwrap_err().code(), ErrorCode::Stopped);
    let mut exec = sandbox.attach(exec.process(), exec.position(), None).await.unwrap();
    assert_eq!(exec.next().await.unwrap(), ExecEvent::Output(Channel::Stdout, b"kept\n".to_vec()));
}

/// Whatever a keeper sends, every request ends with an error or a result.
async fn stands(garbage: Vec<u8>) {
    let mock = Mock::new();
    let sandbox = running(&mock).await;
    mock.fault(Fault::Garbage(garbage));
    let keeper = in_time(sandbox.keeper()).await.unwrap();
    let spec = ExecSpec { stdin: true, ..ExecSpec::argv(["cat"]) };
    let ask = async {
        // Garbage may be an incomplete frame: then nothing more arrives, and the caller's own timeout ends it.
        let limit = Duration::from_secs(5);
        let _ = tokio::time::timeout(limit, sandbox.run(&spec, Some(&vec![0; 200_000]), 1000)).await;
        let files = sandbox.files(None).await;
        if let Ok(files) = files {
            let _ = tokio::time::timeout(limit, files.read("/x", 1000)).await;
            let _ = tokio::time::timeout(limit, files.list("/")).await;
            let _ = tokio::time::timeout(limit, files.write("/x", b"y", kennel_core::WriteOptions::default())).await;
        }
        let _ = tokio::time::timeout(limit, sandbox.stats()).await;
    };
    in_time(ask).await;
    drop(keeper);
    // The sandbox itself is unchanged.
    sandbox.hang_up().await;
    assert_eq!(in_time(sandbox.run(&ExecSpec::argv(["echo", "x"]), None, 100)).await.unwrap().stdout, b"x\n");
}

fn paused<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_bytes_after_the_welcome_cause_no_panic(garbage in proptest::collection::vec(any::<u8>(), 0..2000)) {
        paused(stands(garbage));
    }

    /// Frames with a valid header, on open streams.
    #[test]
    fn arbitrary_frames_after_the_welcome_cause_no_panic(
        frames in proptest::collection::vec(
            (0u8..30, 0u32..6, proptest::collection::vec(any::<u8>(), 0..100)), 1..20)
    ) {
        let mut bytes = Vec::new();
        for (kind, stream, payload) in frames {
            bytes.extend((payload.len() as u32 | u32::from(kind) << 24).to_le_bytes());
            bytes.extend(stream.to_le_bytes());
            bytes.extend(payload);
        }
        paused(stands(bytes));
    }
}
