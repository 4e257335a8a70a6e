//! Which projects' files may open up more than a sandbox has by itself.
//!
//! A sandbox can write to its workspace, and so to the settings in it: what a project's files ask for is allowed by the
//! user, for just the bytes that were there then. Each file that is trusted has an empty file of its name: the hash of
//! its path and content.

use crate::places::Places;
use kennel_config::{Grant, Loaded};
use kennel_core::{Error, Result, printable};
use kennel_types::ErrorCode;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Refuses what the project's files open up, unless the user has allowed it.
pub(crate) fn check(loaded: &Loaded, real: &dyn Fn(&Path) -> PathBuf) -> Result<()> {
    let grants = loaded.layered.grants(real);
    let files = files(&grants);
    if files.is_empty() {
        return Ok(());
    }
    let dir = Places::find()?.trusted();
    for file in &files {
        if !dir.join(mark(loaded, file)?).exists() {
            let asked: Vec<String> = grants.iter().map(describe).collect();
            let message = format!(
                "the project asks for more than a sandbox has by itself, and is not trusted:\n{}",
                asked.join("\n")
            );
            return Err(Error::new(ErrorCode::PermissionDenied, message).hint("read it, then: kennel config trust"));
        }
    }
    Ok(())
}

/// The files that open something up.
pub(crate) fn files(grants: &[Grant<'_>]) -> BTreeSet<PathBuf> {
    grants.iter().filter_map(|grant| grant.setting.origin.file()).map(Path::to_owned).collect()
}

/// A grant, for a person.
pub(crate) fn describe(grant: &Grant<'_>) -> String {
    let setting = grant.setting;
    let value = setting.written.as_str().map_or_else(|| setting.written.to_string(), ToOwned::to_owned);
    printable(&format!("{}: {} = {value}: {}", setting.origin.at, grant.key, grant.what))
}

/// Trusts a file as it was read, or no longer.
pub(crate) fn set(loaded: &Loaded, file: &Path, trusted: bool) -> Result<()> {
    let dir = Places::find()?.trusted();
    let mark = dir.join(mark(loaded, file)?);
    let done = if trusted {
        std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&mark, ""))
    } else {
        match std::fs::remove_file(&mark) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    };
    done.map_err(|error| Error::io(format!("write {}", mark.display()), error))
}

/// Of what was read, not of what may be there by now.
fn mark(loaded: &Loaded, file: &Path) -> Result<String> {
    let path = file.canonicalize().map_err(|error| Error::io(format!("find {}", file.display()), error))?;
    let content = loaded.texts.get(file).map(String::as_str).unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(path.as_os_str().as_bytes());
    hash.update([0]);
    hash.update(content);
    Ok(format!("{:x}", hash.finalize()))
}
