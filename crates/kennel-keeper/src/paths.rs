//! Paths given by the host, resolved inside. Links are followed as the sandbox would, `..` ends at its root, and magic
//! links (`/proc/self/fd/3`, `/proc/1/root`) are refused: they lead to what descriptors hold, not to what a path names.

use kennel_proto::{Failure, FailureKind};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path below the sandbox's root.
pub(crate) fn open(path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // openat2 refuses flags that a mere look at a path has no use for.
    let extra = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OFlags::CLOEXEC | OFlags::NOCTTY };
    let root = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // RESOLVE_IN_ROOT can ask to be called again when something was renamed meanwhile.
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&root, path, flags | extra, mode, RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 100 => tries += 1,
            other => return other,
        }
    }
}

/// Opens a regular file. Anything else is refused before it is opened: opening a device can have effects.
pub(crate) fn open_file(path: &[u8], flags: OFlags) -> Result<OwnedFd, Failure> {
    let look = open(path, OFlags::PATH, Mode::empty()).map_err(|error| failure(path, error))?;
    require_file(path, &look)?;
    let file = open(path, flags | OFlags::NONBLOCK, Mode::empty()).map_err(|error| failure(path, error))?;
    require_file(path, &file)?;
    Ok(file)
}

fn require_file(path: &[u8], fd: &OwnedFd) -> Result<(), Failure> {
    let stat = rustix::fs::fstat(fd).map_err(|error| failure(path, error))?;
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    Err(refused(path, &format!("it is {what}, not a file")))
}

/// The directory a path is in, opened, and the last name in it.
pub(crate) fn parent(path: &[u8]) -> Result<(OwnedFd, &[u8]), Failure> {
    let trimmed = path.trim_suffix_slashes();
    let (dir, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&trimmed[..=at], &trimmed[at + 1..]),
        None => (&b"/"[..], trimmed),
    };
    if name.is_empty() || name == b"." || name == b".." {
        return Err(refused(path, "it does not end in a name"));
    }
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(|error| failure(path, error))?;
    Ok((dir, name))
}

trait TrimSlashes {
    fn trim_suffix_slashes(&self) -> &Self;
}

impl TrimSlashes for [u8] {
    fn trim_suffix_slashes(&self) -> &Self {
        let end = self.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        &self[..end]
    }
}

/// A failure about a path.
pub(crate) fn failure(path: &[u8], error: Errno) -> Failure {
    let kind = match error {
        Errno::NOENT | Errno::NOTDIR => FailureKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureKind::Denied,
        Errno::EXIST | Errno::NOTEMPTY => FailureKind::Exists,
        Errno::LOOP | Errno::XDEV => FailureKind::Refused,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ISDIR | Errno::NXIO => FailureKind::Invalid,
        Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM => FailureKind::Limit,
        Errno::NOSYS => FailureKind::Unsupported,
        _ => FailureKind::Other,
    };
    let reason = if error == Errno::LOOP { "too many links, or a magic link".into() } else { reason(error) };
    Failure { kind, message: format!("{}: {reason}", String::from_utf8_lossy(path)) }
}

pub(crate) fn refused(path: &[u8], why: &str) -> Failure {
    Failure { kind: FailureKind::Refused, message: format!("{}: {why}", String::from_utf8_lossy(path)) }
}

/// What the kernel's error means, without its number.
pub(crate) fn reason(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
