//! `kennel run`: streams, exit codes, signals, the JSON object, and no leftovers in any case.

use crate::support::{CALL, Kennel, finish, hear, on_every_provider, signal, wait};
use kennel_testkit::{host, wait_in_race, within_blocking};
use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;

on_every_provider!(
    exit_codes,
    streams_stay_apart,
    standard_input_is_passed,
    settings_reach_the_command,
    the_workspace_is_the_current_directory,
    files_belong_to_the_user_who_called_sudo,
    limits_are_given_or_refused,
    networks_are_given_or_refused,
    ports_are_published_or_refused,
    the_default_network_is_none_without_bridge,
    run_prints_one_json_object,
    json_states_how_much_output_was_cut_off,
    json_keeps_every_byte,
    errors_are_in_the_json_object,
    a_timeout_ends_the_run,
    signals_are_passed_on,
    a_second_interrupt_kills,
    an_abort_is_in_the_json_object,
    an_ignored_hangup_stays_ignored,
    killing_kennel_leaves_nothing,
    a_refused_run_leaves_nothing,
    an_interrupt_at_any_moment_leaves_nothing,
    a_kill_at_any_moment_leaves_nothing,
    a_closed_output_pipe_ends_the_run,
    a_slow_reader_does_not_block_signals,
    a_kept_sandbox_stays,
    a_name_is_free_again_afterwards,
    without_a_command_the_images_own_runs_or_it_is_an_error,
);

fn exit_codes(kennel: &Kennel) {
    std::fs::write(kennel.here().join("plain"), "not a program").unwrap();
    kennel.kennel(&["run", "--", "true"]).ok();
    kennel.kennel(&["run", "--", "sh", "-c", "exit 3"]).fails(3);
    kennel.kennel(&["run", "-c", "exit 4"]).fails(4);
    kennel.kennel(&["run", "-c", "kill -9 $$"]).fails(137);
    let stderr = kennel.kennel(&["run", "--", "./plain"]).fails(126);
    assert!(stderr.starts_with("kennel: run ./plain"), "{stderr}");
    let stderr = kennel.kennel(&["run", "--", "no-such-program"]).fails(127);
    assert!(stderr.starts_with("kennel: run no-such-program"), "{stderr}");
    let stderr = kennel.kennel(&["run", "--", "echo two words"]).fails(127);
    assert!(stderr.contains("try: kennel run -c 'echo two words'"), "{stderr}");
    let stderr = kennel.kennel(&["run", "-v", "/no/such/place:/data", "--", "true"]).fails(125);
    assert!(stderr.contains("/no/such/place"), "{stderr}");
    kennel.kennel(&["run", "--no-such-option", "--", "true"]).fails(125);
}

fn streams_stay_apart(kennel: &Kennel) {
    let done = kennel.kennel(&["run", "-c", "printf 'a\\000\\377b'; echo oops >&2; exit 5"]);
    assert_eq!((done.status, done.stdout.as_slice()), (5, &b"a\0\xffb"[..]));
    assert_eq!(done.stderr, "oops\n");
}

fn standard_input_is_passed(kennel: &Kennel) {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| ((number.wrapping_mul(number)) >> 7) as u8).collect();
    let done = kennel.kennel_with(&["run", "--", "cat"], &bytes);
    assert!(done.status == 0 && done.stdout == bytes, "{} bytes came back: {}", done.stdout.len(), done.stderr);
    // Without input, a reader gets end of file at once, and a command that does not read is not waited for.
    assert_eq!(kennel.kennel(&["run", "--", "cat"]).ok(), "");
    assert_eq!(kennel.kennel_with(&["run", "--", "echo", "x"], &bytes).ok(), "x");
    let file = kennel.here().join("file");
    std::fs::write(&file, "from a file").unwrap();
    let mut call = kennel.call(&["run", "--", "cat"]);
    call.stdin(std::fs::File::open(file).unwrap());
    assert_eq!(finish(call, None).ok(), "from a file");
}

