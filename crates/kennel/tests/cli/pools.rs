//! Warm pools: `kennel pool`, and sandboxes that come from one.

use crate::idle::Resident;
use crate::support::{CALL, Finished, Kennel};
use kennel_testkit::{host, wait_in_race, within_blocking};
use serde_json::{Value, json};
use std::time::Duration;

/// Waits until a pool has as many members as it should have.
#[track_caller]
pub(crate) fn until_filled(kennel: &Kennel, pool: &str) {
    let filled = || {
        let pools = kennel.kennel(&["pool", "ls", "--json"]).json();
        let pool = pools.as_array().and_then(|pools| pools.iter().find(|it| it["name"] == pool)).cloned();
        pool.is_some_and(|pool| pool["ready"].as_u64() >= pool["min"].as_u64() && pool["ready"].is_number())
    };
    assert!(within_blocking(CALL, filled), "{}", kennel.kennel(&["pool", "ls"]).text());
}

/// Whether a sandbox came from a pool.
#[track_caller]
fn pool_of(created: &Finished) -> Value {
    assert_eq!(created.status, 0, "{created:?}");
    created.json()["pool"].clone()
}

fn miss(reason: &str) -> Value {
    json!({ "result": "miss", "reason": reason })
}

#[test]
fn sandbox_from_a_pool_is_what_was_requested() {
    let kennel = Kennel::on("native");
    let _resident = Resident::start(&kennel);
    assert_eq!(kennel.kennel(&["pool", "set", "quick", "--min", "2"]).ok(), "quick");
    until_filled(&kennel, "quick");
    std::fs::write(kennel.here().join("here"), "found\n").expect("the workspace can be written");
    let args =
        ["create", "--start", "--json", "--pool", "require", "--name", "box", "-e", "WORD=told", "--label", "a=b"];
    let created = kennel.kennel(&[&args[..], &["--memory", "200m", "--network", "none"]].concat());
    assert_eq!(pool_of(&created), json!({ "result": "hit", "pool": "quick" }));
    let created = created.json();
    assert_eq!((&created["labels"]["a"], &created["network"]), (&json!("b"), &json!("none")));
    assert_eq!(kennel.kennel(&["exec", "box", "-c", "echo $WORD; cat here; id -u"]).ok(), "told\nfound\n0");
    let listed = kennel.kennel(&["ls", "--all", "-q"]).ok();
    assert_eq!(listed, created["id"].as_str().expect("it has an id"), "members are no sandboxes");
    // Somebody else's needs differ, and the pool was filled again.
    until_filled(&kennel, "quick");
    let second = kennel.kennel(&["create", "--start", "--json", "--pool", "require"]);
    assert_eq!(pool_of(&second)["result"], "hit");
    let id = second.json()["id"].as_str().expect("it has an id").to_owned();
    let told = kennel.kennel(&["exec", &id, "-c", "echo \"$WORD\"; ls /sys/class/net"]).ok();
    assert_eq!(told.lines().collect::<Vec<_>>(), ["", "eth0", "lo"]);
    // It is a sandbox like any other.
    kennel.kennel(&["stop", &id]).ok();
    kennel.kennel(&["start", &id]).ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "again"]).ok(), "again");
}

#[test]
fn every_way_to_create_a_sandbox_can_use_a_pool() {
    let kennel = Kennel::on("native");
    let _resident = Resident::start(&kennel);
    kennel.kennel(&["profile", "create", "dev"]).ok();
    kennel.kennel(&["pool", "set", "dev", "--profile", "dev"]).ok();
    until_filled(&kennel, "dev");
    let refused = kennel.kennel(&["run", "--pool", "require", "--", "true"]).fails(125);
    assert!(refused.contains("pool dev is for another profile"), "{refused}");
    let started = kennel.kennel(&["profile", "start", "--pool", "require", "dev"]);
    assert_eq!((started.stderr.as_str(), started.text().as_str()), ("kennel: pool hit: dev\n", "dev\n"));
    assert_eq!(kennel.kennel(&["profile", "exec", "dev", "--", "echo", "inside"]).ok(), "inside");

    kennel.kennel(&["pool", "set", "quick", "--min", "2"]).ok();
    until_filled(&kennel, "quick");
    let ran = kennel.kennel(&["run", "--pool", "require", "--network", "none", "-c", "echo ran; exit 3"]);
    assert_eq!((ran.status, ran.text().as_str(), ran.stderr.as_str()), (3, "ran\n", "kennel: pool hit: quick\n"));
    let session = kennel.kennel(&["session", "create", "--name", "work", "--pool", "require"]);
    assert_eq!((session.status, session.stderr.as_str()), (0, "kennel: pool hit: quick\n"));
    assert_eq!(kennel.kennel(&["session", "exec", "work", "-c", "echo ${KENNEL_SESSION:+known}"]).ok(), "known");
    kennel.kennel(&["session", "rm", "--force", "work"]).ok();
}

