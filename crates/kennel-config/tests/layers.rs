//! Layers, origins, and where files are found.

mod common;

use common::{Home, config, tree};
use kennel_config::{
    KeyPath, Layered, Location, Node, Origin, Owner, SearchPath, Setting, SettingsLayer, Source, Tree, Value,
    environment_variables, paths, validate,
};
use kennel_types::ByteSize;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

fn key(text: &str) -> KeyPath {
    text.parse().unwrap()
}

fn flag(name: &str, flag: &str, value: &str) -> (KeyPath, String, Value) {
    (key(name), flag.to_owned(), Value::Text(value.to_owned()))
}

fn all_layers() -> Home {
    let mut home = Home::new();
    home.write(
        "user/config.toml",
        "[sandbox]\nmemory = \"1g\"\nimage = \"user\"\nuser = \"me\"\nenv = { A = \"u\", B = \"u\" }\n",
    );
    home.write("project/opencode.json", "{\"container\": {\"defaultProfile\": \"other\"}}");
    home.write("project/kennel.yaml", "sandbox:\n  memory: 2g\n  image: project\n  env: {B: p}\n  workspace: src\n");
    home.variable("KENNEL_SANDBOX_MEMORY", "3g");
    home.variable("KENNEL_SANDBOX_AUTO_REMOVE", "false");
    home.variable("KENNEL_SANDBOX_PIDS", "77");
    home.variable("KENNEL_SANDBOX_VM_KERNEL_PATH", "vmlinuz");
    home.flags =
        Some(Node::from_flags([flag("sandbox.memory", "--memory", "4g"), flag("sandbox.workspace", "-w", "here")]));
    home
}

#[test]
fn the_strongest_layer_applies() {
    let home = all_layers();
    let config = config(&home.load());
    let sandbox = config.sandbox;
    assert_eq!(sandbox.memory, Some(ByteSize(4 << 30)));
    assert_eq!(sandbox.image.as_deref(), Some("project"));
    assert_eq!(sandbox.user.as_deref(), Some("me"));
    assert_eq!(sandbox.env, BTreeMap::from([("A", "u"), ("B", "p")].map(|(k, v)| (k.to_owned(), v.to_owned()))));
    assert!(!sandbox.auto_remove);
    assert_eq!(sandbox.pids, Some(77));
    assert_eq!(sandbox.workspace, Some("/current/here".into()));
    assert_eq!(sandbox.vm.kernel_path, Some("/current/vmlinuz".into()));
    assert_eq!(config.container.default_profile.as_deref(), Some("other"));
}

#[test]
fn every_layer_is_explained() {
    let home = all_layers();
    let layered = home.load().layered;
    let told: Vec<_> = layered
        .explain("sandbox.memoryLimit")
        .unwrap()
        .into_iter()
        .map(|(_, setting)| (setting.origin.layer, setting.written.clone(), setting.origin.line()))
        .collect();
    assert_eq!(
        told,
        [
            (SettingsLayer::Flags, json!("4g"), None),
            (SettingsLayer::Environment, json!("3g"), None),
            (SettingsLayer::Project, json!("2g"), Some(2)),
            (SettingsLayer::User, json!("1g"), Some(2)),
        ]
    );
    let workspace = layered.explain("sandbox.workspace").unwrap();
    assert_eq!(workspace[1].1.value, json!(home.path("project/src")));
    assert_eq!(workspace[1].1.written, json!("src"));
    assert_eq!(workspace[1].1.origin.file(), Some(home.path("project/kennel.yaml").as_path()));
    let timeout = layered.explain("sandbox.timeout").unwrap();
    assert_eq!((timeout.len(), timeout[0].1.origin.layer), (1, SettingsLayer::BuiltIn));
    assert_eq!(layered.explain("sandbox.env").unwrap().len(), 3);
}

