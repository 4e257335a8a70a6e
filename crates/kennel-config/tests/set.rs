//! Changing a setting in a file.

mod common;

use common::Home;
use kennel_config::{Environment, Error, SearchPath, validate};
use std::path::Path;

fn set(file: &Path, key: &str, value: &str) -> Result<(), Error> {
    kennel_config::set(&SearchPath::named(file), key, value)
}

fn after(name: &str, before: &str, key: &str, value: &str) -> String {
    let home = Home::new();
    let file = home.write(name, before);
    set(&file, key, value).unwrap_or_else(|error| panic!("{error}"));
    validate(&[SearchPath::named(&file)], &Environment::new()).unwrap_or_else(|error| panic!("{error}"));
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn toml_keeps_comments_and_order() {
    let before = "# top\n[sandbox] # here\nimage = \"a\" # why\nmemory_limit = \"1g\"\n\n[agent]\nmode = \"process\"\n";
    assert_eq!(
        after("a.toml", before, "sandbox.image", "b\"c"),
        "# top\n[sandbox] # here\nimage = 'b\"c' # why\nmemory_limit = \"1g\"\n\n[agent]\nmode = \"process\"\n"
    );
    // Under the name that the file uses. A new key is added at the end of its section.
    assert!(after("a.toml", before, "sandbox.memory", "2g").contains("memory_limit = \"2g\"\n"));
    let more = after("a.toml", before, "sandbox.autoRemove", "false");
    assert!(more.contains("memory_limit = \"1g\"\nautoRemove = false\n\n[agent]"), "{more}");
    let nested = after("a.toml", before, "container.profiles.dev.cpus", "2");
    assert!(nested.ends_with("[container.profiles.dev]\ncpus = 2.0\n"), "{nested}");
    assert!(after("a.toml", "", "agent.args", "[\"a\", \"b\"]").contains("args = [\"a\", \"b\"]"));
    assert!(after("a.toml", "sandbox = { image = \"a\" }\n", "sandbox.image", "b").contains("{ image = \"b\" }"));
}

#[test]
fn json_keeps_comments_and_order() {
    let before = "{\n  // why\n  \"z\": 1,\n  \"container\": {\n    \"enabled\": true\n  }\n}\n";
    assert_eq!(
        after("opencode.json", before, "container.enabled", "false"),
        "{\n  // why\n  \"z\": 1,\n  \"container\": {\n    \"enabled\": false\n  }\n}\n"
    );
    assert_eq!(
        after("opencode.json", before, "container.defaultProfile", "dev"),
        "{\n  // why\n  \"z\": 1,\n  \"container\": {\n    \"enabled\": true,\n    \"defaultProfile\": \"dev\"\n  }\n}\n"
    );
    assert_eq!(after("a.json", "", "sandbox.pids", "5"), "{\n  \"sandbox\": {\n    \"pids\": 5\n  }\n}\n");
}

#[test]
fn values_are_written_in_the_unit_of_the_file() {
    let before = "[sandbox]\ntimeoutMs = 1000\nidle_timeout_minutes = 5\nvm.memoryMb = 512\n";
    assert!(after("a.toml", before, "sandbox.timeout", "2s").contains("timeoutMs = 2000\n"));
    assert!(after("a.toml", before, "sandbox.timeout", "3").contains("timeoutMs = 3000\n"));
    assert!(after("a.toml", before, "sandbox.idleTimeout", "1h").contains("idle_timeout_minutes = 60\n"));
    assert!(after("a.toml", before, "sandbox.vm.memory", "2g").contains("vm.memoryMb = 2048\n"));
    assert!(after("a.toml", before, "sandbox.vm.memory", "1048576").contains("vm.memoryMb = 1\n"));
    let home = Home::new();
    let file = home.write("a.toml", before);
    let told = set(&file, "sandbox.idleTimeout", "90s").unwrap_err().to_string();
    assert!(told.ends_with("this file expects a whole number of m, found 90s"), "{told}");
}

#[test]
fn variables_stay_as_written() {
    let home = Home::new();
    let file = home.write("a.toml", "");
    set(&file, "agent.env.KEY", "${KEY}").unwrap();
    set(&file, "sandbox.pids", "${PIDS:-9}").unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("KEY = \"${KEY}\"") && text.contains("pids = \"${PIDS:-9}\""), "{text}");
    assert!(set(&file, "agent.env.KEY", "${KEY").is_err());
    assert!(set(&file, "sandbox.pids", "${PIDS:-x}").is_err());
}

#[test]
fn a_refused_value_changes_nothing() {
    let home = Home::new();
    let toml = home.write("a.toml", "sandbox.image = \"a\"\n");
    let yaml = home.write("a.yaml", "sandbox: {} # mine\n");
    let foreign = home.write("opencode.json", "{}");
    let broken = home.write("broken.toml", "[sandbox\n");
    for (file, key, value) in [
        (&toml, "sandbox.memory", "lots"),
        (&toml, "sandbox.imgae", "x"),
        (&toml, "sandbox", "{}"),
        (&toml, "agent.args", "not a list"),
        (&toml, "sandbox.image.x", "y"),
        (&yaml, "sandbox.image", "x"),
        (&broken, "sandbox.image", "x"),
        (&foreign, "sandbox.image", "x"),
    ] {
        let before = std::fs::read(file).unwrap();
        assert!(set(file, key, value).is_err(), "{key} {value}");
        assert_eq!(std::fs::read(file).unwrap(), before);
    }
    let told = set(&yaml, "sandbox.image", "x").unwrap_err().to_string();
    assert!(told.ends_with("add this by hand: sandbox.image: x"), "{told}");
    // No other file is left.
    let mut names: Vec<_> = std::fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.toml", "a.yaml", "broken.toml", "opencode.json", "project", "user"]);
}

#[test]
#[cfg(unix)]
fn the_file_is_replaced_in_one_step() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let home = Home::new();
    let file = home.write("a.toml", "sandbox.image = \"a\"\n");
    let link = home.path("link.toml");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(&file).unwrap();
    // A process that has the old file open still reads all of it.
    let mut open = std::fs::File::open(&file).unwrap();

    // A symlink is followed if it is the user's own, and never in a project.
    let told = set(&link, "sandbox.image", "b").unwrap_err().to_string();
    assert!(told.contains("link.toml is a symlink"), "{told}");
    assert_eq!(std::fs::metadata(&file).unwrap().ino(), before.ino());
    kennel_config::set(&SearchPath::of_user(&link), "sandbox.image", "b").unwrap();

    let now = std::fs::metadata(&file).unwrap();
    assert_ne!(before.ino(), now.ino());
    assert_eq!(now.mode() & 0o777, 0o640);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "sandbox.image = \"b\"\n");
    let mut old = String::new();
    std::io::Read::read_to_string(&mut open, &mut old).unwrap();
    assert_eq!(old, "sandbox.image = \"a\"\n");

    std::os::unix::fs::symlink(home.path("user"), home.path("project/.kennel")).unwrap();
    let told = set(&home.path("project/.kennel/config.toml"), "sandbox.image", "b").unwrap_err().to_string();
    assert!(told.contains(".kennel is a symlink"), "{told}");
    assert_eq!(std::fs::read_dir(home.path("user")).unwrap().count(), 0);

    let new = home.path("deep/er/kennel.toml");
    set(&new, "sandbox.image", "c").unwrap();
    assert_ne!(std::fs::metadata(&new).unwrap().mode() & 0o400, 0);
    assert_eq!(std::fs::metadata(&new).unwrap().mode() & 0o111, 0);
}