#[test]
fn miss_says_why() {
    let kennel = Kennel::on("native");
    let create = |more: &[&str]| kennel.kennel(&[&["create", "--json", "--network", "none"], more].concat());
    assert_eq!(pool_of(&create(&["--start"])), miss("there is no pool"));
    assert_eq!(pool_of(&create(&["--start", "--pool", "never"])), Value::Null);
    assert_eq!(pool_of(&create(&["--pool", "prefer"])), miss("it is not started at once"));
    kennel.kennel(&["pool", "set", "quick"]).ok();
    let gone = "no resident process runs, which would keep its members";
    assert_eq!(pool_of(&create(&["--start"])), miss(gone));
    let refused = kennel.kennel(&["create", "--start", "--pool", "require"]).fails(125);
    assert!(refused.contains(gone) && refused.contains("--pool prefer"), "{refused}");

    let resident = Resident::start(&kennel);
    until_filled(&kennel, "quick");
    let host = kennel.kennel(&["create", "--start", "--json", "--network", "host"]);
    assert_eq!(pool_of(&host), miss("the members of pool quick have another kind of network"));
    // A pool without members is filled only after the first claim.
    kennel.kennel(&["pool", "set", "quick", "--min", "0", "--max", "1"]).ok();
    assert_eq!(pool_of(&create(&["--start"])), miss("pool quick is empty"));
    assert!(within_blocking(CALL, || kennel.kennel(&["pool", "ls", "--json"]).json()[0]["ready"] == 1));
    assert_eq!(pool_of(&create(&["--start", "--pool", "require"]))["result"], "hit");
    resident.kill();
    assert_eq!(pool_of(&create(&["--start"])), miss(gone));
}

#[test]
fn pools_are_set_listed_and_removed() {
    let kennel = Kennel::on("native");
    let list = || kennel.kennel(&["pool", "ls"]).ok();
    assert_eq!(list(), "NAME   PROVIDER   PROFILE   SESSIONS   READY   MIN   MAX");
    for (args, why) in [
        (&["--min", "3", "--max", "2"][..], "at least 3 members, but at most 2"),
        (&["--max", "0", "--min", "0"], "expected 1 to 1000"),
        (&["--max", "1001"], "expected 1 to 1000"),
        (&["--memory", "1g"], "leave out the options of the sandbox, except --network"),
        (&["--profile", "none"], "profile"),
        (&["--session"], "fit every sandbox, also of sessions"),
    ] {
        let refused = kennel.kennel(&[&["pool", "set", "quick"], args].concat()).fails(125);
        assert!(refused.contains(why), "{refused}");
    }
    let refused = kennel.kennel(&["pool", "set", "../quick"]).fails(125);
    assert!(refused.contains("pool"), "{refused}");
    assert_eq!(list().lines().count(), 1);
    let shown = kennel.kennel(&["pool", "set", "--json", "quick", "--min", "1", "--max", "5"]).json();
    let expected = json!({
        "name": "quick", "provider": "native", "profile": null, "sessions": false, "min": 1, "max": 5,
        "ready": null, "problem": null,
    });
    assert_eq!(shown, expected);
    assert_eq!(list().lines().nth(1), Some("quick   native     -         -          -       1     5"));

    let _resident = Resident::start(&kennel);
    until_filled(&kennel, "quick");
    let jails = || host::called("kennel-jail", "own").len();
    kennel.kennel(&["pool", "set", "quick", "--min", "3"]).ok();
    until_filled(&kennel, "quick");
    kennel.kennel(&["pool", "rm", "quick"]).ok();
    assert!(kennel.kennel(&["pool", "rm", "quick"]).fails(125).contains("there is no pool quick"));
    let all = || host::processes(&kennel.home.mark()).len();
    assert!(within_blocking(CALL, || all() == 1), "only the resident process is left of {}: {}", all(), jails());
}

