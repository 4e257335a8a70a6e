//! A task: a child of the keeper (the shim of a command, or a worker for files) or a socket, and the data to and from it.

use crate::listen::Listening;
use crate::report::{self, Report};
use crate::ring::Ring;
use crate::shim::{self, Order};
use crate::worker::{self, Pipes};
use crate::{launch, paths, sys};
use kennel_proto::{
    ExitReport, Failure, FailureKind, KeeperConfig, Limit, Outcome, ProcessInfo, Request, Size, Spawn, SpawnCommand,
    caps,
};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many bytes the host may be ahead when it writes a file.
const FILE_WINDOW: u64 = 512 * 1024;

pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) kind: TaskKind,
    /// The process id of the shim or worker.
    pub(crate) pid: i32,
    /// For a worker that writes a file: tells it that all data has arrived.
    control: Option<OwnedFd>,
    /// Reports from the child, and orders for the shim.
    pub(crate) status: Option<OwnedFd>,
    reports: Vec<u8>,
    /// The descriptor on which its calls arrive, until the keeper takes it.
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) stdin: Input,
    /// Standard output and standard error.
    pub(crate) outputs: [Output; 2],
    /// Whether the command runs, or file data may be sent, and the host was told.
    pub(crate) ready: bool,
    pub(crate) end: Option<End>,
    /// The reader of the output: connection and stream.
    pub(crate) viewer: Option<(u64, u32)>,
    /// When the command times out.
    pub(crate) deadline: Option<Instant>,
    pub(crate) timed_out: bool,
    /// The number of OOM kills before it started.
    pub(crate) oom_before: Option<u64>,
    /// Whether it was told to end.
    pub(crate) ending: bool,
    /// Whether the sandbox ends with it.
    pub(crate) last: bool,
    /// Whether it waits while nobody reads its output.
    pub(crate) hold: bool,
    /// For how long it stays after its connection was lost.
    linger: Option<Duration>,
    /// When it is ended or forgotten, because its connection was lost.
    pub(crate) lingers_until: Option<Instant>,
}

pub(crate) enum TaskKind {
    Command {
        description: Description,
        detached: bool,
        grace_ms: u32,
        terminal: Option<OwnedFd>,
    },
    Worker,
    /// A byte stream to a socket inside. A worker opens the socket, unless it exists already. `failed` says why it cannot
    /// be read any more.
    Stream {
        failed: Option<Errno>,
    },
    /// A socket inside on which the keeper listens for a host.
    Listener(Box<Listening>),
}

/// What the list of commands says about a command.
pub(crate) struct Description {
    pub(crate) program: Vec<u8>,
    /// As much of the arguments as a list can contain.
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) argv_is_cut: bool,
    pub(crate) tag: Option<String>,
    pub(crate) started_ms: u64,
}

impl Description {
    fn new(spawn: &Spawn) -> Self {
        let argv: Vec<&[u8]> = match &spawn.command {
            SpawnCommand::Argv(argv) => argv.iter().map(|argument| &argument[..]).collect(),
            SpawnCommand::Shell(script) => vec![b"/bin/sh", b"-c", script],
            SpawnCommand::LoginShell => vec![b"shell"],
        };
        let program = match &spawn.command {
            SpawnCommand::Shell(script) => script,
            _ => argv.first().copied().unwrap_or_default(),
        };
        let program = program[..program.len().min(200)].to_vec();
        let mut listed = ProcessInfo::default();
        listed.set_argv(argv, caps::LISTED_ARGV);
        Self {
            program,
            argv: listed.argv.into_iter().map(Into::into).collect(),
            argv_is_cut: listed.argv_is_cut,
            tag: spawn.tag.clone(),
            started_ms: now_ms(),
        }
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// How a task ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Exited(ExitReport),
    Done(Outcome),
    Failed(Failure),
}

/// Data for the task.
#[derive(Default)]
pub(crate) struct Input {
    pub(crate) pipe: Option<OwnedFd>,
    waiting: VecDeque<u8>,
    /// The offset of the next byte from the host.
    received: u64,
    /// The number of bytes that the task has read, or never will.
    pub(crate) consumed: u64,
    /// The value of `consumed` that was last reported to the host.
    told: u64,
    eof: bool,
    /// Whether all input has arrived and was passed on.
    complete: bool,
    tty: bool,
    /// Whether `pipe` is a socket, of which only one direction is closed at the end of the input.
    pub(crate) socket: bool,
    /// Whether the host was told that the peer of a socket reads no more.
    refusal_told: bool,
    pub(crate) window: u64,
    /// Whether the event loop waits until the pipe is writable.
    pub(crate) polled: bool,
}

/// Data from the task.
#[derive(Default)]
pub(crate) struct Output {
    pub(crate) pipe: Option<OwnedFd>,
    pub(crate) ring: Ring,
    /// The offset of the next byte for the reader.
    pub(crate) sent: u64,
    /// Readers have consumed all bytes before this offset.
    pub(crate) consumed: u64,
    /// Whether there is no more output.
    pub(crate) eof: bool,
    pub(crate) eof_sent: bool,
    /// Whether the event loop waits for the pipe.
    pub(crate) polled: bool,
}

/// The failure for something that the kernel does not provide any more, such as a process or a descriptor.
pub(crate) fn system(what: &str, error: Errno) -> Failure {
    let limit = paths::limit(error).unwrap_or(Limit::Number);
    Failure::limit(limit, format!("{what}: {}", paths::reason(error)))
}

/// Creates a pipe. The keeper's end does not block; the child's end does.
fn pipe(keeper_reads: bool) -> Result<(OwnedFd, OwnedFd), Failure> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("create a pipe", error))?;
    let mine = if keeper_reads { &read } else { &write };
    rustix::io::ioctl_fionbio(mine, true).map_err(|error| system("create a pipe", error))?;
    Ok((read, write))
}

