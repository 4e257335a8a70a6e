//! Which settings of a project's file need trust.

mod common;

use common::Home;
use std::path::PathBuf;

/// Returns what the project's file grants beyond the user's file, each as `key: what`.
fn grants(user: &str, project: &str) -> Vec<String> {
    let home = Home::new();
    home.write("user/config.toml", format!("[sandbox]\n{user}\n"));
    home.write("project/kennel.toml", format!("[sandbox]\n{project}\n"));
    grants_of(&home)
}

fn grants_of(home: &Home) -> Vec<String> {
    let loaded = home.load();
    let grants = loaded.layered.grants(&|path| path.canonicalize().ok());
    grants.iter().map(|grant| format!("{}: {}", grant.key, grant.what)).collect()
}

#[test]
fn a_project_may_tighten_what_the_user_sets() {
    for (key, loose, tight) in [
        ("memory", "\"2g\"", "\"512m\""),
        ("cpus", "2", "0.5"),
        ("cpus", "1.5", "1"),
        ("pids", "100", "99"),
        ("disk", "\"2g\"", "\"2000m\""),
        ("timeout", "\"1h\"", "\"59m\""),
        ("commandTimeout", "\"2m\"", "\"90s\""),
        ("startupTimeout", "\"10s\"", "\"900ms\""),
        ("idleTimeout", "\"1h\"", "\"1m\""),
        ("network", "\"bridge\"", "\"none\""),
        ("network", "\"host\"", "\"none\""),
        ("pull", "\"missing\"", "\"never\""),
        ("readOnly", "false", "true"),
        ("data", "true", "false"),
        ("vm.cpus", "2", "1"),
        ("vm.memory", "\"2g\"", "\"1g\""),
        ("vm.idleTimeout", "\"2h\"", "\"1h\""),
    ] {
        let (loose, tight) = (format!("{key} = {loose}"), format!("{key} = {tight}"));
        let expected = [format!("sandbox.{key}: more than your own settings allow")];
        assert_eq!(grants(&loose, &tight), [""; 0], "{tight} over {loose}");
        assert_eq!(grants(&loose, &loose), [""; 0], "{loose} over itself");
        let loosened = grants(&tight, &loose);
        if loose.contains("host") {
            assert_eq!(loosened, ["sandbox.network: the network of this machine"]);
        } else {
            assert_eq!(loosened, expected, "{loose} over {tight}");
            assert_eq!(grants("", &loose), [""; 0], "{loose} alone");
        }
    }
}

#[test]
fn a_project_cannot_change_the_users_choices_without_trust() {
    for (key, own, other) in [
        ("provider", "\"docker\"", "\"native\""),
        ("user", "\"1000\"", "\"0\""),
        ("toolchains", "false", "true"),
        ("toolchains", "true", "false"),
        ("autoRemove", "true", "false"),
        ("autoRemove", "false", "true"),
        ("namePrefix", "\"a-\"", "\"b-\""),
        ("labels.team", "\"a\"", "\"b\""),
        ("workspace", "\"/tmp\"", "\".\""),
    ] {
        let (own, other) = (format!("{key} = {own}"), format!("{key} = {other}"));
        assert_eq!(grants(&own, &other), [format!("sandbox.{key}: not what your own settings say")], "{other}");
        if key != "workspace" {
            assert_eq!(grants(&own, &own), [""; 0], "{own}");
        }
        assert_eq!(grants("", &other), [""; 0], "{other} alone");
    }
    for (key, value) in [("runtime", "\"runc\""), ("userns", "\"host\"")] {
        let line = format!("{key} = {value}");
        assert_eq!(grants("", &line).len(), 1);
        assert_eq!(grants(&line, &line), [""; 0], "{line}: the user's file says it already");
        assert_eq!(grants(&format!("{key} = \"other\""), &line).len(), 1);
    }
}

#[test]
fn settings_that_only_affect_the_inside_need_no_trust() {
    let user =
        "image = \"a\"\ncommand = [\"a\"]\nworkdir = \"/a\"\nenv.A = \"a\"\nimageCommand = true\ncaches.a = \"/a\"\n";
    assert_eq!(grants(user, &user.replace("\"a\"", "\"b\"").replace("true", "false")), [""; 0]);
    assert_eq!(grants(user, "env.A = \"${HOME:-x}\""), ["sandbox.env.A: a variable of your environment"]);
}

#[test]
#[cfg(unix)]
fn a_path_needs_trust_unless_it_is_a_plain_directory_of_the_project() {
    use std::os::unix::fs::symlink;
    let home = Home::new();
    for dir in ["project/data/deep", "project/proj", "project/secrets", "outside"] {
        std::fs::create_dir_all(home.path(dir)).unwrap();
    }
    let volumes = |path: &str| {
        home.write("project/kennel.toml", format!("[sandbox]\nvolumes = [\"{path}:/d\"]\n"));
        grants_of(&home).len() == 1
    };
    for plain in [".", "./data", "./data/deep", "data/../proj", "./missing", "./missing/deep"] {
        assert!(!volumes(&plain.replace("data/..", "./data/..")), "{plain}");
    }
    let outside = home.path("outside");
    for other in ["..", "./..", "../outside", "./data/../../outside", "/missing/for/sure", outside.to_str().unwrap()] {
        assert!(volumes(other), "{other}");
    }
    // A symlink needs trust wherever it leads: a sandbox with the workspace ./proj must not see ./secrets.
    symlink("../secrets", home.path("project/proj/link")).unwrap();
    symlink(&outside, home.path("project/out")).unwrap();
    for link in ["./proj/link", "./out", "./proj/link/../data"] {
        assert!(volumes(link), "{link}");
    }
    // From settings in a hidden directory, the project is the one above.
    std::fs::remove_file(home.path("project/kennel.toml")).unwrap();
    home.write("project/.kennel/config.toml", "[sandbox]\nvolumes = [\"../data:/d\"]\nworkspace = \"..\"\n");
    assert_eq!(grants_of(&home), [""; 0]);
    // Each grant shows where its path leads. A missing path leads nowhere.
    home.write("project/.kennel/config.toml", "[sandbox]\nvolumes = [\"../out:/d\", \"/missing/for/sure:/e\"]\n");
    let loaded = home.load();
    let grants = loaded.layered.grants(&|path| path.canonicalize().ok());
    let resolved: Vec<Option<PathBuf>> = grants[0].paths.iter().map(|path| path.resolved.clone()).collect();
    assert_eq!(resolved, [Some(outside.canonicalize().unwrap()), None]);
}