/// The resident process is killed while others create sandboxes from its pool. Each is created, and no member is left.
#[test]
fn killed_resident_leaves_no_member() {
    let kennel = Kennel::on("native");
    kennel.kennel(&["pool", "set", "quick", "--min", "4"]).ok();
    for round in 0..6 {
        let resident = Resident::start(&kennel);
        std::thread::scope(|scope| {
            let create = || {
                let created = kennel.kennel(&["create", "--start", "--json", "--network", "none"]);
                assert!(pool_of(&created)["result"].is_string(), "{created:?}");
                let id = created.json()["id"].as_str().expect("it has an id").to_owned();
                assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "works"]).ok(), "works");
                kennel.kennel(&["rm", "--force", &id]).ok();
            };
            let creations: Vec<_> = (0..3).map(|_| scope.spawn(create)).collect();
            wait_in_race(Duration::from_millis(round * 15));
            resident.kill();
            for creation in creations {
                creation.join().expect("it is created");
            }
        });
        let left = || host::processes(&kennel.home.mark());
        assert!(within_blocking(CALL, || left().is_empty()), "{:?}", left());
    }
}

#[test]
fn member_that_was_killed_is_not_handed_out() {
    let kennel = Kennel::on("native");
    let resident = Resident::start(&kennel);
    kennel.kennel(&["pool", "set", "quick", "--min", "2"]).ok();
    until_filled(&kennel, "quick");
    let members = || {
        let all = host::processes(&kennel.home.mark());
        all.into_iter().filter(|pid| *pid != resident.id()).collect::<Vec<_>>()
    };
    let killed = members();
    for &pid in &killed {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("it is a process");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    // A killed process needs a moment to end.
    assert!(within_blocking(CALL, || members().iter().all(|pid| !killed.contains(pid))));
    let created = kennel.kennel(&["create", "--start", "--json", "--network", "none"]);
    // The pool may have been filled again by now.
    assert!(["hit", "miss"].contains(&pool_of(&created)["result"].as_str().unwrap_or_default()), "{created:?}");
    let id = created.json()["id"].as_str().expect("it has an id").to_owned();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "echo", "works"]).ok(), "works");
    until_filled(&kennel, "quick");
    assert_eq!(pool_of(&kennel.kennel(&["create", "--start", "--json", "--network", "none"]))["result"], "hit");
}

/// A member that was made for a session has its id, secret and workspace. The session takes them over.
fn session_from_a_pool(kennel: &Kennel) {
    let image = kennel.image().expect("an engine has an image").to_owned();
    let common = ["--image", &image, "--network", "none"];
    let resident = Resident::start(kennel);
    kennel.kennel(&[&["pool", "set", "work", "--session", "--own-workspace"], &common[..]].concat()).ok();
    until_filled(kennel, "work");
    let bases = || std::fs::read_dir(kennel.home.path().join("workspaces")).map_or(0, Iterator::count);
    assert_eq!((kennel.kennel(&["ls", "--all", "-q"]).ok().as_str(), bases()), ("", 1), "a member is no sandbox");
    assert_eq!(kennel.kennel(&["session", "ls", "--json"]).json(), json!([]));

    // What the member cannot have is a miss that says so.
    let open = |name: &str, more: &[&str]| {
        kennel.kennel(&[&["session", "create", "--name", name], &common[..], more].concat())
    };
    let other = open("other", &["--pool", "prefer"]);
    let own = "the members of pool work have a workspace of their own, and cannot get another";
    assert_eq!((other.status, other.stderr.as_str()), (0, format!("kennel: pool miss: {own}\n").as_str()));
    let differing = open("differing", &["--own-workspace", "--label", "a=b", "--pool", "prefer"]);
    let labels = "kennel: pool miss: the members of pool work differ in: labels\n";
    assert_eq!((differing.status, differing.stderr.as_str()), (0, labels));
    let plain = kennel.kennel(&["create", "--start", "--json", "--no-workspace", "--network", "none"]);
    assert_eq!(pool_of(&plain), miss("the members of pool work are for sessions"));

    let hit = open("fix", &["--own-workspace", "--pool", "require"]);
    assert_eq!((hit.status, hit.stderr.as_str()), (0, "kennel: pool hit: work\n"));
    let shown = kennel.kennel(&["session", "show", "--json", "fix"]).json();
    let id = shown["id"].as_str().expect("it has an id").to_owned();
    let workspace = std::path::PathBuf::from(shown["workspace"].as_str().expect("it has a workspace"));
    assert_eq!(workspace, kennel.home.path().join("workspaces").join(&id));
    let script = "echo $KENNEL_SESSION ${#KENNEL_SESSION_SECRET}; echo made > /workspace/file";
    assert_eq!(kennel.kennel(&["session", "exec", "fix", "-c", script]).ok(), format!("{id} 64"));
    assert_eq!(std::fs::read_to_string(workspace.join("file")).expect("it was written inside"), "made\n");
    let sandbox = &kennel.kennel(&["inspect", "fix"]).json()[0];
    assert_eq!((&sandbox["id"], &sandbox["labels"]["kennel.session"]), (&shown["sandbox"], &json!(id)));

    // It is a session like any other, also without the resident process.
    until_filled(kennel, "work");
    resident.kill();
    kennel.kennel(&["gc"]).ok();
    assert_eq!(kennel.kennel(&["session", "exec", "fix", "--", "cat", "file"]).ok(), "made");
    let again = kennel.kennel(&["gc", "--dry-run"]).text();
    assert_eq!((again.as_str(), bases()), ("", 2), "the member and its workspace are gone");
    kennel.kennel(&["session", "stop", "fix"]).ok();
    kennel.kennel(&["session", "start", "fix"]).ok();
    assert_eq!(kennel.kennel(&["session", "exec", "fix", "--", "cat", "file"]).ok(), "made");
    for name in ["fix", "other", "differing"] {
        kennel.kennel(&["session", "rm", "--force", name]).ok();
    }
}

