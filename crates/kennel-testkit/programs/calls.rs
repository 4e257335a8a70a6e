//! Makes system calls that a sandbox changes or refuses, and prints the result of each: its name and the mode of the
//! file, or its name and the error number. It is compiled separately, without any crate.
//!
//! `calls modes DIR` tries every way to create a set-user-id file in a directory, and errors of the same calls. `calls
//! fenced DIR` opens and creates files there after it has locked itself out with Landlock. `calls meddle PID` changes
//! limits and scheduling of a process, and of itself. `calls meddle-with-users` changes those of all processes of its
//! user.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

// SAFETY: as the C library declares them.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn umask(mode: u32) -> u32;
    fn getuid() -> u32;
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub const OPENAT: i64 = 257;
    pub const MKNODAT: i64 = 259;
    pub const FCHMOD: i64 = 91;
    pub const FCHMODAT: i64 = 268;
    pub const PRLIMIT: i64 = 302;
    pub const SETPRIORITY: i64 = 141;
    pub const SCHED_SETPARAM: i64 = 142;
    pub const SCHED_SETSCHEDULER: i64 = 144;
    pub const SCHED_SETAFFINITY: i64 = 203;
    pub const SCHED_SETATTR: i64 = 314;
    pub const IOPRIO_SET: i64 = 251;
    pub const SETXATTR: i64 = 188;
    pub const SYMLINKAT: i64 = 266;
    pub const FCNTL: i64 = 72;
    pub const GETTID: i64 = 186;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const OPENAT: i64 = 56;
    pub const MKNODAT: i64 = 33;
    pub const FCHMOD: i64 = 52;
    pub const FCHMODAT: i64 = 53;
    pub const PRLIMIT: i64 = 261;
    pub const SETPRIORITY: i64 = 140;
    pub const SCHED_SETPARAM: i64 = 118;
    pub const SCHED_SETSCHEDULER: i64 = 119;
    pub const SCHED_SETAFFINITY: i64 = 122;
    pub const SCHED_SETATTR: i64 = 274;
    pub const IOPRIO_SET: i64 = 30;
    pub const SETXATTR: i64 = 5;
    pub const SYMLINKAT: i64 = 36;
    pub const FCNTL: i64 = 25;
    pub const GETTID: i64 = 178;
}

const OPENAT2: i64 = 437;
const FCHMODAT2: i64 = 452;
const HERE: i64 = -100;
const CREATE: i64 = 0o100;
const WRITE: i64 = 1;
const EXCLUSIVE: i64 = 0o200;
const CLOSE_ON_EXEC: i64 = 0o2_000_000;
#[cfg(target_arch = "x86_64")]
const TMPFILE: i64 = 0o20_200_000;
#[cfg(target_arch = "aarch64")]
const TMPFILE: i64 = 0o20_040_000;

fn call(number: i64, a: i64, b: i64, c: i64, d: i64) -> Result<i64, i32> {
    // SAFETY: the arguments are numbers, or point to what outlives the call.
    let result = unsafe { syscall(number, a, b, c, d, 0_i64, 0_i64) };
    if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn at(path: &CString) -> i64 {
    path.as_ptr() as i64
}

fn say(name: &str, result: Result<u32, i32>) {
    match result {
        Ok(mode) => println!("{name} {mode:04o}"),
        Err(error) => println!("{name} error {error}"),
    }
}

/// Returns the mode of a path after a call.
fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).map_or(0, |metadata| metadata.mode() & 0o7777)
}

struct TestDir(PathBuf);

