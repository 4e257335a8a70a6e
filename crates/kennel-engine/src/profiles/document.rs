//! The file of a profile. It contains the profile's settings, and below `state` what is known about its sandbox. It is
//! replaced atomically.

use crate::settings::invalid;
use crate::{Failpoints, lock_file};
use kennel_config::{Environment, SandboxOverrides};
use kennel_core::{Error, Result};
use kennel_types::{ProviderKind, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The key of [`ProfileState`] in the file.
const STATE: &str = "state";
/// The end of the name of a file that is locked.
const LOCK: &str = ".lock";

/// The content of a profile's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileDocument {
    /// The profile's settings. `None` if the file only has the state of a profile that the settings define.
    pub overrides: Option<SandboxOverrides>,
    /// The settings as they are written, with variables that are not expanded.
    pub written: Option<Value>,
    /// What is known about its sandbox.
    pub state: ProfileState,
}

/// What is known about the sandbox of a profile. The provider is the truth about whether it exists and runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileState {
    /// The provider, which is chosen at the first start and kept.
    #[serde(skip_serializing_if = "Option::is_none", with = "provider")]
    pub provider: Option<ProviderKind>,
    /// The id of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The workspace of a profile that the settings define without one, which is chosen at the first start and kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// The hash of the specification with which the sandbox was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The id that the image had when the sandbox was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whether only the settings define the profile, so that the file has nothing but this state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_settings: bool,
}

impl ProfileDocument {
    /// Whether the file defines the profile, or changes what the settings say.
    pub(super) fn is_defined(&self) -> bool {
        self.overrides.is_some() && !self.state.of_settings
    }

    /// Replaces the profile's settings.
    pub(super) fn set(&mut self, overrides: SandboxOverrides) {
        (self.overrides, self.written) = (Some(overrides), None);
        self.state.of_settings = false;
    }

    /// Whether the file refers to variables of the environment.
    pub(super) fn has_variables(&self) -> bool {
        // Two dollars are a dollar that is no variable.
        self.written.as_ref().is_some_and(|written| written.to_string().replace("$$", "").contains("${"))
    }

    /// Returns the settings as text, without the state.
    pub(super) fn to_text(&self, name: &str) -> String {
        match &self.written {
            Some(written) => format!("{written:#}\n"),
            None => to_text(name, &self.overrides.clone().unwrap_or_default()),
        }
    }
}

mod provider {
    use kennel_types::ProviderKind;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, clippy::ref_option, reason = "serde calls it this way")]
    pub(super) fn serialize<S: Serializer>(kind: &Option<ProviderKind>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(kind.map_or("", ProviderKind::name))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ProviderKind>, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = ProviderKind::ALL.into_iter().find(|kind| kind.name() == name);
        known.map(Some).ok_or_else(|| de::Error::custom(format!("unknown provider {name:?}")))
    }
}

/// Returns the path of a profile's file.
pub(super) fn path(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.json"))
}

/// Returns the path of the file that becomes the profile's file when it is complete.
fn partial_path(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!(".{key}.partial"))
}

/// Returns the names of the profiles that have a file of their own and belong to no project.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(format!("list the profiles in {}", dir.display()), error);
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
        if super::check_name(name).is_ok() && !is_of_settings(&path(dir, name)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Whether the file has only the state of a profile that the settings define.
fn is_of_settings(path: &Path) -> bool {
    let value: Option<Value> = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    value.is_some_and(|value| value[STATE]["ofSettings"] == json!(true))
}

/// Reads the file of a profile. Returns `None` if there is none.
pub(super) fn read(dir: &Path, key: &str, environment: &Environment) -> Result<Option<ProfileDocument>> {
    let path = path(dir, key);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("read the profile {}", path.display()), error)),
    };
    let overrides = parse(&text, &path, environment)?;
    let mut value: Value = serde_json::from_str(&text).unwrap_or_default();
    // The state consists of hints. State that cannot be read is found out again.
    let state = value.as_object_mut().and_then(|entries| entries.remove(STATE));
    let state: ProfileState = state.and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default();
    let defined = !state.of_settings;
    Ok(Some(ProfileDocument { overrides: defined.then_some(overrides), written: defined.then_some(value), state }))
}

/// Checks the text of a profile.
pub(super) fn parse(text: &str, path: &Path, environment: &Environment) -> Result<SandboxOverrides> {
    kennel_config::check_profile(text, path, STATE, environment).map_err(|error| invalid(&error))
}

/// Returns the settings of a profile as text.
fn to_text(name: &str, overrides: &SandboxOverrides) -> String {
    let mut value = json!({ "name": name });
    if let (Ok(Value::Object(settings)), Value::Object(entries)) = (serde_json::to_value(overrides), &mut value) {
        entries.extend(settings.into_iter().map(|(key, value)| (key, escape(value))));
    }
    format!("{value:#}\n")
}

