//! Files of the workspace that programs on the host run: what is protected of git, and which changes of others are
//! reported.

use crate::support::{Kennel, finish, on_every_provider};
use crate::terminal::terminal;
use expectrl::{Eof, Expect};
use serde_json::json;
use std::path::Path;
use std::process::Command;

on_every_provider!(
    changed_triggers_are_in_the_json_object,
    changed_triggers_are_reported_on_a_terminal,
    hooks_are_protected
);

/// Runs git on the host, as the user.
#[track_caller]
fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let done = command.output().expect("git is installed");
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A repository with one commit in the workspace.
fn repository(kennel: &Kennel) {
    let here = kennel.here();
    git(&here, &["init", "--quiet", "--initial-branch=main"]);
    git(&here, &["config", "user.name", "Ann"]);
    git(&here, &["config", "user.email", "ann@example.com"]);
    std::fs::write(here.join("file"), "one\n").unwrap();
    git(&here, &["add", "file"]);
    git(&here, &["commit", "--quiet", "--message=one"]);
}

fn changed_triggers_are_in_the_json_object(kennel: &Kennel) {
    std::fs::write(kennel.here().join("package.json"), "{}").unwrap();
    let changed = |args: &[&str]| kennel.kennel(args).json()["changedTriggers"].clone();
    assert_eq!(changed(&["run", "--json", "-c", "cat package.json; echo x > README.md"]), json!([]));
    assert_eq!(changed(&["run", "--json", "-c", "echo > package.json; exit 3"]), json!(["package.json"]));
    let script = "rm package.json; ln -s /etc/shadow Makefile; mkdir .git .vscode; echo > .vscode/tasks.json";
    let expected = json!(["Makefile", "package.json", ".git", ".vscode/tasks.json"]);
    assert_eq!(changed(&["run", "--json", "-c", script]), expected);
    assert_eq!(changed(&["run", "--json", "--", "no-such-program"]), json!([]));
    assert_eq!(changed(&["run", "--json", "-v", "/no/such/place:/x", "--", "true"]), json!([]));
    let id = kennel.sandbox();
    assert_eq!(changed(&["exec", "--json", &id, "-c", "echo > .envrc"]), json!([".envrc"]));
    assert_eq!(changed(&["exec", "--json", &id, "--", "true"]), json!([]));
}

fn changed_triggers_are_reported_on_a_terminal(kennel: &Kennel) {
    const LINE: &str = "changed files that programs on this machine run: .envrc, package.json";
    let script = "echo > package.json; echo > .envrc; echo > other";
    let heard = |args: &[&str]| {
        let mut session = terminal(kennel.call(args));
        String::from_utf8_lossy(session.expect(Eof).expect("kennel ends").as_bytes()).into_owned()
    };
    let told = heard(&["run", "-c", script]);
    assert_eq!(told.matches(LINE).count(), 1, "{told}");
    let told = heard(&["run", "--quiet", "-c", script]);
    assert!(!told.contains("changed"), "{told}");
    let told = heard(&["run", "-c", "echo > other"]);
    assert!(!told.contains("changed"), "{told}");
    let done = kennel.kennel(&["run", "-c", script]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "without a terminal, nothing is printed");
    let id = kennel.sandbox();
    let told = heard(&["exec", &id, "-c", script]);
    assert_eq!(told.matches(LINE).count(), 1, "{told}");
}

fn hooks_are_protected(kennel: &Kennel) {
    repository(kennel);
    let hook = "echo exit 1 > .git/hooks/pre-commit";
    let written = kennel.here().join(".git/hooks/pre-commit");
    if kennel.provider == "local" {
        let stderr = kennel.kennel(&["run", "--protect-git", "--", "true"]).fails(125);
        assert!(stderr.contains("the local provider does not support a read-only .git/config"), "{stderr}");
        let done = kennel.kennel(&["run", "--json", "-c", hook]);
        assert_eq!(done.json()["changedTriggers"], json!([".git/hooks"]));
        return;
    }
    for args in [&["run", "-c", hook][..], &["run", "--protect-git", "-c", hook]] {
        let done = kennel.kennel(args);
        assert!(done.status != 0 && done.stderr.contains("Read-only file system"), "{done:?}");
        assert!(!written.exists());
    }
    assert_ne!(kennel.kennel(&["run", "-c", "mv .git .x"]).status, 0);
    assert_ne!(kennel.kennel(&["run", "--protect-git", "-c", "echo >> .git/config"]).status, 0);
    let done = kennel.kennel(&["run", "--json", "-c", "echo >> .git/config"]);
    assert_eq!((done.status, &done.json()["changedTriggers"]), (0, &json!([".git/config"])));
    let done = kennel.kennel(&["run", "--json", "--protect-git=false", "-c", hook]);
    assert_eq!((done.status, &done.json()["changedTriggers"]), (0, &json!([".git/hooks"])));
    assert!(written.exists());
    std::fs::rename(kennel.here().join(".git"), kennel.here().join("away")).unwrap();
    std::os::unix::fs::symlink("away", kennel.here().join(".git")).unwrap();
    let stderr = kennel.kennel(&["run", "--", "true"]).fails(125);
    assert!(stderr.contains(".git: it is a symlink") && stderr.contains("--protect-git=false"), "{stderr}");
    kennel.kennel(&["run", "--protect-git=false", "--", "true"]).ok().clear();
}

