//! Generated output: the manual, completions, the schema, and settings as JSON.

use super::Walk;
use crate::support::Kennel;

/// Asserts that the output has no colours, because programs read it.
fn same_in_colour(call: impl Fn(&mut Walk<'_>)) -> String {
    let [plain, coloured] = [false, true].map(|coloured| {
        let kennel = Kennel::on("local");
        let mut walk = Walk::new(&kennel, coloured);
        call(&mut walk);
        walk.text
    });
    assert_eq!(plain, coloured);
    plain
}

#[test]
fn the_manual() {
    let text = same_in_colour(|walk| {
        walk.stands_for(env!("CARGO_PKG_VERSION"), "VERSION");
        walk.go(&["man"]);
        walk.go(&["man", "--dir", "pages"]);
    });
    insta::assert_snapshot!("man", text);
}

#[test]
fn completions() {
    let text = same_in_colour(|walk| {
        for shell in ["bash", "zsh", "fish"] {
            walk.go(&["completions", shell]);
        }
    });
    insta::assert_snapshot!("completions", text);
}

#[test]
fn the_schema() {
    let text = same_in_colour(|walk| {
        walk.go(&["config", "schema"]);
    });
    insta::assert_snapshot!("schema", text);
}

#[test]
fn settings_and_version_for_programs() {
    let text = same_in_colour(|walk| {
        walk.stands_for(std::env::consts::ARCH, "ARCH");
        walk.go(&["config", "show"]);
        walk.go(&["config", "set", "--user", "sandbox.env.EDITOR", "vi"]);
        walk.go(&["config", "set", "sandbox.namePrefix", "dog-"]);
        walk.go(&["config", "get", "--json", "sandbox.namePrefix"]);
        walk.go(&["config", "get", "sandbox.vm"]);
        walk.go(&["config", "show", "--json"]);
        walk.go(&["config", "path", "--json"]);
        walk.go(&["config", "validate", "kennel.toml"]);
        walk.go(&["explain", "local"]);
        walk.go(&["explain", "docker"]);
        walk.go(&["version", "--json"]);
    });
    insta::assert_snapshot!("for_programs", text);
}
