//! Generates the pages of `docs/reference` from the program itself, and tests that they are current.

use crate::cli::Cli;
use crate::environment;
use serde_json::Value;
use std::fmt::Write;

/// Checks that a generated page is current. With `KENNEL_UPDATE_DOCS=1`, writes the page instead.
#[expect(clippy::disallowed_methods, reason = "a variable makes the test write the page")]
fn is_current(page: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(page);
    if std::env::var_os("KENNEL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/reference/{page} is out of date: KENNEL_UPDATE_DOCS=1 cargo test -p kennel --bin kennel current"
    );
}

#[test]
fn the_reference_of_commands_is_current() {
    let mut text = "# Commands\n\nGenerated from `kennel COMMAND --help`.\n".to_owned();
    let mut cli = Cli::with_help().term_width(100);
    cli.build();
    help_of(&mut text, "kennel", &mut cli);
    is_current("cli.md", &text);
}

/// Adds the help of a command and of all its subcommands to the text.
fn help_of(text: &mut String, title: &str, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.extend([&format!("\n## {title}\n\n```text\n"), help.join("\n").trim_end(), "\n```\n"]);
    for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
        let title = format!("{title} {}", subcommand.get_name());
        help_of(text, &title, subcommand);
    }
}

#[test]
fn the_reference_of_errors_is_current() {
    use kennel_types::{ErrorCode, LimitReason};
    let yes = |it: bool| if it { "yes" } else { "" };
    let mut text =
        "# Error codes\n\nA code is the same in the library, in `--json` and in HTTP, and it decides the exit status. \
        This page is generated from the\ntable in `kennel-types`. [Troubleshooting](../troubleshooting.md) says what to \
        do about each code.\n\n\
        | code | exit status | HTTP status | a retry may help | the session can continue |\n|---|---|---|---|---|\n"
            .to_owned();
    for code in ErrorCode::all() {
        text.extend([format!(
            "| [`{code}`](../troubleshooting.md#{code}) | {} | {} | {} | {} |\n",
            code.exit_status(),
            code.http_status(),
            yes(code.retryable()),
            yes(code.recoverable())
        )]);
    }
    text.push_str(
        "\n## Reasons of limit_exceeded\n\nWith `--json`, `reason` says which kind of limit was reached. The reason \
        decides the HTTP status, and\nwhether a retry may help.\n\n\
        | reason | HTTP status | a retry may help |\n|---|---|---|\n",
    );
    for reason in LimitReason::ALL {
        let (name, status, again) = (reason.name(), reason.http_status(), yes(reason.retryable()));
        writeln!(text, "| `{name}` | {status} | {again} |").unwrap();
    }
    is_current("errors.md", &text);
}

#[test]
fn the_reference_of_variables_is_current() {
    let mut text =
        "# Environment variables\n\nEverything that Kennel reads from the environment. Generated from the program.\n\n\
        | variable | meaning |\n|---|---|\n"
            .to_owned();
    for (name, what) in environment::VARIABLES {
        writeln!(text, "| `{name}` | {what} |").unwrap();
    }
    text.push_str("\n## Settings\n\nEach overrides the same setting in a file; see [settings](config.md).\n\n| variable | setting | meaning |\n|---|---|---|\n");
    for variable in kennel_config::environment_variables() {
        writeln!(text, "| `{}` | `{}` | {} |", variable.name, variable.key, cell(&variable.description)).unwrap();
    }
    is_current("environment.md", &text);
}

#[test]
fn the_reference_of_settings_is_current() {
    let schema = kennel_config::schema();
    let mut text = "# Settings\n\nKennel reads settings from these files (`kennel config path` shows where they are):\n\n\
        - `kennel.toml`, `kennel.yaml` or `kennel.json` of a project, or `.kennel/config.*` in it;\n\
        - the user's `config.*`;\n\
        - one section of another program's file: `.openagents/project.json` (`sandbox`), `opencode.json` (`container`),\n  \
        `config.yaml` (`agent`).\n\n\
        This page is generated from the program. `kennel config schema` prints the schema for editors.\n"
        .to_owned();
    for line in schema["description"].as_str().unwrap_or_default().lines().skip(1) {
        text.extend([line, "\n"]);
    }
    section(&mut text, "", &schema);
    is_current("config.md", &text);
}

/// Adds the settings of a section to the text, then the sections in it.
fn section(text: &mut String, path: &str, schema: &Value) {
    let properties = || schema["properties"].as_object().into_iter().flatten();
    let same = |property: &Value| {
        property["description"].as_str()?.strip_prefix("Same as ")?.strip_suffix('.').map(ToOwned::to_owned)
    };
    let own: Vec<_> = properties().filter(|(name, it)| same(it).is_none() && *name != "$schema").collect();
    let (inner, plain): (Vec<_>, Vec<_>) = own.into_iter().partition(|(_, it)| below(it).is_some());
    if !plain.is_empty() {
        text.push_str("\n| key | meaning | value | default | also |\n|---|---|---|---|---|\n");
    }
    for (name, property) in plain {
        let bare = |name: &str| name.replace(['-', '_'], "").to_lowercase();
        let aliases: Vec<String> = properties()
            .filter(|(other, it)| same(it).as_deref() == Some(name) && bare(other) != bare(name))
            .filter(|(other, _)| !other.contains(['-', '_']))
            .map(|(other, _)| format!("`{other}`"))
            .collect();
        let default = match &property["default"] {
            Value::Null => String::new(),
            Value::Array(items) if items.is_empty() => String::new(),
            Value::Object(entries) if entries.is_empty() => String::new(),
            Value::String(text) => format!("`{text}`"),
            value => format!("`{value}`"),
        };
        let what = cell(property["description"].as_str().unwrap_or_default());
        writeln!(text, "| `{path}{name}` | {what} | {} | {default} | {} |", value(property), aliases.join(", "))
            .unwrap();
    }
    for (name, property) in inner {
        let of = format!("{path}{name}");
        let what = property["description"].as_str().unwrap_or_default();
        let (schema, path) = match below(property) {
            Some((schema, true)) => (schema, format!("{of}.NAME.")),
            Some((schema, false)) => (schema, format!("{of}.")),
            None => continue,
        };
        write!(text, "\n## {of}\n\n{what}\n").unwrap();
        section(text, &path, schema);
    }
}

/// Returns the schema of the settings below a key, and whether they are below names that the user chooses.
fn below(property: &Value) -> Option<(&Value, bool)> {
    if property["properties"].is_object() {
        return Some((property, false));
    }
    let any = &property["additionalProperties"];
    any["properties"].is_object().then_some((any, true))
}

/// Returns a description of the values that a setting accepts.
fn value(property: &Value) -> String {
    if let Some(variants) = property["oneOf"].as_array().or(property["enum"].as_array()) {
        let names = variants.iter().filter_map(|it| it["const"].as_str().or(it.as_str()));
        return names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    }
    let kinds: Vec<&str> = match &property["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        _ => Vec::new(),
    };
    match kinds[..] {
        ["array"] => "list".into(),
        ["object"] => "map".into(),
        [] => String::new(),
        _ => kinds.join(" or "),
    }
}

/// Returns the text in a form that fits into a table cell.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