#[test]
fn settings_are_shown_with_their_layer() {
    let home = all_layers();
    let layered = home.load().layered;
    let shown = layered.show();
    assert_eq!(shown["sandbox"]["memory"], json!({ "value": "4g", "layer": "flags", "name": "--memory" }));
    assert_eq!(shown["sandbox"]["timeout"], json!({ "value": "5m", "layer": "built-in" }));
    let file = home.path("project/kennel.yaml");
    assert_eq!(
        shown["sandbox"]["env"]["B"],
        json!({ "value": "p", "layer": "project", "file": file, "line": 4, "column": 12 })
    );
    let lines: Vec<_> =
        layered.settings().map(|(key, one)| format!("{key} = {} [{}]", one.written, one.origin)).collect();
    assert!(lines.contains(&"sandbox.pids = \"77\" [environment (KENNEL_SANDBOX_PIDS)]".to_owned()), "{lines:#?}");
    assert!(matches!(layered.get("sandbox.image"), Ok(Some(Tree::Leaf(one))) if one.value == "project"));
    assert!(matches!(layered.get("sandbox.cpus"), Ok(None)));
    let told = layered.get("sandbox.imgae").unwrap_err().to_string();
    assert!(told.ends_with("sandbox.imgae: unknown key; did you mean sandbox.image?"), "{told}");
    assert!(layered.get("sandbox.image.x").is_err());
    assert!(layered.get("..").is_err());
}

#[test]
fn every_single_value_has_a_variable() {
    let all = environment_variables();
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    for name in
        ["KENNEL_SANDBOX_ON_UNAVAILABLE", "KENNEL_CONTAINER_DEFAULT_PROFILE", "KENNEL_AGENT_CONTAINER_DOCKER_HOST"]
    {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert!(all.iter().all(|one| !one.description.is_empty()));
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn wrong_variables_and_flags() {
    let mut home = Home::new();
    home.variable("KENNEL_HOME", "/x");
    home.variable("KENNEL_SANDBOX_MEMROY", "1g");
    let loaded = home.load();
    assert_eq!(
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["KENNEL_SANDBOX_MEMROY: unknown key; did you mean KENNEL_SANDBOX_MEMORY?"]
    );
    home.variable("KENNEL_SANDBOX_PIDS", "many");
    home.flags = Some(Node::from_flags([flag("sandbox.cpus", "--cpus", "none"), flag("sandbox.nothing", "-x", "")]));
    let told = home.try_load().unwrap_err().to_string();
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            "KENNEL_SANDBOX_PIDS: sandbox.pids: expected a whole number from 1 to 4294967295, found \"many\"",
            "--cpus: sandbox.cpus: expected a number of CPUs, as in 0.5 or 2, found \"none\"",
            "-x: sandbox.nothing: unknown key",
        ]
    );
}

#[test]
fn variables_in_files() {
    let mut home = Home::new();
    home.variable("N", "12");
    home.variable("KENNEL_SANDBOX_IMAGE", "${N}");
    home.write("project/kennel.toml", "[sandbox]\npids = \"${N}\"\ncpus = \"${C:-1.5}\"\nautoRemove = \"${R:-false}\"\nuser = \"a$$b\"\nworkspace = \"x${N}\"\n");
    let sandbox = config(&home.load()).sandbox;
    assert_eq!(sandbox.pids, Some(12));
    assert_eq!(sandbox.cpus.map(|cpus| cpus.0), Some(1500));
    assert!(!sandbox.auto_remove);
    assert_eq!(sandbox.user.as_deref(), Some("a$b"));
    assert_eq!(sandbox.workspace, Some(home.path("project/x12")));
    // In a variable of the environment, the shell has already expanded variables.
    assert_eq!(sandbox.image.as_deref(), Some("${N}"));
}

