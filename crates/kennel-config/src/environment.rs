//! The layer of environment variables. There is one for each setting that is a single value.

use crate::check::{Context, Problems};
use crate::load::{Checked, sections};
use crate::shape::{Shape, spelling};
use crate::{Error, KeyPath, Location, Node, Problem, SettingsLayer, Source, Value, What};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

/// The environment, provided by the caller.
pub type Environment = BTreeMap<String, String>;

/// An environment variable that is a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvVar {
    /// The name, for example `KENNEL_SANDBOX_MEMORY`.
    pub name: String,
    /// The key of the setting.
    pub key: KeyPath,
    /// The description of the setting.
    pub description: String,
}

/// Returns all environment variables that are settings. Lists, maps and the content of profiles have none.
pub fn environment_variables() -> &'static [EnvVar] {
    static ALL: LazyLock<Vec<EnvVar>> = LazyLock::new(|| {
        let mut all = Vec::new();
        collect(Shape::root(), &KeyPath::default(), &mut all);
        all
    });
    &ALL
}

fn collect(shape: &Shape, path: &KeyPath, all: &mut Vec<EnvVar>) {
    let Shape::Section(fields) = shape else { return };
    for field in fields {
        let key = path.with(&field.name);
        match &field.shape {
            Shape::Section(_) => collect(&field.shape, &key, all),
            Shape::List(_) | Shape::Map { .. } => {}
            _ => all.push(EnvVar { name: variable(&key), key, description: field.description.clone() }),
        }
    }
}

fn variable(key: &KeyPath) -> String {
    let words: Vec<_> = key.segments().iter().map(|name| spelling(name).to_ascii_uppercase()).collect();
    format!("KENNEL_{}", words.join("_"))
}

/// Reads the settings in the environment. Returns a warning for each variable that looks like a setting but is none.
/// Paths are relative to `current`. An empty variable counts as not set.
pub(crate) fn layer(environment: &Environment, current: &Path, unused: &[&str]) -> Result<Checked, Error> {
    if !environment.keys().any(|name| is_ours(name)) {
        return Ok(Checked::default());
    }
    let nowhere = Location::whole(Source::Variable("KENNEL_*".to_owned()));
    let mut root = Node { value: Value::Map(Vec::new()), at: nowhere };
    for variable in environment_variables() {
        if let Some(value) = environment.get(&variable.name).filter(|value| !value.is_empty()) {
            let at = Location::whole(Source::Variable(variable.name.clone()));
            root.insert(variable.key.segments(), &at, Value::Text(value.clone()));
        }
    }
    let context =
        Context { layer: SettingsLayer::Environment, base: current, environment, expand: false, loose: true, unused };
    let mut problems = Problems::default();
    let tree = context.check_root(&root, None, &mut problems);
    let checked = Checked { tree, warnings: unknown(environment), unused: sections(&root, unused) };
    Error::unless_empty(checked, problems.0)
}

/// Whether a variable's name is that of a setting, or looks like one.
pub fn is_ours(name: &str) -> bool {
    ["KENNEL_SANDBOX_", "KENNEL_CONTAINER_", "KENNEL_AGENT_", "KENNEL_IMAGES_"]
        .iter()
        .any(|ours| name.starts_with(ours))
}

fn unknown(environment: &Environment) -> Vec<Problem> {
    let all = environment_variables();
    let strange = |name: &&String| is_ours(name) && all.iter().all(|one| one.name != **name);
    let warn = |name: &String| {
        let near = all.iter().min_by_key(|one| strsim::damerau_levenshtein(&one.name, name))?;
        let close = strsim::damerau_levenshtein(&near.name, name) <= 3;
        let nearest = close.then(|| [near.name.as_str()].into_iter().collect());
        let at = Location::whole(Source::Variable(name.clone()));
        Some(Problem { at, key: KeyPath::default(), what: What::UnknownKey { nearest } })
    };
    // Names in the environment may have any length, and a comparison takes time in proportion to it.
    environment.keys().filter(strange).filter(|name| name.len() < 200).filter_map(warn).collect()
}
