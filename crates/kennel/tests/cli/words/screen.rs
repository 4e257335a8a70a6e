//! The terminal's content after `attach`.

use super::Walk;
use crate::support::Kennel;
use crate::terminal::terminal;
use expectrl::process::unix::WaitStatus;
use expectrl::{Eof, Expect};

/// A command that asks a question and waits for the answer.
const QUESTION: &[&str] = &["exec", "-d", "-t", "box", "-c", "printf 'your name? '; read name; echo \"hello, $name\""];

/// Attaches, waits for a word, types, and records the screen until it ends.
fn attach(walk: &mut Walk<'_>, awaited: &str, keys: &str) {
    let words = ["attach", "box"];
    let mut call = walk.kennel.call(&words);
    call.envs((!walk.coloured).then_some(("NO_COLOR", "1")));
    let mut session = terminal(call);
    let mut screen = session.expect(awaited).expect("it shows what waits").as_bytes().to_vec();
    session.send(keys).unwrap();
    screen.extend(session.expect(Eof).expect("it ends").as_bytes());
    match session.get_process().wait().expect("wait for kennel") {
        WaitStatus::Exited(_, 0) => walk.note(&words, &String::from_utf8_lossy(&screen).replace('\r', "")),
        other => panic!("kennel ended with {other:?}"),
    }
}

fn walk(coloured: bool) -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, coloured);
    walk.go(&["create", "--start", "--name", "box"]);
    kennel.kennel(QUESTION).ok();
    attach(&mut walk, "your name? ", "ann\r");
    // Ctrl-P Ctrl-Q detaches, and the command keeps waiting.
    kennel.kennel(QUESTION).ok();
    attach(&mut walk, "your name? ", "\x10\x11");
    walk.text
}

#[test]
fn what_attach_shows() {
    insta::assert_snapshot!("attach", walk(false));
}

#[test]
fn what_attach_shows_in_colour() {
    insta::assert_snapshot!("attach_in_colour", walk(true));
}
