//! What programs that run for a long time need from commands: tags, held output, a linger time, explicit
//! acknowledgement, and several readers.

use crate::inside::{SOON, code, read_to_end, read_until};
use crate::{Stage, eventually, host};
use kennel_core::{Exec, ExecEvent, FanOutEvent, FanOutOptions, Lag, Position, Sandbox, Subscriber};
use kennel_proto::{Channel, ProcessInfo};
use kennel_types::{ErrorCode, ExecSpec};
use std::time::Duration;

async fn find(sandbox: &Sandbox, process: u64) -> Option<ProcessInfo> {
    sandbox.processes().await.unwrap().into_iter().find(|info| info.process == process)
}

/// The list of commands returns arguments, tag, start time, offsets and exit status.
pub async fn list_describes_commands(stage: &Stage) {
    let sandbox = stage.running().await;
    let tag = "relay/7 \u{e4}";
    let spec = ExecSpec { stdin: true, detached: true, tag: Some(tag.into()), ..ExecSpec::argv(["cat", "-"]) };
    let mut exec = sandbox.exec(&spec).await.unwrap().with_explicit_acknowledgement();
    exec.stdin().write(b"four").await.unwrap();
    read_until(&mut exec, |seen| seen == b"four").await;
    exec.acknowledge(Position { stdout: 3, stderr: 0 }).unwrap();
    let consumed = async || find(&sandbox, exec.process()).await.and_then(|info| info.stdout).map(|it| it.consumed);
    eventually("the acknowledgement has arrived", async || consumed().await == Some(3)).await;
    let info = find(&sandbox, exec.process()).await.expect("it is listed");
    assert_eq!(info.argv, [b"cat".to_vec().into(), b"-".to_vec().into()], "{info:?}");
    assert!(!info.argv_is_cut && info.running && info.exit.is_none(), "{info:?}");
    assert_eq!(info.tag.as_deref(), Some(tag));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let started = info.started_ms.expect("it has a start time");
    assert!(now.abs_diff(started) < SOON.as_millis() as u64, "started at {started}, and now it is {now}");
    let stdout = info.stdout.expect("it has offsets");
    assert_eq!((info.stdin, stdout.produced, stdout.consumed), (Some(4), 4, 3), "{info:?}");
    assert_eq!(info.stderr.map(|stderr| stderr.produced), Some(0), "{info:?}");

    exec.stdin().close();
    assert_eq!(read_to_end(&mut exec).await.1.code, Some(0));
    drop(exec);
    let ended = find(&sandbox, info.process).await.expect("it is kept");
    assert_eq!(ended.exit.and_then(|exit| exit.code), Some(0), "{ended:?}");
    assert!(!ended.running && ended.tag == info.tag && ended.started_ms == info.started_ms, "{ended:?}");

    let long = ExecSpec { tag: Some("t".repeat(257)), ..ExecSpec::argv(["true"]) };
    assert_eq!(code(sandbox.exec(&long).await), ErrorCode::LimitExceeded);
    let longest = ExecSpec { tag: Some("t".repeat(256)), ..ExecSpec::argv(["true"]) };
    assert!(sandbox.exec(&longest).await.is_ok());
}

/// Long arguments are cut in the list, and the list says so.
pub async fn listed_arguments_are_capped(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { detached: true, ..ExecSpec::argv(["sleep".into(), "1000".into(), "0".repeat(100_000)]) };
    let exec = sandbox.exec(&spec).await.unwrap();
    let info = find(&sandbox, exec.process()).await.expect("it is listed");
    let length: usize = info.argv.iter().map(|argument| argument.len()).sum();
    assert!(info.argv_is_cut && (500..=1024).contains(&length), "{length} bytes of {info:?}");
}

const LINE: u64 = 16;

/// The bytes of numbered lines, from an offset on.
fn expected(offset: u64, length: usize) -> Vec<u8> {
    let (first, end) = (offset / LINE, (offset + length as u64).div_ceil(LINE));
    let lines: Vec<u8> = (first..end).flat_map(|number| format!("{number:015}\n").into_bytes()).collect();
    lines[(offset - first * LINE) as usize..][..length].to_vec()
}

