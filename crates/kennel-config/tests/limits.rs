//! Resource limits for hostile files.

mod common;

use common::{Home, read, tree, wrong};
use kennel_config::{Format, MAX_DEPTH, Source, parse};

fn nested(format: Format, depth: usize) -> String {
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    match format {
        Format::Toml => format!("a = {open}{close}"),
        Format::Json => format!("{{\"a\": {open}{close}}}"),
        Format::Yaml => format!("a: {open}{close}"),
    }
}

#[test]
fn depth() {
    for format in [Format::Json, Format::Yaml, Format::Toml] {
        let read = |depth| parse(&nested(format, depth), format, Source::BuiltIn);
        assert!(read(MAX_DEPTH - 2).is_ok(), "{format:?}");
        for depth in [MAX_DEPTH + 1, 1000, 100_000] {
            assert!(read(depth).is_err(), "{format:?} {depth}");
        }
    }
    // Depth by indentation, by dotted keys, and by maps.
    let block: Vec<_> = (0..1000).map(|depth| format!("{}a:", " ".repeat(depth))).collect();
    assert!(wrong("a.yaml", &block.join("\n")).contains("nested deeper"));
    assert!(parse(&format!("{}a = 1", "a.".repeat(1000)), Format::Toml, Source::BuiltIn).is_err());
    assert!(parse(&"{\"a\":".repeat(10_000), Format::Json, Source::BuiltIn).is_err());
}

#[test]
fn size() {
    let home = Home::new();
    home.write("project/kennel.toml", "# ".to_owned() + &"x".repeat(2 << 20));
    let told = home.try_load().unwrap_err().to_string();
    assert!(told.ends_with("cannot read: it is larger than 1048576 bytes"), "{told}");
    assert!(wrong("a.yaml", &" ".repeat(2 << 20)).contains("larger than"));
}

#[test]
fn yaml_aliases_that_expand_too_far_are_refused() {
    let mut bomb = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x]".to_owned()];
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push(format!("a{level}: &a{level} [{below}]"));
    }
    assert!(wrong("a.yaml", &bomb.join("\n")).contains("grow past"));

    // One long text many times, and nested anchors.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a,".repeat(1000));
    assert!(wrong("a.yaml", &long).contains("grow past"));
    let within = format!("a: {}{}{}\n", "&x [".repeat(50), "x,".repeat(200_000), "]".repeat(50));
    assert!(wrong("a.yaml", &within).contains("grow past"));
    assert!(wrong("a.yaml", "a: &a [*a]\n").contains("a.yaml:1:"));
}

#[test]
fn small_yaml_aliases_are_accepted() {
    let text = "container:\n  profiles:\n    a: &a {image: x, env: {K: v}}\n    b: *a\n";
    let profiles = read("a.yaml", text).container.profiles;
    assert_eq!(profiles["a"], profiles["b"]);
    assert_eq!(profiles["b"].image.as_deref(), Some("x"));
}

#[test]
fn one_long_line_is_read_in_time() {
    // Two hundred thousand values on one line, not all of them ASCII: quadratic work would take minutes.
    let text = format!("{{\"é\": [{}1]}}", "1,".repeat(200_000));
    assert!(tree("a.json", &text).is_err());
    let text = format!("é: [{}1]", "1,".repeat(200_000));
    assert!(tree("a.yaml", &text).is_err());
}

#[test]
#[cfg(unix)]
fn a_fifo_does_not_block() {
    let home = Home::new();
    let made = std::process::Command::new("mkfifo").arg(home.path("project/kennel.toml")).status().unwrap();
    assert!(made.success());
    let told = home.try_load().unwrap_err().to_string();
    assert!(told.ends_with("kennel.toml: cannot read: it is a named pipe, not a regular file"), "{told}");
    // Another program's file is skipped with a warning.
    std::fs::rename(home.path("project/kennel.toml"), home.path("project/opencode.json")).unwrap();
    let warnings = home.load().warnings;
    assert!(warnings[0].to_string().ends_with("opencode.json: cannot read: it is a named pipe, not a regular file"));
}

#[test]
#[cfg(unix)]
fn a_symlink_of_the_project_is_not_followed() {
    use std::os::unix::fs::symlink;
    let home = Home::new();
    let good = home.write("elsewhere/config.toml", "sandbox.image = \"x\"\n");
    let elsewhere = good.parent().unwrap();
    let told = |link: &str| {
        let told = home.try_load().unwrap_err().to_string();
        assert!(told.contains(&format!("{} is a symlink", home.path(link).display())), "{told}");
        let link = home.path(link);
        let bytes = std::fs::read(&good).unwrap();
        assert_eq!(bytes, b"sandbox.image = \"x\"\n", "nothing is written through it either");
        std::fs::remove_file(link).unwrap();
    };
    symlink(&good, home.path("project/kennel.toml")).unwrap();
    told("project/kennel.toml");
    // A dangling symlink may get a target later.
    symlink("/nowhere/at/all", home.path("project/kennel.toml")).unwrap();
    told("project/kennel.toml");
    symlink(elsewhere, home.path("project/.kennel")).unwrap();
    told("project/.kennel");
    // The control: the same file as a regular file, and as a symlink of the user.
    std::fs::copy(&good, home.path("project/kennel.toml")).unwrap();
    assert_eq!(common::config(&home.load()).sandbox.image.as_deref(), Some("x"));
    std::fs::remove_file(home.path("project/kennel.toml")).unwrap();
    symlink(&good, home.path("user/config.toml")).unwrap();
    assert_eq!(common::config(&home.load()).sandbox.image.as_deref(), Some("x"));
    std::fs::remove_file(home.path("user/config.toml")).unwrap();
    // A symlink of the user to something that is not a file.
    symlink("/dev/zero", home.path("user/config.toml")).unwrap();
    let told = home.try_load().unwrap_err().to_string();
    assert!(told.ends_with("config.toml: cannot read: it is a device, not a regular file"), "{told}");
}
