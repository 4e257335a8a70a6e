//! Settings in effect: files and variables apply to new sandboxes, and the files of a project need the user's trust.

use crate::support::{Finished, Kennel, finish};
use kennel_testkit::{docker, programs, within_blocking};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) fn kennel() -> Kennel {
    Kennel::on("native")
}

/// Without `--provider`: the settings choose the provider.
pub(crate) fn call(kennel: &Kennel, words: &[&str], env: &[(&str, &str)]) -> Finished {
    finish_call(Command::new(env!("CARGO_BIN_EXE_kennel")), kennel, words, env)
}

/// Runs the program with a jail that takes two seconds to create a network namespace.
fn call_with_slow_jail(kennel: &Kennel, words: &[&str], env: &[(&str, &str)]) -> Finished {
    let mut call = Command::new("strace");
    call.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=unshare", "-e", "inject=unshare:delay_enter=2000000"]);
    call.arg(env!("CARGO_BIN_EXE_kennel"));
    finish_call(call, kennel, words, env)
}

fn finish_call(mut call: Command, kennel: &Kennel, words: &[&str], env: &[(&str, &str)]) -> Finished {
    call.args(words).current_dir(kennel.here()).env_clear().stdin(Stdio::null());
    call.env("PATH", kennel_testkit::environment::variable("PATH").unwrap()).env("KENNEL_HOME", kennel.home.path());
    call.env("DOCKER_HOST", "unix:///nowhere/docker.sock").envs(env.iter().copied());
    finish(call, None)
}

pub(crate) fn project(kennel: &Kennel, text: &str) {
    std::fs::write(kennel.here().join("kennel.toml"), text).unwrap();
}

pub(crate) fn user(kennel: &Kennel, text: &str) {
    let dir = kennel.home.path().join("config");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), text).unwrap();
}

#[test]
fn settings_apply_unless_a_flag_overrides_them() {
    let kennel = kennel();
    std::fs::create_dir(kennel.here().join("data")).unwrap();
    std::fs::write(kennel.here().join("data/file"), "from the project").unwrap();
    user(&kennel, "[sandbox]\nenv = { A = \"user\", B = \"user\" }\nuser = \"1:1\"\n");
    project(
        &kennel,
        "[sandbox]\nworkdir = \"/data\"\nvolumes = [\"./data:/data:ro\"]\ncommand = [\"cat\", \"file\"]\n\
         env = { B = \"project\", C = \"project\" }\n",
    );
    assert_eq!(call(&kennel, &["run", "-c", "echo $A $B $C; id -u; pwd"], &[]).ok(), "user project project\n1\n/data");
    assert_eq!(
        call(&kennel, &["run", "-e", "C=flag", "-u", "0", "-w", "/", "-c", "echo $C; id -u; pwd"], &[]).ok(),
        "flag\n0\n/"
    );
    assert_eq!(call(&kennel, &["run"], &[]).ok(), "from the project");
    let variable = call(&kennel, &["run", "-c", "pwd"], &[("KENNEL_SANDBOX_WORKDIR", "/tmp")]);
    assert_eq!(variable.ok(), "/tmp");
    let id = call(&kennel, &["create", "--start"], &[]).ok();
    let info = call(&kennel, &["inspect", &id], &[]).json();
    assert_eq!(info[0]["workdir"], "/data");
    call(&kennel, &["rm", "--force", &id], &[]).ok();
}

