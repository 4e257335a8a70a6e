//! Symlinks that a sandbox leaves in its workspace, and `kennel cp` on the host.

use super::{clean, inside};
use crate::support::{Finished, Kennel, finish, on_every_provider};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

on_every_provider!(
    nothing_is_read_through_symlinks_of_the_workspace,
    nothing_is_written_through_symlinks_of_the_workspace,
    symlinks_that_stay_beneath_are_followed,
    symlinks_swapped_in_on_the_path_are_not_followed,
);

/// A directory outside the workspace that only the user can read, with a secret as a file and in an archive.
fn victim(kennel: &Kennel) -> PathBuf {
    let victim = kennel.home.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(victim.join("secret"), "secret").unwrap();
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(victim.join("tar")).arg("--directory").arg(&victim).arg("secret");
    finish(tar, None).ok();
    victim
}

/// A sandbox that has created symlinks out of its workspace.
fn sandbox(kennel: &Kennel, victim: &Path) -> String {
    let id = kennel.sandbox();
    let make = format!(
        "ln -s {0}/secret README.md; ln -s {0}/tar a.tar; ln -s {0} out; mkdir sub; ln -s ../../victim sub/up",
        victim.display()
    );
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    // The control: other programs on the host follow them.
    assert_eq!(std::fs::read(kennel.here().join("README.md")).unwrap(), b"secret");
    assert_eq!(std::fs::read(kennel.here().join("out/secret")).unwrap(), b"secret");
    id
}

/// The ways to name a path in the workspace: relative to it, by its absolute path, and through a symlink of the user.
fn ways(kennel: &Kennel) -> [String; 3] {
    let own = kennel.home.path().join("own");
    symlink(kennel.here(), &own).unwrap();
    [".".to_owned(), kennel.here().display().to_string(), own.display().to_string()]
}

#[track_caller]
fn refused(call: Finished) {
    let stderr = call.fails(125);
    assert!(stderr.contains("leads out of") || stderr.contains("a symlink, which is not followed"), "{stderr}");
}

fn nothing_is_read_through_symlinks_of_the_workspace(kennel: &Kennel) {
    let (victim, dir) = (victim(kennel), inside(kennel));
    let id = sandbox(kennel, &victim);
    let to = format!("{id}:{dir}/copy");
    for way in ways(kennel) {
        for path in ["README.md", "out/secret", "out", "out/.", "sub/up/secret", "sub/../README.md"] {
            refused(kennel.kennel(&["cp", &format!("{way}/{path}"), &to]));
        }
        refused(kennel.kennel(&["cp", "--archive", &format!("{way}/a.tar"), &to]));
        refused(kennel.kennel(&["cp", "--archive", &format!("{way}/out/tar"), &to]));
    }
    kennel.kennel(&["exec", &id, "--", "test", "!", "-e", &format!("{dir}/copy")]).ok();
    // A path outside that the user names is copied, and so is a symlink of the user.
    let mine = kennel.home.path().join("mine");
    symlink(&victim, &mine).unwrap();
    kennel.kennel(&["cp", &mine.join("secret").display().to_string(), &to]).ok();
    kennel.kennel(&["cp", "../victim/secret", &to]).ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "cat", &format!("{dir}/copy")]).ok(), "secret");
    clean(kennel, &id);
}

