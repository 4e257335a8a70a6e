//! The files of a sandbox in memory: regular files and directories under one root, and the volumes in it. There are no
//! symlinks, devices or users; tests of those need a kernel.

use kennel_proto::{Entry, Failure, FailureKind, FileKind, Limit, Stat, WatchItem, WatchKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// The largest offset of a write.
const LARGEST: usize = 64 * 1024 * 1024;

/// The components of a path, starting at the root.
type Parts = Vec<Vec<u8>>;

/// A filesystem.
pub(crate) struct Tree {
    state: Mutex<TreeState>,
    cwd: Parts,
    /// Volumes, each with the path that it is mounted at. The longest paths are first.
    volumes: Vec<(Parts, Arc<Self>)>,
}

struct TreeState {
    nodes: BTreeMap<Parts, Node>,
    watchers: Vec<Watcher>,
}

#[derive(Clone)]
struct Node {
    /// The content; `None` for a directory.
    content: Option<Arc<Vec<u8>>>,
    mode: u32,
    modified_ms: i64,
}

struct Watcher {
    at: Parts,
    recursive: bool,
    changes: mpsc::UnboundedSender<WatchItem>,
}

impl Tree {
    /// Creates a root with the usual directories, and mounts volumes in it. Relative paths start at `cwd`.
    pub(crate) fn new(cwd: &str, volumes: Vec<(&str, Arc<Self>)>) -> Self {
        let mut tree = Self { cwd: walk(Parts::new(), cwd.as_bytes()), ..Self::default() };
        for path in ["/tmp", "/etc", "/root", cwd].into_iter().chain(volumes.iter().map(|(path, _)| *path)) {
            tree.mkdir(path.as_bytes(), true, None).expect("an empty tree takes directories");
        }
        tree.volumes =
            volumes.into_iter().map(|(path, volume)| (walk(Parts::new(), path.as_bytes()), volume)).collect();
        tree.volumes.sort_by_key(|(at, _)| std::cmp::Reverse(at.len()));
        tree
    }

    fn lock(&self) -> MutexGuard<'_, TreeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves a path: returns the tree or volume that contains it, and the path there. `..` at the root stays there.
    fn resolve(&self, path: &[u8]) -> Result<(&Self, Parts), Failure> {
        let parts = walk(if path.starts_with(b"/") { Parts::new() } else { self.cwd.clone() }, path);
        if parts.iter().any(|part| part.len() > 255) {
            return Err(fail(FailureKind::Invalid, "a name is longer than 255 bytes"));
        }
        let volume = self.volumes.iter().find(|(at, _)| parts.starts_with(at));
        Ok(volume.map_or_else(|| (self, parts.clone()), |(at, volume)| (&**volume, parts[at.len()..].to_vec())))
    }

    pub(crate) fn is_directory(&self, path: &[u8]) -> bool {
        let is_dir =
            |(tree, parts): (&Self, Parts)| tree.lock().nodes.get(&parts).is_some_and(|node| node.content.is_none());
        self.resolve(path).is_ok_and(is_dir)
    }

    pub(crate) fn read(&self, path: &[u8]) -> Result<Arc<Vec<u8>>, Failure> {
        let (tree, parts) = self.resolve(path)?;
        let content = tree.lock().find(&parts)?.content.clone();
        content.ok_or_else(|| fail(FailureKind::Refused, "it is a directory"))
    }

    pub(crate) fn write(&self, path: &[u8], bytes: Vec<u8>, mode: Option<u32>, parents: bool) -> Result<(), Failure> {
        let (tree, parts) = self.resolve(path)?;
        let mut state = tree.lock();
        let old = state.nodes.get(&parts).cloned();
        if old.as_ref().is_some_and(|node| node.content.is_none()) {
            return Err(fail(FailureKind::Refused, "it is a directory"));
        }
        state.make_parent(&parts, parents)?;
        let mode = mode.or(old.as_ref().map(|node| node.mode)).unwrap_or(0o644);
        let kind = if old.is_some() { WatchKind::Modified } else { WatchKind::Created };
        let node = Node { content: Some(Arc::new(bytes)), mode: mode & 0o7777, modified_ms: now_ms() };
        state.nodes.insert(parts.clone(), node);
        state.tell(kind, &parts);
        Ok(())
    }

    pub(crate) fn write_at(
        &self,
        path: &[u8],
        offset: u64,
        bytes: &[u8],
        mode: Option<u32>,
        parents: bool,
    ) -> Result<(), Failure> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= LARGEST);
        let start = start.ok_or_else(|| Failure::limit(Limit::Size, "the mock's files are in memory"))?;
        let mut content = match self.read(path) {
            Ok(content) => content.to_vec(),
            Err(failure) if failure.kind == FailureKind::NotFound => Vec::new(),
            Err(failure) => return Err(failure),
        };
        content.resize(content.len().max(start + bytes.len()), 0);
        content[start..start + bytes.len()].copy_from_slice(bytes);
        self.write(path, content, mode, parents)
    }

    /// Returns the entries of a directory, and of `depth - 1` levels below it.
    pub(crate) fn list(&self, path: &[u8], depth: u32) -> Result<Vec<Entry>, Failure> {
        let (tree, parts) = self.resolve(path)?;
        let state = tree.lock();
        if state.find(&parts)?.content.is_some() {
            return Err(fail(FailureKind::Invalid, "it is no directory"));
        }
        Ok(state
            .below(&parts)
            .filter(|(name, _)| name.len() <= parts.len() + depth as usize)
            .map(|(name, node)| {
                let name = name[parts.len()..].join(&b'/').into();
                Entry { name, stat: node.stat(), unreadable: false }
            })
            .collect())
    }

    pub(crate) fn stat(&self, path: &[u8]) -> Result<Stat, Failure> {
        let (tree, parts) = self.resolve(path)?;
        Ok(tree.lock().find(&parts)?.stat())
    }

    pub(crate) fn mkdir(&self, path: &[u8], parents: bool, mode: Option<u32>) -> Result<(), Failure> {
        let (tree, parts) = self.resolve(path)?;
        let mut state = tree.lock();
        match state.nodes.get(&parts) {
            Some(node) if parents && node.content.is_none() => return Ok(()),
            Some(_) => return Err(fail(FailureKind::Exists, "it exists")),
            None => state.make_parent(&parts, parents)?,
        }
        state.nodes.insert(parts.clone(), Node { mode: mode.unwrap_or(0o755) & 0o7777, ..Node::directory() });
        state.tell(WatchKind::Created, &parts);
        Ok(())
    }

    pub(crate) fn chmod(&self, path: &[u8], mode: u32) -> Result<(), Failure> {
        let (tree, parts) = self.resolve(path)?;
        let mut state = tree.lock();
        state.find(&parts)?;
        if let Some(node) = state.nodes.get_mut(&parts) {
            node.mode = mode & if node.content.is_some() { 0o1777 } else { 0o7777 };
        }
        Ok(())
    }

    pub(crate) fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Failure> {
        let ((tree, from), (other, to)) = (self.resolve(from)?, self.resolve(to)?);
        if !std::ptr::eq(tree, other) {
            return Err(fail(FailureKind::Invalid, "a file cannot move to another volume"));
        }
        let mut state = tree.lock();
        let source_is_directory = state.find(&from)?.content.is_none();
        if from.is_empty() || (to.starts_with(&from) && to != from) {
            return Err(fail(FailureKind::Invalid, "a directory cannot move into itself"));
        }
        if let Some(target) = state.nodes.get(&to) {
            if !replace {
                return Err(fail(FailureKind::Exists, "the target exists"));
            }
            if target.content.is_none() != source_is_directory || state.below(&to).next().is_some() {
                return Err(fail(FailureKind::Exists, "the target is in the way"));
            }
        }
        state.make_parent(&to, false)?;
        let moved: Vec<Parts> =
            std::iter::once(from.clone()).chain(state.below(&from).map(|(name, _)| name.clone())).collect();
        for name in moved {
            let node = state.nodes.remove(&name).expect("it was listed under the same lock");
            let name = to.iter().chain(&name[from.len()..]).cloned().collect();
            state.nodes.insert(name, node);
        }
        state.tell(WatchKind::Removed, &from);
        state.tell(WatchKind::Created, &to);
        Ok(())
    }

    pub(crate) fn remove(&self, path: &[u8], recursive: bool) -> Result<(), Failure> {
        let (tree, parts) = self.resolve(path)?;
        let mut state = tree.lock();
        state.find(&parts)?;
        if parts.is_empty() {
            return Err(fail(FailureKind::Invalid, "the root stays"));
        }
        let below: Vec<Parts> = state.below(&parts).map(|(name, _)| name.clone()).collect();
        if !recursive && !below.is_empty() {
            return Err(fail(FailureKind::Exists, "the directory is not empty"));
        }
        // From the leaves up, in the order of a real removal.
        for name in below.iter().rev().chain([&parts]) {
            state.nodes.remove(name);
            state.tell(WatchKind::Removed, name);
        }
        Ok(())
    }

    /// Watches for changes at or below a path. The sender is dropped when that path is removed.
    pub(crate) fn watch(&self, path: &[u8], recursive: bool) -> Result<mpsc::UnboundedReceiver<WatchItem>, Failure> {
        let (tree, at) = self.resolve(path)?;
        let mut state = tree.lock();
        state.find(&at)?;
        let (changes, receiver) = mpsc::unbounded_channel();
        state.watchers.push(Watcher { at, recursive, changes });
        Ok(receiver)
    }

    /// The total size of all files.
    pub(crate) fn size(&self) -> u64 {
        self.lock().nodes.values().map(Node::size).sum()
    }
}