impl TestDir {
    /// Creates a file without rights for other users.
    fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Returns the path of a file that does not exist.
    fn new(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Changes a new file, and prints its mode afterwards.
    fn change(&self, name: &str, act: impl FnOnce(&Path, &CString) -> Result<i64, i32>) {
        let path = self.file(name);
        say(name, act(&path, &text(&path)).map(|_| mode_of(&path)));
    }

    /// Creates a file, and prints its mode afterwards.
    fn make(&self, name: &str, act: impl FnOnce(&Path, &CString) -> Result<i64, i32>) {
        let path = self.new(name);
        say(name, act(&path, &text(&path)).map(|_| mode_of(&path)));
    }
}

/// The kernel's description of a file to open (`open_how`).
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn modes(dir: &str) {
    let place = TestDir(PathBuf::from(dir));
    // SAFETY: plain system call.
    unsafe { umask(0) };
    let dirfd = std::fs::File::open(dir).unwrap();
    let base = i64::from(dirfd.as_raw_fd());
    // Each of these creates the bits outside, and must not create them inside.
    #[cfg(target_arch = "x86_64")]
    {
        place.change("bits:chmod", |_, path| call(90, at(path), 0o6755, 0, 0));
        place.make("bits:open", |_, path| call(2, at(path), CREATE | WRITE, 0o4755, 0));
        place.make("bits:creat", |_, path| call(85, at(path), 0o4755, 0, 0));
        place.make("bits:mknod", |_, path| call(133, at(path), 0o104_755, 0, 0));
    }
    place.change("bits:fchmod", |path, _| {
        let file = std::fs::File::open(path).unwrap();
        call(number::FCHMOD, file.as_raw_fd().into(), 0o4711, 0, 0)
    });
    place.change("bits:fchmodat", |_, path| call(number::FCHMODAT, HERE, at(path), 0o2755, 0));
    place.change("bits:fchmodat2", |_, path| call(FCHMODAT2, HERE, at(path), 0o4750, 0x100));
    place.change("bits:fchmodat2-empty", |path, _| {
        let (file, empty) = (std::fs::File::open(path).unwrap(), CString::default());
        call(FCHMODAT2, file.as_raw_fd().into(), at(&empty), 0o4750, 0x1000)
    });
    place.change("bits:below-a-directory", |_, _| {
        let name = CString::new("bits:below-a-directory").unwrap();
        call(number::FCHMODAT, base, at(&name), 0o4755, 0)
    });
    place.change("bits:relative", |_, _| {
        let name = CString::new("./bits:relative").unwrap();
        std::env::set_current_dir(dir).unwrap();
        call(number::FCHMODAT, HERE, at(&name), 0o4755, 0)
    });
    place.change("bits:by-a-link", |path, _| {
        let (link, target) = (place.new("link"), text(path));
        call(number::SYMLINKAT, at(&target), HERE, at(&text(&link)), 0)?;
        call(number::FCHMODAT, HERE, at(&text(&link)), 0o4755, 0)
    });
    place.change("bits:by-its-descriptor", |path, _| {
        let file = std::fs::File::open(path).unwrap();
        let name = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        call(number::FCHMODAT, HERE, at(&name), 0o4755, 0)
    });
    place.make("bits:openat", |_, path| call(number::OPENAT, HERE, at(path), CREATE | WRITE, 0o2755));
    place.make("bits:mknodat", |_, path| call(number::MKNODAT, HERE, at(path), 0o104_755, 0));
    place.make("bits:umask", |_, path| {
        // SAFETY: plain system calls.
        unsafe { umask(0o077) };
        let done = call(number::OPENAT, HERE, at(path), CREATE | WRITE, 0o4755);
        // SAFETY: as above.
        unsafe { umask(0) };
        done
    });
    let unnamed = call(number::OPENAT, HERE, at(&text(Path::new(dir))), TMPFILE | 2, 0o4755);
    say("bits:tmpfile", unnamed.map(|fd| mode_of_descriptor(fd)));
    // The descriptor can be written, and is close-on-exec or not, as requested.
    for (name, flag) in [("kept", 0), ("closed", CLOSE_ON_EXEC)] {
        let path = place.new(name);
        let fd = call(number::OPENAT, HERE, at(&text(&path)), CREATE | WRITE | flag, 0o4644);
        let flags = fd.and_then(|fd| call(number::FCNTL, fd, 1, 0, 0));
        say(&format!("same:descriptor-{name}"), flags.map(|flags| flags as u32));
        let written = fd.map(|fd| std::fs::write(format!("/proc/self/fd/{fd}"), "x").is_ok());
        say(&format!("same:written-{name}"), written.map(u32::from));
    }
    // Everything else is the same as outside.
    place.change("same:sticky", |_, path| call(number::FCHMODAT, HERE, at(path), 0o1644, 0));
    let below = place.0.join("directory");
    std::fs::create_dir_all(&below).unwrap();
    let done = call(number::FCHMODAT, HERE, at(&text(&below)), 0o2775, 0);
    say("same:directory", done.map(|_| mode_of(&below)));
    let opened = std::fs::File::open(&below).unwrap();
    let done = call(number::FCHMOD, opened.as_raw_fd().into(), 0o3770, 0, 0);
    say("same:directory-by-descriptor", done.map(|_| mode_of(&below)));
    let (nothing, file) = (place.0.join("nothing"), text(&place.file("file")));
    let chmod = |path: &CString| call(number::FCHMODAT, HERE, at(path), 0o4755, 0).map(|_| 0);
    say("same:missing", chmod(&text(&nothing)));
    say("same:empty", chmod(&CString::default()));
    say("same:not-a-directory", chmod(&text(&place.0.join("file/below"))));
    say("same:too-long", chmod(&CString::new("x".repeat(5000)).unwrap()));
    say("same:bad-address", call(number::FCHMODAT, HERE, 8, 0o4755, 0).map(|_| 0));
    say("same:bad-descriptor", call(number::FCHMOD, 999, 0o4755, 0, 0).map(|_| 0));
    say("same:bad-directory", {
        let name = CString::new("x").unwrap();
        call(number::FCHMODAT, 999, at(&name), 0o4755, 0).map(|_| 0)
    });
    say("same:fchmodat2-flag", call(FCHMODAT2, HERE, at(&file), 0o4755, 0x4000).map(|_| 0));
    let looked_at = call(number::OPENAT, HERE, at(&file), 0o10_000_000, 0);
    say("same:only-looked-at", looked_at.and_then(|fd| call(number::FCHMOD, fd, 0o4755, 0, 0)).map(|_| 0));
    let loops = place.new("loop");
    let _ = call(number::SYMLINKAT, at(&text(Path::new("loop"))), base, at(&text(Path::new("loop"))), 0);
    say("same:loop", chmod(&text(&loops)));
    let there = |flags| call(number::OPENAT, HERE, at(&file), CREATE | flags, 0o4755).map(|_| 0);
    say("same:there-already", there(EXCLUSIVE));
    say("same:opened-again", there(0));
    say("same:made-again", call(number::MKNODAT, HERE, at(&file), 0o104_755, 0).map(|_| 0));
    let below = text(&nothing.join("x"));
    say("same:made-below-nothing", call(number::OPENAT, HERE, at(&below), CREATE, 0o4755).map(|_| 0));
    // Calls that are refused.
    let path = place.new("closed:openat2");
    let how = How { flags: (CREATE | WRITE) as u64, mode: 0o4755, resolve: 0 };
    let done = call(OPENAT2, HERE, at(&text(&path)), &raw const how as i64, size_of::<How>() as i64);
    say("closed:openat2", done.map(|_| mode_of(&path)));
    // Version 2 of the kernel's format: one capability, permitted and effective.
    let capability: [u32; 5] = [0x0200_0001, 1 << 7, 0, 0, 0];
    let (path, name) = (place.file("closed:setcap"), CString::new("security.capability").unwrap());
    // SAFETY: as in `call`.
    let done = unsafe {
        syscall(number::SETXATTR, text(&path).as_ptr(), name.as_ptr(), capability.as_ptr(), 20_i64, 0_i64, 0_i64)
    };
    say("closed:setcap", if done < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(0) });
    #[cfg(target_arch = "x86_64")]
    {
        old_numbers(&place);
        let path = place.file("closed:x32");
        let done = call(0x4000_0000 | 90, at(&text(&path)), 0o4755, 0, 0);
        say("closed:x32", done.map(|_| mode_of(&path)));
    }
}

