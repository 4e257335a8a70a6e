//! Removes what sandboxes have left behind, and measures what they wrote.

use kennel_core::Sweep;
use kennel_jail::{CLEAR, Clear, Ids, MEASURE, disk_usage, open_work_dirs};
use kennel_keeper_bin::JAIL;
use kennel_types::Leftover;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// How long a program of another version is kept: other processes may still be starting it.
const OLD: Duration = Duration::from_hours(24);

/// Removes a sandbox's directory. In the sandbox of an ordinary user, it may contain files of ids that exist only
/// inside, or inaccessible directories. Then the jail removes it with those ids.
pub(crate) fn remove(dir: &Path, programs: &Path, ids: &Ids) -> Result<()> {
    open_work_dirs(dir);
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        done => return done,
    }
    let answer = ask_jail(CLEAR, dir, programs, ids)?;
    if answer == "ok" { Ok(()) } else { Err(Error::other(answer)) }
}

/// Returns the bytes that a directory occupies on disk. What an ordinary user cannot read is measured by the jail, with
/// the ids of the files.
pub(crate) fn measure(dir: &Path, programs: &Path, ids: &Ids) -> Result<u64> {
    match disk_usage(dir) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let answer = ask_jail(MEASURE, dir, programs, ids)?;
            answer.parse().map_err(|_| Error::other(answer))
        }
        done => done,
    }
}

/// Runs the jail on a directory, with these ids, and returns its reply.
fn ask_jail(request: &str, dir: &Path, programs: &Path, ids: &Ids) -> Result<String> {
    let dir = dir.to_str().ok_or_else(|| Error::other("the path is not valid UTF-8"))?.to_owned();
    let clear = minicbor::to_vec(Clear { dir, ids: ids.clone() }).map_err(Error::other)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut jail = Command::new(JAIL.install(programs)?);
    jail.arg(request).env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = jail.spawn()?;
    // The jail's own copy of the socket must be the only one.
    drop(jail);
    let mut answer = Vec::new();
    let length = u32::try_from(clear.len()).map_err(Error::other)?;
    let told = ours
        .write_all(&length.to_le_bytes())
        .and_then(|()| ours.write_all(&clear))
        .and_then(|()| ours.read_to_end(&mut answer).map(drop));
    running.wait()?;
    told?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Finds programs of other versions that were not used for long, and removes or only reports them.
pub(crate) fn old_programs(programs: &Path, current: &Path, action: Sweep) -> Vec<Leftover> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(programs).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with("kennel-"));
        let old = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age > OLD));
        let path = entry.path();
        if ours && old && path != current && (action == Sweep::Report || std::fs::remove_file(&path).is_ok()) {
            removed.push(Leftover::Program { path });
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_programs_of_kennel_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, age: u64| {
            let path = dir.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            path
        };
        let (old, current) = (make("kennel-jail-1", 100_000), make("kennel-jail-2", 100_000));
        let (fresh, other) = (make("kennel-jail-3", 10), make("notes.txt", 100_000));
        for action in [Sweep::Report, Sweep::Remove] {
            assert!(old.exists(), "a report removes nothing");
            assert_eq!(old_programs(dir.path(), &current, action), [Leftover::Program { path: old.clone() }]);
        }
        assert!(!old.exists() && current.exists() && fresh.exists() && other.exists());
    }
}
