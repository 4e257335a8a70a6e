//! A jail that is forked from its caller, instead of started as a program.
//!
//! The start of a program takes most of a millisecond before its `main`: the C library asks for the properties of the
//! processor dozens of times, and on a virtual machine each of these instructions (`cpuid`) traps. A fork has none of
//! this. It copies the memory of its caller, so it must be the first thing that the caller does: it has no other thread
//! then, and no secrets but its arguments and environment, which the child overwrites before it does anything else.

use crate::cpu::AllowedCpus;
use crate::sys;
use kennel_keeper::sandbox_dir;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::CStr;
use std::io;

/// A jail that was forked and waits for its arguments. It exits if it never receives them.
#[derive(Debug)]
pub struct ForkedJail {
    pid: u32,
    line: OwnedFd,
}

impl ForkedJail {
    /// Forks, if `is_wanted` returns true for the arguments of the program, without its name. Must be the first thing that
    /// the program does. Returns `None` if it is not wanted or not possible. A jail can be started as a program then.
    ///
    /// `is_wanted` must not copy the arguments, which may contain secrets: the copy would be copied into the jail.
    pub fn start_if(is_wanted: impl FnOnce(&mut dyn Iterator<Item = &CStr>) -> bool) -> Option<Self> {
        let start_data = sys::StartData::find().filter(|data| is_wanted(&mut data.arguments().skip(1)))?;
        if !has_one_thread() {
            return None;
        }
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.ok()?;
        let cpus = AllowedCpus::of_this_process();
        match sys::fork().ok()? {
            Some(pid) => {
                cpus.send_away(pid);
                Some(Self { pid: u32::try_from(pid).ok()?, line: ours })
            }
            None => child(start_data, &theirs, cpus),
        }
    }

    /// Sends the arguments that the program would have had. Returns the process id, and the socket for the plan.
    pub fn instruct(self, arguments: &[&str]) -> io::Result<(u32, OwnedFd)> {
        let mut message = vec![0; 4];
        minicbor::encode(arguments, &mut message).map_err(io::Error::other)?;
        let length = (message.len() - 4) as u32;
        message[..4].copy_from_slice(&length.to_le_bytes());
        // The message is smaller than the socket's buffer.
        let written = rustix::net::send(&self.line, &message, rustix::net::SendFlags::NOSIGNAL)?;
        if written == message.len() { Ok((self.pid, self.line)) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Whether this process has a single thread: the directory has a link for each of its subdirectories.
fn has_one_thread() -> bool {
    rustix::fs::stat("/proc/self/task").is_ok_and(|tasks| tasks.st_nlink == 3)
}

/// The main function of the forked process. A panic ends it here, because of the C calling convention, and never
/// reaches the caller's code.
#[expect(improper_ctypes_definitions, reason = "only Rust calls it")]
extern "C" fn child(start_data: sys::StartData, line: &OwnedFd, cpus: AllowedCpus) -> ! {
    start_data.wipe();
    sys::set_name(c"kennel-jail");
    kennel_keeper::sys::forget_standard_streams();
    if kennel_keeper::sys::put_at(line, 0).is_err() {
        kennel_keeper::sys::exit_now(125);
    }
    kennel_keeper::sys::close_all_but(&[]);
    let told = sandbox_dir::read_instructions().ok();
    match told.and_then(|told| minicbor::decode::<Vec<String>>(&told).ok()) {
        Some(arguments) => kennel_keeper::sys::exit_now(crate::sandbox::run_on(&arguments, cpus)),
        None => kennel_keeper::sys::exit_now(0),
    }
}