#[test]
fn session_from_a_pool_on_docker() {
    session_from_a_pool(&Kennel::on("docker"));
}

#[test]
fn session_from_a_pool_on_podman() {
    session_from_a_pool(&Kennel::on("podman"));
}

/// A resident process that is asked to end leaves no member, also if it is just making one.
#[test]
fn ended_resident_leaves_no_member() {
    let kennel = Kennel::on("docker");
    let image = kennel.image().expect("an engine has an image").to_owned();
    for round in 0..4 {
        let resident = Resident::start(&kennel);
        kennel.kennel(&["pool", "set", "warm", "--image", &image, "--network", "none", "--min", "2"]).ok();
        wait_in_race(Duration::from_millis(round * 100));
        resident.end();
        let left = kennel.kennel(&["gc", "--dry-run"]).text();
        assert_eq!(left, "", "in round {round}");
        kennel.kennel(&["pool", "rm", "warm"]).ok();
    }
}

/// A member of an engine's pool is a container that runs. The claim renames it.
fn container_from_a_pool(kennel: &Kennel) {
    let image = kennel.image().expect("an engine has an image").to_owned();
    let set = |more: &[&str]| {
        kennel.kennel(&[&["pool", "set", "warm", "--image", &image, "--network", "none"], more].concat())
    };
    let resident = Resident::start(kennel);
    set(&["--label", "team=a"]).ok();
    until_filled(kennel, "warm");
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "", "members are no sandboxes");
    let args = ["create", "--start", "--json", "--no-workspace", "--network", "none"];
    let create = |more: &[&str]| kennel.kennel(&[&args[..], more].concat());
    assert_eq!(pool_of(&create(&[])), miss("the members of pool warm differ in: labels"));
    let labels = ["--label", "team=a"];
    let workspace = kennel.kennel(&[&["create", "--start", "--json", "--network", "none"], &labels[..]].concat());
    assert_eq!(pool_of(&workspace), miss("the members of pool warm differ in: project, workspace"));
    let created = create(&[&labels[..], &["--name", "box", "--pool", "require"]].concat());
    assert_eq!(pool_of(&created), json!({ "result": "hit", "pool": "warm" }));
    assert_eq!((&created.json()["name"], &created.json()["status"]), (&json!("box"), &json!("running")));
    assert_eq!(kennel.kennel(&["exec", "box", "--", "echo", "inside"]).ok(), "inside");
    until_filled(kennel, "warm");
    resident.kill();
    assert_eq!(kennel.kennel(&["exec", "box", "--", "echo", "still"]).ok(), "still");
    let removed = kennel.kennel(&["gc"]).ok();
    assert!(removed.contains("removed pool member"), "{removed}");
    kennel.kennel(&["stop", "box"]).ok();
    kennel.kennel(&["start", "box"]).ok();
    assert_eq!(kennel.kennel(&["exec", "box", "--", "echo", "again"]).ok(), "again");
    let again = kennel.kennel(&["gc", "--dry-run"]).text();
    assert!(!again.contains("pool member"), "{again}");
}

#[test]
fn container_from_a_pool_on_docker() {
    container_from_a_pool(&Kennel::on("docker"));
}

#[test]
fn container_from_a_pool_on_podman() {
    container_from_a_pool(&Kennel::on("podman"));
}
