//! Host id ranges for sandboxes of root: each sandbox has its own.
//!
//! A range is claimed by a file in a directory that all of root's state directories on this machine share. The file is
//! locked while its sandbox is being created, and then contains the path of the sandbox's directory. A claim is free if
//! its file is not locked and its directory does not exist. So a crash does not block a range permanently.
//! `kennel run` leaves its file for the next sandbox to take over: creating and removing it takes the disk longer than all
//! else that claiming does. `kennel gc` removes such files.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, LimitReason, NextStep};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The number of ids of a sandbox.
pub(crate) const IDS: u32 = 65_536;
/// The first id of sandboxes that were created before each had its own range, and of files in volumes.
pub(crate) const SHARED: u32 = 100_000;

/// The zone of the ranges: above the ids that `useradd` (up to 600100000), systemd (up to 1879048191) and directory
/// services (SSSD and FreeIPA, up to 2000200000) assign, and below those that systemd reserves for foreign images (from
/// 2147352576).
const ZONE: Range<u32> = 0x7739_0000..0x7ffe_0000;
/// The number of ranges that are tried first. It is small, so that few files are created.
const FIRST_LOOK: u32 = 16;
/// How many ranges are tried before giving up.
const TRIES: u32 = 4096;

/// The directory of claims.
pub(crate) const CLAIMS: &str = "/var/lib/kennel/ids";

/// The claims on ranges.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    dir: PathBuf,
}

/// A range that is being assigned to a sandbox. It is released if that never happens.
#[derive(Debug)]
pub(crate) struct Claim {
    first: u32,
    path: PathBuf,
    file: File,
    given: bool,
}

impl Claims {
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Claims a range that no sandbox and no user or group of this machine uses.
    pub(crate) fn take(&self) -> Result<Claim> {
        let taken = Taken::read();
        let random = RandomState::new();
        for attempt in 0..TRIES {
            let look = FIRST_LOOK.checked_shl(attempt / 2).unwrap_or(u32::MAX).clamp(FIRST_LOOK, RANGES);
            let first = ZONE.start + (random.hash_one(attempt) % u64::from(look)) as u32 * IDS;
            if taken.overlaps(&(first..first + IDS)) {
                continue;
            }
            if let Some(claim) = self.try_take(first, None)? {
                return Ok(claim);
            }
        }
        let message = format!("no range of {IDS} user ids between {} and {} is free", ZONE.start, ZONE.end);
        Err(Error::limit(LimitReason::Exhausted, message).suggest(NextStep::CollectGarbage))
    }

    /// Checks that a range still belongs to the sandbox in this directory, before it is started again.
    pub(crate) fn check(&self, first: u32, dir: &Path) -> Result<()> {
        let path = self.path(first);
        if std::fs::read(&path).is_ok_and(|text| owner(&text).is_some_and(|owner| owner == dir)) {
            return Ok(());
        }
        if let Some(claim) = self.try_take(first, Some(dir))? {
            return claim.give_to(dir);
        }
        let message = format!("the user ids from {first} belong to another sandbox: see {}", path.display());
        Err(Error::new(ErrorCode::Conflict, message).advise("remove one of the two sandboxes"))
    }

    /// Takes over the claim of another process on a range, with its lock: what [`Claim::into_lock`] returned there.
    pub(crate) fn take_over(&self, first: u32, lock: OwnedFd) -> Result<Claim> {
        let (path, file) = (self.path(first), File::from(lock));
        let failed = |error| Error::io(format!("claim user ids with {}", path.display()), error);
        let (mine, there) = (file.metadata().map_err(failed)?, path.symlink_metadata().map_err(failed)?);
        if (mine.dev(), mine.ino()) != (there.dev(), there.ino()) {
            return Err(failed(std::io::Error::other("another process has claimed them")));
        }
        Ok(Claim { first, path, file, given: false })
    }

    /// Releases a range, if it belongs to the sandbox in this directory.
    pub(crate) fn free(&self, first: u32, dir: &Path) {
        if let Ok(Some(claim)) = self.try_take(first, Some(dir)) {
            drop(claim);
        }
    }