#[test]
fn the_project_is_found_from_below() {
    let home = Home::new();
    home.write("project/kennel.toml", "sandbox.image = \"found\"");
    home.write("project/a/b/x", "");
    let loaded = home.try_load_from("project/a/b").unwrap();
    assert_eq!(config(&loaded).sandbox.image.as_deref(), Some("found"));
    let there: Vec<_> = loaded
        .search_paths
        .iter()
        .filter(|search_path| search_path.exists)
        .map(|search_path| search_path.path.clone())
        .collect();
    assert_eq!(there, [home.path("project/kennel.toml")]);
    assert!(
        loaded.search_paths.iter().any(|search_path| search_path.path == home.path("project/a/.kennel/config.yml"))
    );
    assert!(loaded.search_paths.iter().any(|search_path| search_path.owner == Owner::Other { section: "agent" }));

    // Not past a `.git`, and not past the nearest file.
    std::fs::create_dir(home.path("project/a/.git")).unwrap();
    assert_eq!(config(&home.try_load_from("project/a/b").unwrap()).sandbox.image, None);
    home.write("project/a/b/.kennel/config.json", "{\"sandbox\": {\"image\": \"near\"}}");
    assert_eq!(config(&home.try_load_from("project/a/b").unwrap()).sandbox.image.as_deref(), Some("near"));
}

#[test]
#[cfg(unix)]
fn settings_of_other_users_in_parent_directories_are_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.write("open/kennel.toml", "sandbox.image = \"stranger\"");
    home.write("open/mine/x", "");
    let any_exists = |found: Vec<SearchPath>| found.into_iter().any(|search_path| search_path.exists);
    assert!(any_exists(paths(&home.path("open/mine"), None, &[])));
    std::fs::set_permissions(home.path("open"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(!any_exists(paths(&home.path("open/mine"), None, &[])));
}

#[test]
fn files_are_validated_by_themselves() {
    let home = Home::new();
    let good = home.write("x/good.toml", "sandbox.image = \"x\"");
    let bare = home.write("x/bare", "sandbox:\n  imgae: x\n");
    let foreign = home.write("x/opencode.json", "{\"anything\": 1}");
    let none = kennel_config::Environment::new();
    assert_eq!(validate(&[SearchPath::named(&good), SearchPath::named(&foreign)], &none), Ok(vec![]));
    let error = validate(&[good, bare, home.path("x/missing.json")].map(|file| SearchPath::named(&file)), &none)
        .unwrap_err()
        .to_string();
    assert!(error.contains("bare:2:3: sandbox.imgae: unknown key"), "{error}");
    assert!(error.contains("missing.json: cannot read: "), "{error}");
}

/// A tree as the check creates them: a key is a map in all trees or in none.
fn trees(layer: SettingsLayer, name: &'static str) -> impl Strategy<Value = Tree> {
    let leaf = move |value: Option<i64>| {
        value.map(|value| {
            let at = Location::whole(Source::Flag(name.to_owned()));
            Tree::Leaf(Setting { value: value.into(), written: value.into(), origin: Origin { layer, at } })
        })
    };
    let map = move |keys: &'static str| {
        prop::collection::btree_map(keys, any::<Option<i64>>(), 0..4).prop_map(move |entries| {
            Tree::Map(entries.into_iter().filter_map(|(key, value)| Some((key, leaf(value)?))).collect())
        })
    };
    (map("[a-d]"), prop::collection::btree_map("[E-H]", map("[a-d]"), 0..4)).prop_map(|(leaves, maps)| {
        let Tree::Map(mut all) = leaves else { unreachable!() };
        all.extend(maps);
        Tree::Map(all)
    })
}