/// Waits until a command can print no more, because nobody reads it.
async fn blocked(sandbox: &Sandbox, process: u64) -> u64 {
    let mut before = None;
    eventually("it waits for a reader", async || {
        let info = find(sandbox, process).await.expect("it is known");
        assert!(info.running, "it must not end: {info:?}");
        let now = info.stdout.expect("its offsets are known").produced;
        // Each request takes the keeper longer than reading a full pipe.
        before.replace(now) == Some(now) && now >= 256 * 1024
    })
    .await;
    before.unwrap_or(0)
}

/// A command that holds its output prints 64 MiB while nobody reads, and its reader loses its connection ten times:
/// every byte arrives exactly once, and is acknowledged explicitly.
pub async fn held_output_arrives_exactly_once(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    const BYTES: u64 = 64 << 20;
    const CUTS: u64 = 10;
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    // Each line is its number, so that each byte follows from its offset.
    let script = format!("awk 'BEGIN {{ for (i = 0; i < {}; i++) printf \"%015d\\n\", i }}'", BYTES / LINE);
    let spec = ExecSpec { detached: true, hold: true, ..ExecSpec::shell(script) };
    let exec = wired.exec(&spec).await.unwrap();
    let process = exec.process();
    wire.cut();
    drop(exec);
    let produced = blocked(&sandbox, process).await;
    assert!(produced <= 4 << 20, "a keeper that holds {produced} bytes holds too much");

    let (mut stored, mut cuts) = (0, 0);
    let reading = async {
        loop {
            let from = Position { stdout: stored, stderr: 0 };
            let mut exec = wired.attach(process, from, None).await.unwrap().with_explicit_acknowledgement();
            assert_eq!(exec.lost(), 0);
            loop {
                match exec.next().await {
                    Ok(ExecEvent::Output(Channel::Stdout, bytes)) => {
                        // Read, but neither stored nor acknowledged when the connection is lost.
                        if cuts < CUTS && stored >= (cuts + 1) * BYTES / (CUTS + 2) {
                            cuts += 1;
                            wire.cut();
                            while exec.next().await.is_ok() {}
                            break;
                        }
                        assert!(bytes == expected(stored, bytes.len()), "other bytes at offset {stored}");
                        stored += bytes.len() as u64;
                        exec.acknowledge(Position { stdout: stored, stderr: 0 }).unwrap();
                    }
                    Ok(ExecEvent::Exited(status)) => return status,
                    other => panic!("after {stored} bytes: {other:?}"),
                }
            }
        }
    };
    let status = tokio::time::timeout(3 * SOON, reading).await.expect("it ends");
    assert_eq!((stored, cuts, status.code), (BYTES, CUTS, Some(0)));
}

/// Starts a command that holds a little output, and returns its id when it has ended.
async fn ended_with_output(sandbox: &Sandbox) -> u64 {
    let spec = ExecSpec { detached: true, hold: true, ..ExecSpec::shell("echo out; echo err >&2; exit 9") };
    let process = sandbox.exec(&spec).await.unwrap().process();
    eventually("it has ended", async || find(sandbox, process).await.is_some_and(|info| !info.running)).await;
    process
}

/// Attaches to the command of [`ended_with_output`], and reads its output without an acknowledgement.
async fn read_unacknowledged(sandbox: &Sandbox, process: u64) -> Exec {
    let exec = sandbox.attach(process, Position::default(), None).await.unwrap();
    let mut exec = exec.with_explicit_acknowledgement();
    read_until(&mut exec, |seen| seen.len() == 8).await;
    // The keeper sends the exit status, if it does, before it replies to a later request.
    let info = find(sandbox, process).await.expect("it is kept");
    assert!(info.attached, "its output is not consumed yet: {info:?}");
    exec
}

