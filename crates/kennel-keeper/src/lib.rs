//! The keeper: the program that does all work inside a sandbox.
//!
//! It runs commands, owns terminals, reads and writes files, buffers output and reports resource usage, for hosts that
//! connect to it. It trusts no process inside: connections from its own pid namespace are refused, and it loads no
//! libraries of the sandbox. It is single-threaded; everything that could block is done in a fork.
//!
//! Only the keeper program and the jail use this crate. Hosts use `kennel-proto`.

mod connect;
mod connection;
mod emulate;
mod files;
mod filter;
pub mod firewall;
mod holes;
mod hosts;
mod keeper;
mod launch;
mod list;
mod listen;
mod log;
mod notices;
mod output;
mod paths;
mod report;
mod requests;
mod ring;
pub mod sandbox_dir;
mod shim;
mod start_error;
mod stats;
pub mod sys;
mod task;
mod tree;
mod usage;
mod users;
mod watch;
mod worker;

pub use start_error::StartError;

use kennel_proto::KeeperConfig;
use rustix::fd::OwnedFd;
use rustix::fs::{Gid, Mode, OFlags, Uid};

/// Serves hosts on a listening socket until there is a reason to end, and then ends everything. Returns the exit code.
pub fn keep(listener: OwnedFd, config: KeeperConfig) -> i32 {
    let _ = sys::not_dumpable();
    // Signals that the parent process ignored would otherwise be ignored by every command.
    sys::reset_signals();
    sys::ignore_signal(libc::SIGPIPE);
    if !rustix::process::getpid().is_init() && sys::become_subreaper().is_err() {
        return 125;
    }
    if let Some((uid, gid)) = config.ensure_user {
        // If the image's files cannot be changed, the user has no name, but everything else works.
        let _ = ensure_user(uid, gid);
        for dir in &config.give {
            let _ = give(dir, uid, gid);
        }
    }
    let (exit_fd, sweep) = (config.exit_fd.and_then(sys::inherited), config.sweep.clone());
    let tied = config.tied;
    let code = keeper::serve(listener, config);
    if let Some(fd) = exit_fd {
        report::write_all(&fd, code.to_string().as_bytes());
        // Whoever watches the directory is told when it is closed.
        drop(fd);
    }
    if let Some(path) = sweep {
        use std::os::unix::ffi::OsStrExt;
        let dir = std::path::Path::new(std::ffi::OsStr::from_bytes(&path));
        if !tied {
            wait_for_starter(dir);
        }
        let _ = std::fs::remove_dir_all(dir);
    }
    code
}

/// Waits until the process that starts the sandbox in this directory is done. That process holds a lock on the record
/// until it has read there why the main process did not run. Do not call this for a tied sandbox: its creator holds the
/// lock as long as it lives.
pub fn wait_for_starter(dir: &std::path::Path) {
    if let Ok(record) = std::fs::File::open(dir.join("sandbox.json")) {
        let _ = rustix::io::retry_on_intr(|| rustix::fs::flock(&record, rustix::fs::FlockOperation::LockShared));
    }
}

/// Gives a user a passwd entry and a home directory, if it has no entry.
fn ensure_user(uid: u32, gid: u32) -> Result<(), rustix::io::Errno> {
    if users::is_known(uid) {
        return Ok(());
    }
    let name = if users::is_taken("kennel") { format!("kennel{uid}") } else { "kennel".to_owned() };
    let home = format!("/home/{name}");
    append("/etc/passwd", &format!("{name}:x:{uid}:{gid}::{home}:/bin/sh\n"))?;
    append("/etc/group", &format!("{name}:x:{gid}:\n"))?;
    for dir in ["/home", &home] {
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    give(home.as_bytes(), uid, gid)
}

fn give(dir: &[u8], uid: u32, gid: u32) -> Result<(), rustix::io::Errno> {
    let dir = paths::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::fs::fchown(&dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

fn append(path: &str, line: &str) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    let file = paths::open(path.as_bytes(), flags, Mode::from_raw_mode(0o644))?;
    report::write_all(&file, line.as_bytes());
    Ok(())
}