fn settings_reach_the_command(kennel: &Kennel) {
    let mut call = kennel.call(&["run", "-e", "A=1", "-e", "FROM_HERE", "-w", "/tmp", "-c", "echo $A $FROM_HERE; pwd"]);
    call.env("FROM_HERE", "two words");
    assert_eq!(finish(call, None).ok(), "1 two words\n/tmp");
    let stderr = kennel.kennel(&["run", "-e", "NOT_SET_ANYWHERE", "--", "true"]).fails(125);
    assert!(stderr.contains("NOT_SET_ANYWHERE"), "{stderr}");
    let id = kennel.kennel(&["run", "--keep", "--label", "a=b", "--name", "kept", "--json", "--", "true"]).json();
    let info = kennel.kennel(&["inspect", "kept"]).json();
    assert_eq!(info[0]["labels"]["a"], "b");
    assert_eq!(info[0]["id"], id["sandboxId"]);
}

fn the_workspace_is_the_current_directory(kennel: &Kennel) {
    std::fs::write(kennel.here().join("given"), "content").unwrap();
    assert_eq!(kennel.kennel(&["run", "-c", "cat given; echo new > made"]).ok(), "content");
    assert_eq!(std::fs::read(kennel.here().join("made")).unwrap(), b"new\n");
    if kennel.provider == "local" {
        return;
    }
    assert_eq!(kennel.kennel(&["run", "-c", "pwd; cat /workspace/given"]).ok(), "/workspace\ncontent");
    let other = kennel.home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("file"), "theirs").unwrap();
    let mount = format!("{}:/data:ro", other.display());
    assert_eq!(kennel.kennel(&["run", "-v", &mount, "-c", "cat /data/file"]).ok(), "theirs");
    assert_ne!(kennel.kennel(&["run", "-v", &mount, "-c", "echo x > /data/file"]).status, 0);
    let given = other.display().to_string();
    assert_eq!(kennel.kennel(&["run", "--workspace", &given, "--", "cat", "file"]).ok(), "theirs");
    assert_ne!(kennel.kennel(&["run", "--no-workspace", "--", "cat", "/workspace/given"]).status, 0);
}

fn files_belong_to_the_user_who_called_sudo(kennel: &Kennel) {
    let (uid, gid) = (12345, 23456);
    std::os::unix::fs::chown(kennel.here(), Some(uid), Some(gid)).unwrap();
    let mut call = kennel.call(&["run", "--", "touch", "made"]);
    call.env("SUDO_UID", uid.to_string()).env("SUDO_GID", gid.to_string());
    finish(call, None).ok();
    let meta = std::fs::metadata(kennel.here().join("made")).unwrap();
    // Without a mount, nothing is given to the caller: root's files belong to root.
    let expected = if kennel.provider == "local" { (0, 0) } else { (uid, gid) };
    assert_eq!((meta.uid(), meta.gid()), expected);
}

fn limits_are_given_or_refused(kennel: &Kennel) {
    if kennel.provider == "local" {
        for limit in [["--memory", "64m"], ["--cpus", "0.5"], ["--pids", "50"]] {
            let stderr = kennel.kennel(&["run", limit[0], limit[1], "--", "true"]).fails(125);
            assert!(stderr.contains("the local provider does not support"), "{stderr}");
        }
        return;
    }
    let limits = ["--memory", "64m", "--cpus", "0.5", "--pids", "50"];
    kennel.kennel(&[&["create", "--name", "held"][..], &limits].concat()).ok();
    let held = &kennel.kennel(&["inspect", "held"]).json()[0]["enforcement"]["limits"];
    assert_eq!(*held, serde_json::json!({ "memory": 64 << 20, "millicpus": 500, "pids": 50, "disk": null }));
    let done = kennel.kennel(&["run", "--json", "--memory", "32m", "-c", "tail /dev/zero"]);
    assert_eq!((done.status, done.json()["oomKilled"].as_bool()), (137, Some(true)), "{done:?}");
    assert_eq!(done.json()["error"]["code"], "limit_exceeded");
    assert_eq!(done.json()["error"]["reason"], "out_of_memory");
}

