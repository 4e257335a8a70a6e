//! Volumes: directories that outlive sandboxes. One belongs to a single sandbox, others are shared.
//!
//! ```text
//! <root>/data-<name>         the data volume of the sandbox with this name
//!       /cache-<name>        a volume that sandboxes share
//!       /.<volume>.json      where the volume comes from
//!       /.removed-<id>       a volume that is being removed
//! ```
//!
//! The directory `<root>` is locked: shared while the record of a sandbox with volumes is written, exclusively while it is
//! decided that no sandbox uses a volume, and the volume is renamed. So a new sandbox either keeps the volume from being
//! removed, or gets a new one. Sandboxes see only the content of their own volumes.

use crate::clear;
use crate::range::{IDS, SHARED};
use crate::rights::Maker;
use kennel_core::{Error, Result, Sweep, VolumeOptions, printable};
use kennel_jail::{Bind, Ids, Owners, Rights};
use kennel_provider::{Record, Records};
use kennel_types::{ErrorCode, Leftover, NextStep, SandboxSpec, VolumeInfo, VolumeKind, VolumeUser};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The path of a sandbox's own volume inside.
pub(crate) const DATA: &str = "/.data";
/// The beginning of the name of a volume that is being removed.
const REMOVED: &str = ".removed-";

/// All volumes of this user's sandboxes. Nobody else can access their directory.
#[derive(Clone, Debug)]
pub(crate) struct Volumes {
    root: PathBuf,
}

/// Where a volume comes from. It is only for people: a volume without it works.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Origin {
    workspace: Option<PathBuf>,
    project: Option<String>,
}

/// What is needed to read and remove the files of volumes.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) maker: &'a Maker,
    pub(crate) programs: &'a Path,
}

impl Volumes {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The directory of all volumes.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the mounts of a sandbox's volumes. Missing ones are created and given to its `user`.
    pub(crate) fn binds_for(&self, record: &Record, maker: &Maker, user: u32) -> Result<Vec<Bind>> {
        let own = own_name(record).map(|name| (name, DATA.to_owned(), false));
        let shared = record.spec.caches.iter();
        let shared = shared.map(|cache| (VolumeKind::Cache.volume(&cache.name), cache.target.clone(), cache.read_only));
        // On disk they have the same ids for all sandboxes, which each have other ids.
        let owners = match (maker.rights, record.first_id) {
            (Rights::Root, Some(first)) => Owners::As(Ids::range(SHARED, first, IDS)),
            _ => Owners::Kept,
        };
        let bind = |(name, target, read_only): (String, String, bool)| {
            let dir = self.root.join(&name);
            self.make(&dir, maker, user)
                .and_then(|()| self.note_origin(&name, &record.spec))
                .map_err(|error| Error::io(format!("make {}", dir.display()), error))?;
            Ok(Bind {
                host: dir.as_os_str().as_bytes().to_vec().into(),
                target: target.into_bytes().into(),
                read_only,
                owners: owners.clone(),
                hide: Vec::new(),
                pins: Vec::new(),
            })
        };
        own.into_iter().chain(shared).map(bind).collect()
    }

    fn make(&self, dir: &Path, maker: &Maker, user: u32) -> std::io::Result<()> {
        self.make_root()?;
        match fs::create_dir(dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            done => done?,
        }
        let given = match maker.rights {
            Rights::Root => {
                let owner = SHARED + user;
                std::os::unix::fs::chown(dir, Some(owner), Some(owner))
            }
            // Root inside is the user who creates it. Other users have access only if everyone has.
            Rights::User if user == 0 => Ok(()),
            Rights::User => fs::set_permissions(dir, fs::Permissions::from_mode(0o777)),
        };
        // A half-created volume would count as existing.
        given.inspect_err(|_| drop(fs::remove_dir(dir)))
    }

