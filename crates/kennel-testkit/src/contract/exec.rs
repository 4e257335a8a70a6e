//! Commands and their streams.

use crate::inside::{PLENTY, SOON, at, code, files, ok, read_to_end, read_until, run, sh};
use crate::{Stage, eventually, host};
use kennel_core::{ExecEvent, Sandbox, WriteOptions};
use kennel_proto::caps;
use kennel_types::{ErrorCode, ExecSpec, Support};
use std::time::{Duration, Instant};

/// Arguments reach the program unchanged, because no shell interprets them.
pub async fn arguments_are_passed_unchanged(stage: &Stage) {
    let sandbox = stage.running().await;
    let output = run(&sandbox, &ExecSpec::argv(["echo", "a b", "$HOME", "*", "é;\\"])).await;
    assert_eq!(output.stdout_text(), "a b $HOME * é;\\\n");
    assert_eq!(output.stderr, b"");
    assert!(output.status.success());
}

/// A shell runs the string. Both of its streams and its exit code are returned.
pub async fn string_is_run_by_a_shell(stage: &Stage) {
    let sandbox = stage.running().await;
    let output = sh(&sandbox, "echo one; echo two >&2; exit 3").await;
    assert_eq!(output.stdout_text(), "one\n");
    assert_eq!(output.stderr_text(), "two\n");
    assert_eq!(output.status.code, Some(3));
}

/// The exit code of a command is returned unchanged.
pub async fn exit_codes_are_returned(stage: &Stage) {
    let sandbox = stage.running().await;
    assert_eq!(run(&sandbox, &ExecSpec::argv(["true"])).await.status.code, Some(0));
    assert_eq!(run(&sandbox, &ExecSpec::argv(["false"])).await.status.code, Some(1));
    for expected in [42, 127, 255] {
        assert_eq!(sh(&sandbox, &format!("exit {expected}")).await.status.shell_code(), expected);
    }
}

/// A command has the variables of the sandbox, and its own variables override them.
pub async fn the_environment_is_set(stage: &Stage) {
    let mut spec = stage.spec();
    spec.env.insert("BOTH".into(), "sandbox".into());
    spec.env.insert("OUTER".into(), "with = and space".into());
    let sandbox = stage.started(&spec).await;
    let mut command = ExecSpec::argv(["env"]);
    assert_eq!(variable(&sandbox, &command, "BOTH").await.as_deref(), Some("sandbox"));
    command.env.insert("BOTH".into(), "command".into());
    command.env.insert("INNER".into(), String::new());
    assert_eq!(variable(&sandbox, &command, "BOTH").await.as_deref(), Some("command"));
    assert_eq!(variable(&sandbox, &command, "OUTER").await.as_deref(), Some("with = and space"));
    assert_eq!(variable(&sandbox, &command, "INNER").await.as_deref(), Some(""));
    assert_eq!(variable(&sandbox, &ExecSpec::argv(["env"]), "INNER").await, None);
}

/// Returns the value of a variable from the output of `env`.
async fn variable(sandbox: &Sandbox, env: &ExecSpec, name: &str) -> Option<String> {
    let printed = run(sandbox, env).await.stdout_text();
    printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(ToOwned::to_owned)
}

/// A command starts in the working directory of the sandbox, or in its own. A missing directory is an error.
pub async fn the_working_directory_is_set(stage: &Stage) {
    let sandbox = stage.running().await;
    let mut pwd = ExecSpec::argv(["pwd"]);
    assert_eq!(run(&sandbox, &pwd).await.stdout_text(), format!("{}\n", sandbox.info().workdir));
    pwd.cwd = Some("/".into());
    assert_eq!(run(&sandbox, &pwd).await.stdout_text(), "/\n");
    pwd.cwd = Some("/no/such/directory".into());
    let error = sandbox.exec(&pwd).await.err().expect("there is no such directory");
    assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 126));
    assert!(error.to_string().contains("/no/such/directory"), "{error}");
}

/// A signal ends a command, and its exit status contains the signal.
pub async fn signal_ends_a_command(stage: &Stage) {
    let sandbox = stage.running().await;
    for (signal, shell_code) in [(15, 143), (9, 137), (2, 130)] {
        let mut exec = sandbox.exec(&ExecSpec::argv(["sleep", "1000"])).await.unwrap();
        exec.signal(signal);
        let (_, status) = read_to_end(&mut exec).await;
        assert_eq!((status.code, status.signal), (None, Some(signal)));
        assert_eq!(status.shell_code(), shell_code);
        assert!(!status.timed_out && !status.oom_killed, "{status:?}");
    }
}

