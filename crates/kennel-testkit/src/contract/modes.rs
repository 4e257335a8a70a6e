//! No process inside can create a set-user-id or set-group-id file, or change limits and scheduling of its keeper.
//!
//! The test program `calls` makes the system calls. The control is a run of it as a plain process of the host: inside,
//! it must print the same except for the set-id bits.

use crate::Stage;
use crate::inside::{at, files, ok, run, sh};
use crate::programs::{self, CALLS};
use crate::tester::NOBODYS_IDS;
use kennel_core::{Sandbox, WriteOptions};
use kennel_types::{ExecSpec, IsolationLayer, Mount, SandboxSpec, Support};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SET_ID: u32 = 0o6000;
/// The result of a system call that the kernel does not support.
const UNKNOWN: &str = "error 38";

/// Whether the provider filters system calls. If not, modes are not changed either.
async fn has_walls(stage: &Stage) -> bool {
    stage.has_processes().await && stage.mode().layers.contains(&IsolationLayer::Seccomp)
}

/// Compiles the program, and returns its path on the host.
fn compiled(stage: &Stage) -> PathBuf {
    let program = stage.home().path().join("calls");
    programs::compile(CALLS, &program);
    program
}

/// Writes the program to a path inside where every user can run it, and returns the path.
async fn put(stage: &Stage, sandbox: &Sandbox) -> String {
    let bytes = std::fs::read(compiled(stage)).unwrap();
    let path = "/tmp/calls".to_owned();
    let options = WriteOptions { mode: Some(0o755), parents: true };
    let files = sandbox.files(Some("0")).await.expect("reach the keeper for files");
    files.write(&path, &bytes, options).await.unwrap();
    path
}

fn lines(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
}

fn on_the_host(mut command: Command) -> BTreeMap<String, String> {
    let output = command.output().expect("run the control");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    lines(&String::from_utf8_lossy(&output.stdout))
}

/// Runs the program on the host, and returns its results by name.
fn control(stage: &Stage) -> BTreeMap<String, String> {
    let dir = stage.home().path().join("control");
    std::fs::create_dir(&dir).unwrap();
    let mut command = Command::new(compiled(stage));
    command.arg("modes").arg(&dir);
    let told = on_the_host(command);
    std::fs::remove_dir_all(dir).unwrap();
    let with_bits = |name: &&String| u32::from_str_radix(&told[*name], 8).is_ok_and(|mode| mode & SET_ID != 0);
    let bits = told.keys().filter(|name| name.starts_with("bits:") && told[*name] != UNKNOWN);
    let all = told.keys();
    assert!(bits.clone().count() >= 12 && all.count() >= 30, "{told:#?}");
    assert_eq!(bits.clone().filter(with_bits).count(), bits.count(), "a plain process makes them: {told:#?}");
    // The ways that are closed inside are open here.
    assert!(with_bits(&&"closed:openat2".to_owned()), "{told:#?}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(told["closed:setcap"], "0000", "{told:#?}");
    }
    // Either the kernel has no 32-bit calls, or all of them make such a file.
    let old = told.keys().filter(|name| name.starts_with("old:") && !name.contains("fchmodat2"));
    let count = old.clone().filter(with_bits).count();
    assert!(count == 0 || count == old.count(), "{told:#?}");
    told
}

/// Checks that no result inside has a set-id bit, and that everything else is as outside.
fn check(inside: &BTreeMap<String, String>, control: &BTreeMap<String, String>) {
    assert_eq!(inside.keys().collect::<Vec<_>>(), control.keys().collect::<Vec<_>>());
    for (name, outside) in control {
        let found = &inside[name];
        let mode = |text: &str| u32::from_str_radix(text, 8).ok();
        if name.contains("fchmodat2") && [outside.as_str(), found.as_str()].contains(&UNKNOWN) {
            // An older kernel does not support it, but the keeper may carry it out inside. An older engine refuses it.
            assert!(mode(found).is_none_or(|mode| mode & SET_ID == 0), "{name}: {found}");
            continue;
        }
        match name.split(':').next() {
            Some("bits") => assert_eq!(mode(found), mode(outside).map(|mode| mode & !SET_ID), "{name}: {found}"),
            Some("same") => assert_eq!(found, outside, "{name}"),
            // The call was refused (nothing is made, or a file is as it was), or the process was killed, or the result is
            // the same as with native numbers.
            Some("old") => assert!(matches!(found.as_str(), "0000" | "0600" | "0755"), "{name}: {found}"),
            _ => assert!(found.starts_with("error "), "{name}: {found}"),
        }
    }
}

fn set_id_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.path().symlink_metadata().unwrap();
        if metadata.is_dir() {
            found.extend(set_id_below(&entry.path()));
        } else if metadata.is_file() && metadata.mode() & SET_ID != 0 {
            found.push(entry.path());
        }
    }
    found
}