    fn make_root(&self) -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root)
    }

    /// Stores where a volume comes from, unless that is known.
    fn note_origin(&self, volume: &str, spec: &SandboxSpec) -> std::io::Result<()> {
        let path = self.origin_path(volume);
        if path.exists() || (spec.workspace.is_none() && spec.project.is_none()) {
            return Ok(());
        }
        let origin = Origin { workspace: spec.workspace.clone(), project: spec.project.clone() };
        let partial = self.root.join(format!(".{volume}.{}.new", std::process::id()));
        fs::write(&partial, serde_json::to_vec(&origin)?)?;
        fs::rename(partial, path)
    }

    fn origin_path(&self, volume: &str) -> PathBuf {
        self.root.join(format!(".{volume}.json"))
    }

    /// Holds the volumes of a new sandbox until its record is written. Returns `None` if it has no volumes.
    pub(crate) fn hold_for(&self, spec: &SandboxSpec) -> Result<Option<File>> {
        if !spec.data && spec.caches.is_empty() {
            return Ok(None);
        }
        self.make_root().map_err(|error| Error::io(format!("make {}", self.root.display()), error))?;
        self.lock(FlockOperation::LockShared)
    }

    /// Locks the volumes. Returns `None` if there are none.
    fn lock(&self, how: FlockOperation) -> Result<Option<File>> {
        let failed = |error| Error::io(format!("lock {}", self.root.display()), error);
        let dir = match File::open(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            dir => dir.map_err(failed)?,
        };
        rustix::io::retry_on_intr(|| rustix::fs::flock(&dir, how)).map_err(|error| failed(error.into()))?;
        Ok(Some(dir))
    }

    /// Returns all volumes, in the order of their names.
    pub(crate) fn list(
        &self,
        records: &Records,
        options: VolumeOptions,
        access: Access<'_>,
        provider: &str,
    ) -> Result<Vec<VolumeInfo>> {
        let mut names = self.entries()?;
        names.retain(|name| VolumeKind::split(name).is_some() && self.root.join(name).is_dir());
        names.sort();
        let records = records.list()?;
        let info = |name: String| {
            let dir = self.root.join(&name);
            let Origin { workspace, project } = self.origin(&name);
            let created = dir.metadata().and_then(|found| found.created()).ok();
            let created = created.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            // Processes inside may make a directory that cannot be measured.
            let size = options.sizes.then(|| clear::measure(&dir, access.programs, &access.maker.ids).ok()).flatten();
            Some(VolumeInfo {
                kind: VolumeKind::split(&name)?.0,
                provider: provider.to_owned(),
                workspace,
                project,
                size,
                created_ms: created.map(|since| since.as_millis() as u64),
                used_by: users(&name, &records).collect(),
                name,
            })
        };
        Ok(names.into_iter().filter_map(info).collect())
    }

    /// Returns the names of everything in the directory.
    fn entries(&self) -> Result<Vec<String>> {
        let failed = |error| Error::io(format!("list {}", self.root.display()), error);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        Ok(names.collect::<std::io::Result<Vec<_>>>().map_err(failed)?.into_iter().flatten().collect())
    }

    fn origin(&self, volume: &str) -> Origin {
        let json = fs::read(self.origin_path(volume)).ok();
        json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
    }

    /// Removes a volume that no sandbox uses.
    pub(crate) fn remove(&self, name: &str, records: &Records, access: Access<'_>) -> Result<()> {
        let none = || Error::no_volume(printable(name));
        VolumeKind::split(name).ok_or_else(none)?;
        let lock = self.lock(FlockOperation::LockExclusive)?.ok_or_else(none)?;
        if let Some(user) = users(name, &records.list()?).next() {
            return Err(Error::volume_in_use(name, user.name));
        }
        if self.take_away(name, access, lock)? { Ok(()) } else { Err(none()) }
    }

    /// Removes a sandbox's own volume, unless another sandbox uses it.
    pub(crate) fn remove_own(&self, record: &Record, records: &Records, access: Access<'_>) -> Result<()> {
        let Some(name) = own_name(record) else { return Ok(()) };
        let Some(lock) = self.lock(FlockOperation::LockExclusive)? else { return Ok(()) };
        if let Some(other) = users(&name, &records.list()?).find(|user| user.id != record.id) {
            let message = format!("the volume of {} is also that of {}", record.name, other.name);
            let step = NextStep::RemoveSandbox { name: other.name, force: false, volumes: true };
            return Err(Error::new(ErrorCode::Conflict, message).suggest(step));
        }
        self.take_away(&name, access, lock).map(drop)
    }

    /// Renames a volume, so that it is gone for everyone, releases the lock, and removes the files. Returns whether there
    /// was such a volume.
    fn take_away(&self, name: &str, access: Access<'_>, lock: File) -> Result<bool> {
        let failed = |error| Error::io(format!("remove the volume {name}"), error);
        let removed = self.root.join(format!("{REMOVED}{}", kennel_core::new_id()?));
        match fs::rename(self.root.join(name), &removed) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            done => done.map_err(failed)?,
        }
        let _ = fs::remove_file(self.origin_path(name));
        drop(lock);
        clear::remove(&removed, access.programs, &access.maker.ids).map_err(failed)?;
        Ok(true)
    }

    /// Finds volumes whose removal was interrupted, and removes or only reports them.
    pub(crate) fn sweep(&self, action: Sweep, access: Access<'_>) -> Result<Vec<Leftover>> {
        let mut left = self.entries()?;
        left.retain(|name| name.starts_with(REMOVED));
        let paths = left.into_iter().map(|name| self.root.join(name));
        let swept = paths
            .filter(|path| action == Sweep::Report || clear::remove(path, access.programs, &access.maker.ids).is_ok());
        Ok(swept.map(|path| Leftover::Volume { path }).collect())
    }
}

/// The name of a sandbox's own volume, if it has one. A sandbox with a name finds its volume again by the name.
fn own_name(record: &Record) -> Option<String> {
    record.data_name().map(|name| VolumeKind::Data.volume(name))
}

/// The sandboxes that use a volume, whether they run or not.
fn users(volume: &str, records: &[Record]) -> impl Iterator<Item = VolumeUser> {
    let uses = move |record: &&Record| {
        let caches = record.spec.caches.iter().map(|cache| VolumeKind::Cache.volume(&cache.name));
        own_name(record).into_iter().chain(caches).any(|name| name == volume)
    };
    let user = |record: &Record| VolumeUser { id: record.id.clone(), name: record.name.clone() };
    records.iter().filter(uses).map(user)
}
