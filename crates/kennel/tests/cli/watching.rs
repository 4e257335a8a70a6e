//! Observing running sandboxes from outside: stats, events, wait.

use crate::support::{Kennel, hear, on_every_provider, signal, wait};
use std::process::Stdio;

on_every_provider!(stats_show_resource_usage, wait_returns_when_the_sandbox_ends, events_are_reported);

fn stats_show_resource_usage(kennel: &Kennel) {
    let id = kennel.sandbox();
    let busy = kennel.kennel(&["exec", "-d", &id, "-c", "while :; do :; done"]).ok();
    assert!(!busy.is_empty());
    let row = kennel.kennel(&["stats", "--no-stream", "--json"]).json();
    assert_eq!(row["sandboxId"], id);
    assert!(row["cpuPercent"].as_f64().unwrap() > 1.0, "it uses CPU time: {row}");
    assert!(row["memoryBytes"].as_u64().unwrap() > 0 && row["pids"].as_u64().unwrap() > 0, "{row}");
    let table = kennel.kennel(&["stats", "--no-stream", &id]).ok();
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("ID"), "{table}");
    assert!(lines.next().unwrap().contains(&id), "{table}");
    // Updated until interrupted.
    let mut live = kennel.call(&["stats", "--json", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = live.stdout.take().unwrap();
    hear(&mut out, "}\n");
    hear(&mut out, "}\n");
    signal(&live, rustix::process::Signal::INT);
    live.wait().unwrap();
    kennel.kennel(&["stop", "-t", "0", &id]).ok();
    kennel.kennel(&["stats", "--no-stream", &id]).fails(125);
    assert_eq!(kennel.kennel(&["stats", "--no-stream", "--json"]).ok(), "", "nothing runs");
}

fn wait_returns_when_the_sandbox_ends(kennel: &Kennel) {
    let script = "while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let id = kennel.kennel(&["create", "--start", "--", "sh", "-c", script]).ok();
    let mut waiting = kennel.call(&["wait", &id]).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(kennel.here().join("go"), "").unwrap();
    hear(&mut waiting.stdout.take().unwrap(), "7\n");
    assert_eq!(wait(&mut waiting, "kennel wait"), 0);
    let again = kennel.kennel(&["wait", "--json", &id]).json();
    assert_eq!((again[0]["sandboxId"].as_str(), again[0]["exitCode"].as_i64()), (Some(&*id), Some(7)));
    kennel.kennel(&["wait", "nobody"]).fails(125);
}

fn events_are_reported(kennel: &Kennel) {
    let mut events = kennel.call(&["events", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = events.stdout.take().unwrap();
    // Events are reported from some moment on. Until then, sandboxes are created and removed.
    let heard = std::thread::spawn(move || {
        for event in ["created", "started", "stopped", "removed"] {
            hear(&mut out, &format!("\"event\":\"{event}\""));
        }
    });
    kennel_testkit::within_blocking(std::time::Duration::from_secs(90), || {
        let id = kennel.sandbox();
        kennel.kennel(&["stop", "-t", "0", &id]).ok();
        kennel.kennel(&["rm", &id]).ok();
        heard.is_finished()
    });
    assert!(heard.is_finished(), "an event was never reported");
    heard.join().unwrap();
    signal(&events, rustix::process::Signal::INT);
    events.wait().unwrap();
}
