//! Helper programs of Kennel: a helper is started, receives its instructions on standard input, and replies there.
//!
//! Its standard input is a socket. The instructions are preceded by their length. Later bytes are for the program that
//! the helper turns into, such as the keeper.

use crate::Children;
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, LimitReason};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Bytes in the longest reply.
const REPLY_CAP: u64 = 64 * 1024;

/// A helper that was started and waits for its instructions. It exits if it never receives them.
#[derive(Debug)]
pub struct Helper {
    program: PathBuf,
    process: Waiting,
    line: StdUnixStream,
}

/// The process of a helper that waits for its instructions.
#[derive(Debug)]
enum Waiting {
    /// A child of this process, by its id.
    Child(u32),
    /// A child of another process, by a descriptor that refers to it.
    Other(OwnedFd),
}

impl Helper {
    /// Starts the helper. It keeps running when this process ends. No async runtime is needed, so this can be the first
    /// thing a program does.
    pub fn start(program: &Path, arguments: &[&OsStr]) -> Result<Self> {
        Self::start_with(program, arguments, std::iter::empty::<(&OsStr, &OsStr)>())
    }

    /// Starts the helper with these environment variables. It has no others.
    pub fn start_with(
        program: &Path,
        arguments: &[&OsStr],
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> Result<Self> {
        let what = || format!("start {}", program.display());
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| Error::io(what(), error))?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|error| Error::io(what(), error))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = spawn(&mut command)
            .map_err(|error| Error::new(ErrorCode::StartFailed, format!("{}: {error}", what())).caused_by(error))?;
        Ok(Self { program: program.to_owned(), process: Waiting::Child(child.id()), line: ours.into() })
    }

    /// Whether it still waits for its instructions. If not, it has ended.
    pub fn is_waiting(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut line = [PollFd::new(&self.line, PollFlags::IN)];
        poll(&mut line, Some(&now)).is_ok_and(|ready| ready == 0)
    }

    /// Returns the descriptors by which another process can take over the helper: its socket, and the process. `children`
    /// reaps it when it ends.
    pub fn into_descriptors(self, children: &Children) -> Result<[OwnedFd; 2]> {
        let failed = |error| Error::io(format!("refer to {}", self.program.display()), error);
        let process = match self.process {
            Waiting::Child(pid) => {
                let child = pid_of(pid).ok_or(rustix::io::Errno::SRCH).map_err(|error| failed(error.into()))?;
                // It cannot be another process: nobody has reaped this one yet.
                let process = rustix::process::pidfd_open(child, PidfdFlags::NONBLOCK);
                children.reap_later(child).map_err(failed)?;
                process.map_err(|error| failed(error.into()))?
            }
            Waiting::Other(process) => process,
        };
        Ok([self.line.into(), process])
    }

    /// Takes over a helper that another process has started, by what [`Self::into_descriptors`] returned.
    pub fn from_descriptors(program: PathBuf, [line, process]: [OwnedFd; 2]) -> Self {
        Self { program, process: Waiting::Other(process), line: line.into() }
    }

    /// Takes over a child process that waits for its instructions on this socket. The program is named in errors.
    pub fn adopt(program: &Path, pid: u32, line: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(&line, true)
            .map_err(|error| Error::io(format!("start {}", program.display()), error))?;
        Ok(Self { program: program.to_owned(), process: Waiting::Child(pid), line: line.into() })
    }

    /// Sends something that precedes the instructions, without waiting. Fails if it is too large for that.
    pub fn send_ahead(&self, what: &[u8]) -> Result<()> {
        use std::io::Write;
        let failed = |error| Error::io(format!("talk to {}", self.program.display()), error);
        (&self.line).write_all(&framed(what)?).map_err(failed)
    }

    /// Sends the instructions. The process is reaped when it ends.
    pub async fn instruct(self, what: &[u8]) -> Result<InstructedHelper> {
        let process = match self.process {
            Waiting::Child(pid) => reap_later(pid),
            Waiting::Other(process) => watch(process),
        };
        let failed = |error| Error::io(format!("talk to {}", self.program.display()), error);
        let mut line = UnixStream::from_std(self.line).map_err(failed)?;
        let message = framed(what)?;
        match line.write_all(&message).await {
            // The helper has already ended. Its reply, or the lack of one, tells why.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            done => done.map_err(failed)?,
        }
        Ok(InstructedHelper { program: self.program, line, process })
    }
}

/// Returns a message preceded by its length.
fn framed(what: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(what.len())
        .map_err(|_| Error::limit(LimitReason::TooLarge, format!("a plan of {} bytes is too large", what.len())))?;
    Ok([&length.to_le_bytes(), what].concat())
}

/// A helper that has received its instructions.
#[derive(Debug)]
pub struct InstructedHelper {
    program: PathBuf,
    line: UnixStream,
    process: Process,
}

/// The process of a helper. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Process(Option<Arc<AsyncFd<OwnedFd>>>);

impl Process {
    /// Kills the process. It is no error if it has already ended.
    pub(crate) fn kill(&self) {
        if let Some(process) = &self.0 {
            let _ = rustix::process::pidfd_send_signal(process.get_ref(), Signal::KILL);
        }
    }
}

impl InstructedHelper {
    /// Waits for the helper's reply: success, or an error message.
    pub async fn reply(self) -> Result<Result<(), String>> {
        let mut reply = Vec::new();
        let read = self.line.take(REPLY_CAP).read_to_end(&mut reply).await;
        read.map_err(|error| Error::io(format!("start {}", self.program.display()), error))?;
        if reply == b"ok" {
            return Ok(Ok(()));
        }
        let said = String::from_utf8_lossy(&reply);
        let reason = said.strip_prefix("error ").unwrap_or("it ended without a message");
        Ok(Err(kennel_core::printable(reason)))
    }

    /// The helper's process.
    pub(crate) fn process(&self) -> Process {
        self.process.clone()
    }

    /// Returns the socket, for a helper that does not reply but turns into another program.
    pub fn into_line(self) -> UnixStream {
        self.line
    }
}

/// Starts the program. It retries if the file is busy: another thread may have forked while the program was being
/// written to disk, and its child still holds the file open for writing.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries < 1000 => {
                tries += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

/// Reaps the child when it ends, so that it leaves no zombie in a long-running program.
fn reap_later(pid: u32) -> Process {
    let Some(pid) = pid_of(pid) else { return Process(None) };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) else { return Process(None) };
    let process = watch(pidfd);
    if let Some(pidfd) = process.0.clone() {
        tokio::spawn(async move {
            let _ = pidfd.readable().await;
            let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        });
    }
    process
}

fn watch(pidfd: OwnedFd) -> Process {
    #[allow(deprecated)] // the replacement needs `unsafe`; both require a descriptor that nobody else closes
    Process(AsyncFd::new(pidfd).ok().map(Arc::new))
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
