//! Trust in the settings files of projects. Only a trusted file may grant a sandbox more than it has by default.
//!
//! Processes in a sandbox can write to its workspace, and so to the settings in it and to the paths that these name.
//! Therefore the user trusts a file at its path with its exact content, and each grant with its resolved paths. If
//! anything of this changes, the user must trust the file again. Each trusted file has a record, whose name is the hash
//! of the file's path.
//!
//! This module uses neither the terminal nor the environment. The caller provides the directory of the records.

use kennel_config::{Grant, GrantedPath, Loaded};
use kennel_core::{Error, Result, printable};
use kennel_types::{ErrorCode, NextStep};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The trust records of the user.
pub struct Trust {
    dir: PathBuf,
}

/// The record of a trusted file: its content and grants at the time when the user trusted it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustRecord {
    /// The file's path, only for display. The name of the record identifies the file.
    file: String,
    /// The hash of the file's content.
    content: String,
    grants: Vec<Granted>,
}

/// A [`Grant`] on disk.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Granted {
    key: Vec<String>,
    what: String,
    /// The value in the user's own file at this key, which the grant overrides.
    over: Option<serde_json::Value>,
    paths: Vec<GrantedPath>,
}

impl Trust {
    /// Uses the records in `dir`, which need not exist.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Refuses the grants of the project's files, unless the user has trusted exactly these.
    pub fn check(&self, loaded: &Loaded, grants: &[Grant<'_>]) -> Result<()> {
        let mut records = BTreeMap::new();
        for file in files(grants) {
            let record = self.read(file)?.filter(|record| record.content == content(loaded, file));
            records.insert(file, record);
        }
        let refused = grants.iter().filter_map(|grant| {
            let record = grant.setting.origin.file().and_then(|file| records.get(file)?.as_ref());
            let Some(record) = record else { return Some(describe(grant)) };
            let now = Granted::from_grant(grant);
            let led_here = record.grants.iter().any(|granted| granted.key == now.key && granted.paths == now.paths);
            let since = if now.paths.is_empty() || led_here { "this was different" } else { "the path led elsewhere" };
            (!record.grants.contains(&now)).then(|| format!("{}; when the file was trusted {since}", describe(grant)))
        });
        let refused: Vec<String> = refused.collect();
        if refused.is_empty() {
            return Ok(());
        }
        let first =
            "the project's files request more access than a sandbox has by default, and are not trusted:".to_owned();
        let lines = std::iter::once(first).chain(refused);
        Err(Error::of_lines(ErrorCode::PermissionDenied, lines).suggest(NextStep::TrustProject))
    }

    /// Records that the user trusts the project's files as they were read, with their grants.
    pub fn allow(&self, loaded: &Loaded, grants: &[Grant<'_>]) -> Result<()> {
        for file in files(grants) {
            let of_file = grants.iter().filter(|grant| grant.setting.origin.file() == Some(file));
            let record = TrustRecord {
                file: file.to_string_lossy().into_owned(),
                content: content(loaded, file),
                grants: of_file.map(Granted::from_grant).collect(),
            };
            let path = self.record(file);
            let written = serde_json::to_vec_pretty(&record).map_err(std::io::Error::other);
            written
                .and_then(|bytes| self.write(&path, &bytes))
                .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
        }
        Ok(())
    }

    /// Revokes the trust in a file, whatever its content is now.
    pub fn revoke(&self, file: &Path) -> Result<()> {
        let record = self.record(file);
        match std::fs::remove_file(&record) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", record.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the record of a file. A record that cannot be parsed, for example of an earlier version, counts as
    /// missing.
    fn read(&self, file: &Path) -> Result<Option<TrustRecord>> {
        let record = self.record(file);
        match std::fs::read(&record) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("read {}", record.display()), error)),
        }
    }

    /// Replaces a record atomically.
    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        let partial = self.dir.join(format!(".partial-{}", std::process::id()));
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(bytes)?;
        std::fs::rename(&partial, path)
    }

    /// Returns the path of a file's record. Symlinks are not resolved: a symlink to a trusted file is not trusted.
    fn record(&self, file: &Path) -> PathBuf {
        self.dir.join(format!("{:x}.json", Sha256::digest(file.as_os_str().as_bytes())))
    }
}

impl Granted {
    fn from_grant(grant: &Grant<'_>) -> Self {
        Self {
            key: grant.key.segments().to_vec(),
            what: grant.what.to_owned(),
            over: grant.over.map(|setting| setting.value.clone()),
            paths: grant.paths.clone(),
        }
    }
}

/// Describes a grant to the user. A path that does not exist is left out, because its text may come from a variable.
pub fn describe(grant: &Grant<'_>) -> String {
    let shown = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let setting = grant.setting;
    let leads = grant.paths.iter().map(|path| match &path.resolved {
        Some(real) => real.display().to_string(),
        None => "a path that does not exist".to_owned(),
    });
    let leads: Vec<String> = leads.collect();
    let leads = if leads.is_empty() { String::new() } else { format!(" ({})", leads.join(", ")) };
    let over = grant.over.map(|over| format!("; your own settings say {}", shown(&over.written))).unwrap_or_default();
    let (at, key, value, what) = (&setting.origin.at, &grant.key, shown(&setting.written), grant.what);
    printable(&format!("{at}: {key} = {value}: {what}{leads}{over}"))
}

/// Returns the files that contain the grants.
fn files<'a>(grants: &'a [Grant<'_>]) -> BTreeSet<&'a Path> {
    grants.iter().filter_map(|grant| grant.setting.origin.file()).collect()
}

/// Returns the hash of a file's content as it was loaded. The file may have changed since.
fn content(loaded: &Loaded, file: &Path) -> String {
    let text = loaded.texts.get(file).map(String::as_str).unwrap_or_default();
    format!("{:x}", Sha256::digest(text))
}