fn mode_of_descriptor(fd: i64) -> u32 {
    std::fs::metadata(format!("/proc/self/fd/{fd}")).map_or(0, |metadata| metadata.mode() & 0o7777)
}

/// The same by the numbers of 32-bit programs (i386): such a call either ends the process, or fails, or is as the others.
#[cfg(target_arch = "x86_64")]
fn old_numbers(place: &TestDir) {
    // Pointers have 32 bits.
    // SAFETY: a new mapping, which is large enough for a path.
    let low = unsafe { syscall(9, 0_i64, 4096_i64, 3_i64, 0x62_i64, -1_i64, 0_i64) };
    assert!(low > 0, "no memory below 4 GiB");
    let put = |path: &Path| {
        let string = text(path);
        let bytes = string.as_bytes_with_nul();
        // SAFETY: the mapping is ours, and longer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), low as *mut u8, bytes.len()) };
        low
    };
    const MODE: i64 = 0o4755;
    const REGULAR: i64 = 0o100_000;
    let change = |name: &str, number: i64, arguments: fn(i64) -> [i64; 4]| {
        let path = place.file(name);
        old_call(number, arguments(put(&path)));
        say(name, Ok(mode_of(&path)));
    };
    let make = |name: &str, number: i64, arguments: fn(i64) -> [i64; 4]| {
        let path = place.new(name);
        old_call(number, arguments(put(&path)));
        say(name, Ok(mode_of(&path)));
    };
    change("old:chmod", 15, |path| [path, MODE, 0, 0]);
    change("old:fchmodat", 306, |path| [HERE, path, MODE, 0]);
    change("old:fchmodat2", FCHMODAT2, |path| [HERE, path, MODE, 0]);
    let path = place.file("old:fchmod");
    let file = std::fs::File::open(&path).unwrap();
    old_call(94, [file.as_raw_fd().into(), MODE, 0, 0]);
    say("old:fchmod", Ok(mode_of(&path)));
    make("old:open", 5, |path| [path, CREATE | WRITE, MODE, 0]);
    make("old:creat", 8, |path| [path, MODE, 0, 0]);
    make("old:mknod", 14, |path| [path, REGULAR | MODE, 0, 0]);
    make("old:openat", 295, |path| [HERE, path, CREATE | WRITE, MODE]);
    make("old:mknodat", 297, |path| [HERE, path, REGULAR | MODE, 0]);
}