/// Creates the socket pair for reports and orders: the keeper's end and the child's end.
fn status() -> Result<(OwnedFd, OwnedFd), Failure> {
    let failed = |error| system("create a socket", error);
    let (mine, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    rustix::io::ioctl_fionbio(&mine, true).map_err(failed)?;
    Ok((mine, theirs))
}

fn dev_null() -> Result<OwnedFd, Failure> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| system("open /dev/null", error))
}

impl Task {
    /// Starts a command under its shim.
    pub(crate) fn command(id: u64, config: &KeeperConfig, spawn: &Spawn) -> Result<Self, Failure> {
        let (status, their_status) = status()?;
        let mut stdin = Input { window: caps::STDIN_WINDOW, tty: spawn.tty.is_some(), ..Input::default() };
        let mut outputs = [Output::default(), Output::default()];
        let mut terminal = None;
        let stdio = if let Some(size) = spawn.tty {
            let (mine, theirs) = open_terminal(size)?;
            let copy = |fd: &OwnedFd| {
                rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|error| system("duplicate a descriptor", error))
            };
            stdin.pipe = Some(copy(&mine)?);
            outputs[0].pipe = Some(copy(&mine)?);
            outputs[1].eof = true;
            terminal = Some(mine);
            launch::Stdio { stdin: copy(&theirs)?, stdout: copy(&theirs)?, stderr: theirs, tty: true }
        } else {
            let their_stdin = if spawn.stdin {
                let (theirs, mine) = pipe(false)?;
                stdin.pipe = Some(mine);
                theirs
            } else {
                dev_null()?
            };
            let (out, their_stdout) = pipe(true)?;
            let (err, their_stderr) = pipe(true)?;
            outputs[0].pipe = Some(out);
            outputs[1].pipe = Some(err);
            launch::Stdio { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr, tty: false }
        };
        let kind = TaskKind::Command {
            description: Description::new(spawn),
            detached: spawn.detached,
            grace_ms: spawn.grace_ms.map_or(2000, |grace| grace.min(600_000) as u32),
            terminal,
        };
        match sys::fork().map_err(|error| system("start a process", error))? {
            sys::Fork::Child => shim::run(config, spawn, stdio, &their_status),
            sys::Fork::Parent(pid) => {
                let task = Self::new(id, kind, pid, None, Some(status), stdin, outputs);
                let linger = spawn.linger_ms.filter(|_| !spawn.detached).map(Duration::from_millis);
                Ok(Self { hold: spawn.hold, linger, ..task })
            }
        }
    }

    /// Starts a worker for a file request.
    pub(crate) fn worker(id: u64, config: &KeeperConfig, request: &Request) -> Result<Self, Failure> {
        let (status, their_status) = status()?;
        let (out, their_output) = pipe(true)?;
        let mut stdin = Input { window: FILE_WINDOW, ..Input::default() };
        let (their_control, control) = pipe(false)?;
        let their_input = if matches!(request, Request::Write { .. }) {
            let (theirs, mine) = pipe(false)?;
            let _ = fcntl_setpipe_size(&mine, 256 * 1024);
            stdin.pipe = Some(mine);
            theirs
        } else {
            dev_null()?
        };
        if matches!(request, Request::Read { .. }) {
            let _ = fcntl_setpipe_size(&out, 256 * 1024); // A larger pipe is faster, but not required.
        }
        let mut outputs = [Output::default(), Output::default()];
        outputs[0].pipe = Some(out);
        outputs[1].eof = true;
        match sys::fork().map_err(|error| system("start a process", error))? {
            sys::Fork::Child => {
                let pipes =
                    Pipes { input: their_input, control: their_control, output: their_output, status: their_status };
                worker::run(config, request, &pipes)
            }
            sys::Fork::Parent(pid) => {
                let control = matches!(request, Request::Write { .. }).then_some(control);
                Ok(Self::new(id, TaskKind::Worker, pid, control, Some(status), stdin, outputs))
            }
        }
    }

    /// Creates a task that no process works for.
    pub(crate) fn without_process(id: u64, kind: TaskKind) -> Self {
        let mut outputs = [Output::default(), Output::default()];
        outputs[1].eof = true;
        Self::new(id, kind, 0, None, None, Input::default(), outputs)
    }

    fn new(
        id: u64,
        kind: TaskKind,
        pid: i32,
        control: Option<OwnedFd>,
        status: Option<OwnedFd>,
        stdin: Input,
        outputs: [Output; 2],
    ) -> Self {
        Self {
            id,
            kind,
            pid,
            control,
            status,
            reports: Vec::new(),
            listener: None,
            stdin,
            outputs,
            ready: false,
            end: None,
            viewer: None,
            deadline: None,
            timed_out: false,
            oom_before: None,
            ending: false,
            last: false,
            hold: false,
            linger: None,
            lingers_until: None,
        }
    }

    pub(crate) fn is_tty(&self) -> bool {
        matches!(self.kind, TaskKind::Command { terminal: Some(_), .. })
    }

    /// Whether it continues without a reader.
    pub(crate) fn is_detached(&self) -> bool {
        matches!(self.kind, TaskKind::Command { detached: true, .. })
    }

    /// Whether it has output that must not be lost, although it may have ended.
    pub(crate) fn holds_output(&self) -> bool {
        self.hold && self.outputs.iter().any(|output| output.ring.len() > 0 || !output.eof)
    }

    /// Nobody reads it any more: it stays for a while. Returns false if it has no linger time.
    pub(crate) fn start_to_linger(&mut self) -> bool {
        if let (None, Some(linger)) = (self.lingers_until, self.linger) {
            self.lingers_until = Some(Instant::now() + linger);
        }
        self.lingers_until.is_some()
    }

    /// From now on, nothing of it is kept.
    pub(crate) fn give_up(&mut self) {
        (self.linger, self.lingers_until, self.hold) = (None, None, false);
    }

    /// The number of bytes of standard input that were received, and how many of them were passed on to the command.
    pub(crate) fn stdin_offsets(&self) -> (u64, u64) {
        (self.stdin.received, self.stdin.consumed)
    }

    /// Reads the reports of the child.
    pub(crate) fn read_reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        let Some(status) = &self.status else { return reports };
        let mut buffer = [0; 4096];
        let over = loop {
            match report::receive(status, &mut buffer) {
                Ok((0, _)) => break true,
                Ok((count, fd)) => {
                    self.reports.extend_from_slice(&buffer[..count]);
                    self.listener = fd.or(self.listener.take());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true,
            }
        };
        while let Some(report) = Report::take(&mut self.reports) {
            match report {
                Ok(report) => reports.push(report),
                Err(()) => self.reports.clear(),
            }
        }
        if over {
            self.status = None;
            let opened = |report: &Report| matches!(report, Report::Ready | Report::ReadySparse | Report::Listening);
            if self.end.is_none() && reports.iter().all(opened) {
                // It was killed before it could report the result.
                reports.push(match self.kind {
                    TaskKind::Command { .. } => {
                        Report::Exited(ExitReport { signal: Some(libc::SIGKILL), ..ExitReport::default() })
                    }
                    TaskKind::Worker => Report::Failed(Failure::new(FailureKind::Other, "the file worker was killed")),
                    TaskKind::Stream { .. } | TaskKind::Listener(_) => {
                        Report::Failed(Failure::new(FailureKind::Other, "the process that opens the socket was killed"))
                    }
                });
            }
        }
        reports
    }

    /// Sends an order to the shim.
    pub(crate) fn order(&mut self, order: Order) {
        if let (TaskKind::Command { .. }, Some(status)) = (&self.kind, &self.status) {
            let _ = rustix::io::write(status, &order.to_bytes());
        }
    }

    /// Tells a worker that the whole file has arrived. Without this, the worker discards what it has.
    pub(crate) fn commit_input(&mut self) {
        if let (TaskKind::Worker, true) = (&self.kind, self.stdin.complete)
            && let Some(control) = self.control.take()
        {
            let _ = rustix::io::write(&control, b"k");
        }
    }

    /// Ends the task and everything it started.
    pub(crate) fn end_tree(&mut self) {
        if std::mem::replace(&mut self.ending, true) {
            return;
        }
        match self.kind {
            TaskKind::Command { grace_ms, .. } => self.order(Order::Kill(grace_ms)),
            // The worker cleans up after itself.
            TaskKind::Worker if self.control.is_some() => {
                self.control = None;
                self.stdin.discard();
            }
            TaskKind::Worker if self.status.is_some() => sys::kill(self.pid, libc::SIGKILL),
            // Sockets are closed when their host is lost.
            TaskKind::Worker | TaskKind::Stream { .. } | TaskKind::Listener(_) => {}
        }
    }

    pub(crate) fn resize(&self, size: Size) {
        if let TaskKind::Command { terminal: Some(terminal), .. } = &self.kind {
            let _ = rustix::termios::tcsetwinsize(terminal, winsize(size));
        }
    }
}