proptest! {
    #[test]
    fn merging_is_associative(
        a in trees(SettingsLayer::User, "a"), b in trees(SettingsLayer::Project, "b"), c in trees(SettingsLayer::Flags, "c")
    ) {
        let left = a.clone().merge(b.clone()).merge(c.clone());
        prop_assert_eq!(&left, &a.clone().merge(b.clone().merge(c.clone())));
        prop_assert_eq!(&left, &left.clone().merge(Tree::default()));
        prop_assert_eq!(&left, &Tree::default().merge(left.clone()));
        // Each setting is that of the strongest layer that has it, and none is lost.
        for (key, setting) in left.settings() {
            let strongest = [&c, &b, &a].into_iter().find_map(|tree| tree.at(&key));
            prop_assert_eq!(Some(&Tree::Leaf(setting.clone())), strongest);
        }
        for (key, _) in [&a, &b, &c].into_iter().flat_map(Tree::settings) {
            prop_assert!(matches!(left.at(&key), Some(Tree::Leaf(_))));
        }
    }

    #[test]
    fn the_line_of_each_setting_is_right(images in prop::collection::vec("[a-z]{1,8}", 1..20), blank in 0usize..5) {
        let blank_lines = vec![String::new(); blank];
        let mut toml = [vec!["[container.profiles]".to_owned()], blank_lines.clone()].concat();
        let mut yaml = [vec!["container:\n  profiles:".to_owned()], blank_lines].concat();
        for (index, image) in images.iter().enumerate() {
            toml.push(format!("p{index}.image = \"{image}\""));
            yaml.push(format!("    p{index}: {{image: '{image}'}}"));
        }
        for (name, text, first) in [("a.toml", toml, 2), ("a.yaml", yaml, 3)] {
            let layered = Layered::new([tree(name, &text.join("\n")).unwrap()]);
            for (index, image) in images.iter().enumerate() {
                let told = layered.explain(&format!("container.profiles.p{index}.image")).unwrap();
                prop_assert_eq!(told[0].1.value.as_str(), Some(image.as_str()));
                prop_assert_eq!(told[0].1.origin.line(), Some((first + blank + index) as u32));
            }
        }
    }

    #[test]
    fn sizes_and_times_in_any_unit(number in 1u32..100_000) {
        let text = format!("sandbox: {{memory: {number}k, timeoutMs: {number}, idleTimeoutMinutes: {number}, commandTimeout: {number}}}");
        let sandbox = common::read("a.yaml", &text).sandbox;
        prop_assert_eq!(sandbox.memory, Some(ByteSize(u64::from(number) * 1024)));
        prop_assert_eq!(sandbox.timeout.0.as_millis(), u128::from(number));
        prop_assert_eq!(sandbox.idle_timeout.unwrap().0.as_secs(), u64::from(number) * 60);
        prop_assert_eq!(sandbox.command_timeout.0.as_secs(), u64::from(number));
    }

    #[test]
    fn what_passes_the_check_can_be_used(
        which in any::<prop::sample::Index>(),
        value in prop_oneof![
            "[0-9]{1,12}(\\.[0-9]{1,5})?[a-zA-Z]{0,2}",
            any::<f64>().prop_map(|number| number.to_string()),
            "(true|false|null|docker|vm|always|container|bridge|none|run-directly|run_directly|/a|\\./b)",
            "\"[a-z0-9:/.${}-]{0,9}\"",
            "\\[[a-z0-9:/., {}]{0,9}\\]",
        ],
    ) {
        let variables = environment_variables();
        let lists = ["sandbox.volumes", "sandbox.ports", "sandbox.command", "agent.args", "sandbox.env", "container.profiles"];
        let keys: Vec<KeyPath> = variables.iter().map(|one| one.key.clone()).chain(lists.map(key)).collect();
        let key = which.get(&keys);
        let open = format!("{{{}: ", key.segments().join(": {"));
        let text = format!("{open}{value}{}", "}".repeat(key.segments().len()));
        if let Ok(tree) = tree("a.yaml", &text) {
            let config = Layered::new([tree]).config();
            prop_assert!(config.is_ok(), "{} for {}", config.unwrap_err(), text);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z\\[\\]{}:=\"'#&*|>\\-!,. \n$]{0,60}") {
        for name in ["a.json", "a.yaml", "a.toml"] {
            if let Ok(tree) = tree(name, &text) {
                prop_assert!(Layered::new([tree]).config().is_ok());
            }
        }
    }
}