/// A command of the default user cannot create a set-id file in the working directory. Directories get their set-id
/// bits, other bits are set as requested, and errors are those of the kernel.
pub async fn no_file_becomes_set_id(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let control = control(stage);
    let sandbox = stage.running().await;
    let program = put(stage, &sandbox).await;
    check(&lines(&ok(&sandbox, &format!("{program} modes .")).await), &control);
    assert_eq!(set_id_below(&stage.home().workspace()), Vec::<PathBuf>::new());
    // The way in which a package manager unpacks a program.
    let unpack = "mkdir tree && echo x > tree/su.new && chown $(id -u):$(id -g) tree/su.new && chmod 4755 tree/su.new \
                  && mv tree/su.new tree/su && stat -c %a tree/su";
    assert_eq!(ok(&sandbox, unpack).await, "755");
}

/// A command of another user cannot create a set-id file either. The calls have only the rights of that user.
pub async fn no_file_becomes_set_id_for_another_user(stage: &Stage) {
    if !has_walls(stage).await || stage.mode().users == Support::Refused {
        return;
    }
    let control = control(stage);
    let sandbox = stage.running().await;
    let program = put(stage, &sandbox).await;
    let as_user = async |user: &str, script: &str| {
        run(&sandbox, &ExecSpec { user: Some(user.into()), ..ExecSpec::shell(script) }).await
    };
    let ready =
        "mkdir -m 777 /tmp/open && echo x > /tmp/open/of-root && mkdir -m 700 /tmp/shut && echo x > /tmp/shut/file";
    assert!(as_user("0", ready).await.status.success());
    let told = as_user("65534", &format!("{program} modes /tmp/open")).await;
    check(&lines(&told.stdout_text()), &control);
    for (script, why) in [("chmod 4755 /tmp/open/of-root", "not permitted"), ("chmod 4755 /tmp/shut/file", "denied")] {
        let output = as_user("65534", script).await;
        assert!(!output.status.success() && output.stderr_text().contains(why), "{script}: {}", output.stderr_text());
    }
    // Root inside may change the mode, without the set-id bits.
    let output = as_user("0", "chmod 4751 /tmp/open/bits:fchmod && stat -c %a:%u /tmp/open/bits:fchmod").await;
    assert_eq!(output.stdout_text(), "751:65534\n");
}

