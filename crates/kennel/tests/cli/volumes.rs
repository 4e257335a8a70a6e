//! Volumes: listed with their users, removed only on request, and never those of others.

use crate::support::{Finished, Kennel, finish, on_every_provider};
use crate::terminal::{ends_with, terminal};
use expectrl::Expect;
use kennel_testkit::docker::{docker as ask_docker, socket as docker_socket};
use serde_json::json;

on_every_provider!(volumes_are_listed_and_removed, unused_volumes_are_pruned);

/// Returns a sandbox name that no other test uses, because tests share an engine.
fn named(kennel: &Kennel, word: &str) -> String {
    format!("{word}-{}", kennel.home.mark().to_lowercase())
}

/// Returns the name of this workspace's cache.
fn cache(kennel: &Kennel) -> String {
    let names = kennel.kennel(&["volume", "ls", "-q"]).ok();
    names.lines().find(|name| name.starts_with("cache-") && name.ends_with("-npm")).expect("a cache").to_owned()
}

/// Makes a call that may use all providers.
fn on_all(kennel: &Kennel, args: &[&str]) -> Finished {
    let call = kennel.call(args);
    let mut all = std::process::Command::new(call.get_program());
    all.current_dir(kennel.here()).env_clear().envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))));
    all.args(call.get_args().skip(2));
    finish(all, None)
}

fn volumes_are_listed_and_removed(kennel: &Kennel) {
    if kennel.provider == "local" {
        let listed = kennel.kennel(&["volume", "ls", "--json"]);
        assert!(listed.stderr.contains("local has no volumes"), "{listed:?}");
        assert_eq!(listed.json(), json!([]));
        let stderr = kennel.kennel(&["volume", "rm", "data-box"]).fails(125);
        assert!(stderr.contains("there is no volume data-box"), "{stderr}");
        return;
    }
    let name = named(kennel, "box");
    let data = format!("data-{name}");
    let flags = ["--network", "none", "--data", "--cache", "npm:/cache"];
    let id = kennel.kennel(&[&["create", "--name", &name, "--start"], &flags[..]].concat()).ok();
    let id = kennel.kennel(&["inspect", &id]).json()[0]["id"].clone();
    kennel.kennel(&["exec", &name, "-c", "echo x > /.data/file; head -c 100000 /dev/zero > /cache/file"]).ok();
    let cache = cache(kennel);
    assert_eq!(kennel.kennel(&["volume", "ls", "-q"]).ok(), format!("{cache}\n{data}"));
    let table = kennel.kennel(&["volume", "ls"]).ok();
    let here = kennel.here().display().to_string();
    let row = table.lines().find(|line| line.starts_with(&cache)).expect("a row");
    assert!(["cache", kennel.provider, " KiB ", &name, &here].iter().all(|word| row.contains(word)), "{table}");
    let found = kennel.kennel(&["volume", "inspect", &cache, &data]).json();
    assert_eq!((&found[0]["kind"], &found[1]["kind"]), (&json!("cache"), &json!("data")));
    assert_eq!((&found[0]["workspace"], &found[0]["project"]), (&json!(here), &json!(here)));
    assert_eq!(found[1]["usedBy"], json!([{ "id": id, "name": name }]));
    assert!(found[0]["size"].as_u64().is_some_and(|size| size >= 100_000), "{found}");
    assert!(found[0]["createdMs"].as_u64().is_some_and(|time| time > 0), "{found}");
    assert_eq!(kennel.kennel(&["volume", "ls", "--json", "--no-size"]).json()[0]["size"], json!(null));

    for running in [true, false] {
        let done = kennel.kennel(&["volume", "rm", &data, "data-none"]);
        assert_eq!(done.text(), "");
        let stderr = done.fails(125);
        assert!(stderr.contains(&format!("sandbox {name} uses it\n  try: kennel rm {name}\n")), "{stderr}");
        assert!(stderr.contains("there is no volume data-none\n  try: kennel volume ls\n"), "{stderr}");
        if running {
            kennel.kennel(&["stop", "--timeout", "0", &name]).ok();
        }
    }
    let done = kennel.kennel(&["volume", "rm", "--json", &data]).json();
    assert_eq!((&done[0]["asked"], &done[0]["error"]["code"]), (&json!(data), &json!("conflict")));
    let step = json!({ "step": "remove_sandbox", "name": name, "force": false, "volumes": false });
    assert_eq!(done[0]["error"]["nextStep"], step);
    let missing = kennel.kennel(&["volume", "inspect", "--json", "data-none"]).json();
    assert_eq!(missing[0]["error"]["code"], "not_found");

    kennel.kennel(&["rm", &name]).ok();
    assert_eq!(kennel.kennel(&["volume", "rm", &data, &cache]).ok(), format!("{data}\n{cache}"));
    assert_eq!(kennel.kennel(&["volume", "ls", "-q"]).ok(), "");
}

