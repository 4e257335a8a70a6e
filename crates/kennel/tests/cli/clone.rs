//! `kennel session create --clone`: a real repository over HTTP, with and without a password.

use crate::git_server::{CONTENT, GitServer, files_with};
use crate::support::{Finished, Kennel, finish, on_every_provider};
use crate::terminal::{ends_with, terminal};
use expectrl::Expect;
use kennel_testkit::{docker as docker_engine, git_image};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

on_every_provider! {
    repository_is_cloned,
    failed_clone_leaves_nothing,
    private_repository_is_cloned_with_the_users_credentials,
    credentials_are_stored_nowhere,
}

const USER: &str = "ann";
const PASSWORD: &str = "correct-horse-battery-staple";

/// A call of `kennel session create --clone`. The sandbox is in the network of the test's server, and engines get an
/// image with git.
fn call(kennel: &Kennel, name: &str, url: &str) -> Command {
    let mut call = kennel.call(&["session", "create", "--name", name, "--network", "host", "--clone", url]);
    if kennel.provider == "docker" {
        call.args(["--image", &git_image::git_image_on(&docker_engine::socket())]);
    }
    call
}

fn clone(kennel: &Kennel, name: &str, url: &str) -> Finished {
    finish(call(kennel, name, url), None)
}

fn show(kennel: &Kennel, name: &str) -> Value {
    kennel.kennel(&["session", "show", name]).json()
}

fn remove(kennel: &Kennel, name: &str) {
    kennel.kennel(&["session", "rm", "--force", name]).ok();
}

fn workspaces(kennel: &Kennel) -> usize {
    let base = kennel.home.path().join("workspaces");
    std::fs::read_dir(base).map_or(0, Iterator::count)
}

