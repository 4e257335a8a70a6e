//! Standard input of this process, or another pipe, read by a thread of its own: a terminal or pipe cannot be made non-blocking without
//! doing the same to everyone who shares it.
//!
//! Nothing is read before someone wants it, and what was read is never dropped.

use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

const PIECE: usize = 64 * 1024;

/// What standard input is to a command inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A terminal: passed if asked for.
    Terminal,
    /// A pipe, file or socket: someone put something there to be read.
    Content,
    /// `/dev/null`, closed, or another device: nothing to pass.
    Nothing,
}

/// What standard input is now.
pub(crate) fn kind() -> Kind {
    let stdin = rustix::stdio::stdin();
    let Ok(stat) = rustix::fs::fstat(stdin) else { return Kind::Nothing };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::RegularFile | FileType::Socket => Kind::Content,
        FileType::CharacterDevice if rustix::termios::isatty(stdin) => Kind::Terminal,
        _ => Kind::Nothing,
    }
}

/// Standard input, or a pipe, as it comes.
pub(crate) struct Input {
    pieces: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Input {
    /// Begins to read standard input.
    pub(crate) fn open() -> Self {
        Self::read(rustix::stdio::stdin())
    }

    /// Begins to read something else that may make its reader wait.
    pub(crate) fn of(file: File) -> Self {
        Self::read(file)
    }

    fn read(from: impl AsFd + Send + 'static) -> Self {
        let (sender, pieces) = mpsc::channel(1);
        std::thread::spawn(move || read(from, &sender));
        Self { pieces, rest: Vec::new() }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.pieces.recv().await
    }
}

fn read(from: impl AsFd, sender: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        match rustix::io::read(&from, &mut buffer[..]) {
            Err(Errno::INTR) => {}
            // A terminal that went away gives an error for ever: that is its end.
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        }
    }
}

impl AsyncRead for Input {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match this.pieces.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(piece)) => this.rest = piece,
            }
        }
        let take = this.rest.len().min(into.remaining());
        into.put_slice(&this.rest[..take]);
        this.rest.drain(..take);
        Poll::Ready(Ok(()))
    }
}
