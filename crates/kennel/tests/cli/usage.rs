//! What needs no sandbox: help, usage errors, and the choice of a provider.

use crate::support::{Kennel, finish};

#[test]
fn kennel_alone_shows_a_short_help_with_examples() {
    let kennel = Kennel::on("local");
    let mut call = kennel.call(&["ls"]);
    call = {
        let mut bare = std::process::Command::new(call.get_program());
        bare.env_clear().current_dir(kennel.here()).stdin(std::process::Stdio::null());
        bare
    };
    let text = finish(call, None).ok();
    assert!(text.contains("Usage: kennel") && text.contains("kennel run -- make test"), "{text}");
    assert!(!text.contains('\x1b'), "no colours where nobody sees them");
}

#[test]
fn every_command_has_help_with_examples() {
    let kennel = Kennel::on("local");
    for command in ["run", "create", "start", "stop", "rm", "ls", "inspect", "exec", "attach", "logs", "cp"] {
        let text = kennel.kennel(&[command, "--help"]).ok();
        assert!(text.contains("Examples:\n") && text.contains(&format!("kennel {command}")), "{text}");
    }
}

#[test]
fn usage_errors_are_kennels_own_failures() {
    let kennel = Kennel::on("local");
    for wrong in [&["no-such-command"][..], &["run", "--memory", "lots", "--", "true"], &["rm"], &["cp", "a"]] {
        let done = kennel.kennel(wrong);
        assert_eq!((done.status, done.stdout.len()), (125, 0), "{done:?}");
        assert!(!done.stderr.is_empty());
    }
}

#[test]
fn a_name_that_is_a_path_goes_nowhere() {
    let kennel = Kennel::on("local");
    for name in ["../../etc", "a/b", "", "\u{1b}[31m"] {
        let stderr = kennel.kennel(&["inspect", name]).fails(125);
        assert!(stderr.contains("there is no sandbox") && !stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn the_whole_machine_is_not_handed_out_by_accident() {
    let kennel = Kennel::on("local");
    let mut call = kennel.call(&["run", "--", "true"]);
    call.current_dir("/");
    let stderr = finish(call, None).fails(125);
    assert!(stderr.contains("--no-workspace"), "{stderr}");
}

#[test]
fn an_engine_that_is_not_there_is_said_and_stops_nothing_else() {
    let kennel = Kennel::on("local");
    let id = kennel.sandbox();
    let nowhere = kennel.home.path().join("docker.sock");
    // Somebody's socket without anybody behind it.
    drop(std::os::unix::net::UnixListener::bind(&nowhere).unwrap());
    let call = |args: &[&str]| {
        let mut call = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"));
        call.args(args).current_dir(kennel.here()).env_clear().env("KENNEL_HOME", kennel.home.path());
        call.env("DOCKER_HOST", format!("unix://{}", nowhere.display())).stdin(std::process::Stdio::null());
        finish(call, None)
    };
    let listed = call(&["ls", "-q"]);
    assert_eq!((listed.status, listed.text().trim_end()), (0, id.as_str()), "{listed:?}");
    assert!(listed.stderr.contains("docker"), "{}", listed.stderr);
    call(&["--provider", "docker", "ls"]).fails(125);
    // One that is found needs no other provider.
    assert_eq!(call(&["exec", &id, "--", "echo", "hi"]).ok(), "hi");
    let stderr = call(&["inspect", "nobody"]).fails(125);
    assert!(stderr.contains("docker") && stderr.contains("there is no sandbox nobody"), "{stderr}");
}