/// Gives the user of this home a credential helper. Returns the file in which it notes each call.
fn credential_helper(kennel: &Kennel, password: &str) -> PathBuf {
    let home = kennel.home.path();
    let (helper, calls) = (home.join("helper"), home.join("helper-calls"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" >> {}\ntest \"$1\" = get && printf 'username={USER}\\npassword={password}\\n'\n",
        calls.display()
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(home.join(".gitconfig"), format!("[credential]\n\thelper = {}\n", helper.display())).unwrap();
    calls
}

fn repository_is_cloned(kennel: &Kennel) {
    let server = GitServer::public();
    let done = clone(kennel, "public", &server.url());
    // Nobody watches, so the progress is not shown.
    assert_eq!(done.stderr, "");
    assert_eq!(done.ok(), "public");
    let shown = show(kennel, "public");
    assert_eq!((&shown["state"], &shown["source"]), (&"running".into(), &server.url().into()), "{shown}");
    let workspace = PathBuf::from(shown["workspace"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(workspace.join("README.md")).unwrap(), CONTENT);
    let inside = ["session", "exec", "public", "--", "git", "log", "--format=%s"];
    assert_eq!(kennel.kennel(&inside).ok(), "first");
    remove(kennel, "public");
    assert!(workspace.join("README.md").exists(), "the workspace is kept");
}

fn failed_clone_leaves_nothing(kennel: &Kennel) {
    let server = GitServer::public();
    let stderr = clone(kennel, "missing", &server.missing_url()).fails(125);
    assert_eq!(stderr.matches("fatal: repository").count(), 1, "git's error is printed once: {stderr}");
    assert!(stderr.contains(&server.missing_url()), "{stderr}");
    let shown = show(kennel, "missing");
    assert_eq!((&shown["state"], &shown["cause"]), (&"failed".into(), &"start_failed".into()), "{shown}");
    assert!(shown["error"].as_str().unwrap().contains("not found"), "{shown}");
    assert_eq!(workspaces(kennel), 0, "no empty directory is left");
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok(), "");
    assert_eq!(kennel.kennel(&["gc", "--json"]).json(), serde_json::json!([]), "nothing has to be completed");
    remove(kennel, "missing");
}

fn private_repository_is_cloned_with_the_users_credentials(kennel: &Kennel) {
    let server = GitServer::private(USER, PASSWORD);
    // Without a credential helper, git does not ask: there is nobody to ask.
    let stderr = clone(kennel, "none", &server.url()).fails(125);
    assert!(stderr.contains("store credentials for this host with git's credential helper"), "{stderr}");
    credential_helper(kennel, "wrong");
    let stderr = clone(kennel, "wrong", &server.url()).fails(125);
    assert!(stderr.contains("check the credentials that git's credential helper stores"), "{stderr}");
    let calls = credential_helper(kennel, PASSWORD);
    clone(kennel, "right", &server.url()).ok();
    let workspace = PathBuf::from(show(kennel, "right")["workspace"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(workspace.join("README.md")).unwrap(), CONTENT);
    // The helper runs on the host, once for each clone. Git inside neither asks it, nor lets it store or forget anything.
    assert_eq!(std::fs::read_to_string(calls).unwrap(), "get\nget\n");
    assert_eq!(workspaces(kennel), 1);
    for name in ["none", "wrong", "right"] {
        remove(kennel, name);
    }
}

fn credentials_are_stored_nowhere(kennel: &Kennel) {
    credential_helper(kennel, PASSWORD);
    let (server, held) = GitServer::held(USER, PASSWORD);
    let mut cloning = call(kennel, "held", &server.url());
    let cloning = cloning.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    held.wait();
    // The server has accepted the password, so git in the sandbox has it now.
    let helper = kennel.home.path().join("helper");
    assert_eq!(files_with(kennel.home.path(), PASSWORD), [helper.as_path()]);
    let ids = kennel.kennel(&["ls", "--all", "--ids"]).ok();
    let sandbox = ids.lines().next().expect("the sandbox of the clone").to_owned();
    assert_eq!(ids.lines().count(), 1, "{ids}");
    for words in [&["inspect", &sandbox][..], &["logs", &sandbox], &["session", "show", "held"], &["gc", "--dry-run"]] {
        let done = kennel.kennel(words);
        assert!(!done.text().contains(PASSWORD) && !done.stderr.contains(PASSWORD), "{words:?}: {done:?}");
    }
    if kennel.provider == "docker" {
        let containers = docker_engine::docker(&docker_engine::socket(), &["ps", "--quiet", "--no-trunc"]);
        for container in containers.lines() {
            // Containers of other tests come and go.
            let mut inspect = Command::new("docker");
            inspect.args(["--host", &format!("unix://{}", docker_engine::socket().display()), "inspect", container]);
            let spec = String::from_utf8_lossy(&inspect.output().unwrap().stdout).into_owned();
            assert!(!spec.contains(PASSWORD), "{spec}");
        }
    }
    held.release();
    let done = cloning.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    for text in [&done.stdout, &done.stderr] {
        assert!(!String::from_utf8_lossy(text).contains(PASSWORD));
    }
    // Neither does the session keep it: not in its record, not in the clone, not in its processes.
    assert_eq!(files_with(kennel.home.path(), PASSWORD), [helper]);
    let script = "env; cat .git/config; git config --list; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n'";
    let inside = kennel.kennel(&["session", "exec", "held", "-c", script]).text();
    assert!(inside.contains("KENNEL_SESSION=") && !inside.contains(PASSWORD), "{inside}");
    // The control: what is stored is found.
    assert!(!files_with(&kennel.home.path().join("workspaces"), &server.url()).is_empty());
    assert!(!files_with(&kennel.home.path().join("state"), &server.url()).is_empty());
    remove(kennel, "held");
}

#[test]
fn progress_is_shown_on_a_terminal() {
    let kennel = Kennel::on("native");
    credential_helper(&kennel, PASSWORD);
    let (server, held) = GitServer::held(USER, PASSWORD);
    let mut session = terminal(call(&kennel, "seen", &server.url()));
    held.wait();
    session.expect("opening the session: Cloning into '.'").expect("what git does is shown");
    held.release();
    session.expect("seen").expect("the name of the session");
    ends_with(session, 0);
    remove(&kennel, "seen");
}

#[test]
fn interrupted_clone_is_undone() {
    let kennel = Kennel::on("native");
    credential_helper(&kennel, PASSWORD);
    let (server, held) = GitServer::held(USER, PASSWORD);
    let mut cloning = call(&kennel, "cut", &server.url());
    let cloning = cloning.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    held.wait();
    crate::support::signal(&cloning, rustix::process::Signal::INT);
    let done = cloning.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    let shown = show(&kennel, "cut");
    assert_eq!((&shown["state"], &shown["cause"]), (&"failed".into(), &"cancelled".into()), "{shown}");
    assert_eq!(workspaces(&kennel), 0);
    assert_eq!(kennel.kennel(&["ls", "--all", "--ids"]).ok(), "");
    remove(&kennel, "cut");
}
