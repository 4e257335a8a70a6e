//! Processes inside can rewrite the project, and replace its directories and settings with symlinks. A later run must
//! not grant more than the user has allowed.

use crate::settings::{call, kennel, project, user};
use crate::support::{Finished, Kennel, finish};
use sha2::{Digest, Sha256};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

const HOME: [(&str, &str); 1] = [("HOME", "/root")];

/// A directory outside the project that only its owner can read.
fn victim() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    dir
}

fn run(kennel: &Kennel, line: &str) -> Finished {
    call(kennel, &["run", "-c", line], &HOME)
}

fn trust(kennel: &Kennel) -> String {
    call(kennel, &["config", "trust"], &HOME).ok()
}

/// Inside, a directory is replaced by a symlink to the victim. The next run must not mount the victim. It does so once
/// the user trusts it, which shows that nothing else prevented it.
#[track_caller]
fn redirected_path_is_refused(kennel: &Kennel, attack: &Finished, read: &str, victim: &Path) {
    assert_eq!(attack.status, 0, "{attack:?}");
    let stderr = run(kennel, read).fails(125);
    assert!(stderr.contains(&format!("({})", victim.display())), "{stderr}");
    assert!(stderr.contains("when the file was trusted the path led elsewhere"), "{stderr}");
    assert!(stderr.contains("kennel config trust"), "{stderr}");
    assert!(!victim.join("written").exists());
    trust(kennel);
    assert_eq!(run(kennel, read).ok(), "secret");
    assert!(victim.join("written").exists());
}

#[test]
fn a_symlink_that_is_made_after_trust_is_not_followed() {
    let (kennel, victim) = (kennel(), victim());
    std::fs::create_dir(kennel.here().join("data")).unwrap();
    project(&kennel, "[sandbox]\nenv = { A = \"${HOME}\" }\nvolumes = [\"./data:/d\"]\n");
    trust(&kennel);
    let line = format!("mv /workspace/data /workspace/.old; ln -s {} /workspace/data", victim.path().display());
    redirected_path_is_refused(&kennel, &run(&kennel, &line), "cat /d/secret; echo x > /d/written", victim.path());
}

#[test]
fn a_symlink_that_was_trusted_may_not_lead_elsewhere() {
    let (kennel, victim, first) = (kennel(), victim(), victim());
    symlink(first.path(), kennel.here().join("data")).unwrap();
    project(&kennel, "[sandbox]\nvolumes = [\"./data:/d\"]\n");
    let told = trust(&kennel);
    assert!(told.contains(&first.path().display().to_string()), "`trust` says where it leads: {told}");
    assert_eq!(run(&kennel, "cat /d/secret").ok(), "secret", "what was trusted is mounted");
    let line = format!("ln -sfn {} /workspace/data", victim.path().display());
    redirected_path_is_refused(&kennel, &run(&kennel, &line), "cat /d/secret; echo x > /d/written", victim.path());
}

#[test]
fn a_workspace_that_becomes_a_symlink_is_not_followed() {
    let (kennel, victim) = (kennel(), victim());
    std::fs::create_dir(kennel.here().join("proj")).unwrap();
    project(&kennel, "[sandbox]\nenv = { A = \"${HOME}\" }\nworkspace = \"./proj\"\n");
    trust(&kennel);
    assert_eq!(run(&kennel, "pwd; ls").ok(), "/workspace");
    let line = format!("mv proj .old; ln -s {} proj", victim.path().display());
    let attack = call(&kennel, &["run", "--workspace", ".", "-c", &line], &HOME);
    redirected_path_is_refused(&kennel, &attack, "cat secret; echo x > written", victim.path());
}

#[test]
fn a_path_that_was_missing_when_trusted_is_not_trusted() {
    let (kennel, outside) = (kennel(), tempfile::tempdir().unwrap());
    let later = outside.path().join("later");
    project(&kennel, &format!("[sandbox]\nvolumes = [\"{}:/d\"]\n", later.display()));
    assert!(trust(&kennel).contains("a path that does not exist"));
    let stderr = run(&kennel, "true").fails(125);
    assert!(stderr.contains("sandbox.volumes: ") && stderr.contains("No such file"), "{stderr}");
    std::fs::create_dir(&later).unwrap();
    let stderr = run(&kennel, "true").fails(125);
    assert!(stderr.contains("when the file was trusted the path led elsewhere"), "{stderr}");
    trust(&kennel);
    run(&kennel, "true").ok();
}

