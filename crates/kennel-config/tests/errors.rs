//! The error messages for invalid files.

mod common;

use common::{Home, tree, wrong};
use kennel_config::{Environment, What, validate};
use kennel_types::ErrorCode;

#[test]
fn a_wrong_key_in_each_format() {
    let told = "sandbox.memroy: unknown key; did you mean sandbox.memory?";
    assert_eq!(wrong("a.toml", "\n[sandbox]\nimage = \"x\"\n  memroy = \"1g\"\n"), format!("a.toml:4:3: {told}"));
    assert_eq!(wrong("a.yaml", "sandbox:\n  image: x\n  memroy: 1g\n"), format!("a.yaml:3:3: {told}"));
    assert_eq!(wrong("a.json", "{\"sandbox\": {\n  \"memroy\": \"1g\"\n}}"), format!("a.json:2:3: {told}"));
}

#[test]
fn a_wrong_value_in_each_format() {
    let told = "sandbox.memory: expected a size, as in 512m or 4G, found \"lots\"";
    assert_eq!(wrong("a.toml", "sandbox.memory = \"lots\""), format!("a.toml:1:18: {told}"));
    assert_eq!(wrong("a.yaml", "sandbox:\n  # é\n  memory: lots\n"), format!("a.yaml:3:11: {told}"));
    assert_eq!(wrong("a.json", "{\n\"sandbox\": {\"memory\": \"lots\"}}"), format!("a.json:2:23: {told}"));
}

#[test]
fn broken_text_in_each_format() {
    assert!(
        wrong("a.toml", "[sandbox]\nimage = \n").starts_with("a.toml:2:"),
        "{}",
        wrong("a.toml", "[sandbox]\nimage = \n")
    );
    assert!(wrong("a.yaml", "sandbox:\n  image: \"x\n").starts_with("a.yaml:"));
    assert!(wrong("a.yaml", "a: 1\n---\nb: 2\n").contains("more than one YAML document"));
    assert!(wrong("a.json", "{\n  \"sandbox\": {\n").starts_with("a.json:"));
    assert!(wrong("a.json", "{'sandbox': 1}").starts_with("a.json:1:2: not JSON"));
    assert_eq!(wrong("a.json", "[]"), "a.json:1:1: expected a map, found a list");
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "[sandbox]\nenabled = \"yes\"\nprovider = \"dokcer\"\ncpus = -1\npids = 0\nworkdir = \"src\"\n\
        network = \"wifi\"\nvolumes = [\"data:/x\", 7]\nports = [70000]\ntimeout = \"5 weeks\"\nnamePrefix = \"../x\"\n\
        env = { A = 1 }\nvm = 3\nworkspace = \"~/x\"\n[sanbox]\n";
    let told = wrong("a.toml", text);
    let expected = [
        "2:11: sandbox.enabled: expected true or false, found \"yes\"",
        "3:12: sandbox.provider: expected one of auto, native, docker, podman, apple, vm, kubernetes, local, mock, found \"dokcer\"",
        "4:8: sandbox.cpus: expected a number of CPUs, as in 0.5 or 2, found -1",
        "5:8: sandbox.pids: expected a whole number from 1 to 4294967295, found 0",
        "6:11: sandbox.workdir: expected an absolute path inside the sandbox, found \"src\"",
        "7:11: sandbox.network: expected bridge, host or none, found \"wifi\"",
        "8:12: sandbox.volumes.0: expected a mount: ./host:/container, /host:/container:ro, or a map with host and container, found \"data:/x\"",
        "8:23: sandbox.volumes.1: expected a mount: ./host:/container, /host:/container:ro, or a map with host and container, found 7",
        "9:10: sandbox.ports.0: expected a port: container or host:container, as in 8080 or 3000:8080, found 70000",
        "10:11: sandbox.timeout: expected a duration, as in 30s or 5m, found \"5 weeks\"",
        "11:14: sandbox.namePrefix: expected a name: letters, digits, dots, dashes and underscores, a letter or digit first, found \"../x\"",
        "12:13: sandbox.env.A: expected text (put it in quotes), found 1",
        "13:6: sandbox.vm: expected a map, found 3",
        "14:13: sandbox.workspace: expected a path on this machine (in place of `~` write `${HOME}`), found \"~/x\"",
        "15:2: sanbox: unknown key; did you mean sandbox?",
    ];
    for line in expected {
        assert!(told.lines().any(|one| one == format!("a.toml:{line}")), "missing {line}\nin\n{told}");
    }
    assert_eq!(told.lines().count(), expected.len(), "{told}");
    assert_eq!(tree("a.toml", text).unwrap_err().code(), ErrorCode::InvalidConfig);
}