/// Escapes `$` in texts, because `${VAR}` is expanded when the file is read.
fn escape(value: Value) -> Value {
    match value {
        Value::String(text) => text.replace('$', "$$").into(),
        Value::Array(items) => items.into_iter().map(escape).collect(),
        Value::Object(entries) => entries.into_iter().map(|(key, value)| (key, escape(value))).collect(),
        other => other,
    }
}

/// Writes the file of a profile. It is readable only for its user, because it may contain secrets.
pub(super) fn write(
    dir: &Path,
    key: &str,
    name: &str,
    document: &ProfileDocument,
    failpoints: &Failpoints,
) -> Result<()> {
    let path = path(dir, key);
    let mut value: Value = serde_json::from_str(&document.to_text(name)).unwrap_or_default();
    let state = ProfileState { of_settings: document.overrides.is_none(), ..document.state.clone() };
    if state != ProfileState::default() {
        value[STATE] = serde_json::to_value(state).unwrap_or_default();
    }
    let partial = partial_path(dir, key);
    let written = lock_file::create_dir(dir).and_then(|()| {
        let _ = std::fs::remove_file(&partial);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(format!("{value:#}\n").as_bytes())?;
        file.sync_all()?;
        failpoints.reach("profile: before rename");
        std::fs::rename(&partial, &path)
    });
    written.map_err(|error| {
        let _ = std::fs::remove_file(&partial);
        Error::io(format!("write the profile {}", path.display()), error)
    })
}

/// Removes the file of a profile. It is no error if there is none.
pub(super) fn remove(dir: &Path, key: &str) -> Result<()> {
    // A process that was killed while it wrote has left a partial file, which may contain secrets. It is removed first:
    // once the profile's file is gone, nothing would remove it.
    for path in [partial_path(dir, key), path(dir, key)] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("remove the profile {}", path.display()), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The lock of one profile. It orders the processes that change the profile or its sandbox.
pub(super) struct Lock {
    /// The file that is locked.
    path: PathBuf,
    /// The file of the profile.
    profile: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A profile that was deleted needs no lock. The file is removed while the lock is held.
        if matches!(self.profile.try_exists(), Ok(false)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Waits for the lock of a profile.
pub(super) async fn lock(dir: &Path, key: &str) -> Result<Lock> {
    let lock = lock_path(dir, key);
    let failed = |error| Error::io(format!("lock {}", lock.display()), error);
    lock_file::create_dir(dir).map_err(failed)?;
    loop {
        let mut file = lock_file::open(&lock).map_err(failed)?;
        if !lock_file::try_lock(&file).map_err(failed)? {
            // Another process may hold it for seconds, so the wait must not block this thread.
            let waiting = tokio::task::spawn_blocking(move || lock_file::lock(&file).map(|()| file));
            let locked = waiting.await.map_err(|_| Error::new(kennel_types::ErrorCode::Aborted, "the program ends"))?;
            file = locked.map_err(failed)?;
        }
        if lock_file::is_current(&file, &lock).map_err(failed)? {
            return Ok(Lock { path: lock, profile: path(dir, key), _file: file });
        }
    }
}

/// Removes the locks of deleted profiles whose process was killed before it could remove them.
pub(super) fn sweep_locks(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let key = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(LOCK));
        let Some(key) = key.filter(|key| matches!(path(dir, key).try_exists(), Ok(false))) else { continue };
        let lock = lock_path(dir, key);
        let Ok(file) = lock_file::open(&lock) else { continue };
        if matches!((lock_file::try_lock(&file), lock_file::is_current(&file, &lock)), (Ok(true), Ok(true))) {
            // It is removed when it is dropped, unless the profile was created meanwhile.
            drop(Lock { path: lock, profile: path(dir, key), _file: file });
        }
    }
}

fn lock_path(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!(".{key}{LOCK}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> Vec<String> {
        let mut files: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn the_lock_file_is_removed_with_its_profile() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(path(dir.path(), "dev"), "{}").unwrap();
        drop(lock(dir.path(), "dev").await.unwrap());
        assert_eq!(files(dir.path()), [".dev.lock", "dev.json"]);
        let held = lock(dir.path(), "dev").await.unwrap();
        std::fs::remove_file(path(dir.path(), "dev")).unwrap();
        drop(held);
        assert_eq!(files(dir.path()), [""; 0]);

        std::fs::write(lock_path(dir.path(), "killed"), "").unwrap();
        std::fs::write(lock_path(dir.path(), "kept"), "").unwrap();
        std::fs::write(path(dir.path(), "kept"), "{}").unwrap();
        let held = lock(dir.path(), "new").await.unwrap();
        sweep_locks(dir.path());
        assert_eq!(files(dir.path()), [".kept.lock", ".new.lock", "kept.json"], "one that is held stays");
        drop(held);
    }

    #[test]
    fn a_lock_file_that_is_removed_and_recreated_stays_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    for _ in 0..100 {
                        // The profile does not exist, so each holder removes the file.
                        let held = runtime.block_on(lock(dir.path(), "dev")).unwrap();
                        assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(files(dir.path()), [""; 0]);
    }
}