/// Each stream transfers every byte value, and the streams are not mixed.
pub async fn output_is_binary_and_separate(stage: &Stage) {
    let sandbox = stage.running().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let output = sandbox.run(&ExecSpec::argv(["cat"]), Some(&bytes), PLENTY).await.unwrap();
    assert!(output.stdout == bytes && output.stderr.is_empty());
    let output = sandbox.run(&ExecSpec::shell("cat >&2"), Some(&bytes), PLENTY).await.unwrap();
    assert!(output.stderr == bytes && output.stdout.is_empty());
}

/// A command without standard input reads the end of file at once.
pub async fn command_without_stdin_reads_end_of_file(stage: &Stage) {
    let sandbox = stage.running().await;
    let output = tokio::time::timeout(SOON, run(&sandbox, &ExecSpec::argv(["cat"]))).await.expect("it ends");
    assert_eq!((output.stdout.len(), output.status.code), (0, Some(0)));
}

/// Eight mebibytes are written and read at the same time, which fills every flow control window.
pub async fn eight_mebibytes_through_a_pipe(stage: &Stage) {
    let sandbox = stage.running().await;
    let bytes: Vec<u8> = (0u32..2 << 20).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let output = sandbox.run(&ExecSpec::argv(["cat"]), Some(&bytes), PLENTY).await.unwrap();
    assert_eq!(output.stdout.len(), bytes.len());
    assert!(output.stdout == bytes, "the bytes came back changed");
}

/// A command may end before it has read its whole input.
pub async fn unread_input_is_no_error(stage: &Stage) {
    let sandbox = stage.running().await;
    let bytes = vec![b'x'; 1 << 20];
    let output = sandbox.run(&ExecSpec::argv(["true"]), Some(&bytes), PLENTY).await.unwrap();
    assert!(output.status.success());
}

/// A missing program is an error if it is given as argv. In a shell, the exit code is 127.
pub async fn missing_program_exits_with_127(stage: &Stage) {
    let sandbox = stage.running().await;
    for program in ["no-such-program", "/no/such/program"] {
        let error = sandbox.exec(&ExecSpec::argv([program])).await.err().expect("it is not there");
        assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127), "{error}");
        assert!(error.to_string().contains(program), "{error}");
    }
    assert_eq!(sh(&sandbox, "no-such-program").await.status.code, Some(127));
}

/// A file without the execute permission cannot be run, and a directory cannot be run.
pub async fn program_that_cannot_run_exits_with_126(stage: &Stage) {
    let sandbox = stage.running().await;
    let path = at(&sandbox, "plain-file");
    files(&sandbox).await.write(&path, b"#!/bin/sh\n", WriteOptions::default()).await.unwrap();
    for program in [path.as_str(), "/tmp"] {
        let error = sandbox.exec(&ExecSpec::argv([program])).await.err().expect("it cannot be run");
        assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 126), "{error}");
    }
}

/// A command without a program is refused.
pub async fn empty_command_is_refused(stage: &Stage) {
    let sandbox = stage.running().await;
    assert_eq!(code(sandbox.exec(&ExecSpec::argv::<String>([])).await), ErrorCode::InvalidConfig);
}

/// After a timeout, the output so far is returned, and the result states the timeout.
pub async fn timeout_keeps_output(stage: &Stage) {
    // Long enough for a shell to start and print on a busy machine.
    const TIME: Duration = Duration::from_secs(2);
    let sandbox = stage.running().await;
    let mut spec = ExecSpec::shell("echo so far; echo and here >&2; sleep 1000");
    spec.timeout = Some(TIME);
    let start = Instant::now();
    let output = run(&sandbox, &spec).await;
    assert!(start.elapsed() >= TIME, "{:?}", start.elapsed());
    assert!(output.status.timed_out, "{:?}", output.status);
    assert_eq!(output.status.shell_code(), 124);
    assert_eq!((output.stdout_text().as_str(), output.stderr_text().as_str()), ("so far\n", "and here\n"));
    spec = ExecSpec::argv(["true"]);
    spec.timeout = Some(Duration::from_secs(100));
    assert!(!run(&sandbox, &spec).await.status.timed_out);
}