#[test]
fn a_setting_given_twice_is_an_error() {
    let told = wrong("a.yaml", "sandbox:\n  timeout: 5m\n  timeoutMs: 3\n");
    assert_eq!(told, "a.yaml:3:3: sandbox.timeoutMs: given twice, first on line 2");
    let told = wrong("a.json", "{\"agent\": {\"env\": {\"A\": \"1\", \"A\": \"2\"}}}");
    assert_eq!(told, "a.json:1:30: agent.env.A: given twice, first on line 1");
}

#[test]
fn profiles() {
    let told =
        wrong("a.yaml", "container:\n  profiles:\n    ../up: {}\n    a: {name: b}\n    c: {network: {mod: host}}\n");
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            "a.yaml:3:5: container.profiles.\"../up\": expected a name: letters, digits, dots, dashes and underscores, \
             a letter or digit first, found \"../up\"",
            "a.yaml:5:19: container.profiles.c.network.mod: unknown key; did you mean container.profiles.c.network.mode?",
            "a.yaml:5:18: container.profiles.c.network: expected bridge, host or none, found a map",
            "a.yaml:4:15: container.profiles.a.name: expected \"a\", the profile's key, found \"b\"",
        ]
    );
}

#[test]
fn a_message_is_safe_on_a_terminal() {
    let told = wrong("a.json", "{\"\\u001b[31m\": 1, \"sandbox\": {\"provider\": \"\\u001b]0;x\\u0007\\n\"}}");
    assert!(!told.contains(['\x1b', '\x07']), "{told:?}");
    assert_eq!(told.lines().count(), 2, "{told}");
}

#[test]
fn the_number_of_reported_errors_is_capped() {
    let lines: Vec<_> = (0..5000).map(|number| format!("k{number} = 1")).collect();
    let text = lines.join("\n");
    assert_eq!(tree("a.toml", &text).unwrap_err().problems().len(), 101);
}

#[test]
fn a_file_of_another_program() {
    let home = Home::new();
    // Outside of our section any content is allowed, even our own keys.
    home.write(
        "project/opencode.json",
        "{\"agent\": {\"build\": {}}, \"container\": {\"enabled\": false}, /* x */ \"x\": [],}",
    );
    home.write("project/config.yaml", "title: a site\nsandbox: 7\n");
    assert!(!common::config(&home.load()).container.enabled);

    // A broken file is a warning. A wrong key in our section is an error.
    home.write("project/config.yaml", "title: [\n");
    let loaded = home.load();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(matches!(loaded.warnings[0].what, What::Syntax(_)));
    home.write("project/opencode.json", "{\"container\": {\"enable\": true}}");
    let told = home.try_load().unwrap_err().to_string();
    assert!(
        told.ends_with("opencode.json:1:16: container.enable: unknown key; did you mean container.enabled?"),
        "{told}"
    );
}

#[test]
fn a_truncated_file_of_another_program_with_our_section() {
    for (name, text) in [
        (".openagents/project.json", include_str!("fixtures/openagents-project.json")),
        ("opencode.json", include_str!("fixtures/opencode.json")),
        ("config.yaml", include_str!("fixtures/relay-config.yaml")),
    ] {
        let home = Home::new();
        // Cut in the middle, so that its format is invalid.
        let cut = text.rfind('"').unwrap();
        let file = home.write(&format!("project/{name}"), &text[..cut]);
        let told = home.try_load().expect_err(name).to_string();
        assert!(told.contains(name), "{told}");
        assert_eq!(home.try_load_without(&["container", "agent"], "project").expect_err(name).to_string(), told);
        let search_path = home.load_search_paths().into_iter().find(|search_path| search_path.path == file).unwrap();
        let told = validate(&[search_path], &Environment::new()).expect_err(name).to_string();
        assert!(told.contains(name), "{told}");
    }
    // Without the section, or before it, the file's purpose is unknown: only the file that exists for sandboxes is
    // refused.
    let home = Home::new();
    home.write("project/opencode.json", "{\"theme\": ");
    assert_eq!(home.load().warnings.len(), 1);
    home.write("project/.openagents/project.json", "{\"name\": ");
    home.try_load().unwrap_err();
}