fn networks_are_given_or_refused(kennel: &Kennel) {
    if kennel.provider != "local" {
        for network in ["none", "host", "bridge"] {
            kennel.kennel(&["run", "--network", network, "--", "true"]).ok().clear();
        }
        return;
    }
    let stderr = kennel.kennel(&["run", "--network", "none", "--", "true"]).fails(125);
    assert!(stderr.contains("network none") && stderr.contains("try: use --network"), "{stderr}");
}

fn ports_are_published_or_refused(kennel: &Kennel) {
    if kennel.provider == "local" {
        let stderr = kennel.kennel(&["run", "-p", "80", "--", "true"]).fails(125);
        assert!(stderr.contains("the published port 80/tcp") && stderr.contains("kennel explain ports"), "{stderr}");
        return;
    }
    kennel.kennel(&["run", "--publish", "80", "--", "true"]).ok().clear();
    kennel.kennel(&["create", "--start", "--name", "box", "-p", "80", "-p", "53/udp"]).ok().clear();
    let ports = &kennel.kennel(&["inspect", "box"]).json()[0]["ports"];
    assert_eq!(ports.as_array().map(Vec::len), Some(2), "{ports}");
    assert!(ports[1]["address"].as_str().is_some_and(|place| place.starts_with("127.0.0.1:")), "{ports}");
    let listed = kennel.kennel(&["ls", "--format", "ports"]).ok();
    assert!(listed.contains("->80/tcp") && listed.contains("->53/udp"), "{listed}");
    // A port that is in use is refused with a suggestion, and nothing is left behind.
    let taken = ports.as_array().unwrap().iter().find(|port| port["protocol"] == "tcp").unwrap();
    let number = taken["address"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let stderr = kennel.kennel(&["create", "--start", "-p", &format!("{number}:80")]).fails(125);
    assert!(stderr.contains("--publish"), "{stderr}");
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok().lines().count(), 1);
    let stderr = kennel.kennel(&["run", "-p", &format!("{number}:80"), "--", "true"]).fails(125);
    assert!(stderr.contains("--publish"), "{stderr}");
    let stderr = kennel.kennel(&["run", "--network", "none", "-p", "80", "--", "true"]).fails(125);
    assert!(stderr.contains("network none") && stderr.contains("--network bridge"), "{stderr}");
}

