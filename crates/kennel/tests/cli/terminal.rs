//! The program on a real terminal: `run -it` and `attach`.

use crate::support::{Kennel, on_every_provider};
use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Regex, Session};
use kennel_testkit::within_blocking;
use std::time::Duration;

on_every_provider!(
    a_full_screen_program_works,
    the_size_follows_the_window,
    keys_are_passed_unchanged,
    without_a_command_a_shell_starts,
    the_terminal_is_restored,
    an_attached_shell_keeps_running_after_detach,
    attach_works_again_after_it_was_killed,
);

/// Runs a call on a terminal of 100 columns and 30 rows.
fn on_a_terminal(kennel: &Kennel, args: &[&str]) -> OsSession {
    terminal(kennel.call(args))
}

/// Starts a call on such a terminal.
pub(crate) fn terminal(mut call: std::process::Command) -> OsSession {
    // The standard streams are those of the terminal.
    let program = std::mem::replace(&mut call, std::process::Command::new("true"));
    let mut call = std::process::Command::new(program.get_program());
    call.args(program.get_args()).env_clear().env("TERM", "xterm");
    call.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if let Some(dir) = program.get_current_dir() {
        call.current_dir(dir);
    }
    let mut session = Session::spawn(call).expect("start kennel on a terminal");
    session.get_process_mut().set_window_size(100, 30).expect("set the size of the terminal");
    session.set_expect_timeout(Some(Duration::from_secs(90)));
    session
}

#[track_caller]
pub(crate) fn ends_with(mut session: OsSession, code: i32) {
    session.expect(Eof).expect("kennel ends");
    match session.get_process().wait().expect("wait for kennel") {
        WaitStatus::Exited(_, status) => assert_eq!(status, code),
        other => panic!("kennel ended with {other:?}"),
    }
}

fn a_full_screen_program_works(kennel: &Kennel) {
    let mut session = on_a_terminal(kennel, &["run", "-it", "--", "busybox", "vi", "written"]);
    // The editor draws empty lines over the whole screen, so it knows the size.
    session.expect(Regex("(~.*){28}")).expect("vi draws its screen");
    session.send("ihello from inside").unwrap();
    session.expect("hello from inside").expect("it shows what is typed");
    // Escape alone. Otherwise it would be the start of a longer key sequence.
    session.send("\x1b").unwrap();
    session.expect("written").expect("its status line");
    session.send(":wq\r").unwrap();
    ends_with(session, 0);
    assert_eq!(std::fs::read(kennel.here().join("written")).unwrap(), b"hello from inside\n");
}

fn the_size_follows_the_window(kennel: &Kennel) {
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done";
    let mut session = on_a_terminal(kennel, &["run", "-t", "-c", script]);
    session.expect(Regex("(24 80|30 100)\r\n")).expect("the first size");
    session.get_process_mut().set_window_size(77, 33).unwrap();
    session.expect("33 77").expect("the new size");
    session.send("\x03").unwrap();
    ends_with(session, 130);
}

fn keys_are_passed_unchanged(kennel: &Kennel) {
    let script = "trap 'echo got-int' INT; trap 'exit 9' QUIT; echo up; while :; do sleep 0.02; done";
    let mut session = on_a_terminal(kennel, &["run", "-it", "-c", script]);
    session.expect("up").unwrap();
    // Twice at once: on a terminal these are keys for the command, and not requests to Kennel.
    session.send("\x03").unwrap();
    session.expect("got-int").expect("Ctrl-C reaches the command");
    session.send("\x03").unwrap();
    session.expect("got-int").expect("and again");
    session.send("\x1c").unwrap();
    ends_with(session, 9);
}

fn without_a_command_a_shell_starts(kennel: &Kennel) {
    let mut session = on_a_terminal(kennel, &["run", "-e", "PS1=ready> "]);
    session.send("PS1='now> '; echo sum-$((40 + 2))\r").unwrap();
    session.expect("sum-42").expect("a shell takes commands");
    session.send("sh -c 'echo began-$((1 + 1)); exec sleep 1000'\r").unwrap();
    session.expect("began-2").unwrap();
    session.send("\x1a").unwrap();
    session.expect("Stopped").expect("Ctrl-Z stops the job, not us");
    session.send("kill -9 %1; wait; tty; echo $TERM\r").unwrap();
    session.expect(Regex("/dev/(pts/)?[a-z0-9]+")).expect("it is on a terminal");
    session.expect("xterm").expect("of our kind");
    // A shell that has not noticed the end of its job warns once, and ends the second time.
    session.send("exit 5\rexit 5\r").unwrap();
    ends_with(session, 5);
}

fn the_terminal_is_restored(kennel: &Kennel) {
    let program = kennel.call(&["run", "-it", "-c", "stty raw -echo; kill -9 $$"]);
    let line: Vec<String> = std::iter::once(program.get_program())
        .chain(program.get_args())
        .map(|part| format!("'{}'", part.to_string_lossy().replace('\'', r"'\''")))
        .collect();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("stty -g; {}; echo status-$?; stty -g", line.join(" ")));
    shell.current_dir(kennel.here()).envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut session = terminal(shell);
    let before = session.expect(Regex("[0-9a-f:]{20,}\r\n")).unwrap().get(0).unwrap().to_vec();
    session.expect("status-137\r\n").expect("the command's status");
    let after = session.expect(Regex("[0-9a-f:]{20,}\r\n")).unwrap().get(0).unwrap().to_vec();
    assert_eq!(String::from_utf8_lossy(&before), String::from_utf8_lossy(&after));
    ends_with(session, 0);
}

fn an_attached_shell_keeps_running_after_detach(kennel: &Kennel) {
    let id = kennel.sandbox();
    let mut session = on_a_terminal(kennel, &["attach", &id]);
    session.send("SECRET=kept; echo first-$((1 + 1))\r").unwrap();
    session.expect("first-2").expect("a new shell");
    session.send("\x10\x11").unwrap();
    session.expect("the command keeps running").expect("Ctrl-P Ctrl-Q leaves");
    ends_with(session, 0);
    let mut session = on_a_terminal(kennel, &["attach", &id]);
    session.send("echo again-$SECRET\r").unwrap();
    session.expect("again-kept").expect("it is the same shell");
    session.send("exit 4\r").unwrap();
    ends_with(session, 4);
}

fn attach_works_again_after_it_was_killed(kennel: &Kennel) {
    let id = kennel.sandbox();
    let mut session = on_a_terminal(kennel, &["attach", &id]);
    // Output while no client is attached: printed after the first client is gone, and before the next one attaches.
    let script =
        "echo up-$((1 + 1)); while [ ! -e go ]; do sleep 0.02; done; seq 5000; echo all-of-$((2500 * 2)); touch done";
    session.send(format!("{script}\r")).unwrap();
    session.expect("up-2").expect("it prints");
    session.get_process_mut().kill(expectrl::process::unix::Signal::SIGKILL).unwrap();
    assert!(matches!(session.get_process().wait().unwrap(), WaitStatus::Signaled(..)));
    drop(session);
    std::fs::write(kennel.here().join("go"), "").unwrap();
    let printed = within_blocking(Duration::from_secs(90), || kennel.here().join("done").exists());
    assert!(printed, "the command keeps running");
    let mut session = on_a_terminal(kennel, &["attach", &id]);
    for line in ["1\r\n2\r\n3\r\n", "\r\n4999\r\n5000\r\n", "all-of-5000"] {
        session.expect(line).expect("all that it printed without us");
    }
    session.send("exit\r").unwrap();
    ends_with(session, 0);
}