impl Default for Tree {
    /// An empty root.
    fn default() -> Self {
        let nodes = BTreeMap::from([(Parts::new(), Node::directory())]);
        Self { state: Mutex::new(TreeState { nodes, watchers: Vec::new() }), cwd: Parts::new(), volumes: Vec::new() }
    }
}

impl TreeState {
    fn find(&self, parts: &[Vec<u8>]) -> Result<&Node, Failure> {
        self.nodes.get(parts).ok_or_else(|| fail(FailureKind::NotFound, "no such file or directory"))
    }

    fn below<'a>(&'a self, parts: &'a [Vec<u8>]) -> impl Iterator<Item = (&'a Parts, &'a Node)> {
        self.nodes
            .range(parts.to_vec()..)
            .take_while(move |(name, _)| name.starts_with(parts))
            .filter(move |(name, _)| name.len() > parts.len())
    }

    fn make_parent(&mut self, parts: &[Vec<u8>], parents: bool) -> Result<(), Failure> {
        for end in 0..parts.len() {
            match self.nodes.get(&parts[..end]) {
                Some(node) if node.content.is_none() => {}
                Some(_) => return Err(fail(FailureKind::Invalid, "a part of the path is no directory")),
                None if !parents => return Err(fail(FailureKind::NotFound, "no such directory")),
                None => {
                    self.nodes.insert(parts[..end].to_vec(), Node::directory());
                    self.tell(WatchKind::Created, &parts[..end]);
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, kind: WatchKind, parts: &[Vec<u8>]) {
        self.watchers.retain(|watcher| {
            let Some(rest) = parts.strip_prefix(watcher.at.as_slice()) else { return !watcher.changes.is_closed() };
            if rest.len() <= 1 || watcher.recursive {
                let _ = watcher.changes.send(WatchItem { kind, path: rest.join(&b'/').into() });
            }
            !(rest.is_empty() && kind == WatchKind::Removed || watcher.changes.is_closed())
        });
    }
}

impl Node {
    fn directory() -> Self {
        Self { content: None, mode: 0o755, modified_ms: now_ms() }
    }

    fn size(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.len() as u64)
    }

    fn stat(&self) -> Stat {
        Stat {
            kind: if self.content.is_some() { FileKind::File } else { FileKind::Directory },
            size: self.size(),
            mode: self.mode,
            uid: 0,
            gid: 0,
            modified_ms: self.modified_ms,
            target: None,
        }
    }
}

fn walk(mut parts: Parts, path: &[u8]) -> Parts {
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            name => parts.push(name.to_vec()),
        }
    }
    parts
}

pub(crate) fn fail(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure::new(kind, message)
}

pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