/// Two hundred commands run at the same time, and each gets its own output.
pub async fn two_hundred_commands_at_once(stage: &Stage) {
    let sandbox = stage.running().await;
    let echoes = (0..200).map(async |number| {
        let output = run(&sandbox, &ExecSpec::argv(["echo".to_owned(), number.to_string()])).await;
        assert!(output.status.success());
        assert_eq!(output.stdout_text(), format!("{number}\n"));
    });
    futures_util::future::join_all(echoes).await;
}

/// A reader that does not read blocks only its own stream.
pub async fn unread_stream_blocks_no_other(stage: &Stage) {
    let sandbox = stage.running().await;
    let spec = ExecSpec { stdin: true, ..ExecSpec::argv(["cat"]) };
    let mut unread = sandbox.exec(&spec).await.unwrap();
    let stdin = unread.stdin();
    let bytes = vec![b'z'; 4 << 20];
    let feed = tokio::spawn(async move {
        stdin.write(&bytes).await.unwrap();
        stdin.close();
    });
    for number in 0..50 {
        assert_eq!(ok(&sandbox, &format!("echo {number}")).await, number.to_string());
    }
    assert!(!feed.is_finished(), "four mebibytes cannot be on the way");
    let (printed, status) = read_to_end(&mut unread).await;
    assert_eq!((printed.len(), status.code), (4 << 20, Some(0)));
    feed.await.unwrap();
}

/// A command prints faster than the client reads. Neither side buffers the whole output.
pub async fn much_output_takes_little_memory(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    // Several times the memory that either side may use. The bench reads a whole gibibyte.
    const BYTES: u64 = 256 << 20;
    let sandbox = stage.running().await;
    let mut spec = ExecSpec::argv(["head", "-c", &BYTES.to_string(), "/dev/zero"]);
    let mark = stage.mark(&mut spec, "flood");
    let own_before = host::memory_kib(std::process::id(), "VmHWM").unwrap();
    let mut exec = sandbox.exec(&spec).await.unwrap();
    // Nobody reads, so the command stops when the windows and pipes are full.
    crate::eventually("it waits for its reader", async || {
        let [pid] = host::marked(&mark)[..] else { return false };
        std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|place| place.contains("pipe"))
    })
    .await;
    let mut read = 0;
    let status = loop {
        match exec.next().await.unwrap() {
            ExecEvent::Output(_, bytes) => {
                assert!(bytes.len() as u64 <= caps::WINDOW, "{} bytes were held", bytes.len());
                read += bytes.len() as u64;
            }
            ExecEvent::Exited(status) => break status,
        }
    };
    assert_eq!((read, status.code), (BYTES, Some(0)));
    // If cases share a process, the memory of this case cannot be measured separately.
    if crate::environment::variable("NEXTEST").is_some() {
        let own = host::memory_kib(std::process::id(), "VmHWM").unwrap() - own_before;
        assert!(own < 64 << 10, "this side took {own} KiB");
    }
    let is_keeper = |pid: &u32| host::program(*pid).is_some_and(|program| program.contains("kennel"));
    let keepers: Vec<u32> = host::processes(&stage.home().mark()).into_iter().filter(is_keeper).collect();
    assert!(!keepers.is_empty(), "no keeper was found");
    for keeper in keepers {
        let took = host::memory_kib(keeper, "VmHWM").unwrap_or(0);
        assert!(took < 8 << 10, "the keeper took {took} KiB");
    }
}

/// Collected output is cut off at the cap, and the result states how many bytes are missing.
pub async fn collected_output_is_capped(stage: &Stage) {
    let sandbox = stage.running().await;
    let bytes = vec![b'y'; 100_000];
    let output = sandbox.run(&ExecSpec::argv(["cat"]), Some(&bytes), 1000).await.unwrap();
    assert_eq!((output.stdout.len(), output.stdout_cut), (1000, 99_000));
    assert!(output.truncated() && output.stdout_text().contains("99000 more bytes"));
}

