//! Standard output and error of this process.
//!
//! A slow reader must not delay the handling of signals, so a write that may block is done by another thread.
//! Descriptors are never made non-blocking, because they are shared with the process that started this one.

use comfy_table::{Table, presets};
use kennel_core::{printable_json, printable_layout};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// The exit status if the reader of standard output has closed it: 128 plus SIGPIPE.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// Prints text to standard output, with colours if it is a terminal, and returns the exit status. The caller must
/// escape untrusted parts with `printable`. Non-ASCII characters that control a terminal are always escaped.
pub(crate) fn print(text: &str) -> u8 {
    let text = printable_layout(text);
    let mut out = anstream::stdout().lock();
    let done = if text.ends_with('\n') { write!(out, "{text}") } else { writeln!(out, "{text}") };
    match done.and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => BROKEN_PIPE,
        Err(error) => crate::report::failed(&kennel_core::Error::io("write to standard output", error)),
    }
}

/// Returns rows as a table of columns, separated by spaces. The caller must escape untrusted cells with `printable`.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.trim_fmt()
}

/// Prints bytes unchanged to standard output, and returns the exit status.
pub(crate) fn print_plain(bytes: &[u8]) -> u8 {
    match write_all(rustix::stdio::stdout(), bytes) {
        Ok(()) => 0,
        Err(Errno::PIPE) => BROKEN_PIPE,
        Err(error) => crate::report::failed(&kennel_core::Error::io("write to standard output", error)),
    }
}

/// Prints a value as JSON on several lines, and returns the exit status. Control characters are escaped.
pub(crate) fn print_json(value: &impl serde::Serialize) -> u8 {
    print_json_text(serde_json::to_string_pretty(value))
}

/// Prints a value as JSON on one line, and returns the exit status. Control characters are escaped.
pub(crate) fn print_json_line(value: &impl serde::Serialize) -> u8 {
    print_json_text(serde_json::to_string(value))
}

fn print_json_text(text: serde_json::Result<String>) -> u8 {
    match text {
        // Without colour support, because text in the value must not be interpreted as colours.
        Ok(text) => print_plain(format!("{}\n", printable_json(&text)).as_bytes()),
        Err(error) => crate::report::failed(&kennel_core::Error::io("write JSON", std::io::Error::other(error))),
    }
}

/// One of the two output streams of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn descriptor(self) -> BorrowedFd<'static> {
        match self {
            Self::Stdout => rustix::stdio::stdout(),
            Self::Stderr => rustix::stdio::stderr(),
        }
    }

    /// Writes all bytes unchanged.
    pub(crate) async fn write(self, bytes: Vec<u8>) -> Result<(), Errno> {
        // A pipe that is ready accepts this many bytes without blocking (`PIPE_BUF` on Linux).
        const READY_TAKES: usize = 4096;
        let descriptor = self.descriptor();
        if bytes.len() <= READY_TAKES && is_ready(descriptor) {
            return write_all(descriptor, &bytes);
        }
        tokio::task::spawn_blocking(move || write_all(descriptor, &bytes)).await.unwrap_or(Err(Errno::CANCELED))
    }
}

/// Standard output as an asynchronous writer. One write may be in progress; the next call returns its error.
#[derive(Default)]
pub(crate) struct Stdout {
    writing: Option<Writing>,
    reader_left: bool,
}

type Writing = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send>>;

impl Stdout {
    /// Whether a write failed because the reader of standard output has closed it.
    pub(crate) fn reader_left(&self) -> bool {
        self.reader_left
    }

    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let done = ready!(writing.as_mut().poll(cx));
        self.writing = None;
        self.reader_left |= done == Err(Errno::PIPE);
        Poll::Ready(done.map_err(Into::into))
    }
}

impl AsyncWrite for Stdout {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.poll_done(cx))?;
        self.writing = Some(Box::pin(Stream::Stdout.write(bytes.to_vec())));
        // A future does nothing until it is polled.
        match self.poll_done(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_done(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_done(cx)
    }
}

fn is_ready(descriptor: BorrowedFd<'_>) -> bool {
    let mut poll = [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut poll, Some(&at_once)).is_ok_and(|count| count == 1)
}

fn write_all(descriptor: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Another process that shares the descriptor has made it non-blocking.
            Err(Errno::AGAIN) => {
                let mut poll = [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)];
                rustix::event::poll(&mut poll, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
