//! The server in the background: `kennel serve --detach`, `kennel serve status` and `kennel serve stop`.
//!
//! A server is found by its socket in the state directory. The kernel knows which process listens there, so a file that a
//! killed server has left deceives nobody.

use crate::output::{print, print_json};
use crate::report;
use kennel_core::{Error, Result};
use kennel_engine::{Directories, Engine};
use kennel_types::ErrorCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::net::UnixStream;

/// A log that is larger at the start is set aside.
const LARGE_LOG: u64 = 10 << 20;
/// How much of the log of a failed start is shown.
const SHOWN: u64 = 64 << 10;
/// How long a server may take to end. Open requests get ten seconds.
const END_WITHIN: Duration = Duration::from_mins(1);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    Status(Status),
    Stop(Stop),
}

/// Say whether a server runs, and where it listens
///
/// The exit status is 0 if it runs, and 1 if not.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

/// End the server, and wait until it has ended
///
/// Sandboxes keep running.
#[derive(Debug, clap::Args)]
pub(super) struct Stop {}

impl Action {
    pub(super) async fn run(self, engine: &Engine) -> Result<u8> {
        let directories = engine.directories()?;
        match self {
            Self::Status(status) => status.run(&directories).await,
            Self::Stop(Stop {}) => stop(&directories).await,
        }
    }
}

/// What a server notes about itself.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    pid: u32,
    addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
}

/// The note of this process, which runs the server.
pub(super) struct Running(PathBuf);

impl Running {
    pub(super) fn note(engine: &Engine, addresses: &[String], fingerprint: Option<String>) -> Result<Self> {
        let path = engine.directories()?.server_note();
        let note = Note { pid: std::process::id(), addresses: addresses.to_vec(), fingerprint };
        let failed = |error| Error::io(format!("write {}", path.display()), error);
        let text = serde_json::to_vec(&note).map_err(|error| failed(error.into()))?;
        let partial = path.with_extension("partial");
        std::fs::write(&partial, text).and_then(|()| std::fs::rename(partial, &path)).map_err(failed)?;
        Ok(Self(path))
    }

    pub(super) fn remove(self) {
        let _ = std::fs::remove_file(self.0);
    }
}

#[derive(Serialize)]
struct Shown {
    running: bool,
    #[serde(flatten)]
    note: Option<Note>,
}

impl Status {
    async fn run(self, directories: &Directories) -> Result<u8> {
        let found = find(directories).await?;
        let note = found.map(|pid| {
            let noted = std::fs::read(directories.server_note()).ok();
            let noted = noted.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
            let mut note = noted.filter(|note| note.pid == pid).unwrap_or(Note { pid, ..Note::default() });
            note.addresses.push(format!("unix:{}", directories.api_socket().display()));
            note
        });
        let status = u8::from(note.is_none());
        let shown = if self.json {
            print_json(&Shown { running: note.is_some(), note })
        } else {
            print(&note.map_or_else(|| "not running".into(), |note| note.text()))
        };
        Ok(if shown == 0 { status } else { shown })
    }
}

impl Note {
    fn text(&self) -> String {
        let mut lines = vec![format!("running as process {}", self.pid)];
        lines.extend(self.addresses.iter().map(|address| format!("listening at {address}")));
        lines.extend(self.fingerprint.iter().map(|hash| format!("certificate sha256={hash}")));
        lines.join("\n")
    }
}

/// Returns the process that listens at the socket of the state directory.
async fn find(directories: &Directories) -> Result<Option<u32>> {
    let path = directories.api_socket();
    let failed = |error| Error::io(format!("connect to {}", path.display()), error);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    // The path may be longer than the kernel allows for an address.
    let dir = match rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        dir => dir.map_err(|error| failed(error.into()))?,
    };
    let address = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    let stream = match UnixStream::connect(address).await {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        stream => stream.map_err(failed)?,
    };
    // For a connection, these are the credentials of the process that has begun to listen.
    Ok(stream.peer_cred().map_err(failed)?.pid().map(|pid| pid as u32))
}

async fn stop(directories: &Directories) -> Result<u8> {
    let Some(pid) = find(directories).await? else {
        report::progress("no server runs");
        return Ok(0);
    };
    let failed = |error: rustix::io::Errno| Error::io(format!("end process {pid}"), error);
    let process = Pid::from_raw(pid as i32).ok_or_else(|| failed(rustix::io::Errno::SRCH))?;
    let process = match pidfd_open(process, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(0),
        process => process.map_err(failed)?,
    };
    // If the process ended meanwhile, its id may be that of another.
    if find(directories).await? != Some(pid) {
        return Ok(0);
    }
    match pidfd_send_signal(&process, Signal::TERM) {
        Err(rustix::io::Errno::SRCH) => return Ok(0),
        sent => sent.map_err(failed)?,
    }
    let ended = tokio::task::spawn_blocking(move || has_ended(&process)).await;
    if ended.is_ok_and(|ended| ended) {
        return Ok(0);
    }
    let message = format!("process {pid} did not end within {} s", END_WITHIN.as_secs());
    Err(Error::new(ErrorCode::Timeout, message))
}

fn has_ended(process: &OwnedFd) -> bool {
    let timeout = Timespec { tv_sec: END_WITHIN.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).is_ok_and(|count| count > 0)
}

/// Starts this program again in the background, and waits until it is ready.
pub(super) async fn start(engine: &Engine) -> Result<u8> {
    let directories = engine.directories()?;
    if let Some(pid) = find(&directories).await? {
        return Err(Error::new(ErrorCode::Conflict, format!("a server runs already, as process {pid}")));
    }
    let path = directories.server_log();
    let (log, before) = open_log(&path).map_err(|error| Error::io(format!("write {}", path.display()), error))?;
    let failed = |error| Error::io("start the server", error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let is_detach = |argument: &std::ffi::OsString| argument == "--detach";
    command.args(
        std::env::args_os().skip(1).map(|argument| if is_detach(&argument) { "--detached".into() } else { argument }),
    );
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(failed)?;
    let out = child.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
    let greeting = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(out).lines().map_while(std::result::Result::ok);
        let mut said = Vec::new();
        for line in lines {
            if line.starts_with("watching ") {
                return Some(said);
            }
            said.push(line);
        }
        None
    });
    if let Ok(Some(said)) = greeting.await {
        let lines = [format!("running as process {}", child.id())].into_iter().chain(said);
        return Ok(print(&lines.chain([format!("log in {}", path.display())]).collect::<Vec<_>>().join("\n")));
    }
    let status = child.wait().map_err(failed)?;
    report::say(since(&path, before).trim_end());
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(125))
}

/// Opens the log for appending, and returns its length.
fn open_log(path: &Path) -> std::io::Result<(File, u64)> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if std::fs::metadata(path).is_ok_and(|log| log.size() > LARGE_LOG) {
        std::fs::rename(path, path.with_extension("log.old"))?;
    }
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let length = log.metadata()?.size();
    Ok((log, length))
}

/// Returns what was added to the log.
fn since(path: &Path, before: u64) -> String {
    let mut text = Vec::new();
    if let Ok(mut log) = File::open(path) {
        let _ = log.seek(SeekFrom::Start(before)).and_then(|_| log.take(SHOWN).read_to_end(&mut text));
    }
    String::from_utf8_lossy(&text).into_owned()
}