/// Arguments that the kernel accepts are passed. Arguments above the cap are an error, and the connection continues.
pub async fn large_arguments_pass_and_huge_ones_are_refused(stage: &Stage) {
    let sandbox = stage.running().await;
    let word = "w".repeat(100_000);
    assert_eq!(run(&sandbox, &ExecSpec::argv(["echo", &word])).await.stdout.len(), 100_001);
    let huge = "h".repeat(2 << 20);
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["echo", &huge])).await), ErrorCode::LimitExceeded);
    assert_eq!(ok(&sandbox, "echo fine").await, "fine");
}

/// Completed requests leave nothing allocated on their connection.
pub async fn thousands_of_requests_on_one_connection(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    for _ in 0..2500 {
        files.stat("/", true).await.unwrap();
    }
    assert_eq!(code(files.stat("/no-such-file", true).await), ErrorCode::NotFound);
}

/// A command runs as a user given by id or by name, or the provider refuses it.
pub async fn commands_run_as_a_user(stage: &Stage) {
    if stage.mode().users == Support::Refused {
        let sandbox = stage.running().await;
        let spec = ExecSpec { user: Some("65534:65534".into()), ..ExecSpec::argv(["true"]) };
        assert_eq!(code(sandbox.exec(&spec).await), ErrorCode::Unsupported);
        assert_eq!(code(stage.try_create(&kennel_types::SandboxSpec { user: spec.user, ..stage.spec() }).await), {
            ErrorCode::Unsupported
        });
        return;
    }
    let sandbox = stage.running().await;
    let whoami = async |user: &str| {
        let spec = ExecSpec { user: Some(user.into()), ..ExecSpec::shell("echo $(id -u):$(id -g)") };
        run(&sandbox, &spec).await.stdout_text().trim_end().to_owned()
    };
    assert_eq!(whoami("0").await, "0:0");
    assert_eq!(whoami("root").await, "0:0");
    assert_eq!(whoami("65534:65534").await, "65534:65534");
    assert_eq!(whoami("nobody").await, "65534:65534");
    assert_eq!(whoami("1234:5678").await, "1234:5678");
    let unknown = ExecSpec { user: Some("no-such-user".into()), ..ExecSpec::argv(["true"]) };
    let error = sandbox.exec(&unknown).await.err().expect("there is no such user");
    assert_ne!(error.code(), ErrorCode::Internal, "{error}");
    // The user of the sandbox applies to every command that names no user.
    let theirs = stage.started(&kennel_types::SandboxSpec { user: Some("1234:5678".into()), ..stage.spec() }).await;
    assert_eq!(ok(&theirs, "id -u").await, "1234");
    // The streams belong to that user, who can reopen them by name.
    assert_eq!(ok(&theirs, "echo reopened > /dev/stdout").await, "reopened");
}

/// A command has `HOME` and `PATH` in its environment, with absolute paths.
pub async fn home_and_path_are_set(stage: &Stage) {
    let sandbox = stage.running().await;
    for name in ["HOME", "PATH"] {
        let value = variable(&sandbox, &ExecSpec::argv(["env"]), name).await;
        assert!(value.as_ref().is_some_and(|value| value.starts_with('/')), "{name}: {value:?}");
    }
}

/// Statistics count the processes and the memory of a sandbox.
pub async fn processes_and_memory_are_counted(stage: &Stage) {
    let sandbox = stage.running().await;
    let mut exec = sandbox.exec(&ExecSpec::shell("echo up; sleep 1000")).await.unwrap();
    read_until(&mut exec, |seen| seen.ends_with(b"up\n")).await;
    let stats = sandbox.stats().await.unwrap();
    assert!(stats.pids >= 1, "{stats:?}");
    if stage.mode().processes == Support::Given {
        assert!(stats.memory_bytes > 0, "{stats:?}");
    }
}

/// Bytes written to disk are counted, also after the process that wrote them has ended.
pub async fn disk_writes_are_counted(stage: &Stage) {
    const SIZE: u64 = 1 << 20;
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let written = async || sandbox.stats().await.unwrap().written_bytes.expect("writes are counted");
    let before = written().await;
    ok(&sandbox, "dd if=/dev/zero of=written bs=65536 count=16 conv=fsync 2>/dev/null; rm written").await;
    // The bytes of an ended process are counted once the keeper has reaped it.
    eventually("the writes are counted", async || written().await >= before + SIZE).await;
    assert!(sandbox.stats().await.unwrap().read_bytes.is_some());
}
