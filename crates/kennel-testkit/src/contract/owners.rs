//! The owners, on the host, of files that a sandbox creates in a writable mount.

use crate::inside::{ok, run, sh};
use crate::{Stage, host};
use kennel_core::Sandbox;
use kennel_types::{ExecSpec, Mount, MountOwners, SandboxSpec, Support};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// The owners of the workspace, of another mount and of a single file, if the test can change them as root.
const OWNERS: [(u32, u32); 3] = [(12_345, 12_346), (23_456, 23_457), (34_567, 34_568)];
/// A user who owns a file in a mount that belongs to another user.
const STRANGER: (u32, u32) = (45_678, 45_679);

/// Files that root or another user inside creates in a mount have the owners that the mode states.
pub async fn files_created_in_mounts_have_the_owners_of_the_mode(stage: &Stage) {
    let workspace = stage.home().workspace();
    let other = stage.home().path().join("mount");
    std::fs::create_dir(&other).unwrap();
    let single = stage.home().path().join("single");
    std::fs::write(&single, "s").unwrap();
    let row = stage.mode();
    let mut spec = SandboxSpec { workspace: Some(workspace.clone()), ..stage.spec() };
    let mut places = vec![(workspace, "/workspace")];
    let single_mount = Mount { host: single.clone(), target: "/single".into(), read_only: false };
    let other_mount = Mount { host: other.clone(), target: "/other".into(), read_only: false };
    if row.mounts == Support::Refused {
        stage.refuses(&SandboxSpec { mounts: vec![other_mount], ..spec.clone() }).await;
    } else {
        spec.mounts = vec![other_mount, single_mount];
        places.extend([(other, "/other"), (single, "/single")]);
    }
    if row.workspace == Support::Refused {
        return stage.refuses(&spec).await;
    }
    if row.mount_owners == MountOwners::Nobody {
        assert!(!stage.has_processes().await, "files of real processes have owners");
        return;
    }
    let root = rustix::process::geteuid().is_root();
    if root {
        for ((place, _), (user, group)) in places.iter().zip(OWNERS) {
            chown(place, Some(user), Some(group)).unwrap();
        }
    }
    let sandbox = stage.started(&spec).await;
    for (index, (outside, inside)) in places.iter().enumerate() {
        let inside = if row.layers.is_empty() { outside.to_str().unwrap() } else { inside };
        let before = std::fs::metadata(outside).unwrap();
        let owner = (before.uid(), before.gid());
        if root && row.mount_owners == MountOwners::Mount {
            assert_eq!(owner, OWNERS[index]);
        }
        if before.is_dir() {
            in_a_directory(stage, &sandbox, outside, inside, owner).await;
        } else {
            let file = inside;
            let changed = as_root(stage, &sandbox, &format!("echo x >> {file} && chown 1:1 {file}")).await;
            assert_eq!(changed, gives_away(row.mount_owners, root), "{file}");
            assert_allowed(row.mount_owners, outside, owner);
        }
    }
}

/// Whether root inside can give a file in a mount to another user inside.
fn gives_away(owners: MountOwners, root: bool) -> bool {
    match owners {
        MountOwners::Mount | MountOwners::Caller | MountOwners::Nobody => false,
        MountOwners::Range => true,
        // Without isolation, the caller itself makes the attempt.
        MountOwners::Same => root,
    }
}