#[test]
fn a_missing_extra_toolchain_is_an_error() {
    let kennel = kennel();
    let home = kennel.home.path();
    let tools = home.join("tools");
    let set = |dir: &str| user(&kennel, &format!("[sandbox]\nextraToolchains = [\"{dir}\"]\n"));
    let hello = || call(&kennel, &["run", "--network", "none", "-c", "hello"], &[("HOME", home.to_str().unwrap())]);
    set("~/tools");
    assert!(hello().fails(125).contains("write `${HOME}`"));
    set("${HOME}/tools");
    let stderr = hello().fails(125);
    assert!(stderr.contains(&format!("extraToolchains {}: No such file", tools.display())), "{stderr}");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("hello"), "#!/bin/sh\necho hello\n").unwrap();
    std::fs::set_permissions(tools.join("hello"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(hello().ok(), "hello");
}

#[test]
fn limits_and_timeouts_of_settings_apply() {
    let kennel = kennel();
    user(&kennel, "[sandbox]\nmemory = \"64m\"\npids = 50\ntimeout = \"300ms\"\n");
    let id = call(&kennel, &["create"], &[]).ok();
    let info = call(&kennel, &["inspect", &id], &[]).json();
    assert_eq!(info[0]["enforcement"]["limits"]["memory"], 64 << 20);
    assert_eq!(info[0]["enforcement"]["limits"]["pids"], 50);
    call(&kennel, &["rm", &id], &[]).ok();
    call(&kennel, &["run", "--", "sleep", "100"], &[]).fails(124);
    user(&kennel, "[sandbox]\nautoRemove = false\n");
    call(&kennel, &["run", "--", "true"], &[]).ok();
    let kept = call(&kennel, &["ls", "-q"], &[]).ok();
    assert_eq!(kept.lines().count(), 1, "{kept}");
    call(&kennel, &["rm", "--force", &kept], &[]).ok();
    call(&kennel, &["run", "--rm", "--", "true"], &[]).ok();
    assert!(kennel.is_gone());
}

#[test]
fn command_timeout_applies_only_if_it_is_set() {
    let kennel = kennel();
    let id = call(&kennel, &["create", "--start"], &[]).ok();
    let late = |words: &[&str], env: &[(&str, &str)]| {
        let words = [words, &["--", "sleep", "100"]].concat();
        let stderr = call(&kennel, &words, env).fails(124);
        assert!(stderr.contains("did not finish within 200ms"), "{words:?}: {stderr}");
    };
    let variable = [("KENNEL_SANDBOX_COMMAND_TIMEOUT", "200ms")];
    late(&["run"], &variable);
    late(&["exec", &id], &variable);
    for file in [user, project] {
        file(&kennel, "[sandbox]\ncommandTimeout = \"200ms\"\n");
        late(&["run"], &[]);
        late(&["exec", &id], &[]);
        let told = call(&kennel, &["exec", "--json", &id, "--", "sleep", "100"], &[]);
        assert_eq!(told.json()["error"]["code"], "timeout", "{told:?}");
        // A flag overrides both.
        call(&kennel, &["exec", "--timeout", "none", &id, "--", "sleep", "0.5"], &[]).ok();
        call(&kennel, &["run", "--timeout", "1m", "--", "sleep", "0.5"], &[]).ok();
        file(&kennel, "");
    }
    // A project can shorten the limit without trust, and lengthen it only with trust. Its other settings do not affect
    // a sandbox that exists.
    user(&kennel, "[sandbox]\ncommandTimeout = \"1m\"\n");
    project(&kennel, "[sandbox]\ncommandTimeout = \"200ms\"\nnetwork = \"host\"\n");
    late(&["exec", &id], &[]);
    project(&kennel, "[sandbox]\ncommandTimeout = \"2m\"\n");
    let stderr = call(&kennel, &["exec", &id, "--", "true"], &[]).fails(125);
    assert!(stderr.contains("sandbox.commandTimeout") && stderr.contains("kennel config trust"), "{stderr}");
    call(&kennel, &["rm", "--force", &id], &[]).ok();
}

#[test]
fn auto_remove_applies_to_create_if_it_is_set() {
    let kennel = kennel();
    let create = |words: &[&str], env: &[(&str, &str)]| {
        call(&kennel, &[&["create", "--network", "none", "--start"], words].concat(), env).ok()
    };
    // The built-in limit is for `run` only.
    let stays = create(&[], &[]);
    call(&kennel, &["stop", &stays], &[]).ok();
    assert_eq!(call(&kennel, &["ls", "--all", "-q"], &[]).ok(), stays);
    call(&kennel, &["rm", &stays], &[]).ok();
    let goes = create(&["--rm", "--", "true"], &[]);
    assert!(!goes.is_empty() && kennel.is_gone(), "its main process has ended");
    let goes = create(&[], &[("KENNEL_SANDBOX_AUTO_REMOVE", "true")]);
    call(&kennel, &["exec", &goes, "--", "true"], &[]).ok();
    call(&kennel, &["stop", &goes], &[]).ok();
    assert!(kennel.is_gone());
    user(&kennel, "[sandbox]\nautoRemove = true\n");
    let idle = create(&["--idle-timeout", "1s"], &[]);
    assert!(!idle.is_empty() && within_blocking(Duration::from_secs(20), || kennel.left().is_empty()));
    // A command that could not be started is reported, and its sandbox is removed too.
    let missing = ["create", "--network", "none", "--start", "--", "there-is-no-such-program"];
    let stderr = call(&kennel, &missing, &[]).fails(127);
    assert!(stderr.contains("there-is-no-such-program"), "{stderr}");
    assert!(kennel.is_gone());
}

#[test]
fn ignored_settings_are_reported_once() {
    let kennel = kennel();
    let run = |env: &[(&str, &str)]| call(&kennel, &["run", "--network", "none", "--", "true"], env);
    assert_eq!(run(&[]).stderr, "");
    let all = "[agent]\ncommand = \"x\"\nenv = { KEY = \"${NOT_SET}\" }\n[container.profiles.dev]\nimage = \"y\"\n\
        [sandbox.vm]\ncpus = 2\nmemory = \"1g\"\n";
    user(&kennel, all);
    let done = run(&[("KENNEL_AGENT_MODE", "container")]);
    assert_eq!((done.status, done.stderr.lines().count()), (0, 1), "{done:?}");
    for said in ["no effect yet", "sandbox.vm (", "config.toml:7:"] {
        assert!(done.stderr.contains(said), "{said}: {done:?}");
    }
    // `run` starts no agent, so it neither checks nor mentions that section.
    assert!(!done.stderr.contains("agent"), "{done:?}");
    let id = call(&kennel, &["create"], &[]);
    assert_eq!(id.stderr.lines().count(), 1, "{id:?}");
    call(&kennel, &["rm", id.text().trim()], &[]).ok();
    // Another program's file is not Kennel's to speak of.
    user(&kennel, "");
    for other in ["agent:\n  host: localhost\n", "agent:\n  command: x\n  port: 1\n", "agent:\n  command: x\n"] {
        std::fs::write(kennel.here().join("config.yaml"), other).unwrap();
        assert_eq!(run(&[]).stderr, "", "{other}");
    }
}

#[test]
fn a_truncated_file_of_another_program_is_an_error() {
    let kennel = kennel();
    std::fs::create_dir(kennel.here().join(".openagents")).unwrap();
    for (name, text) in [
        (".openagents/project.json", "{\"name\": \"x\", \"sandbox\": {\"network\": \"no"),
        ("opencode.json", "{\"container\": {\"profiles\": {"),
        ("config.yaml", "agent:\n  command: \"npx\n"),
    ] {
        let file = kennel.here().join(name);
        std::fs::write(&file, text).unwrap();
        for words in [&["run", "--", "true"][..], &["config", "validate"]] {
            let stderr = call(&kennel, words, &[]).fails(125);
            assert!(stderr.contains(name), "{words:?}: {stderr}");
        }
        std::fs::remove_file(file).unwrap();
    }
    call(&kennel, &["run", "--", "true"], &[]).ok();
}

#[test]
fn invalid_settings_are_an_error() {
    let kennel = kennel();
    project(&kennel, "[sandbox]\nmemroy = \"1g\"\n");
    let stderr = call(&kennel, &["run", "--", "true"], &[]).fails(125);
    assert!(stderr.contains("kennel.toml:2:1") && stderr.contains("sandbox.memory"), "{stderr}");
    for (text, said) in [
        ("provider = \"apple\"", "there is no apple provider yet"),
        ("volumes = [\"./missing:/data\"]", "sandbox.volumes: "),
        ("workspace = \"missing\"", "sandbox.workspace: "),
    ] {
        project(&kennel, &format!("[sandbox]\n{text}\n"));
        let stderr = call(&kennel, &["run", "--", "true"], &[]).fails(125);
        assert!(stderr.contains(said), "{text}: {stderr}");
    }
    let stderr = call(&kennel, &["run", "--profile", "dev", "--", "true"], &[]).fails(125);
    assert!(stderr.contains("there is no profile dev"), "{stderr}");
}

#[test]
fn startup_timeout_ends_a_slow_start() {
    let kennel = kennel();
    project(&kennel, "[sandbox]\nstartupTimeout = \"20s\"\n");
    let done = call(&kennel, &["run", "--", "true"], &[]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "the setting applies: {done:?}");
    let short = [("KENNEL_SANDBOX_STARTUP_TIMEOUT", "200ms")];
    let fails = |done: Finished, what: &str| {
        let stderr = done.fails(125);
        assert!(stderr.contains(&format!("kennel: start {what}: it took longer than 200ms\n")), "{stderr}");
        assert!(stderr.contains("try: kennel config set sandbox.startupTimeout 30s"), "{stderr}");
        assert!(kennel.is_gone(), "{what}");
    };
    // The jail of `run` is a fork of the program itself.
    fails(call_with_slow_jail(&kennel, &["run", "--", "true"], &short), "the sandbox");
    let told = call_with_slow_jail(&kennel, &["run", "--json", "--", "true"], &short);
    assert_eq!((told.status, told.json()["error"]["code"].as_str()), (125, Some("start_failed")), "{told:?}");
    // Other jails are programs. From now on, those that are started here never reply. They end when the connection is
    // closed.
    let programs = kennel.home.path().join("data/programs");
    let mut programs = std::fs::read_dir(programs).unwrap().map(|entry| entry.unwrap().path());
    programs::replace(&programs.next().expect("the jail is there"), "exec cat \"$0\" -");
    fails(call(&kennel, &["create", "--start", "--name", "box"], &short), "sandbox box");
    // The setting from the time of creation applies to every start.
    let id = call(&kennel, &["create"], &short).ok();
    let told = call(&kennel, &["start", "--json", &id], &[]);
    assert_eq!((told.status, told.json()[0]["error"]["code"].as_str()), (125, Some("start_failed")), "{told:?}");
    assert_eq!(call(&kennel, &["ls", "-q"], &[]).ok(), "", "a failed start leaves it stopped");
}

#[test]
fn name_prefix_applies_to_containers() {
    let kennel = Kennel::on("docker");
    let name = format!("box-{}", kennel.home.mark().to_lowercase());
    user(&kennel, "[sandbox]\nnamePrefix = \"dog-\"\n");
    let done = kennel.kennel(&["create", "--start", "--name", &name]);
    assert_eq!((done.text(), done.stderr.as_str()), (format!("{name}\n"), ""));
    let label = format!("label=kennel.name={name}");
    let container = docker::docker(&docker::socket(), &["ps", "--filter", &label, "--format", "{{.Names}}"]);
    assert_eq!(container, format!("dog-{name}"));
    // A later process does not need the setting.
    for text in ["", "[sandbox]\nnamePrefix = \"cat-\"\n"] {
        user(&kennel, text);
        assert_eq!(kennel.kennel(&["ls", "--format", "name"]).ok(), name);
        assert_eq!(kennel.kennel(&["exec", &name, "--", "echo", "hi"]).ok(), "hi");
        assert!(kennel.kennel(&["create", "--name", &name]).fails(125).contains("is taken"));
    }
    kennel.kennel(&["rm", "--force", &name]).ok();
    // An invalid prefix is an error with its location. Providers without containers ignore it.
    user(&kennel, "[sandbox]\nnamePrefix = \"-dog\"\n");
    let stderr = kennel.kennel(&["create"]).fails(125);
    assert!(stderr.contains("config.toml:2:14: sandbox.namePrefix: expected a name: "), "{stderr}");
    user(&kennel, "[sandbox]\nnamePrefix = \"dog-\"\n");
    let native = call(&kennel, &["--provider", "native", "run", "--", "echo", "hi"], &[]);
    assert_eq!((native.text().as_str(), native.stderr.as_str()), ("hi\n", ""));
}

#[test]
fn an_untrusted_project_gets_no_additional_access() {
    let kennel = kennel();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), kennel.here().join("link")).unwrap();
    let outside = outside.path().display();
    for (text, said) in [
        ("network = \"host\"".to_owned(), "the network of this machine"),
        ("ports = [\"3000:80\"]".to_owned(), "a port of this machine"),
        ("enabled = false".to_owned(), "without a sandbox"),
        ("runtime = \"runc\"".to_owned(), "what your engine runs containers with"),
        ("userns = \"host\"".to_owned(), "who root inside is outside"),
        ("provider = \"local\"".to_owned(), "without a sandbox"),
        ("onUnavailable = \"run-directly\"".to_owned(), "without a sandbox"),
        ("env = { TOKEN = \"${SECRET}\" }".to_owned(), "a variable of your environment"),
        (format!("volumes = [\"{outside}:/data\"]"), "files outside the project"),
        ("volumes = [\"./link:/data\"]".to_owned(), "files outside the project"),
        ("workspace = \"link\"".to_owned(), "a directory outside the project"),
        ("volumes = [\"..:/data\"]".to_owned(), "files outside the project"),
    ] {
        project(&kennel, &format!("[sandbox]\n{text}\n"));
        let stderr = call(&kennel, &["run", "--", "true"], &[("SECRET", "hidden")]).fails(125);
        assert!(stderr.contains(said) && stderr.contains("kennel config trust"), "{text}: {stderr}");
        assert!(stderr.contains("kennel.toml:2"), "{stderr}");
        assert!(!stderr.contains("hidden"), "{stderr}");
        let told = call(&kennel, &["run", "--json", "--", "true"], &[("SECRET", "hidden")]);
        assert_eq!(told.json()["error"]["code"], "permission_denied", "{told:?}");
    }
    // A default needs no trust, unless the user has set something else.
    project(&kennel, "[sandbox]\nnetwork = \"bridge\"\nports = [80]\n");
    call(&kennel, &["run", "--", "true"], &[]).ok();
    call(&kennel, &["config", "set", "--user", "sandbox.network", "none"], &[]).ok();
    let stderr = call(&kennel, &["run", "--", "true"], &[]).fails(125);
    assert!(stderr.contains("more than your own settings allow; your own settings say none"), "{stderr}");
    project(&kennel, "[sandbox]\nreadOnly = false\n");
    call(&kennel, &["run", "--", "true"], &[]).ok();
    call(&kennel, &["config", "set", "--user", "sandbox.readOnly", "true"], &[]).ok();
    let stderr = call(&kennel, &["run", "--", "true"], &[]).fails(125);
    assert!(stderr.contains("more than your own settings allow; your own settings say true"), "{stderr}");
    assert!(kennel.is_gone());
}

