//! Carries out one system call for a command, without the set-user-id and set-group-id bits that it requests.
//!
//! A fork of the keeper does this, because the call may block and must not have more rights than the command. The
//! kernel checks it with the caller's user, groups, capabilities, root, working directory and umask, and the caller
//! gets the result. Everything is read from the caller once and then held by descriptors, so nothing can be swapped in
//! between. Directories keep their bits.

use crate::filter::{self, Call};
use crate::sys;
use crate::sys::seccomp::{self, Notice};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
const LONGEST_PATH: usize = 4096;
/// The flags of `open` that the kernel knows.
const KNOWN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;

/// The result of the call.
enum Done {
    Nothing,
    Opened { fd: OwnedFd, close_on_exec: bool },
}

/// Carries out the call and replies to it. Called in a new fork of the keeper; never returns. If the caller has
/// restricted itself with Landlock (`fenced`), nothing is opened or created for it, because this process does not have
/// the same restrictions.
pub(crate) fn run(listener: &OwnedFd, notice: &Notice, fenced: bool) -> ! {
    sys::close_all_but(&[listener.as_raw_fd()]);
    let result = carry_out(listener, notice, fenced).and_then(|done| match done {
        Done::Nothing => {
            seccomp::answer(listener, notice.id, Ok(()));
            Ok(())
        }
        Done::Opened { fd, close_on_exec } => seccomp::answer_with(listener, notice.id, &fd, close_on_exec),
    });
    if let Err(error) = result {
        seccomp::answer(listener, notice.id, Err(error));
    }
    sys::exit_now(0)
}

