//! What makes the build script run again: all inputs of the programs, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files and directories that the build script told cargo to watch.
fn watched() -> BTreeSet<PathBuf> {
    let output = Path::new(env!("OUT_DIR")).with_file_name("output");
    let output = std::fs::read_to_string(&output).unwrap_or_else(|error| panic!("read {}: {error}", output.display()));
    let paths = output.lines().filter_map(|line| line.strip_prefix("cargo::rerun-if-changed="));
    // Relative ones are relative to the package.
    paths
        .map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .filter_map(|path| path.canonicalize().ok())
        .collect()
}

/// The packages of this workspace by name, with their directories.
fn members(manifest: &DocumentMut) -> BTreeMap<String, PathBuf> {
    let members = manifest["workspace"]["members"].as_array().expect("the workspace has members");
    let dirs = members.iter().map(|member| root().join(member.as_str().expect("a member is a path")));
    dirs.map(|dir| {
        let name = parse(&dir.join("Cargo.toml"))["package"]["name"].as_str().expect("a package has a name").to_owned();
        (name, dir)
    })
    .collect()
}

fn parse(path: &Path) -> DocumentMut {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    text.parse().unwrap_or_else(|error| panic!("parse {}: {error}", path.display()))
}

/// Packages by their names in the lock file, with a version if there are several.
struct Graph {
    members: BTreeMap<String, PathBuf>,
    locked: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read(lock: &DocumentMut) -> Self {
        let mut locked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for package in lock["package"].as_array_of_tables().expect("the lock file has packages") {
            let text = |key: &str| package.get(key).and_then(Item::as_str).expect("a package has it").to_owned();
            let dependencies = package.get("dependencies").and_then(Item::as_array);
            let names = dependencies.into_iter().flatten().map(|name| name.as_str().expect("a name").to_owned());
            let names: BTreeSet<String> = names.collect();
            locked.entry(text("name")).or_default().extend(names.clone());
            locked.insert(format!("{} {}", text("name"), text("version")), names);
        }
        Self { members: members(&parse(&root().join("Cargo.toml"))), locked }
    }

    /// Returns the dependencies of a package. The lock file does not say which of them are only for tests, but
    /// manifests do.
    fn direct(&self, package: &str) -> BTreeSet<String> {
        let Some(dir) = self.members.get(package) else { return self.locked[package].clone() };
        let manifest = parse(&dir.join("Cargo.toml"));
        assert!(manifest.get("target").is_none(), "{package} has dependencies that this test does not know");
        let tables =
            ["dependencies", "build-dependencies"].into_iter().filter_map(|table| manifest.get(table)?.as_table());
        tables.flat_map(|table| table.iter().map(|(name, _)| name.to_owned())).collect()
    }

    /// Returns a package and all its dependencies.
    fn closure(&self, packages: &[&str]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut ahead: Vec<String> = packages.iter().map(|&package| package.to_owned()).collect();
        while let Some(package) = ahead.pop() {
            if found.insert(package.clone()) {
                ahead.extend(self.direct(&package));
            }
        }
        found
    }
}

#[test]
fn other_packages_do_not_rebuild_the_programs() {
    let watched = watched();
    assert!(!watched.is_empty(), "the build script watches something");
    for file in ["Cargo.lock", "Cargo.toml"].map(|name| root().join(name)) {
        let by = watched.iter().find(|path| file.starts_with(path));
        assert_eq!(by, None, "a change of {} runs the build script again", file.display());
    }
}

#[test]
fn every_input_rebuilds_the_programs() {
    let watched = watched();
    let graph = Graph::read(&parse(&root().join("Cargo.lock")));
    let tracked = graph.closure(&["kennel-keeper-bin"]);
    let inside = graph.closure(&["kennel-keeper", "kennel-jail"]);
    assert!(inside.contains("rustix") && inside.contains("kennel-proto"), "{inside:?}");
    for package in inside {
        match graph.members.get(&package) {
            Some(dir) => {
                for input in
                    ["src", "Cargo.toml", "build.rs"].map(|input| dir.join(input)).iter().filter(|input| input.exists())
                {
                    assert!(watched.contains(input), "{} is not watched", input.display());
                }
            }
            None => assert!(tracked.contains(&package), "{package} is not among the build script's dependencies"),
        }
    }
}