fn unused_volumes_are_pruned(kennel: &Kennel) {
    if kennel.provider == "local" {
        let done = kennel.kennel(&["volume", "prune", "--force"]);
        assert!(done.stderr.contains("local has no volumes"), "{done:?}");
        assert_eq!(done.ok(), "freed 0 B");
        return;
    }
    let (gone, kept) = (named(kennel, "gone"), named(kennel, "kept"));
    let run = |name: &str| {
        kennel.kennel(&["run", "--network", "none", "--name", name, "--data", "--cache", "npm:/cache", "true"]).ok()
    };
    run(&gone);
    kennel.kennel(&["create", "--name", &kept, "--network", "none", "--data"]).ok();
    let names = || kennel.kennel(&["volume", "ls", "-q"]).ok();
    let (all, cache) = (names(), cache(kennel));
    // On native, the first start creates the volume.
    assert!(all.contains(&format!("data-{gone}")), "{all}");

    let planned = kennel.kennel(&["volume", "prune", "--dry-run"]).ok();
    assert!(planned.contains(&format!("{}: data-{gone} (", kennel.provider)), "{planned}");
    assert!(!planned.contains(&format!("data-{kept}")) && !planned.contains(&cache), "{planned}");
    assert!(planned.lines().last().unwrap().starts_with("would free "), "{planned}");
    let stderr = kennel.kennel(&["volume", "prune"]).fails(125);
    assert!(stderr.contains("not a terminal") && stderr.contains("try: kennel volume prune --force"), "{stderr}");
    assert_eq!(names(), all, "nothing is removed without an answer");
    let done = kennel.kennel(&["volume", "prune", "--force"]).ok();
    assert_eq!(done, planned.replace("would free", "freed"));
    assert_eq!(names(), all.replace(&format!("data-{gone}"), "").replace("\n\n", "\n").trim(), "only what was listed");

    run(&gone);
    let planned = kennel.kennel(&["volume", "prune", "--caches", "--dry-run", "--json"]).json();
    let done = kennel.kennel(&["volume", "prune", "--caches", "--force", "--json"]).json();
    assert_eq!(planned, done);
    let removed: Vec<&str> = done["volumes"].as_array().unwrap().iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(removed, [cache, format!("data-{gone}")]);
    assert_eq!(done["failed"], json!([]));
    assert!(names().lines().all(|name| name == format!("data-{kept}")));
}

#[test]
fn prune_asks_on_a_terminal() {
    let kennel = Kennel::on("native");
    kennel.kennel(&["run", "--network", "none", "--name", "gone", "--data", "true"]).ok();
    for (answer, left) in [("n", "data-gone"), ("", "data-gone"), ("y", "")] {
        let mut session = terminal(kennel.call(&["volume", "prune"]));
        session.expect("native: data-gone").expect("it lists what it removes");
        session.expect("? [y/N] ").expect("it asks");
        session.send(format!("{answer}\r")).unwrap();
        ends_with(session, i32::from(answer != "y"));
        assert_eq!(kennel.kennel(&["volume", "ls", "-q"]).ok(), left, "{answer:?}");
    }
}

