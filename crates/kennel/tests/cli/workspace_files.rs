//! Files that a sandbox leaves in the workspace, and commands on the host that read them.

use crate::support::{Kennel, finish, on_every_provider};
use std::os::unix::fs::symlink;

on_every_provider!(an_env_file_written_inside_reveals_nothing, a_build_reads_nothing_outside_its_directory);

fn an_env_file_written_inside_reveals_nothing(kennel: &Kennel) {
    let secret = kennel.home.path().join("secret");
    std::fs::write(&secret, "topsecret\n").unwrap();
    let id = kennel.sandbox();
    let make = format!("mkfifo fifo; ln -s {} link; printf 'A=1\\nTOKEN\\n' > bare; echo A=1 > good", secret.display());
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    let call = |file: &str, last: &[&str]| {
        let mut call = kennel.call(&[&["exec", "--env-file", file, &id], last].concat());
        call.env("TOKEN", "token of the user");
        finish(call, None)
    };
    let print = ["-c", "echo \"$A-$TOKEN\""];
    // A FIFO does not block: nobody writes to it, so the call would never end.
    let stderr = call("fifo", &print).fails(125);
    assert!(stderr.contains("fifo: it is not a regular file"), "{stderr}");
    // A symlink is not followed, and nothing of its target is shown.
    assert_eq!(std::fs::read(kennel.here().join("link")).unwrap(), b"topsecret\n", "other programs follow it");
    let stderr = call("link", &print).fails(125);
    assert!(stderr.contains("leads out of the current directory") && !stderr.contains("topsecret"), "{stderr}");
    // If the user names the file itself, its lines are not shown either.
    let stderr = call(secret.to_str().unwrap(), &print).fails(125);
    assert!(stderr.contains("line 1: expected NAME=VALUE") && !stderr.contains("topsecret"), "{stderr}");
    // A name without a value copies nothing from the user's environment.
    let stderr = call("bare", &print).fails(125);
    assert!(stderr.contains("line 2: expected NAME=VALUE") && !stderr.contains("TOKEN"), "{stderr}");
    // The controls: a plain file, a symlink that stays within the workspace, and a path that the user typed.
    assert_eq!(call("good", &print).ok(), "1-");
    symlink("good", kennel.here().join("near")).unwrap();
    assert_eq!(call("near", &print).ok(), "1-");
    let mut typed = kennel.call(&["exec", "-e", "TOKEN", &id, "-c", "echo \"$TOKEN\""]);
    typed.env("TOKEN", "token of the user");
    assert_eq!(finish(typed, None).ok(), "token of the user");
}

fn a_build_reads_nothing_outside_its_directory(kennel: &Kennel) {
    if kennel.provider != "docker" {
        let stderr = kennel.kennel(&["build", "-t", "x", "."]).fails(125);
        assert!(stderr.contains("does not support"), "only engines build: {stderr}");
        return;
    }
    let secret = kennel.home.path().join("secret");
    std::fs::write(&secret, "FROM topsecret\n").unwrap();
    let id = kennel.sandbox();
    let make = format!("mkdir context; ln -s {} context/Dockerfile; ln -s .. context/up", secret.display());
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    for args in [&["context"][..], &["-f", "context/Dockerfile", "context"], &["-f", "context/up/../secret", "context"]]
    {
        let stderr = kennel.kennel(&[&["build", "-t", "kennel-test/none"], args].concat()).fails(125);
        assert!(stderr.contains("leads out of") && !stderr.contains("topsecret"), "{stderr}");
    }
    kennel
        .kennel(&["exec", &id, "-c", "rm context/Dockerfile; ln -s ../../.. context2; echo 'FROM topsecret' > D"])
        .ok();
    let stderr = kennel.kennel(&["build", "-t", "kennel-test/none", "context2"]).fails(125);
    assert!(stderr.contains("leads out of the current directory"), "{stderr}");
    // The control: if the user names the file itself, it is read, and the engine is asked for the image that it names.
    let stderr =
        kennel.kennel(&["build", "-t", "kennel-test/none", "-f", secret.to_str().unwrap(), "context"]).fails(126);
    assert!(stderr.contains("topsecret"), "{stderr}");
}