/// Makes one call by the number that it has for 32-bit programs, in a process of its own, which may not survive it.
#[cfg(target_arch = "x86_64")]
fn old_call(number: i64, [a, b, c, d]: [i64; 4]) {
    // SAFETY: a program with one thread; the child makes one call and ends.
    let child = unsafe { fork() };
    if child == 0 {
        // SAFETY: the arguments are numbers, or point to a path that is there; then the end.
        unsafe {
            // rbx is reserved by the compiler: it is restored after the call.
            std::arch::asm!(
                "xchg rbx, {a}", "int 0x80", "xchg rbx, {a}",
                a = inout(reg) a => _, inout("rax") number => _, in("rcx") b, in("rdx") c, in("rsi") d,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
            _exit(0);
        }
    }
    // SAFETY: the number is our child's.
    unsafe { waitpid(child, std::ptr::null_mut(), 0) };
}

/// Opens and creates files after it has locked itself out of them with Landlock.
fn fenced(dir: &str) {
    const CREATE_RULESET: i64 = 444;
    const RESTRICT_SELF: i64 = 446;
    // To write, to read and to create files.
    let handled: u64 = 2 | 4 | 256;
    let place = TestDir(PathBuf::from(dir));
    // SAFETY: plain system call.
    unsafe { umask(0) };
    let Ok(ruleset) = call(CREATE_RULESET, &raw const handled as i64, 8, 0, 0) else {
        return println!("no-landlock .");
    };
    let open = |name: &str, mode: i64| {
        let path = place.0.join(name);
        call(number::OPENAT, HERE, at(&text(&path)), CREATE | WRITE, mode).map(|_| mode_of(&path))
    };
    let _ = place.new("before");
    say("before", open("before", 0o4755));
    call(RESTRICT_SELF, ruleset, 0, 0, 0).expect("a process fences itself in");
    say("plain", open("plain", 0o755));
    say("open", open("open", 0o4755));
    let path = text(&place.0.join("mknod"));
    say("mknod", call(number::MKNODAT, HERE, at(&path), 0o104_755, 0).map(|_| 0));
    let before = place.0.join("before");
    say("chmod", call(number::FCHMODAT, HERE, at(&text(&before)), 0o4755, 0).map(|_| mode_of(&before)));
}

/// Changes limits and scheduling.
fn meddle(process: i64) {
    let (limit, affinity, nothing) = ([1_u64 << 20, 1 << 20], [u64::MAX; 16], [0_u32; 1]);
    let attributes: [u32; 12] = [48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let pointer = |values: *const u64| values as i64;
    let own = {
        // SAFETY: plain system call.
        unsafe { syscall(number::GETTID) }
    };
    // The size of core dumps, which harms nothing.
    const CORE: i64 = 4;
    for (who, pid) in [("other", process), ("own", own)] {
        if who == "other" {
            let done = call(number::PRLIMIT, pid, CORE, pointer(limit.as_ptr()), 0);
            say("other:prlimit", done.map(|_| 0));
        }
        let done = call(number::SCHED_SETAFFINITY, pid, 128, pointer(affinity.as_ptr()), 0);
        say(&format!("{who}:affinity"), done.map(|_| 0));
        let done = call(number::SCHED_SETSCHEDULER, pid, 0, nothing.as_ptr() as i64, 0);
        say(&format!("{who}:scheduler"), done.map(|_| 0));
        let done = call(number::SCHED_SETPARAM, pid, nothing.as_ptr() as i64, 0, 0);
        say(&format!("{who}:parameters"), done.map(|_| 0));
        let done = call(number::SCHED_SETATTR, pid, attributes.as_ptr() as i64, 0, 0);
        say(&format!("{who}:attributes"), done.map(|_| 0));
        let done = call(number::SETPRIORITY, 0, pid, 1, 0);
        say(&format!("{who}:priority"), done.map(|_| 0));
        let done = call(number::IOPRIO_SET, 1, pid, 2 << 13 | 5, 0);
        say(&format!("{who}:io-priority"), done.map(|_| 0));
    }
    say("own:prlimit", call(number::PRLIMIT, 0, CORE, pointer(limit.as_ptr()), 0).map(|_| 0));
    let mut read = [0_u64; 2];
    say("own:limits-of-others", call(number::PRLIMIT, process, 7, 0, read.as_mut_ptr() as i64).map(|_| 0));
}

/// Changes the scheduling of all processes of its user. Only for a user without other processes, or in a sandbox.
fn meddle_with_users() {
    say("users:priority", call(number::SETPRIORITY, 2, 0, 1, 0).map(|_| 0));
    // SAFETY: plain system call.
    let user = i64::from(unsafe { getuid() });
    say("users:io-priority", call(number::IOPRIO_SET, 3, user, 2 << 13 | 5, 0).map(|_| 0));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["modes", dir] => modes(dir),
        ["fenced", dir] => fenced(dir),
        ["meddle", process] => meddle(process.parse().expect("a process's number")),
        ["meddle-with-users"] => meddle_with_users(),
        _ => panic!("use: calls modes DIR, calls fenced DIR, calls meddle PID, or calls meddle-with-users"),
    }
}