impl Input {
    /// Accepts bytes from the host. Returns `Err` if they are not the next ones, or exceed the window.
    pub(crate) fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        if self.eof || offset != self.received || self.received - self.consumed + bytes.len() as u64 > self.window {
            return Err(());
        }
        self.received += bytes.len() as u64;
        let mut rest = bytes;
        if self.waiting.is_empty() {
            // The usual case: bytes that the task reads at once are not buffered.
            let taken = self.pass_on(bytes);
            rest = &bytes[taken..];
        }
        if self.pipe.is_some() {
            self.waiting.extend(rest);
        } else {
            self.consumed = self.received; // The command does not read its input, which is normal.
        }
        Ok(())
    }

    /// Writes as much as the task accepts, and returns how much that was.
    fn pass_on(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let (Some(pipe), true) = (&self.pipe, taken < bytes.len()) {
            match rustix::io::write(pipe, &bytes[taken..]) {
                Ok(count) => taken += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => self.pipe = None,
            }
        }
        self.consumed += taken as u64;
        taken
    }

    /// There are no more bytes. On a terminal, the end-of-file character is sent.
    pub(crate) fn receive_eof(&mut self) {
        if !std::mem::replace(&mut self.eof, true) && self.tty {
            self.waiting.push_back(4);
            self.received += 1;
        }
    }

    /// Passes on as much as the task accepts, and returns whether the host must be told.
    pub(crate) fn flush(&mut self) -> bool {
        if !self.waiting.is_empty() {
            let mut waiting = std::mem::take(&mut self.waiting);
            let taken = self.pass_on(waiting.make_contiguous());
            waiting.drain(..taken);
            self.waiting = waiting;
            if self.pipe.is_none() {
                self.discard();
            }
        }
        if self.eof
            && self.waiting.is_empty()
            && !self.tty
            && let Some(pipe) = self.pipe.take()
        {
            self.complete = true;
            if self.socket {
                let _ = rustix::net::shutdown(&pipe, rustix::net::Shutdown::Write);
            }
        }
        std::mem::replace(&mut self.told, self.consumed) != self.consumed
    }

    /// The input will not be read any more.
    pub(crate) fn discard(&mut self) {
        self.pipe = None;
        self.waiting = VecDeque::new();
        self.consumed = self.received;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many bytes the host may be ahead. Zero after the end of the input: the host must send no more.
    pub(crate) fn open_window(&self) -> u64 {
        if self.eof { 0 } else { self.window }
    }

    /// Whether all input was passed on, including its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the peer of a socket reads no more although there may be more input. Returns it only once.
    pub(crate) fn is_refused(&mut self) -> bool {
        let refused = self.socket && self.pipe.is_none() && !self.eof;
        refused && !std::mem::replace(&mut self.refusal_told, true)
    }
}

fn open_terminal(size: Size) -> Result<(OwnedFd, OwnedFd), Failure> {
    let failed = |error| system("open a terminal", error);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let mine = rustix::pty::openpt(flags).map_err(failed)?;
    rustix::pty::unlockpt(&mine).map_err(failed)?;
    // Opened by descriptor, never by name: the files in /dev/pts belong to the sandbox.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&mine, flags).map_err(failed)?;
    rustix::termios::tcsetwinsize(&mine, winsize(size)).map_err(failed)?;
    rustix::io::ioctl_fionbio(&mine, true).map_err(failed)?;
    Ok((mine, theirs))
}

fn winsize(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}