#[test]
fn trust_records_of_earlier_versions_are_ignored() {
    let kennel = kennel();
    let text = "[sandbox]\nenv = { A = \"${HOME}\" }\n";
    project(&kennel, text);
    let file = kennel.here().join("kennel.toml").canonicalize().unwrap();
    let dir = kennel.home.path().join("state/trusted");
    std::fs::create_dir_all(&dir).unwrap();
    let path = file.to_str().unwrap();
    std::fs::write(dir.join(format!("{:x}", Sha256::digest(format!("{path}\0{text}")))), "").unwrap();
    // Neither that record, nor an empty one with the current file name, is accepted.
    let record = dir.join(format!("{:x}.json", Sha256::digest(path)));
    for _ in 0..2 {
        assert!(run(&kennel, "true").fails(125).contains("are not trusted"));
        std::fs::write(&record, "").unwrap();
    }
    trust(&kennel);
    assert_ne!(std::fs::read(&record).unwrap(), b"");
    assert_eq!(run(&kennel, "echo $A").ok(), "/root");
    // Trust can be revoked even if the file is gone.
    std::fs::remove_file(&file).unwrap();
    call(&kennel, &["config", "trust", "--revoke"], &HOME).ok();
    project(&kennel, text);
    run(&kennel, "true").fails(125);
}

#[test]
fn trust_in_one_project_does_not_apply_to_another() {
    let kennel = kennel();
    let text = "[sandbox]\nenv = { A = \"${HOME}\" }\n";
    project(&kennel, text);
    trust(&kennel);
    assert_eq!(run(&kennel, "echo $A").ok(), "/root", "they apply where they were trusted");
    let other = tempfile::tempdir().unwrap();
    let there = |words: &[&str]| {
        let mut there = Command::new(env!("CARGO_BIN_EXE_kennel"));
        there.args(words).current_dir(other.path()).env("KENNEL_HOME", kennel.home.path()).env("HOME", "/root");
        finish(there, None)
    };
    let settings = kennel.here().join("kennel.toml");
    let hidden = kennel.home.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::copy(&settings, hidden.join("config.toml")).unwrap();
    for (target, name) in [(&settings, "kennel.toml"), (&hidden, ".kennel")] {
        let line = format!("ln -s {} {name}", target.display());
        there(&["run", "-c", &line]).ok();
        let link = other.path().join(name);
        let stderr = there(&["run", "-c", "echo $A"]).fails(125);
        assert!(stderr.contains(&format!("{} is a symlink", link.display())), "{stderr}");
        // Nothing is written through it either, and nothing of it is trusted.
        let before = std::fs::read(&settings).unwrap();
        let set: &[&str] = &["config", "set", "sandbox.memory", "1g"];
        assert!(there(set).fails(125).contains("is a symlink"));
        assert!(there(&["config", "trust"]).fails(125).contains("is a symlink"));
        assert_eq!(std::fs::read(&settings).unwrap(), before);
        assert_eq!(std::fs::read_to_string(hidden.join("config.toml")).unwrap(), text);
        std::fs::remove_file(&link).unwrap();
        // The control: a regular file at that path is written and read.
        if name == "kennel.toml" {
            there(set).ok();
            assert!(std::fs::read_to_string(&link).unwrap().contains("1g"));
            std::fs::remove_file(&link).unwrap();
        }
    }
}

#[test]
fn a_relative_path_does_not_lead_out_of_the_workspace() {
    let (kennel, victim) = (kennel(), victim());
    let here = kennel.here();
    for dir in ["data", "real", "proj/data", "secrets"] {
        std::fs::create_dir_all(here.join(dir)).unwrap();
    }
    let path = victim.path().display().to_string();
    run(
        &kennel,
        &format!("mv data .old; ln -s {path} data; ln -s real inner; rm -r proj/data; ln -s ../secrets proj/data"),
    )
    .ok();
    let with = |words: &[&str], env: &[(&str, &str)]| {
        call(&kennel, &[&["run"], words, &["-c", "cat /d/secret"]].concat(), env)
    };
    let read = |words: &[&str]| with(words, &[]);
    for option in
        [&["-v", "./data:/d"][..], &["-v", "data:/d"], &["-v", "./real/../data:/d"], &["-v", "../workspace/data:/d"]]
    {
        let stderr = read(option).fails(125);
        assert!(
            stderr.contains("the path leads out of ") && stderr.contains(&format!("name it directly: {path}")),
            "{stderr}"
        );
    }
    assert!(
        call(&kennel, &["run", "--workspace", "./data", "-c", "ls"], &[])
            .fails(125)
            .contains("--workspace ./data: the path leads out")
    );
    let variable = [("KENNEL_SANDBOX_WORKSPACE", "./data")];
    assert!(
        call(&kennel, &["run", "-c", "ls"], &variable)
            .fails(125)
            .contains("KENNEL_SANDBOX_WORKSPACE ./data: the path leads out")
    );
    for file in ["data/kennel.toml", "data/new/kennel.toml"] {
        let stderr = call(&kennel, &["config", "set", "--file", file, "sandbox.memory", "1g"], &[]).fails(125);
        assert!(stderr.contains("--file data: the path leads out of "), "{stderr}");
        call(&kennel, &["config", "set", "--file", &file.replace("data", "real"), "sandbox.memory", "1g"], &[]).ok();
    }
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 1, "nothing is written there");
    // Out of the given workspace, although not out of the current directory.
    let stderr = read(&["--workspace", "./proj", "-v", "./proj/data:/d"]).fails(125);
    assert!(stderr.contains(&format!("the path leads out of {}", here.join("proj").display())), "{stderr}");
    // The controls: an absolute path of the user is followed with its symlinks, and so is a path that stays within the
    // workspace.
    assert_eq!(read(&["-v", &format!("{path}:/d")]).ok(), "secret");
    assert_eq!(read(&["-v", &format!("{}:/d", here.join("data").display())]).ok(), "secret");
    std::fs::write(here.join("real/secret"), "within").unwrap();
    assert_eq!(read(&["-v", "./inner:/d"]).ok(), "within");
    let link = victim.path().join("project");
    symlink(&here, &link).unwrap();
    let mut there = Command::new(env!("CARGO_BIN_EXE_kennel"));
    there
        .args(["run", "-v", "./real:/d", "-c", "cat /d/secret"])
        .current_dir(&link)
        .env("KENNEL_HOME", kennel.home.path());
    assert_eq!(finish(there, None).ok(), "within");
    let from_above = format!("../{}/real:/d", here.file_name().unwrap().to_str().unwrap());
    assert_eq!(read(&["-v", &from_above]).ok(), "within");
}

