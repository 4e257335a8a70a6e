//! The settings in force: what was said in files and variables for every new sandbox.

pub(crate) mod trust;

use crate::places::Places;
use crate::{environment, report};
use kennel_config::{
    Config, Environment, ImagesSection, Layer, Layered, Loaded, Place, Problem, SandboxSection, Sources, Tree,
};
use kennel_core::{Error, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// What a new sandbox is, where the command line does not say otherwise.
pub(crate) struct Settings {
    pub(crate) sandbox: SandboxSection,
    /// Where images come from.
    pub(crate) images: ImagesSection,
    /// Where each came from; nothing if nobody said anything.
    layered: Option<Layered>,
}

impl Settings {
    /// Those for the current directory. A project's files count only as far as they are trusted.
    pub(crate) fn in_force() -> Result<Self> {
        let around = Around::look()?;
        if !around.has_any() {
            let Config { sandbox, images, .. } = Config::default();
            return Ok(Self { sandbox, images, layered: None });
        }
        let loaded = around.load()?;
        let paths = RealPaths::default();
        trust::check(&loaded, &|path| paths.of(path))?;
        let Config { mut sandbox, images, .. } = loaded.layered.config().map_err(|error| wrong(&error))?;
        // What was looked at is what is used: a link may lead elsewhere by then.
        for path in sandbox.volumes.iter_mut().map(|volume| &mut volume.host).chain(&mut sandbox.workspace) {
            *path = paths.of(path);
        }
        Ok(Self { sandbox, images, layered: Some(loaded.layered) })
    }

    /// A setting that someone has made; `None` where the built-in one counts.
    pub(crate) fn said<T>(&self, key: &str, value: T) -> Option<T> {
        let found = self.layered.as_ref()?.get(key).ok()??;
        matches!(found, Tree::Leaf(setting) if setting.origin.layer != Layer::BuiltIn).then_some(value)
    }
}

/// Paths without links, each looked up once.
#[derive(Default)]
pub(crate) struct RealPaths(RefCell<HashMap<PathBuf, PathBuf>>);

impl RealPaths {
    /// As far as it exists.
    pub(crate) fn of(&self, path: &Path) -> PathBuf {
        let mut known = self.0.borrow_mut();
        let real = known.entry(path.to_owned());
        real.or_insert_with(|| path.canonicalize().unwrap_or_else(|_| path.to_owned())).clone()
    }
}

/// What settings are looked for in.
pub(crate) struct Around {
    pub(crate) here: PathBuf,
    pub(crate) user: Option<PathBuf>,
    pub(crate) environment: Environment,
}

impl Around {
    pub(crate) fn look() -> Result<Self> {
        let here = std::env::current_dir().map_err(|error| Error::io("find the current directory", error))?;
        Ok(Self { here, user: Places::config(), environment: environment::all() })
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        kennel_config::paths(&self.here, self.user.as_deref())
    }

    /// Whether there is anything to read. To look is quick; to read is not.
    fn has_any(&self) -> bool {
        self.environment.keys().any(|name| kennel_config::is_ours(name))
            || self.places().iter().any(|place| place.exists)
    }

    pub(crate) fn load(&self) -> Result<Loaded> {
        let sources = Sources {
            project: &self.here,
            user: self.user.as_deref(),
            current: &self.here,
            environment: &self.environment,
            flags: None,
        };
        let loaded = kennel_config::load(&sources).map_err(|error| wrong(&error))?;
        warn(&loaded.warnings);
        Ok(loaded)
    }
}

pub(crate) fn wrong(error: &kennel_config::Error) -> Error {
    Error::new(error.code(), error.to_string()).hint("kennel config schema, or kennel config show")
}

pub(crate) fn warn(warnings: &[Problem]) {
    for problem in warnings {
        report::warning(&problem.to_string());
    }
}