/// The output and the exit status of a command that holds its output are kept until the output is consumed.
pub async fn held_output_is_kept_until_consumed(stage: &Stage) {
    let sandbox = stage.running().await;
    let process = ended_with_output(&sandbox).await;
    assert!(sandbox.idle().await.unwrap().in_use, "the output would be lost if the sandbox stopped");
    for _ in 0..3 {
        let exec = read_unacknowledged(&sandbox, process).await;
        assert_eq!(exec.acknowledged(), Position::default());
    }
    let mut exec = read_unacknowledged(&sandbox, process).await;
    let ahead = Position { stdout: 5, stderr: 0 };
    assert_eq!(code(exec.acknowledge(ahead)), ErrorCode::InvalidConfig, "it was not returned");
    exec.acknowledge(exec.position()).unwrap();
    assert!(matches!(exec.next().await.unwrap(), ExecEvent::Exited(status) if status.code == Some(9)));
    drop(exec);
    eventually("nothing is held any more", async || !sandbox.idle().await.unwrap().in_use).await;

    // The last acknowledgement may be lost with its connection: attaching at the end acknowledges too.
    let end = Position { stdout: 4, stderr: 4 };
    let unheard = ended_with_output(&sandbox).await;
    drop(read_unacknowledged(&sandbox, unheard).await);
    for process in [process, unheard] {
        let exec = sandbox.attach(process, end, None).await.unwrap();
        let output = tokio::time::timeout(SOON, exec.collect(100)).await.expect("it has ended").unwrap();
        assert_eq!((output.stdout_text().as_str(), output.status.code), ("", Some(9)));
    }

    // A command that was ended for good holds nothing any more.
    let released = ended_with_output(&sandbox).await;
    sandbox.kill(released, 0).await.unwrap();
    let output = sandbox.attach(released, Position::default(), None).await.unwrap().collect(100).await.unwrap();
    assert_eq!(output.status.code, Some(9));
}

/// A tied command with a linger time survives the loss of its connection, and can be attached again. Closing its handle
/// ends it at once.
pub async fn lingering_command_is_attached_again(stage: &Stage) {
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let linger = Some(Duration::from_hours(1));
    let spec = ExecSpec { stdin: true, linger, ..ExecSpec::argv(["cat"]) };
    let mut exec = wired.exec(&spec).await.unwrap();
    exec.stdin().write(b"one\n").await.unwrap();
    read_until(&mut exec, |seen| seen == b"one\n").await;
    let (process, position) = (exec.process(), exec.position());
    wire.cut();
    drop(exec);
    eventually("nobody reads it", async || find(&sandbox, process).await.is_some_and(|info| !info.attached)).await;
    let mut exec = sandbox.attach(process, position, None).await.unwrap();
    assert_eq!(exec.stdin().position().await, 4);
    exec.stdin().write(b"two\n").await.unwrap();
    read_until(&mut exec, |seen| seen == b"two\n").await;
    drop(exec);
    eventually("its handle was closed", async || find(&sandbox, process).await.is_none_or(|info| !info.running)).await;

    let both = ExecSpec { detached: true, ..spec };
    assert_eq!(code(sandbox.exec(&both).await), ErrorCode::InvalidConfig);
    let too_long = ExecSpec { linger: Some(Duration::from_hours(24 * 8)), ..ExecSpec::argv(["true"]) };
    assert_eq!(code(sandbox.exec(&too_long).await), ErrorCode::LimitExceeded);
}

/// When its linger time is over, a command is ended with all its processes.
pub async fn lingering_command_ends_after_its_time(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let mut spec = ExecSpec {
        linger: Some(Duration::from_millis(500)),
        ..ExecSpec::shell("(setsid sleep 1000 &); echo up; sleep 1000")
    };
    let mark = stage.mark(&mut spec, "linger");
    let mut exec = wired.exec(&spec).await.unwrap();
    read_until(&mut exec, |seen| seen == b"up\n").await;
    wire.cut();
    drop(exec);
    eventually("it is gone", async || host::marked(&mark).is_empty()).await;
    eventually("it is forgotten", async || sandbox.processes().await.unwrap().is_empty()).await;
}

/// Input that the command has not read yet is not lost with the connection, and the next writer continues after it.
pub async fn input_continues_after_a_cut_connection(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let go = crate::inside::at(&sandbox, "go");
    let script = format!("until [ -e {go} ]; do sleep 0.05; done; wc -c");
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::shell(script) };
    let exec = wired.exec(&spec).await.unwrap();
    // More than a pipe holds, so that the keeper has to keep a part.
    exec.stdin().write(&vec![b'x'; 100_000]).await.unwrap();
    let process = exec.process();
    // Requests of a connection are handled in order, so the keeper has received everything.
    let known = wired.processes().await.unwrap();
    let passed_on = known.iter().find(|info| info.process == process).unwrap().stdin.unwrap();
    let next = sandbox.attach(process, Position::default(), None).await.unwrap();
    assert_eq!(next.stdin().position().await, 100_000);
    assert!(passed_on < 100_000, "nothing is left for the keeper");
    wire.cut();
    drop((exec, next));
    let mut exec = sandbox.attach(process, Position::default(), None).await.unwrap();
    let stdin = exec.stdin();
    assert_eq!(stdin.position().await, 100_000);
    let rest = vec![b'y'; 100_000];
    let writing = async {
        stdin.write(&rest).await.unwrap();
        stdin.close();
    };
    let opening = async {
        let files = crate::inside::files(&sandbox).await;
        files.write(&go, b"", kennel_core::WriteOptions::default()).await.unwrap();
    };
    let ((), (), (printed, _)) = tokio::join!(writing, opening, read_to_end(&mut exec));
    assert_eq!(String::from_utf8_lossy(&printed).trim(), "200000");
}

