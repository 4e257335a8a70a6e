//! Resolves paths from the host inside the sandbox. Symlinks are followed as the sandbox would follow them, and `..`
//! ends at its root. Magic links (`/proc/self/fd/3`, `/proc/1/root`) are refused, because they refer to open files and
//! not to paths.

use kennel_proto::{Failure, FailureKind, Limit};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path below the sandbox's root.
pub(crate) fn open(path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // openat2 refuses flags that have no effect together with O_PATH.
    let extra = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OFlags::CLOEXEC | OFlags::NOCTTY };
    let root = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // RESOLVE_IN_ROOT can fail with EAGAIN if something was renamed meanwhile.
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&root, path, flags | extra, mode, RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 100 => tries += 1,
            other => return other,
        }
    }
}

/// Opens a regular file. Anything else is refused before it is opened, because opening a device can have side effects.
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
    Err(refused(path, &format!("it is {what}, not a regular file")))
}

/// Opens the parent directory of a path, and returns it with the last component.
pub(crate) fn parent(path: &[u8]) -> Result<(OwnedFd, &[u8]), Failure> {
    let trimmed = path.trim_suffix_slashes();
    let (dir, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&trimmed[..=at], &trimmed[at + 1..]),
        None => (&b"/"[..], trimmed),
    };
    if name.is_empty() || name == b"." || name == b".." {
        return Err(refused(path, "it does not end in a file name"));
    }
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(|error| failure(path, error))?;
    Ok((dir, name))
}

/// Opens the proc filesystem. The names of open files in it refer to these files, whatever happens to their paths.
pub(crate) fn proc() -> Result<OwnedFd, Failure> {
    let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failure(b"/proc", error))?;
    if !rustix::fs::fstatfs(&proc).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC) {
        return Err(refused(b"/proc", "it is not a proc filesystem"));
    }
    Ok(proc)
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

/// Creates the failure for a path.
pub(crate) fn failure(path: &[u8], error: Errno) -> Failure {
    if let Some(limit) = limit(error) {
        return Failure::limit(limit, format!("{}: {}", String::from_utf8_lossy(path), reason(error)));
    }
    let kind = match error {
        Errno::NOENT | Errno::NOTDIR => FailureKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureKind::Denied,
        Errno::EXIST | Errno::NOTEMPTY => FailureKind::Exists,
        Errno::LOOP | Errno::XDEV => FailureKind::Refused,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ISDIR | Errno::NXIO => FailureKind::Invalid,
        Errno::NOSYS => FailureKind::Unsupported,
        _ => FailureKind::Other,
    };
    let reason = if error == Errno::LOOP { "too many symlinks, or a magic link".into() } else { reason(error) };
    Failure::new(kind, format!("{}: {reason}", String::from_utf8_lossy(path)))
}

/// The limit that a kernel error reports, if it reports one.
pub(crate) fn limit(error: Errno) -> Option<Limit> {
    match error {
        Errno::MFILE | Errno::NFILE => Some(Limit::Number),
        Errno::NOSPC | Errno::DQUOT => Some(Limit::Disk),
        Errno::FBIG => Some(Limit::Size),
        Errno::NOMEM => Some(Limit::Memory),
        _ => None,
    }
}

pub(crate) fn refused(path: &[u8], why: &str) -> Failure {
    Failure::new(FailureKind::Refused, format!("{}: {why}", String::from_utf8_lossy(path)))
}

/// The text of a kernel error, without its number.
pub(crate) fn reason(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