#[test]
fn sections_that_are_not_used_are_not_checked() {
    let unused = |home: &Home| {
        let loaded =
            home.try_load_without(&["container", "agent"], "project").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(loaded.warnings, []);
        loaded.unused.into_iter().map(|(name, at)| format!("{name} {}", at.line)).collect::<Vec<_>>()
    };
    // A variable that only the agent needs, and an error that only profiles are affected by.
    let mut home = Home::new();
    home.write("project/kennel.toml", "[agent]\nenv = { KEY = \"${API_KEY}\" }\n[container]\nprofile = 1\n");
    assert_eq!(unused(&home), ["container 3", "agent 1"]);
    home.try_load().unwrap_err();
    home.variable("KENNEL_AGENT_MODE", "neither");
    assert_eq!(unused(&home), ["container 3", "agent 1", "agent 0"]);
    // Sections that are used are checked as before.
    home.write("project/kennel.toml", "[agent]\ncommand = \"${API_KEY}\"\n[sandbox]\nmemory = \"${SIZE}\"\n");
    let told = home.try_load_without(&["container", "agent"], "project").unwrap_err().to_string();
    assert!(told.contains("SIZE") && !told.contains("API_KEY"), "{told}");
}

#[test]
fn a_file_with_an_unrelated_key_of_the_same_name() {
    let home = Home::new();
    for text in ["agent: buildkite\n", "agent:\n  host: localhost\n  port: 8126\n", "agent: [a, b]\n", "agent:\n"] {
        home.write("project/config.yaml", text);
        let loaded = home.try_load().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((loaded.warnings, loaded.unused), (Vec::new(), Vec::new()), "{text}");
    }
    // With one of our keys among others, it is an error for commands that use the section, and for no others.
    home.write("project/config.yaml", "agent:\n  command: run\n  port: 8126\n");
    home.try_load().unwrap_err();
    let loaded = home.try_load_without(&["agent"], "project").unwrap();
    assert_eq!(loaded.unused, []);
    home.write("project/config.yaml", "agent:\n  command: run\n  env: { KEY: \"${API_KEY}\" }\n");
    assert_eq!(home.try_load_without(&["agent"], "project").unwrap().unused.len(), 1);
}

#[test]
fn a_broken_settings_file() {
    let home = Home::new();
    home.write("project/kennel.toml", "[sandbox\n");
    home.write("user/config.yaml", "sandbox: [\n");
    let error = home.try_load().unwrap_err();
    assert_eq!(error.problems().len(), 2, "{error}");
}

#[test]
fn two_settings_files_in_one_project_are_an_error() {
    let home = Home::new();
    home.write("project/kennel.toml", "");
    home.write("project/.kennel/config.json", "");
    let told = home.try_load().unwrap_err().to_string();
    assert!(
        told.contains("/.kennel/config.json: ") && told.ends_with("kennel.toml is there too; keep one of them"),
        "{told}"
    );
}

#[test]
fn errors_do_not_show_the_content_of_a_file() {
    for text in ["s3cret-token\n", "\"s3cret-token\"", "- s3cret-token\n", "s3cret: [token\n", "s3cret-token = token\n"]
    {
        for name in ["a.yaml", "a.json", "a.toml"] {
            if let Err(error) = tree(name, text) {
                let told = error.to_string();
                assert!(!told.contains("s3cret-token"), "{name} {text:?}: {told}");
            }
        }
    }
    assert_eq!(wrong("a.yaml", "s3cret-token\n"), "a.yaml:1:1: expected a map, found text");
}

#[test]
fn directories_and_binary_files_are_refused() {
    let home = Home::new();
    std::fs::create_dir(home.path("project/kennel.toml")).unwrap();
    let told = home.try_load().unwrap_err().to_string();
    assert!(told.ends_with("kennel.toml: cannot read: it is a directory, not a regular file"), "{told}");
    std::fs::remove_dir(home.path("project/kennel.toml")).unwrap();
    home.write("project/kennel.toml", b"a = 1\n\xff\n");
    let told = home.try_load().unwrap_err().to_string();
    assert!(told.ends_with("kennel.toml: cannot read: it is not UTF-8 on line 2"), "{told}");
}
