//! The second role of this program: the process that serves the socket bridges of one sandbox. The engine starts it. It
//! belongs to the sandbox, and not to the terminal or the command that started it.

use crate::environment;
use kennel_engine::{BridgeProgram, serve_bridges};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// The argument that selects this role. No command has this name.
const ROLE: &str = "--serve-bridges";

/// Returns how this role of the program is started.
pub(crate) fn program() -> Option<BridgeProgram> {
    let path = std::env::current_exe().ok()?;
    Some(BridgeProgram { path, arguments: vec![ROLE.into()] })
}

/// Whether the program was started in this role.
pub(crate) fn is_asked(arguments: &[OsString]) -> bool {
    matches!(arguments, [_, role, _sandbox] if role == OsStr::new(ROLE))
}

/// Serves until the sandbox ends.
pub(crate) fn main() -> ExitCode {
    // Whoever started this program may have passed on descriptors, for example locks, and waits for them to be closed.
    kennel_keeper::sys::close_all_but(&[]);
    let _ = rustix::process::setsid();
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever started this program has been told why.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> kennel_core::Result<()> {
    let failed = |error| kennel_core::Error::io("serve sockets", error);
    let caller = environment::caller()?;
    let line = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    #[expect(clippy::disallowed_methods, reason = "a process of its own, which must not keep a directory in use")]
    rustix::process::chdir("/").map_err(|error| failed(error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(serve_bridges(caller, line))
}