#[test]
fn trust_ends_when_a_file_changes() {
    let kennel = kennel();
    let run = || call(&kennel, &["run", "-c", "echo $TOKEN"], &[("SECRET", "let in")]);
    let config = |words: &[&str]| call(&kennel, &[&["config"], words].concat(), &[("SECRET", "let in")]);
    project(&kennel, "[sandbox]\nenv = { TOKEN = \"${SECRET}\" }\n");
    run().fails(125);
    let told = config(&["trust"]).ok();
    assert!(told.contains("sandbox.env.TOKEN") && !told.contains("let in"), "{told}");
    assert_eq!(run().ok(), "let in");
    config(&["trust", "--revoke"]).ok();
    run().fails(125);
    config(&["trust"]).ok();
    // A change of the project's file from inside is not trusted.
    call(&kennel, &["run", "-c", "echo 'network = \"host\"' >> kennel.toml"], &[("SECRET", "")]).ok();
    let stderr = run().fails(125);
    assert!(stderr.contains("the network of this machine"), "{stderr}");
    // A file with the same content elsewhere is another file.
    project(&kennel, "[sandbox]\nenv = { TOKEN = \"${SECRET}\" }\n");
    assert_eq!(run().ok(), "let in");
    let below = kennel.here().join("below");
    std::fs::create_dir(&below).unwrap();
    std::fs::copy(kennel.here().join("kennel.toml"), below.join("kennel.toml")).unwrap();
    let mut there = Command::new(env!("CARGO_BIN_EXE_kennel"));
    there.args(["run", "--", "true"]).current_dir(&below).env("KENNEL_HOME", kennel.home.path()).env("SECRET", "x");
    finish(there, None).fails(125);
    project(&kennel, "[sandbox]\nmemory = \"1g\"\n");
    config(&["trust"]).ok();
}

