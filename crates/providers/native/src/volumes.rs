//! Volumes: directories that outlive sandboxes. One belongs to a single sandbox, others are shared.

use crate::clear;
use crate::range::{IDS, SHARED};
use crate::rights::Maker;
use kennel_core::{Error, Result};
use kennel_jail::{Bind, Ids, Owners, Rights};
use kennel_provider::Record;
use kennel_types::{ErrorCode, NextStep, SandboxSpec};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The path of a sandbox's own volume inside.
pub(crate) const DATA: &str = "/.data";

/// All volumes of this user's sandboxes. Nobody else can access their directory.
#[derive(Clone, Debug)]
pub(crate) struct Volumes {
    root: PathBuf,
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
        let spec = &record.spec;
        let own = spec.data.then(|| (own_name(record), DATA.to_owned()));
        let shared = spec.caches.iter().map(|cache| (format!("cache-{}", cache.name), cache.target.clone()));
        // On disk they have the same ids for all sandboxes, which each have other ids.
        let owners = match (maker.rights, record.first_id) {
            (Rights::Root, Some(first)) => Owners::As(Ids::range(SHARED, first, IDS)),
            _ => Owners::Kept,
        };
        let bind = |(name, target): (String, String)| {
            let dir = self.root.join(&name);
            self.make(&dir, maker, user).map_err(|error| Error::io(format!("make {}", dir.display()), error))?;
            Ok(Bind {
                host: dir.as_os_str().as_bytes().to_vec().into(),
                target: target.into_bytes().into(),
                read_only: false,
                owners: owners.clone(),
                hide: Vec::new(),
                pins: Vec::new(),
            })
        };
        own.into_iter().chain(shared).map(bind).collect()
    }

    fn make(&self, dir: &Path, maker: &Maker, user: u32) -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        match fs::create_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
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

    /// Removes a sandbox's own volume, unless another sandbox uses it.
    pub(crate) fn remove_own(&self, record: &Record, others: &[Record], maker: &Maker, programs: &Path) -> Result<()> {
        if !record.spec.data {
            return Ok(());
        }
        let name = own_name(record);
        let shares = |other: &&Record| other.id != record.id && other.spec.data && own_name(other) == name;
        if let Some(other) = others.iter().find(shares) {
            let message = format!("the volume of {} is also that of {}", record.name, other.name);
            let step = NextStep::RemoveSandbox { name: other.name.clone(), force: false, volumes: true };
            return Err(Error::new(ErrorCode::Conflict, message).suggest(step));
        }
        match clear::remove(&self.root.join(&name), programs, &maker.ids) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove the volume of {}", record.name), error))
            }
            _ => Ok(()),
        }
    }
}

/// A sandbox with a name finds its volume again by the name.
fn own_name(record: &Record) -> String {
    let SandboxSpec { name, .. } = &record.spec;
    format!("data-{}", name.as_deref().unwrap_or(record.id.as_str()))
}
