//! `kennel config`: settings of all layers, from a user's point of view.

use crate::support::{Finished, Kennel, finish};
use std::process::{Command, Stdio};

fn call(kennel: &Kennel, words: &[&str], env: &[(&str, &str)]) -> Finished {
    let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
    call.arg("config").args(words).current_dir(kennel.here()).env_clear().stdin(Stdio::null());
    call.env("KENNEL_HOME", kennel.home.path()).envs(env.iter().copied());
    finish(call, None)
}

#[test]
fn show_names_the_layer_of_a_setting() {
    let kennel = Kennel::on("local");
    let memory = |env: &[(&str, &str)]| call(&kennel, &["get", "sandbox.memory"], env);
    assert!(memory(&[]).fails(125).contains("sandbox.memory is not set"));
    call(&kennel, &["set", "--user", "sandbox.memory", "1g"], &[]).ok();
    assert_eq!(memory(&[]).ok(), "1g");
    let file = call(&kennel, &["set", "sandbox.memory", "2g"], &[]).ok();
    assert!(file.ends_with("kennel.toml"), "{file}");
    assert_eq!(memory(&[]).ok(), "2g");
    assert_eq!(memory(&[("KENNEL_SANDBOX_MEMORY", "3g")]).ok(), "3g");
    let shown = call(&kennel, &["show", "sandbox"], &[]).ok();
    let row = shown.lines().find(|line| line.starts_with("sandbox.memory")).unwrap();
    assert!(row.contains("2g") && row.contains("project") && row.contains("kennel.toml:"), "{row}");
    let json = call(&kennel, &["show", "--json", "sandbox.memory"], &[]).json();
    assert_eq!(json["sandbox.memory"]["value"], "2g");
    let paths = call(&kennel, &["path"], &[]).ok();
    assert!(paths.lines().any(|line| line.starts_with("+ project") && line.ends_with("kennel.toml")), "{paths}");
    assert!(call(&kennel, &["validate"], &[]).ok().contains("kennel.toml: ok"));
}

#[test]
fn errors_in_settings_name_file_and_line() {
    let kennel = Kennel::on("local");
    std::fs::write(kennel.here().join("kennel.toml"), "# mine\n[sandbox]\nmemroy = \"1g\"\ntimeout = true\n").unwrap();
    let stderr = call(&kennel, &["validate"], &[]).fails(125);
    assert!(stderr.contains("kennel.toml:3:1") && stderr.contains("sandbox.memory"), "{stderr}");
    let stderr = call(&kennel, &["get", "sandbox.memory"], &[]).fails(125);
    assert!(stderr.contains("memroy"), "{stderr}");
    std::fs::write(kennel.here().join("kennel.toml"), "[sandbox]\nmemory = \"${HOW_MUCH}\"\n").unwrap();
    let stderr = call(&kennel, &["show"], &[]).fails(125);
    assert!(stderr.contains("HOW_MUCH") && stderr.contains("kennel.toml:2"), "{stderr}");
    assert_eq!(call(&kennel, &["validate"], &[("HOW_MUCH", "4g")]).status, 0);
    let stderr = call(&kennel, &["set", "sandbox.memroy", "1g"], &[]).fails(125);
    assert!(stderr.contains("sandbox.memory"), "{stderr}");
    let stderr = call(&kennel, &["set", "sandbox.memory", "lots"], &[]).fails(125);
    assert!(stderr.contains("lots"), "{stderr}");
}

/// An error in a section that no command uses does not hide the other sections.
#[test]
fn errors_in_an_unused_section_are_warnings() {
    let kennel = Kennel::on("local");
    let text = "[agent]\nenv = { KEY = \"${NOT_SET}\" }\ncolour = 1\n[sandbox]\nmemory = \"1g\"\n";
    std::fs::write(kennel.here().join("kennel.toml"), text).unwrap();
    let got = call(&kennel, &["get", "sandbox.memory"], &[]);
    assert_eq!((got.status, got.text().as_str(), got.stderr.lines().count()), (0, "1g\n", 2), "{got:?}");
    assert!(got.stderr.contains("NOT_SET") && got.stderr.contains("agent.colour"), "{got:?}");
    assert!(call(&kennel, &["validate"], &[]).fails(125).contains("NOT_SET"));
}

#[test]
fn comments_stay_when_a_setting_is_changed() {
    let kennel = Kennel::on("local");
    let file = kennel.here().join("kennel.toml");
    std::fs::write(&file, "# mine\n[sandbox]\nmemory = \"1g\" # enough\n").unwrap();
    call(&kennel, &["set", "sandbox.memory", "2g"], &[]).ok();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n[sandbox]\nmemory = \"2g\" # enough\n");
}

#[test]
fn the_schema_is_json() {
    let kennel = Kennel::on("local");
    let schema = call(&kennel, &["schema"], &[]).json();
    assert!(schema["properties"]["sandbox"].is_object(), "{schema}");
}
