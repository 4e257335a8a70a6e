//! Loads settings from directories, environment and flags.

use crate::check::{Context, Problems};
use crate::file::read;
use crate::search_paths::{doubles, has_common_name};
use crate::shape::{Shape, find};
use crate::{
    Environment, Error, Format, Layered, Location, Node, Owner, Problem, SearchPath, SettingsLayer, Source, Tree,
    Value, environment, parse, paths,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The profiles, for [`Sources::unused`].
pub const PROFILES: &str = "container.profiles";

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
    /// Sections that the caller does not use, and [`PROFILES`] if it uses none. They are not checked, and need none of
    /// their `${VAR}`.
    pub unused: &'a [&'a str],
}

/// The result of loading.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub layered: Layered,
    /// Problems that did not prevent loading. The caller should print them.
    pub warnings: Vec<Problem>,
    /// All paths that were checked for files.
    pub search_paths: Vec<SearchPath>,
    /// The files that were read, with the content they had.
    pub texts: BTreeMap<PathBuf, String>,
    /// The sections that were found although the caller does not use them, and where each begins.
    pub unused: Vec<(String, Location)>,
}

/// Loads and checks all layers. The error contains all problems of all layers.
pub fn load(sources: &Sources<'_>) -> Result<Loaded, Error> {
    let search_paths = paths(sources.project, sources.user, sources.users);
    let mut problems = doubles(&search_paths);
    let mut warnings = Vec::new();
    let mut trees = Vec::new();
    let mut texts = BTreeMap::new();
    let mut unused = Vec::new();
    for search_path in search_paths.iter().filter(|search_path| search_path.exists) {
        let text = read(search_path).map_err(Error::from);
        if let Ok(text) = &text {
            texts.insert(search_path.path.clone(), text.clone());
        }
        match check_search_path(text, search_path, sources.environment, sources.unused) {
            Ok(checked) => {
                trees.push(checked.tree);
                warnings.extend(checked.warnings);
                unused.extend(checked.unused);
            }
            Err(error) => problems.extend_from_slice(error.problems()),
        }
    }
    match environment::layer(sources.environment, sources.current, sources.unused) {
        Ok(checked) => {
            trees.push(checked.tree);
            warnings.extend(checked.warnings);
            unused.extend(checked.unused);
        }
        Err(error) => problems.extend_from_slice(error.problems()),
    }
    if let Some(flags) = &sources.flags {
        let (base, environment) = (sources.current, sources.environment);
        let context =
            Context { layer: SettingsLayer::Flags, base, environment, expand: false, loose: true, unused: &[] };
        let mut wrong = Problems::default();
        trees.push(context.check_root(flags, None, &mut wrong));
        problems.extend(wrong.0);
    }
    Error::unless_empty((), problems)?;
    Ok(Loaded { layered: Layered::new(trees), warnings, search_paths, texts, unused })
}

