//! Short functions for work inside a sandbox. An unexpected failure panics.

use kennel_core::{Exec, ExecEvent, Files, LogOptions, Output, Result, Sandbox};
use kennel_proto::Channel;
use kennel_types::{ErrorCode, ExecSpec, ExitStatus, TermSize};
use std::time::Duration;

/// A number of bytes that is more than any case prints.
pub const PLENTY: usize = 128 * 1024 * 1024;

/// The time limit for something that should happen soon. It is long, for busy machines: only a failing test waits that
/// long.
pub const SOON: Duration = Duration::from_mins(1);

/// Runs a command and collects its output.
pub async fn run(sandbox: &Sandbox, spec: &ExecSpec) -> Output {
    sandbox.run(spec, None, PLENTY).await.unwrap_or_else(|error| panic!("run {:?}: {error}", spec.command))
}

/// Runs a script in a shell.
pub async fn sh(sandbox: &Sandbox, script: &str) -> Output {
    run(sandbox, &ExecSpec::shell(script)).await
}

/// Runs a script in a shell, which must succeed, and returns its output without the last newline.
pub async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let output = sh(sandbox, script).await;
    assert!(output.status.success(), "{script:?}: {:?}\n{}", output.status, output.stderr_text());
    output.stdout_text().trim_end_matches('\n').to_owned()
}

/// Opens the files of a sandbox as its default user.
pub async fn files(sandbox: &Sandbox) -> Files {
    sandbox.files(None).await.expect("reach the keeper for files")
}

/// Returns the path of a name in the working directory.
pub fn at(sandbox: &Sandbox, name: &str) -> String {
    format!("{}/{name}", sandbox.info().workdir.trim_end_matches('/'))
}

/// Returns the code of the error that the result must be.
pub fn code<T>(result: Result<T>) -> ErrorCode {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.code(),
    }
}

/// Reads a command's output until `wanted` holds for everything read so far.
pub async fn read_until(exec: &mut Exec, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut seen = Vec::new();
    let reading = async {
        while !wanted(&seen) {
            match exec.next().await.expect("the command goes on") {
                ExecEvent::Output(_, bytes) => seen.extend(bytes),
                ExecEvent::Exited(status) => panic!("it ended ({status:?}) after {:?}", String::from_utf8_lossy(&seen)),
            }
        }
    };
    let in_time = tokio::time::timeout(SOON, reading).await.is_ok();
    assert!(in_time, "only this came: {:?}", String::from_utf8_lossy(&seen));
    seen
}

/// Reads a command's output on both streams to its end, and returns it with the exit status.
pub async fn read_to_end(exec: &mut Exec) -> (Vec<u8>, ExitStatus) {
    let mut seen = Vec::new();
    let reading = async {
        loop {
            match exec.next().await.expect("the command goes on") {
                ExecEvent::Output(_, bytes) => seen.extend(bytes),
                ExecEvent::Exited(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(SOON, reading).await.expect("the command ends");
    (seen, status)
}

/// Returns the log of the main process: standard output and standard error.
pub async fn log(sandbox: &Sandbox, options: LogOptions) -> (String, String) {
    use futures_util::TryStreamExt;
    let chunks = sandbox.logs(options).await.expect("open the log");
    let chunks: Vec<_> =
        tokio::time::timeout(SOON, chunks.try_collect()).await.expect("the log ends").expect("the log can be read");
    let of = |channel| {
        let chunks = chunks.iter().filter(|chunk: &&kennel_core::LogChunk| chunk.channel == channel);
        String::from_utf8_lossy(&chunks.flat_map(|chunk| chunk.bytes.clone()).collect::<Vec<u8>>()).into_owned()
    };
    (of(Channel::Stdout), of(Channel::Stderr))
}

/// A user at a terminal.
pub struct Typist {
    /// The command on the terminal.
    pub exec: Exec,
    unread: String,
}

/// The initial size of terminals.
pub const SIZE: TermSize = TermSize { rows: 24, cols: 80 };

impl Typist {
    /// Creates a user for a command that runs on a terminal.
    pub fn new(exec: Exec) -> Self {
        assert!(exec.is_tty(), "it runs on a terminal");
        Self { exec, unread: String::new() }
    }

    /// Starts a command on a terminal.
    pub async fn start(sandbox: &Sandbox, spec: ExecSpec) -> Self {
        let spec = ExecSpec { tty: Some(SIZE), stdin: true, ..spec };
        Self::new(sandbox.exec(&spec).await.expect("start on a terminal"))
    }

    /// Types these keys.
    pub async fn types(&self, keys: &str) {
        self.exec.stdin().write(keys.as_bytes()).await.expect("the terminal takes keys");
    }

    /// Reads until the text appears, and discards the output up to it.
    pub async fn sees(&mut self, text: &str) {
        let reading = async {
            loop {
                if let Some(found) = self.unread.find(text) {
                    self.unread.drain(..found + text.len());
                    return;
                }
                match self.exec.next().await.expect("the terminal goes on") {
                    ExecEvent::Output(_, bytes) => self.unread.push_str(&String::from_utf8_lossy(&bytes)),
                    ExecEvent::Exited(status) => panic!("it ended ({status:?}) without {text:?}: {:?}", self.unread),
                }
            }
        };
        let in_time = tokio::time::timeout(SOON, reading).await.is_ok();
        assert!(in_time, "no {text:?} in {:?}", self.unread);
    }

    /// Reads the output to its end, and returns the exit status.
    pub async fn leaves(mut self) -> ExitStatus {
        read_to_end(&mut self.exec).await.1
    }
}