/// The usual operations of git.
const WORK: &str = "set -e
export GIT_CONFIG_GLOBAL=/dev/null
echo two > file; git stash -q; git stash pop -q; git commit -qam two
git checkout -qb other; echo three > new; git add new; git commit -qm three
git checkout -q main; git merge -q --no-ff -m merge other; git tag v1; git branch -qd other
git rebase -q HEAD~1; git reset -q --hard HEAD; git clean -qfd
git worktree add -q /tmp/tree HEAD 2> /dev/null; git -C /tmp/tree status > /dev/null; git worktree remove /tmp/tree
git clone -q . /tmp/clone; git fetch -q /tmp/clone main
git gc -q; git repack -qad; git prune; git fsck --strict > /dev/null 2>&1
git log --format=%s";

#[test]
fn git_works_inside_and_outside() {
    let kennel = Kennel::on("native");
    repository(&kennel);
    assert_eq!(kennel.kennel(&["run", "-c", WORK]).ok(), "three\ntwo\none");
    let here = kennel.here();
    assert_eq!(git(&here, &["status", "--porcelain"]), "");
    git(&here, &["fsck", "--strict"]);
    git(&here, &["reset", "--quiet", "--hard", "HEAD~2"]);
    git(&here, &["tag", "--delete", "v1"]);
    assert_eq!(kennel.kennel(&["run", "--protect-git", "-c", WORK]).ok(), "three\ntwo\none");
    let remote = "git remote add origin https://example.com/x";
    kennel.kennel(&["run", "-c", remote]).ok().clear();
    assert_eq!(git(&here, &["remote"]), "origin");
    let done = kennel.kennel(&["run", "--protect-git", "-c", "git remote add second https://example.com/y"]);
    assert!(done.status != 0 && done.stderr.contains("config"), "{done:?}");
    assert_eq!(git(&here, &["remote"]), "origin");
    // Where there is no repository, one can be created. It is reported, and protected from the next run on.
    std::fs::remove_dir_all(here.join(".git")).unwrap();
    let done = kennel.kennel(&["run", "--json", "-c", "git init -q --template= ."]);
    assert_eq!((done.status, &done.json()["changedTriggers"]), (0, &json!([".git"])));
    assert_ne!(kennel.kennel(&["run", "-c", "echo > .git/hooks/pre-commit"]).status, 0);
}

#[test]
fn a_project_can_protect_more_but_not_less() {
    let kennel = Kennel::on("native");
    repository(&kennel);
    let write = "echo >> .git/config";
    let mut call = kennel.call(&["run", "-c", write]);
    call.env("KENNEL_SANDBOX_PROTECT_GIT", "true");
    assert_ne!(finish(call, None).status, 0);
    std::fs::write(kennel.here().join("kennel.toml"), "[sandbox]\nprotectGit = true\n").unwrap();
    assert_ne!(kennel.kennel(&["run", "-c", write]).status, 0);
    kennel.kennel(&["run", "--protect-git=false", "-c", write]).ok().clear();
    std::fs::write(kennel.here().join("kennel.toml"), "[sandbox]\nprotectGit = false\n").unwrap();
    let stderr = kennel.kennel(&["run", "--", "true"]).fails(125);
    assert!(stderr.contains("sandbox.protectGit = false") && stderr.contains("kennel config trust"), "{stderr}");
    kennel.kennel(&["config", "trust"]).ok().clear();
    kennel.kennel(&["run", "-c", "echo > .git/hooks/pre-commit"]).ok().clear();
}
