//! A home for each test: a user's directory, a project and an environment.

#![allow(dead_code)] // not every test program uses everything

use kennel_config::{
    Config, Environment, Error, Format, Layered, Loaded, Node, SearchPath, SettingsLayer, Sources, Tree, check_text,
    load,
};
use std::path::{Path, PathBuf};

pub(crate) struct Home {
    dir: tempfile::TempDir,
    environment: Environment,
    pub(crate) flags: Option<Node>,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["user", "project/.git"] {
            std::fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        Self { dir, environment: Environment::new(), flags: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn variable(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn try_load(&self) -> Result<Loaded, Error> {
        self.try_load_from("project")
    }

    pub(crate) fn try_load_from(&self, project: &str) -> Result<Loaded, Error> {
        self.try_load_without(&[], project)
    }

    /// Reads the settings for a caller that does not use these sections.
    pub(crate) fn try_load_without(&self, unused: &[&str], project: &str) -> Result<Loaded, Error> {
        load(&Sources {
            project: &self.path(project),
            user: Some(&self.path("user")),
            users: &[],
            current: Path::new("/current"),
            environment: &self.environment,
            flags: self.flags.clone(),
            unused,
        })
    }

    pub(crate) fn load_search_paths(&self) -> Vec<SearchPath> {
        kennel_config::paths(&self.path("project"), Some(&self.path("user")), &[])
    }

    pub(crate) fn load(&self) -> Loaded {
        self.try_load().unwrap_or_else(|error| panic!("{error}"))
    }
}

pub(crate) fn config(loaded: &Loaded) -> Config {
    assert_eq!(loaded.warnings, []);
    loaded.layered.config().unwrap()
}

/// Parses a text as the file `/here/<name>`.
pub(crate) fn tree(name: &str, text: &str) -> Result<Tree, Error> {
    let file = Path::new("/here").join(name);
    check_text(text, Format::of_path(&file).unwrap(), &file, SettingsLayer::Project, &Environment::new())
}

pub(crate) fn read(name: &str, text: &str) -> Config {
    Layered::new([tree(name, text).unwrap_or_else(|error| panic!("{error}"))]).config().unwrap()
}

/// Returns the problems of a text, one per line, without the directory.
pub(crate) fn wrong(name: &str, text: &str) -> String {
    tree(name, text).expect_err("it should be refused").to_string().replace("/here/", "")
}