#[test]
fn a_project_may_tighten_the_users_own_settings_and_not_loosen_them() {
    let kennel = kennel();
    user(&kennel, "[sandbox]\nmemory = \"64m\"\ntimeout = \"1m\"\nuser = \"1:1\"\nprovider = \"native\"\n");
    for (text, said) in [
        ("memory = \"1g\"", "more than your own settings allow; your own settings say 64m"),
        ("timeout = \"1h\"", "more than your own settings allow; your own settings say 1m"),
        ("user = \"0\"", "not what your own settings say; your own settings say 1:1"),
        ("provider = \"docker\"", "not what your own settings say"),
    ] {
        project(&kennel, &format!("[sandbox]\n{text}\n"));
        let stderr = run(&kennel, "true").fails(125);
        assert!(stderr.contains(said) && stderr.contains("kennel config trust"), "{text}: {stderr}");
    }
    project(&kennel, "[sandbox]\nmemory = \"32m\"\ntimeout = \"30s\"\nprovider = \"native\"\n");
    let id = call(&kennel, &["create"], &[]).ok();
    assert_eq!(call(&kennel, &["inspect", &id], &[]).json()[0]["enforcement"]["limits"]["memory"], 32 << 20);
    call(&kennel, &["rm", &id], &[]).ok();
    // With trust it can be loosened. If the user's own settings change afterwards, trust is needed again.
    project(&kennel, "[sandbox]\nuser = \"0\"\n");
    trust(&kennel);
    assert_eq!(run(&kennel, "id -u").ok(), "0");
    user(&kennel, "[sandbox]\nuser = \"2:2\"\n");
    assert!(run(&kennel, "id -u").fails(125).contains("when the file was trusted this was different"));
}

#[test]
fn settings_that_are_not_a_regular_file_are_refused_at_once() {
    let kennel = kennel();
    let file = kennel.here().join("kennel.toml");
    run(&kennel, "mkfifo kennel.toml").ok();
    for words in [&["run", "--", "true"][..], &["config", "show"], &["config", "validate"], &["config", "trust"]] {
        let stderr = call(&kennel, words, &[]).fails(125);
        assert!(stderr.contains("kennel.toml: cannot read: it is a named pipe, not a regular file"), "{stderr}");
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(run(&kennel, "true").fails(125).contains("it is a directory, not a regular file"));
    std::fs::remove_dir(&file).unwrap();
    run(&kennel, "true").ok();
}

#[test]
fn settings_of_other_users_in_parent_directories_are_ignored() {
    let kennel = kennel();
    let (above, below) = (kennel.here().join("above"), kennel.here().join("above/below"));
    std::fs::create_dir_all(&below).unwrap();
    std::fs::write(above.join("kennel.toml"), "[sandbox]\nimage = \"from above\"\n").unwrap();
    let found = |env: &[(&str, &str)]| {
        let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
        call.args(["config", "get", "sandbox.image"]).current_dir(&below);
        call.env_remove("SUDO_UID").env_remove("SUDO_GID");
        call.env("KENNEL_HOME", kennel.home.path()).envs(env.iter().copied());
        finish(call, None).status == 0
    };
    assert!(found(&[]), "the caller's own");
    chown(&above, Some(54321), Some(54321)).unwrap();
    assert!(!found(&[]), "a stranger's");
    assert!(found(&[("SUDO_UID", "54321"), ("SUDO_GID", "54321")]), "of the user behind sudo");
    chown(&below, Some(54321), Some(54321)).unwrap();
    assert!(found(&[]), "of a user who could also write here");
    std::fs::create_dir(above.join(".git")).unwrap();
    chown(&below, Some(0), Some(0)).unwrap();
    assert!(!found(&[]), "another user can create a repository too");
}