#[test]
fn a_failed_listing_removes_nothing() {
    let kennel = Kennel::on("native");
    kennel.kennel(&["run", "--network", "none", "--name", "gone", "--data", "true"]).ok();
    kennel.kennel(&["create", "--name", "box"]).ok();
    let id = kennel.kennel(&["inspect", "box"]).json()[0]["id"].as_str().unwrap().to_owned();
    let record = kennel.home.state().join("native").join(id).join("sandbox.json");
    let json = std::fs::read(&record).unwrap();
    std::fs::write(&record, "{").unwrap();
    for args in [&["prune", "--force"][..], &["rm", "data-gone"], &["ls"]] {
        kennel.kennel(&[&["volume"], args].concat()).fails(125);
    }
    let done = on_all(&kennel, &["volume", "prune", "--force"]);
    assert!(done.stderr.contains("cannot list the volumes of native"), "{done:?}");
    std::fs::write(&record, json).unwrap();
    assert_eq!(kennel.kennel(&["volume", "ls", "-q"]).ok(), "data-gone");
    kennel.kennel(&["volume", "rm", "data-gone"]).ok();
}

#[test]
fn volumes_of_others_are_not_touched() {
    let kennel = Kennel::on("docker");
    let socket = docker_socket();
    let name = named(&kennel, "box");
    kennel.kennel(&["run", "--network", "none", "--name", &name, "--data", "true"]).ok();
    let label = format!("label=kennel.name={name}");
    let ours = ask_docker(&socket, &["volume", "ls", "-q", "--filter", &label]);
    let format = "{{index .Labels \"kennel.installation\"}} {{index .Labels \"kennel.workspace\"}}";
    let here = kennel.here().display().to_string();
    let mut inspected = ours.lines().map(|name| ask_docker(&socket, &["volume", "inspect", "--format", format, name]));
    let installation = inspected.find_map(|text| Some(text.trim().strip_suffix(&here)?.trim().to_owned()));
    let installation = installation.expect("our volume has labels");

    let mark = kennel.home.mark().to_lowercase();
    let make = |word: &str, labels: &[&str]| {
        let name = format!("{word}-{mark}");
        let labels: Vec<String> = labels.iter().map(|label| format!("--label={label}")).collect();
        let mut args = vec!["volume", "create"];
        args.extend(labels.iter().map(String::as_str));
        ask_docker(&socket, &[&args[..], &[&name]].concat());
        name
    };
    let plain = make("plain", &[]);
    let other = make("other", &["kennel=true", "kennel.installation=other", "kennel.name=x"]);
    let kindless = make("kindless", &[&format!("kennel.installation={installation}")]);
    let forged = make(
        "forged",
        &[&format!("kennel.installation={installation}"), "kennel.cache=x", "kennel.workspace=/a\u{1b}[2Jb"],
    );
    let listed = kennel.kennel(&["volume", "ls"]).ok();
    assert!(listed.contains(&forged) && !listed.contains('\u{1b}') && listed.contains("[2J"), "{listed:?}");
    for hidden in [&plain, &other, &kindless] {
        assert!(!listed.contains(hidden.as_str()), "{listed}");
        kennel.kennel(&["volume", "rm", hidden]).fails(125);
    }
    kennel.kennel(&["volume", "prune", "--caches", "--force"]).ok();
    assert_eq!(kennel.kennel(&["volume", "ls", "-q"]).ok(), "");
    let left = ask_docker(&socket, &["volume", "ls", "-q", "--filter", &format!("name={mark}")]);
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    assert_eq!(left, [kindless.as_str(), &other, &plain]);
    ask_docker(&socket, &["volume", "rm", &plain, &other, &kindless]);
}

#[test]
fn the_provider_of_a_volume_must_be_clear() {
    let kennel = Kennel::on("docker");
    let name = named(&kennel, "twice");
    for provider in ["docker", "native"] {
        let mut args = vec!["--provider", provider, "run", "--network", "none", "--name", &name, "--data"];
        if provider == "docker" {
            args.extend(["--image", kennel.image().unwrap()]);
        }
        args.push("true");
        on_all(&kennel, &args).ok();
    }
    let volume = format!("data-{name}");
    assert_eq!(on_all(&kennel, &["volume", "ls", "-q"]).ok(), format!("{volume}\n{volume}"));
    let stderr = on_all(&kennel, &["volume", "rm", &volume]).fails(125);
    assert!(stderr.contains("several providers have a volume"), "{stderr}");
    assert!(stderr.contains("try: use --provider docker or native"), "{stderr}");
    for provider in ["docker", "native"] {
        on_all(&kennel, &["--provider", provider, "volume", "rm", &volume]).ok();
    }
}