    /// Removes the claims of sandboxes that are gone. They are no leftovers: the next sandbox would reuse them.
    pub(crate) fn sweep(&self) {
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if let Some(first) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                drop(self.try_take(first, None));
            }
        }
    }

    pub(crate) fn path(&self, first: u32) -> PathBuf {
        self.dir.join(first.to_string())
    }

    /// Claims one range, unless it belongs to a sandbox other than `own`.
    fn try_take(&self, first: u32, own: Option<&Path>) -> Result<Option<Claim>> {
        let path = self.path(first);
        let failed = |error| Error::io(format!("claim user ids with {}", path.display()), error);
        loop {
            let file = self.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The previous owner has removed the file meanwhile. There may be a new one.
            if file.metadata().map_err(failed)?.nlink() == 0 {
                continue;
            }
            let mut claim = Claim { first, path, file, given: true };
            let mut text = Vec::new();
            claim.file.read_to_end(&mut text).map_err(|error| Error::io("read a claim on user ids", error))?;
            let is_free = owner(&text).is_none_or(|owner| Some(owner) == own || !owner.exists());
            claim.given = !is_free;
            return Ok(is_free.then_some(claim));
        }
    }

    fn open(&self, path: &Path) -> std::io::Result<File> {
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
                open()
            }
            opened => opened,
        }
    }
}

impl Claim {
    /// The first id of the range.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the lock, which another process can take over. The claim ends when the lock is closed, unless a sandbox has
    /// the range by then.
    pub(crate) fn into_lock(mut self) -> Result<OwnedFd> {
        // Both descriptors are the same lock.
        let lock = self.file.try_clone();
        let lock = lock.map_err(|error| Error::io(format!("pass on {}", self.path.display()), error))?;
        self.given = true;
        Ok(lock.into())
    }

    /// Assigns the range to a sandbox, as long as its directory exists.
    pub(crate) fn give_to(mut self, dir: &Path) -> Result<()> {
        // Overwrite the old content. Some filesystems would wait for the disk if the file were truncated.
        let text = [dir.as_os_str().as_bytes(), b"\0"].concat();
        self.file.write_all_at(&text, 0).map_err(|error| Error::io(format!("write {}", self.path.display()), error))?;
        self.given = true;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.given {
            // The file is still locked, so nobody can have claimed it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the directory in a claim, up to a zero byte. An incomplete claim has none.
fn owner(text: &[u8]) -> Option<&Path> {
    let end = text.iter().position(|byte| *byte == 0)?;
    Some(Path::new(OsStr::from_bytes(&text[..end])))
}

/// The number of ranges.
const RANGES: u32 = (ZONE.end - ZONE.start) / IDS;

/// Whether the ranges can be used here. They cannot in a container with fewer ids.
pub(crate) fn are_mapped() -> bool {
    // The host's initial user namespace has all ids, and always this number.
    const HOST: &str = "user:[4026531837]";
    if std::fs::read_link("/proc/self/ns/user").is_ok_and(|namespace| namespace == Path::new(HOST)) {
        return true;
    }
    let covers = |path: &str| std::fs::read_to_string(path).is_ok_and(|map| covers(&map, &ZONE));
    covers("/proc/self/uid_map") && covers("/proc/self/gid_map")
}

fn covers(map: &str, zone: &Range<u32>) -> bool {
    map.lines().any(|line| {
        let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let [first, _, count] = fields[..] else { return false };
        first <= u64::from(zone.start) && u64::from(zone.end) <= first + count
    })
}

/// Ids of users and groups, and subordinate ids.
struct Taken(Vec<Range<u64>>);

impl Taken {
    /// Reads them from the files of this machine. Directory services are not queried, because that takes long and none
    /// lists all its ids.
    fn read() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let given = ["/etc/subuid", "/etc/subgid"].map(read);
        let accounts = ["/etc/passwd", "/etc/group"].map(read);
        Self::parse(given.iter().map(|text| &**text), accounts.iter().map(|text| &**text))
    }

    fn parse<'a>(given: impl Iterator<Item = &'a str>, accounts: impl Iterator<Item = &'a str>) -> Self {
        let number = |line: &str, field| line.split(':').nth(field).and_then(|text| text.trim().parse::<u64>().ok());
        let given = given.flat_map(str::lines).filter_map(|line| {
            let (first, count) = (number(line, 1)?, number(line, 2)?);
            Some(first..first.saturating_add(count))
        });
        let accounts = accounts.flat_map(str::lines).filter_map(|line| number(line, 2).map(|id| id..id + 1));
        Self(given.chain(accounts).collect())
    }

    fn overlaps(&self, range: &Range<u32>) -> bool {
        self.0.iter().any(|taken| taken.start < u64::from(range.end) && u64::from(range.start) < taken.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_belongs_to_one_sandbox_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::new(dir.path().join("ids"));
        let sandboxes: Vec<PathBuf> = (0..40).map(|number| dir.path().join(format!("box{number}"))).collect();
        let mut firsts = Vec::new();
        for sandbox in &sandboxes {
            let claim = claims.take().unwrap();
            firsts.push(claim.first());
            std::fs::create_dir(sandbox).unwrap();
            claim.give_to(sandbox).unwrap();
        }
        let mut distinct = firsts.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), sandboxes.len(), "no two have the same");
        claims.check(firsts[0], &sandboxes[0]).unwrap();
        assert_eq!(claims.check(firsts[0], &sandboxes[1]).unwrap_err().code(), ErrorCode::Conflict);
        std::fs::remove_dir(&sandboxes[0]).unwrap();
        claims.check(firsts[0], &sandboxes[1]).unwrap();
        claims.free(firsts[0], &sandboxes[2]);
        assert!(claims.path(firsts[0]).exists(), "another's is not given back");
        for (first, sandbox) in firsts.iter().zip(&sandboxes).skip(2) {
            claims.free(*first, sandbox);
        }
        claims.free(firsts[0], &sandboxes[1]);
        std::fs::remove_dir(&sandboxes[1]).unwrap();
        claims.sweep();
        assert_eq!(std::fs::read_dir(dir.path().join("ids")).unwrap().count(), 0);
    }

