//! Loads settings from directories, environment and flags.

use crate::check::{Context, Problems};
use crate::file::read;
use crate::places::doubles;
use crate::{
    Environment, Error, Format, Layer, Layered, Node, Owner, Place, Problem, Source, Tree, Value, environment, parse,
    paths,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The sources of settings. All paths are absolute.
#[derive(Clone, Debug)]
pub struct Sources<'a> {
    /// The directory where the search for the project's files begins.
    pub project: &'a Path,
    /// The directory of the user's file, if there is one.
    pub user: Option<&'a Path>,
    /// The ids of the calling user, whose directories are searched upwards; see [`paths`].
    pub users: &'a [u32],
    /// The directory that paths in variables and flags are relative to.
    pub current: &'a Path,
    /// The environment, for `${VAR}` in files and for `KENNEL_` variables.
    pub environment: &'a Environment,
    /// The flags; see [`Node::from_flags`].
    pub flags: Option<Node>,
}

/// The result of loading.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub layered: Layered,
    /// Problems that did not prevent loading. The caller should print them.
    pub warnings: Vec<Problem>,
    /// All paths that were checked for files.
    pub places: Vec<Place>,
    /// The files that were read, with the content they had.
    pub texts: BTreeMap<PathBuf, String>,
}

/// Loads and checks all layers. The error contains all problems of all layers.
pub fn load(sources: &Sources<'_>) -> Result<Loaded, Error> {
    let places = paths(sources.project, sources.user, sources.users);
    let mut problems = doubles(&places);
    let mut warnings = Vec::new();
    let mut trees = Vec::new();
    let mut texts = BTreeMap::new();
    for place in places.iter().filter(|place| place.exists) {
        let text = read(place).map_err(Error::from);
        if let Ok(text) = &text {
            texts.insert(place.path.clone(), text.clone());
        }
        match check_place(text, place, sources.environment) {
            Ok((tree, strange)) => {
                trees.push(tree);
                warnings.extend(strange);
            }
            Err(error) => problems.extend_from_slice(error.problems()),
        }
    }
    match environment::layer(sources.environment, sources.current) {
        Ok((tree, strange)) => {
            trees.push(tree);
            warnings.extend(strange);
        }
        Err(error) => problems.extend_from_slice(error.problems()),
    }
    if let Some(flags) = &sources.flags {
        let (base, environment) = (sources.current, sources.environment);
        let context = Context { layer: Layer::Flags, base, environment, expand: false, loose: true };
        let mut wrong = Problems::default();
        trees.push(context.check_root(flags, None, &mut wrong));
        problems.extend(wrong.0);
    }
    Error::unless_empty((), problems)?;
    Ok(Loaded { layered: Layered::new(trees), warnings, places, texts })
}

/// Checks files individually, as they would be read, and returns warnings. A missing file is an error: pass those of
/// [`paths`] that exist, or [`Place::named`] ones.
pub fn validate(files: &[Place], environment: &Environment) -> Result<Vec<Problem>, Error> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    for file in files {
        match check_place(read(file).map_err(Error::from), file, environment) {
            Ok((_, strange)) => warnings.extend(strange),
            Err(error) => problems.extend_from_slice(error.problems()),
        }
    }
    Error::unless_empty(warnings, problems)
}

/// Checks a text as if it were Kennel's own file at `file`. The file itself is not read.
pub fn check_text(
    text: &str,
    format: Format,
    file: &Path,
    layer: Layer,
    environment: &Environment,
) -> Result<Tree, Error> {
    let node = parse(text, format, Source::File(file.to_owned()))?;
    check_node(&node, None, file, layer, environment)
}

fn check_node(
    node: &Node,
    only: Option<&str>,
    file: &Path,
    layer: Layer,
    environment: &Environment,
) -> Result<Tree, Error> {
    let base = file.parent().unwrap_or(file);
    let context = Context { layer, base, environment, expand: true, loose: false };
    let mut problems = Problems::default();
    let tree = context.check_root(node, only, &mut problems);
    Error::unless_empty(tree, problems.0)
}

fn check_place(
    text: Result<String, Error>,
    place: &Place,
    environment: &Environment,
) -> Result<(Tree, Vec<Problem>), Error> {
    let Place { path: file, layer, owner, .. } = place;
    let layer = *layer;
    let parsed = text.and_then(|text| {
        let format = Format::of_path(file).unwrap_or_else(|| Format::of_content(&text));
        parse(&text, format, Source::File(file.to_owned()))
    });
    match (*owner, parsed) {
        (Owner::Kennel, parsed) => Ok((check_node(&parsed?, None, file, layer, environment)?, Vec::new())),
        // Another program's file matters only if it contains a section for Kennel.
        (Owner::Other { .. }, Err(error)) => Ok((Tree::default(), error.problems().to_vec())),
        (Owner::Other { .. }, Ok(Node { value, .. })) if !matches!(value, Value::Map(_)) => {
            Ok((Tree::default(), Vec::new()))
        }
        (Owner::Other { section }, Ok(node)) => {
            Ok((check_node(&node, Some(section), file, layer, environment)?, Vec::new()))
        }
    }
}
