//! Attaching again to a command after its connection was closed.

use crate::inside::{SOON, code, read_to_end, read_until};
use crate::{Stage, eventually};
use kennel_core::{ExecEvent, Position};
use kennel_types::{ErrorCode, ExecSpec, Support};

/// After a new attach, input and output continue at the position where they were. Every provider has this command.
pub async fn attach_continues_at_the_old_position(stage: &Stage) {
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::argv(["cat"]) };
    let mut exec = wired.exec(&spec).await.unwrap();
    exec.stdin().write(b"one\n").await.unwrap();
    assert_eq!(read_until(&mut exec, |seen| seen.ends_with(b"\n")).await, b"one\n");
    let (process, position) = (exec.process(), exec.position());
    wire.cut();
    drop(exec);

    let mut exec = sandbox.attach(process, position, None).await.unwrap();
    assert_eq!(exec.lost(), 0);
    exec.stdin().write(b"two\n").await.unwrap();
    assert_eq!(read_until(&mut exec, |seen| seen.ends_with(b"\n")).await, b"two\n");
    drop(exec);

    // From the beginning: consumed output is kept as long as there is room.
    let mut exec = sandbox.attach(process, Position::default(), None).await.unwrap();
    exec.stdin().close();
    let (printed, status) = read_to_end(&mut exec).await;
    assert_eq!((exec.lost() + printed.len() as u64, status.code), (8, Some(0)));
    assert!(b"one\ntwo\n".ends_with(&printed));
}

/// No line is lost while the connections are cut again and again.
pub async fn no_byte_is_lost_over_cut_connections(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    const ROUNDS: usize = 8;
    const LINES: usize = 2_500;
    let line = |number: usize| format!("line {number}\n").into_bytes();
    let sandbox = stage.running().await;
    // The script prints many lines for every line that it reads.
    let script = format!(
        "n=0; while read go; do i=0; while [ $i -lt {LINES} ]; do echo line $n; n=$((n+1)); i=$((i+1)); done; done"
    );
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::shell(script) };
    let mut exec = wired.exec(&spec).await.unwrap();
    let process = exec.process();
    let (mut all, mut expected) = (Vec::new(), Vec::new());
    let reading = async {
        for round in 0..ROUNDS {
            expected.extend((round * LINES..(round + 1) * LINES).flat_map(line));
            exec.stdin().write(b"go\n").await.unwrap();
            let mut whole = true;
            while whole || all.len() < expected.len() {
                match exec.next().await {
                    Ok(ExecEvent::Output(_, bytes)) => {
                        all.extend(bytes);
                        if whole {
                            wire.cut();
                        }
                    }
                    Ok(ExecEvent::Exited(status)) => panic!("it ended: {status:?}"),
                    Err(error) => {
                        assert_eq!(error.code(), ErrorCode::Stopped, "{error}");
                        assert!(std::mem::take(&mut whole), "the connection was lost by itself");
                        let from = Position { stdout: all.len() as u64, stderr: 0 };
                        exec = wired.attach(process, from, None).await.unwrap();
                        assert_eq!(exec.lost(), 0, "in round {round}");
                    }
                }
            }
        }
        exec.stdin().close();
        exec.next().await.unwrap()
    };
    let end = tokio::time::timeout(2 * SOON, reading).await.expect("it comes to its end");
    assert!(matches!(end, ExecEvent::Exited(status) if status.code == Some(0)), "{end:?}");
    assert!(all == expected, "{} of {} bytes, or not the same", all.len(), expected.len());
}