    #[test]
    fn claims_are_exclusive_between_threads() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::new(dir.path());
        let taking = || claims.take().unwrap();
        let held: Vec<Claim> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| [(); 8].map(|()| taking()))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut firsts: Vec<u32> = held.iter().map(Claim::first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), held.len());
        claims.sweep();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), held.len());
        drop(held);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what is given to nobody is free");
    }

    #[test]
    fn a_claim_is_passed_on_with_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::new(dir.path().join("ids"));
        let claim = claims.take().unwrap();
        let first = claim.first();
        let lock = claim.into_lock().unwrap();
        assert!(claims.try_take(first, None).unwrap().is_none(), "it is still claimed");
        let claim = claims.take_over(first, lock).unwrap();
        assert!(claims.try_take(first, None).unwrap().is_none(), "it is still claimed");
        let lock = claim.into_lock().unwrap();
        std::fs::remove_file(claims.path(first)).unwrap();
        std::fs::write(claims.path(first), "").unwrap();
        assert!(claims.take_over(first, lock).is_err(), "this lock excludes nobody");
        assert!(claims.try_take(first, None).unwrap().is_some());
    }

    #[test]
    fn ids_of_users_and_subordinate_ranges_are_not_used() {
        let taken = Taken::parse(
            ["ann:100000:65536\nbroken\nbob:2000224256:1\n"].into_iter(),
            ["root:x:0:0:root:/root:/bin/sh\neve:x:2000300000:100::/:/bin/sh\n"].into_iter(),
        );
        assert!(taken.overlaps(&(SHARED..SHARED + IDS)));
        assert!(taken.overlaps(&(ZONE.start..ZONE.start + IDS)));
        assert!(taken.overlaps(&(ZONE.start + IDS..ZONE.start + 2 * IDS)));
        assert!(!taken.overlaps(&(ZONE.start + 2 * IDS..ZONE.start + 3 * IDS)));
        assert_eq!(ZONE.start % IDS, 0);
    }

    #[test]
    fn a_container_may_have_too_few_ids() {
        assert!(covers("         0          0 4294967295\n", &ZONE));
        assert!(!covers("0 1000000 1000000000\n", &ZONE));
        assert!(!covers("0 1000 1\n1 100000 65536\n", &ZONE));
    }
}