#[test]
fn only_the_user_can_turn_the_sandbox_off() {
    let kennel = kennel();
    user(&kennel, "[sandbox]\nenabled = false\n");
    let done = call(&kennel, &["run", "--json", "--", "echo", "hi"], &[]);
    assert_eq!(done.json()["provider"], "local", "{done:?}");
    assert!(done.stderr.contains("without a sandbox"), "{done:?}");
    user(&kennel, "[sandbox]\nprovider = \"docker\"\nimage = \"any\"\n");
    call(&kennel, &["run", "--", "true"], &[]).fails(125);
    user(&kennel, "[sandbox]\nprovider = \"docker\"\nonUnavailable = \"run-directly\"\n");
    let done = call(&kennel, &["run", "--json", "--", "echo", "hi"], &[]);
    assert_eq!(done.json()["provider"], "local", "{done:?}");
    assert!(done.stderr.contains("sandbox.onUnavailable"), "{done:?}");
    // Without a sandbox, settings that describe it do not apply, and a warning names them. This is the example of
    // another tool.
    let example = "image = \"oven/bun:latest\"\nmemoryLimit = \"4G\"\ncpuLimit = 2\nnetwork = \"none\"\nworkdir = \"/app\"\n\
        env = { A = \"kept\" }\ncommandTimeout = \"1m\"\n";
    for how in ["enabled = false", "provider = \"docker\"\nonUnavailable = \"run-directly\""] {
        user(&kennel, &format!("[sandbox]\n{how}\n{example}"));
        let done = call(&kennel, &["run", "--json", "-c", "echo $A; pwd"], &[]);
        assert_eq!((done.status, &done.json()["provider"]), (0, &"local".into()), "{how}: {done:?}");
        assert_eq!(done.json()["stdout"], format!("kept\n{}\n", kennel.here().display()), "{how}");
        assert!(done.stderr.contains("ignored settings: cpus, image, memory, network, workdir\n"), "{how}: {done:?}");
        // A flag is never dropped.
        let done = call(&kennel, &["run", "--json", "--memory", "64m", "--", "true"], &[]);
        assert_eq!(done.json()["error"]["code"], "unsupported", "{how}: {done:?}");
        let id = call(&kennel, &["create"], &[]).ok();
        call(&kennel, &["rm", &id], &[]).ok();
    }
    // The document's name for Apple's containers is accepted on the command line, as in settings.
    for words in [["--provider", "macos-container"], ["--provider", "apple"]] {
        let words = [&words[..], &["run", "--json", "--", "true"]].concat();
        let done = call(&kennel, &words, &[]);
        assert_eq!(done.json()["error"]["code"], "unsupported", "{done:?}");
        assert!(done.text().contains("there is no apple provider yet"), "{done:?}");
    }
    // A flag overrides the settings.
    let done = call(&kennel, &["--provider", "native", "run", "--json", "--", "echo", "hi"], &[]);
    assert_eq!(done.json()["provider"], "native", "{done:?}");
}