/// Neither root inside nor a main process can create a set-id file in a mount.
pub async fn no_file_becomes_set_id_in_a_mount(stage: &Stage) {
    let shared = stage.home().path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let mounts = vec![Mount { host: shared.clone(), target: "/shared".into(), read_only: false }];
    let command = ["sh", "-c", "echo x > /shared/main && chmod 6755 /shared/main && touch /shared/done; sleep 1000"];
    let command = Some(command.map(ToOwned::to_owned).into());
    let spec = SandboxSpec { mounts, command, ..stage.spec() };
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    if !has_walls(stage).await {
        return;
    }
    let control = control(stage);
    let sandbox = stage.started(&spec).await;
    crate::eventually("the main process has set its mode", async || shared.join("done").exists()).await;
    let program = put(stage, &sandbox).await;
    check(&lines(&ok(&sandbox, &format!("{program} modes /shared")).await), &control);
    assert_eq!(shared.join("main").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(set_id_below(&shared), Vec::<PathBuf>::new());
}

/// A file that the keeper writes on request gets no set-id bits.
pub async fn files_written_by_the_keeper_are_not_set_id(stage: &Stage) {
    if stage.mode().layers.is_empty() {
        return;
    }
    let sandbox = stage.running().await;
    let (files, path) = (files(&sandbox).await, at(&sandbox, "written"));
    for mode in [0o6755, 0o1755] {
        files.write(&path, b"x", WriteOptions { mode: Some(mode), parents: true }).await.unwrap();
        assert_eq!(files.stat(&path, true).await.unwrap().mode & 0o7777, mode & !SET_ID);
    }
    if stage.mode().workspace == Support::Given && has_walls(stage).await {
        // A set-id file that already exists is written, and loses its bits.
        let there = stage.home().workspace().join("there");
        std::fs::write(&there, "old").unwrap();
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_ne!(there.metadata().unwrap().mode() & SET_ID, 0, "a plain process makes one");
        files.write(at(&sandbox, "there"), b"new", WriteOptions { mode: None, parents: true }).await.unwrap();
        assert_eq!(there.metadata().unwrap().mode() & 0o7777, 0o755);
    }
}

/// The keeper carries out the calls of a background process, also after its command has ended.
pub async fn background_processes_can_change_modes(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let script = "(while test ! -e go; do sleep 0.05; done; echo x > late; chmod 4755 late; stat -c %a late > told.new; \
                  mv told.new told) > /dev/null 2>&1 &";
    ok(&sandbox, script).await;
    ok(&sandbox, "touch go").await;
    crate::eventually("it has set the mode", async || sh(&sandbox, "cat told").await.stdout_text() == "755\n").await;
}

/// Many mode changes at the same time, some of killed processes, block no other command.
pub async fn many_mode_changes_block_no_other_command(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let flood = "for i in $(seq 24); do (touch $i; while :; do chmod 4755 $i; done) & done; sleep 1000";
    let flooding = sandbox.exec(&ExecSpec::shell(flood)).await.unwrap();
    for _ in 0..5 {
        assert_eq!(ok(&sandbox, "touch calm; chmod 4711 calm; stat -c %a calm").await, "711");
        files(&sandbox).await.write(at(&sandbox, "file"), b"x", WriteOptions::default()).await.unwrap();
    }
    drop(flooding);
    crate::eventually("nothing of the flood runs", async || {
        sh(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'chmod.475[5]'").await.stdout_text() == "0\n"
    })
    .await;
    assert_eq!(ok(&sandbox, "chmod 4711 calm; stat -c %a calm").await, "711");
}

/// A process that has restricted itself with Landlock does not reach more files through the keeper: calls with set-id
/// bits are refused.
pub async fn landlock_rules_inside_are_not_bypassed(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let program = put(stage, &sandbox).await;
    let told = lines(&ok(&sandbox, &format!("{program} fenced .")).await);
    if told.contains_key("no-landlock") {
        // The kernel does not support Landlock, or the engine's filter blocks it.
        return;
    }
    let expected =
        [("before", "0755"), ("plain", "error 13"), ("open", "error 13"), ("mknod", "error 13"), ("chmod", "0755")];
    let expected: BTreeMap<_, _> = expected.map(|(name, result)| (name.to_owned(), result.to_owned())).into();
    assert_eq!(told, expected);
}

/// A command can change its own limits and scheduling, but not those of the keeper.
pub async fn commands_cannot_change_limits_of_process_1(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    // As a user who has no other processes, so that nothing else is changed.
    let alone = rustix::process::geteuid().is_root();
    let program = compiled(stage);
    std::fs::set_permissions(stage.home().path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let outside = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words);
        if alone {
            command.uid(NOBODYS_IDS.0).gid(NOBODYS_IDS.1);
        }
        command
    };
    let mut other = Command::new("sleep");
    other.arg("1000");
    if alone {
        other.uid(NOBODYS_IDS.0).gid(NOBODYS_IDS.1);
    }
    let mut other = other.spawn().unwrap();
    let mut control = on_the_host(outside(&["meddle", &other.id().to_string()]));
    if alone {
        control.extend(on_the_host(outside(&["meddle-with-users"])));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(control.len() >= 15 && control.values().all(|result| result == "0000"), "{control:#?}");

    let sandbox = stage.running().await;
    let program = put(stage, &sandbox).await;
    let mut told = lines(&ok(&sandbox, &format!("{program} meddle 1")).await);
    told.extend(lines(&ok(&sandbox, &format!("{program} meddle-with-users")).await));
    for (name, result) in &told {
        let expected = if name.starts_with("own:") { "0000" } else { "error 1" };
        assert_eq!(result, expected, "{name}");
    }
    assert!(told.len() >= 17, "{told:#?}");
    // The keeper still works.
    assert_eq!(ok(&sandbox, "echo unharmed").await, "unharmed");
}