fn carry_out(listener: &OwnedFd, notice: &Notice, fenced: bool) -> Result<Done, Errno> {
    let [first, second, third, fourth, ..] = notice.arguments;
    let (here, bits) = (libc::AT_FDCWD as u64, |mode: u64| mode as u32 & 0o7777);
    let proc = rustix::fs::open("/proc", LOOK | OFlags::DIRECTORY, Mode::empty())?;
    let caller = Caller::find(listener, notice, proc)?;
    let call = filter::call(notice.architecture, notice.number).ok_or(Errno::NOSYS)?;
    if fenced && !matches!(call, Call::Chmod | Call::Fchmod | Call::Fchmodat | Call::Fchmodat2) {
        return Err(Errno::ACCESS);
    }
    match call {
        Call::Chmod => caller.chmod(here, first, bits(second), 0),
        Call::Fchmodat => caller.chmod(first, second, bits(third), 0),
        Call::Fchmodat2 => caller.chmod(first, second, bits(third), fourth as u32),
        Call::Fchmod => caller.fchmod(first as i32, bits(second)),
        Call::Open => caller.open(here, first, second as i32, bits(third)),
        Call::Openat => caller.open(first, second, third as i32, bits(fourth)),
        Call::Creat => caller.open(here, first, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, bits(second)),
        Call::Mknod => caller.mknod(here, first, second as u32, third),
        Call::Mknodat => caller.mknod(first, second, third as u32, fourth),
        _ => Err(Errno::NOSYS),
    }
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Looks up a path without following magic links such as `/proc/self/fd/3`, which would refer to descriptors of this
/// process.
fn look_up(base: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    rustix::io::retry_on_intr(|| rustix::fs::openat2(base, path, flags, mode, ResolveFlags::NO_MAGICLINKS))
}

/// The thread that makes the call.
struct Caller {
    /// The keeper's own `/proc`.
    proc: OwnedFd,
    /// The thread's directory in `/proc`. It stays valid for this thread only, even if its id is reused.
    dir: OwnedFd,
    /// The id of its process.
    process: u32,
    user: u32,
    group: u32,
    groups: Vec<u32>,
    capabilities: u64,
    umask: u32,
}

impl Caller {
    fn find(listener: &OwnedFd, notice: &Notice, proc: OwnedFd) -> Result<Self, Errno> {
        let dir = rustix::fs::openat(&proc, notice.pid.to_string(), LOOK | OFlags::DIRECTORY, Mode::empty())?;
        if !seccomp::is_valid(listener, notice.id) {
            return Err(Errno::SRCH);
        }
        let status = String::from_utf8_lossy(&read(&dir, "status")?).into_owned();
        let line = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.map(str::trim).ok_or(Errno::IO)
        };
        let numbers = |name: &str| -> Result<Vec<u32>, Errno> {
            line(name)?.split_whitespace().map(|id| id.parse().map_err(|_| Errno::IO)).collect()
        };
        // The four ids: real, effective, saved, filesystem.
        let for_files = |name: &str| numbers(name)?.get(3).copied().ok_or(Errno::IO);
        let capabilities = u64::from_str_radix(line("CapEff")?, 16).map_err(|_| Errno::IO)?;
        // Capabilities in another user namespace have no meaning in this one.
        let namespace = |of: BorrowedFd<'_>, path: &str| {
            rustix::fs::statat(of, path, AtFlags::empty()).map(|stat| (stat.st_dev, stat.st_ino))
        };
        let same = namespace(dir.as_fd(), "ns/user")? == namespace(proc.as_fd(), "self/ns/user")?;
        Ok(Self {
            process: numbers("Tgid")?.first().copied().ok_or(Errno::IO)?,
            user: for_files("Uid")?,
            group: for_files("Gid")?,
            groups: numbers("Groups")?,
            capabilities: if same { capabilities } else { 0 },
            umask: u32::from_str_radix(line("Umask")?, 8).map_err(|_| Errno::IO)?,
            proc,
            dir,
        })
    }

    fn chmod(&self, at: u64, path: u64, mode: u32, flags: u32) -> Result<Done, Errno> {
        let flags = AtFlags::from_bits_retain(flags);
        if flags.bits() & !(AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH).bits() != 0 {
            return Err(Errno::INVAL);
        }
        let path = self.path(path)?;
        let found = if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            let base = self.base(at, &path)?;
            self.become_it()?;
            base
        } else if let Some(fd) = self.own_descriptor(&path)?.filter(|_| !flags.contains(AtFlags::SYMLINK_NOFOLLOW)) {
            let found = self.descriptor(fd).map_err(|_| Errno::NOENT)?;
            self.become_it()?;
            found
        } else {
            let base = self.base(at, &path)?;
            self.become_it()?;
            let follow = if flags.contains(AtFlags::SYMLINK_NOFOLLOW) { OFlags::NOFOLLOW } else { OFlags::empty() };
            look_up(base.as_fd(), &path, LOOK | follow, Mode::empty())?
        };
        self.set_mode(&found, mode)
    }

    fn fchmod(&self, fd: i32, mode: u32) -> Result<Done, Errno> {
        let found = self.descriptor(fd)?;
        let info = read(&self.dir, &format!("fdinfo/{fd}")).map_err(|_| Errno::BADF)?;
        let info = String::from_utf8_lossy(&info).into_owned();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim).ok_or(Errno::BADF)?;
        let flags = u32::from_str_radix(flags, 8).map_err(|_| Errno::BADF)?;
        if OFlags::from_bits_retain(flags).contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        self.become_it()?;
        self.set_mode(&found, mode)
    }

    /// Sets the mode. For anything but a directory, the set-id bits are removed.
    fn set_mode(&self, found: &OwnedFd, mode: u32) -> Result<Done, Errno> {
        let is_file = FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) == FileType::RegularFile;
        let mode = Mode::from_raw_mode(if is_file { mode & !SET_ID } else { mode });
        let path = format!("self/fd/{}", found.as_raw_fd());
        rustix::fs::chmodat(&self.proc, path, mode, AtFlags::empty())?;
        Ok(Done::Nothing)
    }

    fn open(&self, at: u64, path: u64, flags: i32, mode: u32) -> Result<Done, Errno> {
        let path = self.path(path)?;
        let base = self.base(at, &path)?;
        self.become_it()?;
        // Unknown flags are ignored, as `open` does. `openat2` would refuse them.
        let asked = OFlags::from_bits_retain((flags & KNOWN_FLAGS) as u32);
        let known = if asked.contains(OFlags::PATH) {
            asked & (OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
        } else {
            // The call must not block here. Anything but a regular file is refused below.
            asked | OFlags::NONBLOCK | OFlags::NOCTTY
        };
        let made = known.contains(OFlags::CREATE) || known.contains(OFlags::TMPFILE);
        let mode = Mode::from_raw_mode(if made { mode & !SET_ID } else { 0 });
        let fd = look_up(base.as_fd(), &path, known | OFlags::CLOEXEC, mode)?;
        let is_file = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == FileType::RegularFile;
        // A file in /proc may belong to this process, such as /proc/self/mem.
        if !is_file || rustix::fs::fstatfs(&fd)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            return Err(Errno::PERM);
        }
        if !asked.intersects(OFlags::NONBLOCK | OFlags::PATH) {
            let now = rustix::fs::fcntl_getfl(&fd)?;
            rustix::fs::fcntl_setfl(&fd, now - OFlags::NONBLOCK)?;
        }
        Ok(Done::Opened { fd, close_on_exec: asked.contains(OFlags::CLOEXEC) })
    }

    fn mknod(&self, at: u64, path: u64, mode: u32, device: u64) -> Result<Done, Errno> {
        let path = self.path(path)?;
        let base = self.base(at, &path)?;
        self.become_it()?;
        let end = path.iter().rposition(|byte| *byte != b'/').ok_or(Errno::EXIST)?;
        let (dir, name) = match path[..=end].iter().rposition(|byte| *byte == b'/') {
            Some(slash) => {
                (look_up(base.as_fd(), &path[..=slash], LOOK | OFlags::DIRECTORY, Mode::empty())?, slash + 1)
            }
            None => (base, 0),
        };
        let mode = mode & !SET_ID;
        let (kind, bits) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        let kind = if mode & libc::S_IFMT == 0 { FileType::RegularFile } else { kind };
        rustix::fs::mknodat(dir, &path[name..], kind, bits, device)?;
        Ok(Done::Nothing)
    }

    /// Reads the string at an address in the caller's memory.
    fn path(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let memory = rustix::fs::openat(&self.dir, "mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut path = vec![0; LONGEST_PATH];
        let count = rustix::io::pread(&memory, &mut path, address).map_err(|_| Errno::FAULT)?;
        match path[..count].iter().position(|byte| *byte == 0) {
            Some(end) => {
                path.truncate(end);
                Ok(path)
            }
            None if count == LONGEST_PATH => Err(Errno::NAMETOOLONG),
            None => Err(Errno::FAULT),
        }
    }

    /// Returns the directory where the lookup of the caller's path starts.
    fn base(&self, at: u64, path: &[u8]) -> Result<OwnedFd, Errno> {
        let at = at as i32;
        if path.starts_with(b"/") {
            rustix::fs::openat(&self.dir, "root", LOOK, Mode::empty())
        } else if at == libc::AT_FDCWD {
            rustix::fs::openat(&self.dir, "cwd", LOOK, Mode::empty())
        } else {
            self.descriptor(at)
        }
    }

    /// Opens one of the caller's descriptors.
    fn descriptor(&self, fd: i32) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.dir, format!("fd/{fd}"), LOOK, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => Errno::BADF,
            error => error,
        })
    }

    /// Returns the number of the caller's own descriptor if the path names one. The C library changes modes through
    /// `/proc/self/fd`.
    fn own_descriptor(&self, path: &[u8]) -> Result<Option<i32>, Errno> {
        let Ok(path) = std::str::from_utf8(path) else { return Ok(None) };
        let process = format!("/proc/{}/fd/", self.process);
        let names = ["/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/", &process];
        let Some(number) = names.iter().find_map(|name| path.strip_prefix(name)) else { return Ok(None) };
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(None);
        }
        let root = rustix::fs::openat(&self.dir, "root", LOOK, Mode::empty())?;
        let proc = rustix::fs::openat(&root, "proc", LOOK | OFlags::NOFOLLOW, Mode::empty())?;
        let is_proc = rustix::fs::fstatfs(&proc)?.f_type == rustix::fs::PROC_SUPER_MAGIC;
        Ok(number.parse().ok().filter(|_| is_proc))
    }

    /// Takes on the caller's root, umask, and rights to files. The capability to trace stays in the permitted set, so
    /// that no process inside can trace this one.
    fn become_it(&self) -> Result<(), Errno> {
        let root = rustix::fs::openat(&self.dir, "root", LOOK | OFlags::DIRECTORY, Mode::empty())?;
        match seccomp::make_root(&root) {
            Err(Errno::PERM) if is_my_root(&root)? => {}
            done => done?,
        }
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        seccomp::act_as(self.user, self.group, &self.groups)?;
        let mine = rustix::thread::capabilities(None)?;
        let effective = CapabilitySet::from_bits_retain(self.capabilities) & mine.permitted;
        rustix::thread::set_capabilities(None, CapabilitySets { effective, ..mine })?;
        sys::not_dumpable()
    }
}

/// Whether a directory is this process's root, by the same mount.
fn is_my_root(dir: &OwnedFd) -> Result<bool, Errno> {
    let identity = |fd: BorrowedFd<'_>, path: &str| {
        let flags = AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(fd, path, flags, StatxFlags::INO | StatxFlags::MNT_ID)?;
        Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino, stat.stx_mnt_id))
    };
    Ok(identity(dir.as_fd(), "")? == identity(CWD, "/")?)
}

/// Reads a small file of `/proc`.
fn read(dir: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))? {
            0 => return Ok(text),
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
}