/// Reads a subscriber to the end: the bytes of standard output, and how many it missed.
async fn drain(subscriber: &mut Subscriber) -> (Vec<u8>, u64) {
    let (mut seen, mut missed) = (Vec::new(), 0);
    let reading = async {
        loop {
            match subscriber.next().await.unwrap() {
                FanOutEvent::Output { channel: Channel::Stdout, offset, bytes } => {
                    assert_eq!(offset, seen.len() as u64 + missed);
                    seen.extend_from_slice(&bytes);
                }
                FanOutEvent::Missed { channel: Channel::Stdout, bytes } => missed += bytes,
                FanOutEvent::Exited(_) => return,
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(2 * SOON, reading).await.expect("it ends");
    (seen, missed)
}

/// Several readers get the output of one command: each gets everything or is told exactly how much it missed, and one
/// that waits blocks the command and not its own past. There is one writer at a time.
pub async fn several_readers_share_a_command(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::argv(["cat"]) };
    let exec: Exec = sandbox.exec(&spec).await.unwrap();
    let process = exec.process();
    drop(exec);
    let options = FanOutOptions { history: 64 * 1024, ..FanOutOptions::default() };
    let fan_out = sandbox.fan_out(process, options).await.unwrap();
    let same = sandbox.clone().fan_out(process, options).await.unwrap();
    let mut patient = fan_out.subscribe(None, Lag::Wait).unwrap();
    let mut quick = same.subscribe(None, Lag::Wait).unwrap();
    let mut slow = fan_out.subscribe(None, Lag::Miss).unwrap();

    let stdin = fan_out.stdin().unwrap();
    assert_eq!(code(same.stdin()), ErrorCode::Conflict);
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    let writing = async {
        stdin.write(&sent).await.unwrap();
        stdin.close();
    };
    let ((), (one, none), (two, nothing)) = tokio::join!(writing, drain(&mut patient), drain(&mut quick));
    assert!(one == sent && two == sent && (none, nothing) == (0, 0), "{} and {} bytes", one.len(), two.len());
    // It has read nothing so far, and blocked nobody.
    let (tail, missed) = drain(&mut slow).await;
    assert_eq!(missed + tail.len() as u64, sent.len() as u64);
    assert!(missed > 0 && tail.len() <= 64 * 1024 && sent.ends_with(&tail), "{missed} missed");
    // A late subscriber gets what is still there; one that asks for more is told what is missing.
    let late = fan_out.subscribe(None, Lag::Miss).unwrap();
    assert_eq!(late.position(), Position { stdout: missed, stderr: 0 });
    let mut from_the_start = fan_out.subscribe(Some(Position::default()), Lag::Miss).unwrap();
    assert_eq!(drain(&mut from_the_start).await, (tail, missed));
    let beyond = Position { stdout: sent.len() as u64 + 1, stderr: 0 };
    assert_eq!(code(fan_out.subscribe(Some(beyond), Lag::Miss)), ErrorCode::InvalidConfig);
    drop(stdin);
    assert!(same.stdin().is_ok());
}

/// A subscriber ends with an error when the reader is dropped, and the command continues without it.
pub async fn dropped_fan_out_ends_its_subscribers(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { stdin: true, detached: true, ..ExecSpec::argv(["cat"]) };
    let process = sandbox.exec(&spec).await.unwrap().process();
    let fan_out = sandbox.fan_out(process, FanOutOptions::default()).await.unwrap();
    let mut subscriber = fan_out.subscribe(None, Lag::Wait).unwrap();
    drop(fan_out);
    assert_eq!(code(subscriber.next().await), ErrorCode::Aborted);
    let again = sandbox.fan_out(process, FanOutOptions::default()).await.unwrap();
    let mut subscriber = again.subscribe(None, Lag::Wait).unwrap();
    again.stdin().unwrap().write(b"hi").await.unwrap();
    again.stdin().unwrap().close();
    assert_eq!(drain(&mut subscriber).await, (b"hi".to_vec(), 0));
}