/// Checks files individually, as they would be read, and returns warnings. A missing file is an error: pass those of
/// [`paths`] that exist, or [`SearchPath::named`] ones.
pub fn validate(files: &[SearchPath], environment: &Environment) -> Result<Vec<Problem>, Error> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    for file in files {
        match check_search_path(read(file).map_err(Error::from), file, environment, &[]) {
            Ok(checked) => warnings.extend(checked.warnings),
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
    layer: SettingsLayer,
    environment: &Environment,
) -> Result<Tree, Error> {
    let node = parse(text, format, Source::File(file.to_owned()))?;
    check_node(&node, None, file, layer, environment, &[])
}

/// What one file or the environment came to.
#[derive(Default)]
pub(crate) struct Checked {
    pub(crate) tree: Tree,
    pub(crate) warnings: Vec<Problem>,
    /// See [`Loaded::unused`].
    pub(crate) unused: Vec<(String, Location)>,
}

fn check_node(
    node: &Node,
    only: Option<&str>,
    file: &Path,
    layer: SettingsLayer,
    environment: &Environment,
    unused: &[&str],
) -> Result<Tree, Error> {
    let base = file.parent().unwrap_or(file);
    let context = Context { layer, base, environment, expand: true, loose: false, unused };
    let mut problems = Problems::default();
    let tree = context.check_root(node, only, &mut problems);
    Error::unless_empty(tree, problems.0)
}

fn check_search_path(
    text: Result<String, Error>,
    search_path: &SearchPath,
    environment: &Environment,
    unused: &[&str],
) -> Result<Checked, Error> {
    let SearchPath { path: file, layer, owner, .. } = search_path;
    let layer = *layer;
    let mentioned = match (&text, owner) {
        (Ok(text), Owner::Other { section }) => mentions(text, section),
        _ => false,
    };
    let parsed = text.and_then(|text| {
        let format = Format::of_path(file).unwrap_or_else(|| Format::of_content(&text));
        parse(&text, format, Source::File(file.to_owned()))
    });
    let section = match owner {
        Owner::Kennel => {
            let node = parsed?;
            let tree = check_node(&node, None, file, layer, environment, unused)?;
            return Ok(Checked { tree, unused: sections(&node, unused), ..Checked::default() });
        }
        Owner::Other { section } => *section,
    };
    let node = match parsed {
        Ok(node) => node,
        // A sandbox must not be weaker than its file says, so a file that holds our section has to be readable.
        Err(error) if mentioned || section == "sandbox" => return Err(error),
        Err(error) => return Ok(Checked { warnings: error.problems().to_vec(), ..Checked::default() }),
    };
    let entry = section_of(&node, section);
    // The same word may mean something else in a file that is not ours.
    let others = entry.is_none_or(|(_, value)| has_common_name(file) && !has_known_key(section, value));
    if others {
        return Ok(Checked::default());
    }
    if unused.contains(&section) {
        // Errors in it are reported to commands that use the section.
        let mut problems = Problems::default();
        let context = Context { layer, base: file, environment, expand: false, loose: false, unused: &[] };
        context.check_root(&node, Some(section), &mut problems);
        let found = if problems.0.is_empty() { sections(&node, &[section]) } else { Vec::new() };
        return Ok(Checked { unused: found, ..Checked::default() });
    }
    match check_node(&node, Some(section), file, layer, environment, unused) {
        Ok(tree) => Ok(Checked { tree, ..Checked::default() }),
        // The section may mean something else to that program. It is an error only for commands that use profiles.
        Err(error) if unused.contains(&PROFILES) && section == "container" => {
            Ok(Checked { warnings: error.problems().to_vec(), ..Checked::default() })
        }
        Err(error) => Err(error),
    }
}

/// Whether a text that cannot be parsed has a section of this name.
fn mentions(text: &str, section: &str) -> bool {
    let bare = |line: &str| line.strip_prefix(section).is_some_and(|rest| rest.trim_start().starts_with(':'));
    text.contains(&format!("\"{section}\"")) || text.lines().any(bare)
}

/// A section of a file: where it begins, and what is in it.
fn section_of<'a>(node: &'a Node, name: &str) -> Option<(&'a Location, &'a Node)> {
    let Value::Map(entries) = &node.value else { return None };
    let (key, node) = entries.iter().find(|(key, _)| key.name == name)?;
    Some((&key.at, node))
}

/// The sections of these names that a file has, and where each begins.
pub(crate) fn sections(node: &Node, names: &[&str]) -> Vec<(String, Location)> {
    let located = |name: &&str| section_of(node, name).map(|(at, _)| ((*name).to_owned(), at.clone()));
    names.iter().filter_map(located).collect()
}

/// Whether any key of a section is one of ours.
fn has_known_key(section: &str, node: &Node) -> bool {
    let Some((_, Shape::Section(fields))) = Shape::root().under(section) else { return false };
    let Value::Map(entries) = &node.value else { return false };
    entries.iter().any(|(key, _)| find(fields, &key.name).is_some())
}

/// Checks the text of a profile's own file. Relative paths start at the directory of the file, and `${VAR}` is expanded.
/// `extra` is a key that is not part of the profile, and is left alone.
pub fn check_profile(
    text: &str,
    file: &Path,
    extra: &str,
    environment: &Environment,
) -> Result<crate::SandboxOverrides, Error> {
    let mut node = parse(text, Format::Json, Source::File(file.to_owned()))?;
    if let Value::Map(entries) = &mut node.value {
        entries.retain(|(key, _)| key.name != extra);
    }
    let path: crate::KeyPath = ["container", "profiles", "name"].into_iter().collect();
    let (_, shape) = Shape::root().lookup(&path).expect("the model has profiles");
    let base = file.parent().unwrap_or(file);
    let context = Context { layer: SettingsLayer::User, base, environment, expand: true, loose: false, unused: &[] };
    let mut problems = Problems::default();
    let tree = context.check(&node, shape, &mut crate::KeyPath::default(), &mut problems);
    let tree = Error::unless_empty(tree, problems.0)?.unwrap_or_default();
    serde_json::from_value(tree.to_json(&|setting| setting.value.clone())).map_err(|error| {
        let what = crate::What::Syntax(format!("a checked profile cannot be used, which is a defect: {error}"));
        Problem { at: Location::whole(Source::File(file.to_owned())), key: crate::KeyPath::default(), what }.into()
    })
}