fn the_default_network_is_none_without_bridge(kennel: &Kennel) {
    if kennel.provider != "native" {
        return kennel.kennel(&["run", "--quiet", "--", "true"]).ok().clear();
    }
    // A machine without `nft`, and without existing rules.
    let nft = ["/usr/sbin/nft", "/sbin/nft"].into_iter().find(|path| std::path::Path::new(path).exists());
    let nothing = kennel.home.path().join("nothing");
    std::fs::write(&nothing, "").unwrap();
    kennel.net.as_ref().unwrap().replace_file(std::path::Path::new(nft.expect("nft is installed")), &nothing);
    let done = kennel.kennel(&["run", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"]);
    assert_eq!((done.status, done.text().trim()), (0, "lo"), "{done:?}");
    assert!(done.stderr.contains("kennel: network: using none, because bridge is not available here"), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    // An explicit request is not replaced.
    for asked in [&["run", "--network", "bridge", "--", "true"][..], &["run", "-p", "80", "--", "true"]] {
        let stderr = kennel.kennel(asked).fails(125);
        assert!(stderr.contains("nft") && stderr.contains("nftables"), "{stderr}");
    }
    let done = kennel.kennel(&["run", "--network", "none", "--", "true"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
}

fn run_prints_one_json_object(kennel: &Kennel) {
    let done = kennel.kennel_with(&["run", "--json", "-c", "cat; echo oops >&2; exit 3"], b"typed");
    assert_eq!((done.status, done.stderr.as_str()), (3, ""));
    let object = done.json();
    assert_eq!(object["exitCode"], 3);
    assert_eq!(object["signal"], serde_json::Value::Null);
    assert_eq!((object["stdout"].as_str(), object["stderr"].as_str()), (Some("typed"), Some("oops\n")));
    assert_eq!(object["truncated"], false);
    assert_eq!(object["provider"], kennel.provider);
    assert_eq!(object["error"], serde_json::Value::Null);
    assert!(object["sandboxId"].as_str().is_some_and(|id| !id.is_empty()), "{object}");
    let timings = object["timings"].as_object().unwrap();
    let phases = ["create", "start", "exec", "remove"].map(|phase| timings[phase].as_f64().unwrap());
    let total = timings["total"].as_f64().unwrap();
    assert!(phases.iter().all(|phase| *phase >= 0.0) && phases.iter().sum::<f64>() <= total + 0.1, "{timings:?}");
    let killed = kennel.kennel(&["run", "--json", "-c", "kill -9 $$"]);
    assert_eq!(killed.status, 137);
    assert_eq!((killed.json()["signal"].as_i64(), killed.json()["exitCode"].as_i64()), (Some(9), Some(137)));
}

fn json_states_how_much_output_was_cut_off(kennel: &Kennel) {
    const CAP: usize = 10 * 1024 * 1024;
    let script = format!("head -c {} /dev/zero | tr '\\0' x; echo whole >&2", CAP + 12345);
    let object = kennel.kennel(&["run", "--json", "-c", &script]).json();
    assert_eq!(object["truncated"], true);
    assert_eq!((object["cut"]["stdout"].as_u64(), object["cut"]["stderr"].as_u64()), (Some(12345), Some(0)));
    let stdout = object["stdout"].as_str().unwrap();
    assert_eq!(stdout.bytes().filter(|byte| *byte == b'x').count(), CAP);
    assert!(stdout[CAP..].contains("12345"), "the text says it too: {}", &stdout[CAP..]);
    assert_eq!(object["stderr"], "whole\n");
    // Without `--json`, nothing is cut off.
    assert_eq!(kennel.kennel(&["run", "-c", &script]).stdout.len(), CAP + 12345);
}

fn json_keeps_every_byte(kennel: &Kennel) {
    let object = kennel.kennel(&["run", "--json", "-c", "printf '\\377'; echo text >&2"]).json();
    assert_eq!(object["stdoutBase64"], "/w==");
    assert_eq!(object.get("stderrBase64"), None);
}

fn errors_are_in_the_json_object(kennel: &Kennel) {
    let done = kennel.kennel(&["run", "--json", "--", "no-such-program"]);
    assert_eq!(done.status, 127);
    assert_eq!(done.json()["exitCode"], 127);
    assert_eq!(done.json()["error"]["code"], "exec_failed");
    assert!(done.json()["error"]["message"].as_str().unwrap().contains("no-such-program"));
    let done = kennel.kennel(&["run", "--json", "--timeout", limit(kennel), "-c", "echo before; sleep 1000"]);
    assert_eq!(done.status, 124);
    assert_eq!((done.json()["stdout"].as_str(), done.json()["timedOut"].as_bool()), (Some("before\n"), Some(true)));
    assert_eq!(done.json()["error"]["code"], "timeout");
    let done = kennel.kennel(&["run", "--json", "-e", "NOT_SET_ANYWHERE", "--", "true"]);
    assert_eq!(done.status, 125);
    assert_eq!(done.json()["error"]["code"], "invalid_config");
    assert_eq!(done.json()["sandboxId"], serde_json::Value::Null);
}

/// Enough time to create a sandbox and start its command: the limit is for the whole run.
fn limit(kennel: &Kennel) -> &'static str {
    if kennel.provider == "docker" { "4s" } else { "1s" }
}

fn a_timeout_ends_the_run(kennel: &Kennel) {
    let script = "trap '' TERM; (trap '' TERM; sleep 1000) & echo up; wait; sleep 1000";
    let done = kennel.kennel(&["run", "--timeout", limit(kennel), "-c", script]);
    assert_eq!((done.status, done.text().as_str()), (124, "up\n"));
    assert!(done.stderr.contains(limit(kennel)) && done.stderr.contains("--timeout"), "{}", done.stderr);
    assert!(kennel.is_gone());
}

fn signals_are_passed_on(kennel: &Kennel) {
    for (number, name, code) in [(Signal::TERM, "TERM", 9), (Signal::USR1, "USR1", 10), (Signal::INT, "INT", 11)] {
        let script = format!("trap 'echo heard {name}; exit {code}' {name}; echo up; while :; do sleep 0.02; done");
        let mut child = kennel.call(&["run", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        hear(&mut out, "up\n");
        signal(&child, number);
        hear(&mut out, &format!("heard {name}\n"));
        assert_eq!(wait(&mut child, name), code);
    }
    let mut child = kennel.call(&["run", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped()).spawn().unwrap();
    hear(&mut child.stdout.take().unwrap(), "up\n");
    signal(&child, Signal::TERM);
    assert_eq!(wait(&mut child, "a command ended by TERM"), 128 + 15);
}

fn a_second_interrupt_kills(kennel: &Kennel) {
    let script = "trap 'echo ignored' INT; echo up; while :; do sleep 0.02; done";
    let mut child = kennel.call(&["run", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    hear(&mut out, "up\n");
    signal(&child, Signal::INT);
    hear(&mut out, "ignored\n");
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child, "a command that ignores INT"), 128 + 9);
    assert!(kennel.is_gone());
}

fn an_abort_is_in_the_json_object(kennel: &Kennel) {
    let told = |script: &str, number: Signal, status: i32| {
        let mut child = kennel.call(&["run", "--json", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let up = kennel.here().join("up");
        assert!(within_blocking(Duration::from_secs(30), || up.exists()), "it runs");
        std::fs::remove_file(&up).unwrap();
        signal(&child, number);
        assert_eq!(wait(&mut child, script), status);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    for (number, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let object = told("echo before; touch up; exec sleep 1000", number, status);
        assert_eq!((&object["error"]["code"], &object["exitCode"]), (&"aborted".into(), &status.into()), "{object}");
        assert_eq!(object["stdout"], "before\n");
        assert_eq!(object["error"]["recoverable"], true);
    }
    let failed = "sleep 1000 & trap 'exit 3' TERM; touch up; wait";
    assert_eq!(told(failed, Signal::TERM, 3)["error"]["code"], "aborted");
    // A command that ends normally, or only handles a signal, was not aborted.
    let well = "sleep 1000 & trap 'exit 0' TERM; touch up; wait";
    assert!(told(well, Signal::TERM, 0)["error"].is_null());
    let told_only = "sleep 1000 & trap 'exit 3' USR1; touch up; wait";
    assert!(told(told_only, Signal::USR1, 3)["error"].is_null());
}

fn an_ignored_hangup_stays_ignored(kennel: &Kennel) {
    let program = kennel.call(&["run", "-c", "echo up; read line; echo got $line"]);
    let mut call = std::process::Command::new("nohup");
    call.arg(program.get_program()).args(program.get_args()).current_dir(kennel.here()).env_clear();
    call.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child = call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    hear(&mut out, "up\n");
    signal(&child, Signal::HUP);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"on\n").unwrap();
    hear(&mut out, "got on\n");
    assert_eq!(wait(&mut child, "a call under nohup"), 0);
}

/// Calls `run` repeatedly, and does something to it a little later each time: while it starts, creates the sandbox,
/// starts the sandbox, or runs the command. Returns the exit statuses, `None` if a signal ended it.
fn at_any_moment(kennel: &Kennel, end: rustix::process::Signal) -> Vec<Option<i32>> {
    // Docker is slower at everything.
    let (moments, step) = if kennel.provider == "docker" { (8, 60_000) } else { (40, 300) };
    let mut statuses = Vec::new();
    for moment in 0..moments {
        let mut command = kennel.call(&["run", "--", "sleep", "1000"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_micros(moment * step) {
            std::thread::yield_now();
        }
        signal(&child, end);
        let mut status = None;
        let ended = within_blocking(CALL, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        if !ended {
            let _ = child.kill();
            panic!("moment {moment}: it goes on");
        }
        // What is left of a sandbox that was never started is removed by the next listing.
        // A keeper whose owner was killed before the handshake waits ten seconds for it.
        assert!(kennel.is_gone(), "moment {moment}: something is left: {:?}", kennel.left());
        statuses.push(status.unwrap().code());
    }
    if kennel.provider == "docker" {
        // The engine may still work on a request of a killed program. What it creates later is a leftover.
        for _ in 0..20 {
            wait_in_race(Duration::from_millis(100));
            kennel.kennel(&["gc"]);
        }
    }
    statuses
}

fn an_interrupt_at_any_moment_leaves_nothing(kennel: &Kennel) {
    let statuses = at_any_moment(kennel, rustix::process::Signal::INT);
    // Before it handles signals, a signal ends it like any program.
    assert!(statuses.iter().all(|status| matches!(status, None | Some(130))), "{statuses:?}");
    assert!(statuses.contains(&Some(130)), "{statuses:?}");
}

fn a_kill_at_any_moment_leaves_nothing(kennel: &Kennel) {
    let statuses = at_any_moment(kennel, rustix::process::Signal::KILL);
    assert!(statuses.iter().all(Option::is_none), "{statuses:?}");
}

fn killing_kennel_leaves_nothing(kennel: &Kennel) {
    let mark = format!("{}-victim", kennel.home.mark());
    let entry = format!("KENNEL_TEST_COMMAND={mark}");
    let script = "trap '' TERM HUP; (trap '' TERM HUP; setsid sleep 1000 &) ; echo up; while :; do sleep 1; done";
    let mut child = kennel.call(&["run", "-e", &entry, "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    hear(&mut child.stdout.take().unwrap(), "up\n");
    assert!(!host::marked(&mark).is_empty(), "the command can be seen from outside");
    child.kill().unwrap();
    child.wait().unwrap();
    // Sooner than the grace period of a stop, which is eight seconds.
    let gone = within_blocking(Duration::from_secs(6), || host::marked(&mark).is_empty());
    assert!(gone, "still there: {:?}", host::marked(&mark));
    // Engines may take a moment to remove the container.
    assert!(kennel.is_gone());
}

fn a_refused_run_leaves_nothing(kennel: &Kennel) {
    for refused in [["-v", "/no/such/place:/data"], ["--name", "not a name"], ["-e", "NOT_SET_ANYWHERE"]] {
        kennel.kennel(&["run", refused[0], refused[1], "--", "true"]).fails(125);
        assert!(kennel.is_gone(), "{refused:?}");
    }
}

fn a_closed_output_pipe_ends_the_run(kennel: &Kennel) {
    let mut child = kennel.call(&["run", "--", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hear(&mut child.stdout.take().unwrap(), "y\n");
    assert_eq!(wait(&mut child, "yes"), 141);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(said, "", "it ends quietly");
    assert!(kennel.is_gone());
}

fn a_slow_reader_does_not_block_signals(kennel: &Kennel) {
    let mark = format!("{}-yes", kennel.home.mark());
    let mut child = kennel.call(&["run", "--", "yes", &mark]).stdout(Stdio::piped()).spawn().unwrap();
    let line = format!("yes\0{mark}\0").into_bytes();
    let runs = || {
        let carriers = host::processes(&mark);
        carriers.iter().any(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == line))
    };
    let mut out = child.stdout.take().unwrap();
    // `yes` never stops, so a size that no longer grows means that the buffers are full.
    let (mut before, mut same) = (0, 0);
    let stuck = within_blocking(CALL, || {
        let waiting = rustix::io::ioctl_fionread(&out).unwrap_or(0);
        same = if waiting > 0 && waiting == before { same + 1 } else { 0 };
        before = waiting;
        same == 5
    });
    assert!(stuck, "the pipe is full while nobody reads");
    assert!(runs(), "the command can be seen from outside");
    signal(&child, Signal::TERM);
    let ended = within_blocking(CALL, || !runs());
    assert!(ended, "the signal is passed on while output is stuck");
    // The output from before the signal must still arrive.
    let drained = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()).unwrap());
    assert_eq!(wait(&mut child, "yes, ended by TERM"), 128 + 15);
    assert!(drained.join().unwrap() >= before);
}

fn a_kept_sandbox_stays(kennel: &Kennel) {
    let done = kennel.kennel(&["run", "--keep", "--name", "kept", "-c", "echo here > /tmp/kept-file; exit 3"]);
    assert_eq!(done.status, 3, "{done:?}");
    assert_eq!(kennel.kennel(&["exec", "kept", "--", "cat", "/tmp/kept-file"]).ok(), "here");
    kennel.kennel(&["exec", "kept", "--", "rm", "/tmp/kept-file"]).ok();
    kennel.kennel(&["run", "--name", "kept", "--", "true"]).fails(125);
    kennel.kennel(&["rm", "--force", "kept"]).ok();
}

fn a_name_is_free_again_afterwards(kennel: &Kennel) {
    for _ in 0..3 {
        kennel.kennel(&["run", "--name", "again", "--", "true"]).ok();
        assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "");
    }
}

fn without_a_command_the_images_own_runs_or_it_is_an_error(kennel: &Kennel) {
    if kennel.provider == "docker" {
        // The command of the test image is a shell.
        return assert_eq!(kennel.kennel_with(&["run"], b"echo from the image").ok(), "from the image");
    }
    let stderr = kennel.kennel(&["run"]).fails(125);
    assert!(stderr.contains("there is no command to run") && stderr.contains("try: "), "{stderr}");
    assert!(kennel.is_gone());
}

/// The jail and the keeper are forks of the program. They contain nothing of its environment. As a control, the program
/// itself does.
#[test]
fn environment_is_not_in_the_memory_of_jail_and_keeper() {
    let kennel = Kennel::on("native");
    let canary = format!("a-secret-of-{}", std::process::id());
    let mut call = kennel.call(&["run", "--network", "none", "-c", "echo started; exec sleep 1000"]);
    let mut run = call.env("SOME_TOKEN", &canary).stdout(Stdio::piped()).spawn().unwrap();
    hear(run.stdout.as_mut().unwrap(), "started");
    let [jail] = children(run.id())[..] else { panic!("the program has one child") };
    let [keeper] = children(jail)[..] else { panic!("the jail has one child") };
    let contains = |pid| memory(pid).windows(canary.len()).any(|window| window == canary.as_bytes());
    assert_eq!([run.id(), jail, keeper].map(contains), [true, false, false]);
    signal(&run, Signal::TERM);
    wait(&mut run, "kennel run");
}

/// Returns the children of a process.
fn children(of: u32) -> Vec<u32> {
    let line = format!("PPid:\t{of}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.lines().any(|it| it == line))
    })
    .collect()
}

/// Returns the memory of a process that it can write to.
fn memory(pid: u32) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut part = vec![0; usize::try_from(end - start).unwrap()];
        memory.read_exact_at(&mut part, start).unwrap();
        all.extend(part);
    }
    all
}
