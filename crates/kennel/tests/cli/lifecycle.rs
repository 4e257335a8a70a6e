//! The lifecycle of sandboxes that stay: create, ls, inspect, exec, logs, stop, start, rm.

use crate::support::{Kennel, hear, on_every_provider, signal, wait};
use std::process::Stdio;

on_every_provider!(
    a_sandbox_from_create_to_rm,
    the_main_process_and_its_log,
    exec_runs_in_an_existing_sandbox,
    a_detached_command_keeps_running,
    commands_accept_several_sandboxes,
    ids_can_be_shortened,
    lists_are_filtered,
);

fn a_sandbox_from_create_to_rm(kennel: &Kennel) {
    assert_eq!(kennel.kennel(&["create", "--name", "box"]).ok(), "box");
    assert_eq!(kennel.kennel(&["ls", "-q"]).ok(), "", "only running sandboxes");
    assert!(kennel.kennel(&["ls", "--all"]).ok().contains("created"));
    let stderr = kennel.kennel(&["exec", "box", "--", "true"]).fails(125);
    assert!(stderr.contains("try: kennel start"), "{stderr}");
    let id = kennel.kennel(&["start", "box"]).ok();
    assert_eq!(kennel.kennel(&["start", "box"]).ok(), id, "starting a running sandbox is no error");
    let table = kennel.kennel(&["ls"]).ok();
    let row = table.lines().nth(1).unwrap();
    assert!([&id, "box", kennel.provider, "running"].iter().all(|word| row.contains(*word)), "{table}");
    let listed = kennel.kennel(&["ls", "--json"]).json();
    assert_eq!((listed[0]["id"].as_str(), listed[0]["status"].as_str()), (Some(id.as_str()), Some("running")));
    let inspected = kennel.kennel(&["inspect", "box"]).json();
    assert_eq!(inspected[0]["id"], id);
    assert!(inspected[0]["enforcement"]["layers"].is_array(), "{inspected}");
    assert_eq!(kennel.kennel(&["exec", "box", "-c", "echo kept > /tmp/life-$A; echo ok", "-e", "A=1"]).ok(), "ok");
    let stderr = kennel.kennel(&["rm", "box"]).fails(125);
    assert!(stderr.contains("try: "), "{stderr}");
    assert_eq!(kennel.kennel(&["stop", "--timeout", "1s", "box"]).ok(), id);
    assert!(kennel.kennel(&["ls", "--all"]).ok().contains("stopped"));
    kennel.kennel(&["start", "box"]).ok();
    assert_eq!(kennel.kennel(&["exec", "box", "-c", "cat /tmp/life-1; rm /tmp/life-1"]).ok(), "kept");
    assert_eq!(kennel.kennel(&["rm", "--force", "box"]).ok(), id);
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "");
    let stderr = kennel.kennel(&["inspect", "box"]).fails(125);
    assert!(stderr.contains("there is no sandbox box") && stderr.contains("try: kennel ls --all"), "{stderr}");
}