/// A detached command without a reader does not wait. Its oldest output is overwritten, and the number of lost bytes is
/// reported.
pub async fn overwritten_output_is_counted(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    const BYTES: u64 = 16 << 20;
    let sandbox = stage.running().await;
    let script = format!("read go; head -c {BYTES} /dev/zero; echo the end; exit 6");
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::shell(script) };
    let exec = sandbox.exec(&spec).await.unwrap();
    let process = exec.process();
    let stdin = exec.stdin();
    // The keeper must have removed this reader before the first byte is printed.
    drop(exec);
    let known = async || sandbox.processes().await.unwrap().into_iter().find(|info| info.process == process);
    eventually("nobody reads", async || known().await.is_some_and(|info| !info.attached)).await;
    drop(stdin);
    let writer = sandbox.attach(process, Position::default(), None).await.unwrap();
    writer.stdin().write(b"go\n").await.unwrap();
    drop(writer);
    eventually("it prints everything without a reader", async || known().await.is_none_or(|info| !info.running)).await;
    let mut exec = sandbox.attach(process, Position::default(), None).await.unwrap();
    let lost = exec.lost();
    let (printed, status) = read_to_end(&mut exec).await;
    assert_eq!(status.code, Some(6));
    assert!(printed.ends_with(b"the end\n"));
    assert!(lost > 0, "a keeper that holds sixteen mebibytes holds too much");
    assert_eq!(lost + printed.len() as u64, BYTES + 8);
}

/// A command continues when its reader disconnects without having read anything, also if the command was waiting for
/// it.
pub async fn disconnected_reader_does_not_stop_the_command(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let spec = ExecSpec { detached: true, ..ExecSpec::shell("head -c 8388608 /dev/zero; exit 6") };
    let exec = sandbox.exec(&spec).await.unwrap();
    let process = exec.process();
    let known = async || sandbox.processes().await.unwrap().into_iter().find(|info| info.process == process);
    // The command cannot end while nobody reads. Each request takes the keeper longer than a window takes to fill.
    for _ in 0..100 {
        assert!(known().await.is_some_and(|info| info.running), "nobody has read what it prints");
    }
    drop(exec);
    eventually("it prints on without a reader", async || known().await.is_some_and(|info| !info.running)).await;
    let mut exec = sandbox.attach(process, Position::default(), None).await.unwrap();
    assert_eq!(read_to_end(&mut exec).await.1.code, Some(6));
}

/// The result of a detached command is kept until someone reads it.
pub async fn exit_status_is_kept_until_read(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { detached: true, ..ExecSpec::shell("echo out; echo err >&2; exit 9") };
    let exec = sandbox.exec(&spec).await.unwrap();
    let process = exec.process();
    drop(exec);
    let info = async || sandbox.processes().await.unwrap().into_iter().find(|info| info.process == process);
    eventually("it ends", async || info().await.is_some_and(|info| !info.running)).await;
    let later = stage.again(stage.reopen(), &sandbox).await;
    let output = later.attach(process, Position::default(), None).await.unwrap().collect(1000).await.unwrap();
    assert_eq!(output.status.code, Some(9));
    assert_eq!((output.stdout_text().as_str(), output.stderr_text().as_str()), ("out\n", "err\n"));
}

/// A second reader replaces the first, which is told so. The command continues.
pub async fn second_reader_replaces_the_first(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::argv(["cat"]) };
    let mut first = sandbox.exec(&spec).await.unwrap();
    let mut second = sandbox.attach(first.process(), Position::default(), None).await.unwrap();
    let end = tokio::time::timeout(SOON, first.next()).await.expect("the first reader learns of it");
    assert_eq!(end.unwrap_err().code(), ErrorCode::Aborted);
    drop(first);
    second.stdin().write(b"mine\n").await.unwrap();
    second.stdin().close();
    let (printed, status) = read_to_end(&mut second).await;
    assert_eq!((printed.as_slice(), status.code), (b"mine\n".as_slice(), Some(0)));
}

/// Attaching to an unknown command fails with "not found".
pub async fn unknown_command_is_not_found(stage: &Stage) {
    let sandbox = stage.running().await;
    assert_eq!(code(sandbox.attach(1_000_000, Position::default(), None).await), ErrorCode::NotFound);
    assert!(stage.mode().processes == Support::Refused || sandbox.main_process().await.unwrap().is_none());
}