fn nothing_is_written_through_symlinks_of_the_workspace(kennel: &Kennel) {
    let (victim, dir) = (victim(kennel), inside(kennel));
    let id = sandbox(kennel, &victim);
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir -p {dir}/tree; echo ours > {dir}/tree/secret")]).ok();
    let (file, tree) = (format!("{id}:{dir}/tree/secret"), format!("{id}:{dir}/tree"));
    for way in ways(kennel) {
        for path in ["README.md", "out", "out/new", "out/secret", "sub/up", "sub/up/new"] {
            refused(kennel.kennel(&["cp", &file, &format!("{way}/{path}")]));
            refused(kennel.kennel(&["cp", "--archive", &tree, &format!("{way}/{path}")]));
        }
        for path in ["out", "out/.", "out/new", "sub/up"] {
            refused(kennel.kennel(&["cp", &tree, &format!("{way}/{path}")]));
            refused(kennel.kennel(&["cp", &format!("{tree}/."), &format!("{way}/{path}")]));
        }
    }
    assert_eq!(std::fs::read(victim.join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 2, "nothing was put there");
    // The same copies work if the user names the target itself.
    kennel.kennel(&["cp", &file, &victim.join("new").display().to_string()]).ok();
    kennel.kennel(&["cp", &tree, "../victim"]).ok();
    assert_eq!(std::fs::read(victim.join("tree/secret")).unwrap(), b"ours\n");
    clean(kennel, &id);
}

fn symlinks_that_stay_beneath_are_followed(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let make =
        "echo text > file; ln -s file near; mkdir -p sub/deep; ln -s sub/deep short; ln -s ../../near sub/deep/far";
    kennel.kennel(&["exec", &id, "-c", make]).ok();
    let to = format!("{id}:{dir}/copy");
    for way in ways(kennel) {
        for path in ["near", "short/far", "sub/../near", "sub/deep/../../near"] {
            kennel.kennel(&["cp", &format!("{way}/{path}"), &to]).ok();
            assert_eq!(kennel.kennel(&["exec", &id, "--", "cat", &format!("{dir}/copy")]).ok(), "text");
            kennel.kennel(&["exec", &id, "--", "rm", &format!("{dir}/copy")]).ok();
        }
        kennel.kennel(&["cp", &format!("{way}/file"), &to]).ok();
        kennel.kennel(&["cp", &to, &format!("{way}/short/new")]).ok();
        assert_eq!(std::fs::read(kennel.here().join("sub/deep/new")).unwrap(), b"text\n");
        std::fs::remove_file(kennel.here().join("sub/deep/new")).unwrap();
    }
    // A relative path starts at the current directory. The user may start it with `..`.
    let mut below = kennel.call(&["cp", "../../near", &to]);
    finish(
        {
            below.current_dir(kennel.here().join("sub/deep"));
            below
        },
        None,
    )
    .ok();
    let mut below = kennel.call(&["cp", "far", &to]);
    refused(finish(
        {
            below.current_dir(kennel.here().join("sub/deep"));
            below
        },
        None,
    ));
    clean(kennel, &id);
}

/// A directory of the workspace is replaced by a symlink out of it again and again, while the host copies from it and
/// to it.
fn symlinks_swapped_in_on_the_path_are_not_followed(kennel: &Kennel) {
    let (victim, dir, id) = (victim(kennel), inside(kennel), kennel.sandbox());
    let swap = format!(
        "mkdir d e; echo ours > d/secret; ln -s {} x; echo > told; while :; do mv d y; mv x d; mv d x; mv y d; done",
        victim.display()
    );
    let mut swapping = kennel.call(&["exec", &id, "-c", &swap]).spawn().unwrap();
    let told = kennel.here().join("told");
    assert!(kennel_testkit::within_blocking(std::time::Duration::from_secs(90), || told.exists()), "it swaps");
    kennel.kennel_with(&["cp", "-", &format!("{id}:{dir}/new")], b"new").ok();
    for round in 0..10 {
        let copy = format!("{id}:{dir}/copy{round}");
        // The copy may fail, depending on the moment.
        let _ = kennel.kennel(&["cp", "d/secret", &copy]);
        let _ = kennel.kennel(&["cp", &kennel.here().join("d").display().to_string(), &format!("{copy}-all")]);
        let found = kennel.kennel(&["exec", &id, "-c", &format!("cat {dir}/copy{round} {dir}/copy{round}-all/secret")]);
        assert!(!found.text().contains("secret"), "{found:?}");
        let _ = kennel.kennel(&["cp", &format!("{id}:{dir}/new"), "d/new"]);
        let _ = kennel.kennel(&["cp", &format!("{id}:{dir}/new"), "d"]);
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 2, "nothing was put there");
    }
    assert!(swapping.try_wait().unwrap().is_none(), "it kept swapping");
    kennel.kennel(&["exec", &id, "--", "rm", "-rf", &dir]).ok();
    kennel.kennel(&["rm", "--force", &id]).ok();
    swapping.wait().unwrap();
}
