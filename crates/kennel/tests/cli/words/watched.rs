//! The output of `stats` and `events` for running sandboxes, without numbers that differ between runs.

use super::Walk;
use crate::support::{Kennel, finish, signal};
use kennel_testkit::within_blocking;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A JSON line in which every number, or null in its place, is N.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("\":") {
        let (before, after) = rest.split_at(at + 2);
        let end = after.find([',', '}']).unwrap_or(after.len());
        out += before;
        let value = &after[..end];
        out += if value.parse::<f64>().is_ok() || value == "null" { "N" } else { value };
        rest = &after[end..];
    }
    out + rest
}

/// A table in which all but the first two columns are N, because their width depends on the numbers.
fn without_values(table: &str) -> String {
    let columns = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(String::from).collect::<Vec<_>>()
    };
    let mut lines = table.lines();
    let header = columns(lines.next().unwrap_or_default());
    let mut out = vec![header.join("   ")];
    for line in lines {
        let mut row = columns(line);
        assert_eq!(row.len(), header.len(), "{table}");
        row[2..].fill("N".into());
        out.push(row.join("   "));
    }
    out.join("\n")
}

fn stats(coloured: bool) -> String {
    let kennel = Kennel::on("native");
    let mut walk = Walk::new(&kennel, coloured);
    kennel.kennel(&["create", "--start", "--name", "box", "--memory", "64m"]).ok();
    walk.stands_for(&kennel.kennel(&["ls", "-q"]).ok(), "ID----------");
    for (words, steady) in [
        (&["stats", "--no-stream"][..], without_values as fn(&str) -> String),
        (&["stats", "--no-stream", "--json", "box"], without_numbers),
    ] {
        let mut call = kennel.call(words);
        call.envs(coloured.then_some(("CLICOLOR_FORCE", "1")));
        let done = finish(call, None);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
        walk.note(words, &steady(done.text().trim_end()));
    }
    walk.text
}

#[test]
fn what_stats_prints() {
    let text = stats(false);
    assert_eq!(text, stats(true), "nothing of it has colours");
    insta::assert_snapshot!("stats", text);
}

/// Creates and removes sandboxes until all events of one are seen. Returns these events.
fn life(walk: &mut Walk<'_>, words: &[&str]) {
    let kennel = walk.kennel;
    let mut call = kennel.call(words);
    call.envs(walk.coloured.then_some(("CLICOLOR_FORCE", "1")));
    let mut events = call.stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(events.stdout.take().unwrap());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let lines = heard.clone();
    let listener = std::thread::spawn(move || {
        for line in out.lines() {
            lines.lock().unwrap().push(line.unwrap());
        }
    });
    let mut told = None;
    // Events are reported from some moment on. Until then, sandboxes are created and removed.
    within_blocking(Duration::from_secs(30), || {
        let id = kennel.kennel(&["create"]).ok();
        for words in [&["start"][..], &["stop", "-t", "0"], &["rm"]] {
            kennel.kennel(&[words, &[&id]].concat()).ok();
        }
        let of_this = || heard.lock().unwrap().iter().filter(|line| line.contains(&id)).cloned().collect::<Vec<_>>();
        within_blocking(Duration::from_secs(2), || of_this().last().is_some_and(|line| line.contains("removed")));
        told = Some((id.clone(), of_this())).filter(|(_, lines)| lines.len() >= 4);
        told.is_some()
    });
    signal(&events, rustix::process::Signal::KILL);
    events.wait().unwrap();
    listener.join().unwrap();
    let (id, lines) = told.expect("a life that was told whole");
    let steady = |line: &String| {
        let line = line.replace(&id, "ID----------");
        if line.starts_with('{') {
            return without_numbers(&line);
        }
        let (clock, rest) = line.split_at("00:00:00".len());
        assert!(clock.bytes().all(|byte| byte.is_ascii_digit() || byte == b':'), "{line}");
        format!("HH:MM:SS{rest}")
    };
    walk.note(words, &lines.iter().map(steady).collect::<Vec<_>>().join("\n"));
}

#[test]
fn what_events_prints() {
    let text = [false, true].map(|coloured| {
        let kennel = Kennel::on("native");
        let mut walk = Walk::new(&kennel, coloured);
        life(&mut walk, &["events"]);
        life(&mut walk, &["events", "--json"]);
        walk.text
    });
    assert_eq!(text[0], text[1], "nothing of it has colours");
    insta::assert_snapshot!("events", text[0]);
}
