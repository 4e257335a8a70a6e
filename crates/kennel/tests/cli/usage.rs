//! Commands that need no sandbox: help, usage errors, and the choice of a provider.

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
    assert!(!text.contains('\x1b'), "no colours without a terminal");
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
fn a_path_is_not_found_as_a_sandbox_name() {
    let kennel = Kennel::on("local");
    for name in ["../../etc", "a/b", "", "\u{1b}[31m"] {
        let stderr = kennel.kennel(&["inspect", name]).fails(125);
        assert!(stderr.contains("there is no sandbox") && !stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn the_root_directory_is_refused_as_workspace() {
    let kennel = Kennel::on("local");
    let mut call = kennel.call(&["run", "--", "true"]);
    call.current_dir("/");
    let stderr = finish(call, None).fails(125);
    assert!(stderr.contains("--no-workspace"), "{stderr}");
}

#[test]
fn a_missing_engine_is_reported_and_the_rest_is_listed() {
    let kennel = Kennel::on("local");
    let id = kennel.sandbox();
    let nowhere = kennel.home.path().join("docker.sock");
    // A socket on which nobody listens.
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
    // A sandbox that is found needs no other provider.
    assert_eq!(call(&["exec", &id, "--", "echo", "hi"]).ok(), "hi");
    let stderr = call(&["inspect", "nobody"]).fails(125);
    assert!(stderr.contains("docker") && stderr.contains("there is no sandbox nobody"), "{stderr}");
}

#[test]
fn completions_manual_and_version() {
    let kennel = Kennel::on("local");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let text = kennel.kennel(&["completions", shell]).ok();
        assert!(text.contains("kennel") && text.contains("KENNEL_COMPLETE"), "{shell}: {text}");
    }
    let page = kennel.kennel(&["man"]).ok();
    assert!(page.contains(".TH kennel 1"), "{page}");
    let dir = kennel.here().join("man");
    kennel.kennel(&["man", "--dir", dir.to_str().unwrap()]).ok();
    assert!(dir.join("kennel-run.1").exists() && dir.join("kennel.1").exists());
    let version = kennel.kennel(&["version", "--json"]).json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(kennel.kennel(&["version"]).ok(), format!("kennel {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_shell_completes_commands_options_and_names() {
    let kennel = Kennel::on("local");
    kennel.kennel(&["create", "--name", "my-box"]).ok();
    std::fs::write(kennel.here().join("my-file"), "").unwrap();
    let completes = |words: &[&str]| {
        let mut call = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"));
        call.current_dir(kennel.here()).env_clear().env("KENNEL_HOME", kennel.home.path());
        call.env("DOCKER_HOST", "unix:///nowhere").env("KENNEL_COMPLETE", "bash");
        call.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
        call.arg("--").arg("kennel").args(words);
        let done = finish(call, None);
        assert_eq!(done.stderr, "");
        done.ok().lines().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert!(completes(&["unp"]).contains(&"unpause".to_owned()));
    assert!(completes(&["run", "--mem"]).contains(&"--memory".to_owned()));
    for command in ["exec", "rm", "stop", "inspect", "logs", "attach", "start", "wait", "stats", "pause", "rename"] {
        assert_eq!(completes(&[command, "my-"]), ["my-box"], "{command}");
    }
    let volumes = kennel.home.path().join("state/volumes");
    std::fs::create_dir_all(volumes.join("data-my-box")).unwrap();
    for command in ["inspect", "rm"] {
        assert_eq!(completes(&["volume", command, "data-"]), ["data-my-box"], "{command}");
    }
    let found = completes(&["cp", "my-"]);
    assert!(found.contains(&"my-box:".to_owned()) && found.contains(&"my-file".to_owned()), "{found:?}");
}

#[test]
fn providers_and_features_are_explained() {
    let kennel = Kennel::on("local");
    let all = kennel.kennel(&["explain"]).ok();
    assert!(all.contains("seccomp") && all.contains("network_bridge") && all.contains("docker, root"), "{all}");
    let native = kennel.kennel(&["explain", "native"]).ok();
    assert!(native.contains("user_namespace") && native.contains("limits           supported"), "{native}");
    assert!(kennel.kennel(&["explain", "local"]).ok().contains("isolates nothing"));
    let who = kennel.kennel(&["explain", "limits", "--json"]).json();
    let given = |mode: &str| who.as_array().unwrap().iter().find(|row| row["mode"] == mode).unwrap()["given"].as_bool();
    assert_eq!((given("native, root, host"), given("local")), (Some(true), Some(false)));
    let stderr = kennel.kennel(&["explain", "gravity"]).fails(125);
    assert!(stderr.contains("seccomp") && stderr.contains("try: kennel explain"), "{stderr}");
}

#[test]
fn the_system_calls_are_explained() {
    let kennel = Kennel::on("local");
    let text = kennel.kennel(&["explain", "seccomp"]).ok();
    let list = kennel.kennel(&["explain", "seccomp", "--json"]).json();
    let given = |mode: &str| {
        let modes = list["modes"].as_array().unwrap();
        modes.iter().find(|row| row["mode"] == mode).unwrap()["given"].as_bool()
    };
    assert_eq!((given("native, root, host"), given("local")), (Some(true), Some(false)));
    let calls = &list["systemCalls"];
    assert_eq!(calls["architecture"], std::env::consts::ARCH);
    for (kind, call, is_listed) in [
        ("allowed", "openat", true),
        ("allowed", "mount", false),
        ("allowed", "io_uring_setup", false),
        ("allowedWithNesting", "mount", true),
        ("allowedWithNesting", "io_uring_setup", false),
    ] {
        let groups = calls[kind].as_array().unwrap();
        let group = groups.iter().find(|group| group["calls"].as_array().unwrap().iter().any(|it| it == call));
        assert_eq!(group.is_some(), is_listed, "{kind}: {call}");
        assert!(group.is_none_or(|group| text.contains(group["why"].as_str().unwrap())), "{text}");
    }
    let rules = calls["allowedWithArguments"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["call"] == "clone" && rule["anyOf"][0][0]["argument"] == 0), "{rules:?}");
    // Numbers and older system calls differ between architectures.
    #[cfg(target_arch = "x86_64")]
    insta::assert_snapshot!("system_calls", text[text.find("These system calls").unwrap()..].trim_end());
}