/// With the home directory as workspace, Kennel's own files in it can be neither read nor changed, whether they exist
/// yet or not.
fn the_users_settings_are_masked(kennel: &Kennel) {
    let home = kennel.home.path().join("user");
    std::fs::create_dir(&home).unwrap();
    let run = |script: &str| {
        let mut call = kennel.call(&["run", "--network", "none", "-c", script]);
        call.env_remove("KENNEL_HOME").env("HOME", &home).current_dir(&home);
        finish(call, None)
    };
    let settings = home.join(".config/kennel/config.toml");
    let forge = "printf '[sandbox]\\nenv = { A = \"forged\" }\\n' > .config/kennel/config.toml";
    for script in [
        format!("mkdir -p .config/kennel && {forge}"),
        format!("mv .config away && mkdir -p .config/kennel && {forge}"),
        "ls .local/share/kennel/programs/*".to_owned(),
        "echo x > .local/state/kennel/installation".to_owned(),
        "mkdir -p .local/state/kennel/trusted && echo x > .local/state/kennel/trusted/x".to_owned(),
        "mv .local/state .local/away".to_owned(),
    ] {
        assert_ne!(run(&script).status, 0, "{script}");
    }
    assert!(!settings.exists());
    std::fs::write(&settings, "[sandbox]\nenv = { A = \"mine\" }\n").unwrap();
    assert_ne!(run(&format!("cat .config/kennel/config.toml || {forge}")).status, 0);
    assert_eq!(run("echo $A; mkdir .config/other && echo x > .config/other/file").ok(), "mine");
    assert!(home.join(".config/other/file").exists(), "other files of the home directory are visible");
    let direct = |dir: &str| {
        let mount = format!("{}:/x", home.join(dir).display());
        let mut call = kennel.call(&["run", "--network", "none", "-v", &mount, "-c", "true"]);
        call.env_remove("KENNEL_HOME").env("HOME", &home);
        finish(call, None)
    };
    std::fs::create_dir_all(home.join(".local/state/kennel/trusted")).unwrap();
    for dir in [".config/kennel", ".local/state/kennel", ".local/state/kennel/trusted", ".local/share/kennel"] {
        let refused = direct(dir);
        assert!(refused.status != 0 && refused.stderr.contains("its own files"), "{dir}: {refused:?}");
    }
    direct(".config/other").ok();
}

#[test]
fn the_users_settings_are_masked_on_native() {
    the_users_settings_are_masked(&kennel());
}

#[test]
fn the_users_settings_are_masked_on_docker() {
    the_users_settings_are_masked(&Kennel::on("docker"));
}