fn the_main_process_and_its_log(kennel: &Kennel) {
    let script = "echo one; echo two >&2; read line < /dev/null; echo three; while [ ! -e go ]; do sleep 0.02; done; echo last; exit 3";
    kennel.kennel(&["create", "--name", "main", "--start", "--", "sh", "-c", script]).ok();
    let mut follow =
        kennel.call(&["logs", "-f", "main"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = follow.stdout.take().unwrap();
    hear(&mut out, "one\nthree\n");
    hear(follow.stderr.as_mut().unwrap(), "two\n");
    let log = kennel.kennel(&["logs", "main"]);
    assert_eq!((log.text().as_str(), log.stderr.as_str()), ("one\nthree\n", "two\n"));
    std::fs::write(kennel.here().join("go"), "").unwrap();
    hear(&mut out, "last\n");
    assert_eq!(wait(&mut follow, "logs -f of a process that ended"), 0);
    assert!(kennel_testkit::within_blocking(std::time::Duration::from_secs(90), || {
        kennel.kennel(&["inspect", "main"]).json()[0]["exitCode"] == 3
    }));
    assert!(kennel.kennel(&["ls", "--all"]).ok().contains("stopped (3)"));
    assert_eq!(kennel.kennel(&["logs", "--tail", "1", "main"]).ok(), "last", "the log is there after the end");
}

fn exec_runs_in_an_existing_sandbox(kennel: &Kennel) {
    let id = kennel.sandbox();
    let done =
        kennel.kennel_with(&["exec", &id, "-w", "/tmp", "-e", "A=b", "-c", "pwd; echo $A; cat; exit 4"], b"typed");
    assert_eq!((done.status, done.text().as_str()), (4, "/tmp\nb\ntyped"));
    let object = kennel.kennel(&["exec", "--json", &id, "--", "echo", "-n", "hi"]).json();
    assert_eq!((object["stdout"].as_str(), object["sandboxId"].as_str()), (Some("hi"), Some(id.as_str())));
    assert_eq!(object["timings"].get("create"), None);
    kennel.kennel(&["exec", &id, "--timeout", "200ms", "--", "sleep", "1000"]).fails(124);
    let stderr = kennel.kennel(&["exec", &id, "--", "echo two words"]).fails(127);
    assert!(stderr.contains(&format!("try: kennel exec {id} -c 'echo two words'")), "{stderr}");
    let done = kennel.kennel(&["exec", "--json", "nobody", "--", "true"]);
    assert_eq!((done.status, done.json()["error"]["code"].as_str()), (125, Some("not_found")));
}

fn a_detached_command_keeps_running(kennel: &Kennel) {
    let id = kennel.sandbox();
    let script = "while [ ! -e go ]; do sleep 0.02; done; echo done; exit 6";
    let process = kennel.kennel(&["exec", "-d", &id, "-c", script]).ok();
    assert!(process.parse::<u64>().is_ok(), "{process}");
    let mut visit = kennel
        .call(&["attach", &id, "--process", &process])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = visit.stdout.take().unwrap();
    // A client that attaches and leaves does not end it.
    let mut other = kennel.call(&["attach", &id, "--process", &process]).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(kennel.here().join("go"), "").unwrap();
    let statuses = [wait(&mut visit, "attach"), wait(&mut other, "attach")];
    assert!(statuses.contains(&6), "one of the two has its end: {statuses:?}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut out, &mut text).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut other.stdout.take().unwrap(), &mut rest).unwrap();
    assert!(format!("{text}{rest}").contains("done\n"), "{text:?} {rest:?}");
}

fn commands_accept_several_sandboxes(kennel: &Kennel) {
    let ids = [kennel.sandbox(), kennel.sandbox()];
    let done = kennel.kennel(&["stop", "-t", "0", &ids[0], "nobody", &ids[1]]);
    assert_eq!((done.status, done.text()), (125, format!("{}\n{}\n", ids[0], ids[1])));
    assert!(done.stderr.contains("there is no sandbox nobody"), "{}", done.stderr);
    let done = kennel.kennel(&["rm", "--json", &ids[0], "nobody", &ids[1]]);
    let object = done.json();
    assert_eq!(done.status, 125);
    assert_eq!((object[0]["sandboxId"].as_str(), object[2]["sandboxId"].as_str()), (Some(&*ids[0]), Some(&*ids[1])));
    assert_eq!(object[1]["error"]["code"], "not_found");
}

fn ids_can_be_shortened(kennel: &Kennel) {
    let id = kennel.sandbox();
    assert_eq!(kennel.kennel(&["inspect", &id[..6]]).json()[0]["id"], id);
    kennel.kennel(&["rm", "-f", &id[..6]]).ok();
    kennel.kennel(&["inspect", &id[..6]]).fails(125);
}

fn lists_are_filtered(kennel: &Kennel) {
    let one = kennel.kennel(&["create", "--label", "team=a", "--label", "x=1"]).ok();
    let two = kennel.kennel(&["create", "--start", "--label", "team=b", "--name", "second"]).ok();
    let two = if two == "second" { kennel.kennel(&["ls", "-q"]).ok() } else { two };
    let listed = |filters: &[&str]| {
        let arguments: Vec<&str> =
            ["ls", "--all", "-q"].into_iter().chain(filters.iter().flat_map(|it| ["--filter", *it])).collect();
        kennel.kennel(&arguments).ok()
    };
    assert_eq!(listed(&["label=team=a"]), one);
    assert_eq!(listed(&["label=team", "status=running"]), two);
    assert_eq!(listed(&["name=seco"]), two);
    assert_eq!(listed(&["label=team=a", "status=running"]), "");
    assert_eq!(listed(&[&format!("provider={}", kennel.provider), "label=x"]), one);
    assert_eq!(kennel.kennel(&["ls", "-q", "--filter", "status=created"]).ok(), one, "a status says which, not --all");
    let stderr = kennel.kennel(&["ls", "--filter", "status=gone"]).fails(125);
    assert!(stderr.contains("created, running, paused or stopped"), "{stderr}");
    let mut watch = kennel.call(&["ls", "--all", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = watch.stdout.take().unwrap();
    hear(&mut out, &one);
    kennel.kennel(&["rm", &one]).ok();
    hear(&mut out, "ID");
    signal(&watch, rustix::process::Signal::INT);
    watch.wait().unwrap();
}