async fn in_a_directory(stage: &Stage, sandbox: &Sandbox, outside: &Path, inside: &str, owner: (u32, u32)) {
    let row = stage.mode();
    let root = rustix::process::geteuid().is_root();
    let made = format!(
        "cd {inside} && umask 0 && echo x > made && echo x > given && mkdir dir && echo x > dir/below && \
         ln -s made link && mkfifo pipe && ln made hard && mv dir/below moved && chmod 777 ."
    );
    assert!(as_root(stage, sandbox, &made).await, "ordinary work in {inside}");
    for script in ["chown 1 given", "chgrp 1 given", "chown 1:1 dir", "chown -h 1:1 link"] {
        let done = as_root(stage, sandbox, &format!("cd {inside} && {script}")).await;
        assert_eq!(done, gives_away(row.mount_owners, root), "{script} in {inside}");
    }
    if row.users == Support::Given {
        let by_other = |script: String| ExecSpec { user: Some("1:1".into()), ..ExecSpec::shell(script) };
        let made = run(sandbox, &by_other(format!("cd {inside} && echo x > by-other && mkdir also"))).await;
        assert_eq!(made.status.success(), gives_away(row.mount_owners, root), "{}", made.stderr_text());
        // The control: the same user can create files elsewhere.
        let open = "d=$(mktemp -d) && chmod 777 $d && echo $d";
        let open = run(sandbox, &ExecSpec { user: Some("0".into()), ..ExecSpec::shell(open) }).await;
        let made = run(sandbox, &by_other(format!("echo x > {}/file", open.stdout_text().trim()))).await;
        assert!(made.status.success(), "{}", made.stderr_text());
    }
    for path in host::walk(outside, false).into_iter().chain([outside.to_owned()]) {
        assert_allowed(row.mount_owners, &path, owner);
    }
    if root {
        // The control: root outside can do what is refused inside.
        let control = outside.join("control");
        std::fs::write(&control, "c").unwrap();
        chown(&control, Some(1), Some(1)).unwrap();
        assert_eq!(std::fs::metadata(&control).unwrap().uid(), 1);
        files_of_a_stranger(stage, sandbox, outside, inside).await;
    }
}

/// Checks what root inside can do to a file in the mount that belongs to another user and that everyone may write.
async fn files_of_a_stranger(stage: &Stage, sandbox: &Sandbox, outside: &Path, inside: &str) {
    let theirs = outside.join("theirs");
    std::fs::write(&theirs, "theirs").unwrap();
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o666)).unwrap();
    chown(&theirs, Some(STRANGER.0), Some(STRANGER.1)).unwrap();
    let held = stage.mode().mount_owners == MountOwners::Mount;
    if held {
        assert_eq!(
            ok(sandbox, &format!("stat -c %u:%g {inside}/theirs; cat {inside}/theirs")).await,
            "65534:65534\ntheirs"
        );
    }
    for script in ["chown 0:0 theirs", "echo x >> theirs", "mv theirs other && mv other theirs", "rm theirs"] {
        let done = as_root(stage, sandbox, &format!("cd {inside} && {script}")).await;
        assert_eq!(done, !held, "{script} in {inside}");
    }
    if held {
        assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
        let found = std::fs::metadata(&theirs).unwrap();
        assert_eq!((found.uid(), found.gid()), STRANGER);
    }
}

/// Runs a script as root inside, or as the only user if there is no other. Returns whether it succeeded.
async fn as_root(stage: &Stage, sandbox: &Sandbox, script: &str) -> bool {
    if stage.mode().users == Support::Refused {
        return sh(sandbox, script).await.status.success();
    }
    run(sandbox, &ExecSpec { user: Some("0".into()), ..ExecSpec::shell(script) }).await.status.success()
}

fn assert_allowed(owners: MountOwners, path: &Path, (user, group): (u32, u32)) {
    let found = std::fs::symlink_metadata(path).unwrap();
    let is = (found.uid(), found.gid());
    let allowed = match owners {
        MountOwners::Mount => is == (user, group),
        MountOwners::Caller => is == (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        MountOwners::Range => {
            let caller = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            (is.0 == caller.0 || was_given("/etc/subuid", is.0)) && (is.1 == caller.1 || was_given("/etc/subgid", is.1))
        }
        MountOwners::Same => true,
        MountOwners::Nobody => false,
    };
    assert!(allowed, "{} belongs to {is:?}", path.display());
}

/// Whether an id is in a subordinate range of the user of this process.
fn was_given(file: &str, id: u32) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap();
    let name = accounts.lines().find(|line| line.split(':').nth(2) == Some(&user.to_string()));
    let name = name.and_then(|line| line.split(':').next()).unwrap_or_default();
    std::fs::read_to_string(file).unwrap().lines().any(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [who, first, count] = fields[..] else { return false };
        let (first, count): (u32, u32) = (first.parse().unwrap(), count.parse().unwrap());
        (who == name || who == user.to_string()) && (first..first + count).contains(&id)
    })
}
