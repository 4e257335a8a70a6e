//! Sources of a copy, as readers.

use crate::{FileReader, Result};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

/// A regular file of the host. Reading it waits for nobody, so it needs no thread.
pub(super) struct Plain(pub(super) File);

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let count = self.get_mut().0.read(into.initialize_unfilled())?;
        into.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// Counts what is read.
pub(super) struct Counted<R, F> {
    pub(super) from: R,
    pub(super) tell: F,
}

impl<R: AsyncRead + Unpin, F: FnMut(usize) + Unpin> AsyncRead for Counted<R, F> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        ready!(Pin::new(&mut this.from).poll_read(cx, into))?;
        (this.tell)(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

type NextChunk = Pin<Box<dyn Future<Output = (FileReader, Result<Option<Vec<u8>>>)> + Send>>;

/// A file inside.
pub(super) struct FromInside {
    next: NextChunk,
    rest: Vec<u8>,
}

impl FromInside {
    pub(super) fn new(reader: FileReader) -> Self {
        Self { next: next(reader), rest: Vec::new() }
    }
}

fn next(mut reader: FileReader) -> NextChunk {
    Box::pin(async move {
        let chunk = reader.chunk().await;
        (reader, chunk)
    })
}

impl AsyncRead for FromInside {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let (reader, chunk) = ready!(this.next.as_mut().poll(cx));
            this.next = next(reader);
            this.rest = chunk.map_err(std::io::Error::other)?.unwrap_or_default();
        }
        let take = this.rest.len().min(into.remaining());
        into.put_slice(&this.rest[..take]);
        this.rest.drain(..take);
        Poll::Ready(Ok(()))
    }
}

/// A pipe, terminal or other descriptor that may block, read by a thread of its own. Such a descriptor cannot be made
/// non-blocking without doing the same to everyone who shares it.
///
/// It reads at most one piece ahead, and drops nothing that it has read. An error counts as the end.
pub struct PipeReader {
    pieces: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl PipeReader {
    /// Starts to read a descriptor. The thread ends with the descriptor's content, or after the next piece when this is
    /// dropped.
    pub fn new(from: impl AsFd + Send + 'static) -> Self {
        let (sender, pieces) = mpsc::channel(1);
        std::thread::spawn(move || read(from, &sender));
        Self { pieces, rest: Vec::new() }
    }

    /// Returns the next bytes, or `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.pieces.recv().await
    }
}

fn read(from: impl AsFd, sender: &mpsc::Sender<Vec<u8>>) {
    const PIECE: usize = 64 * 1024;
    let mut buffer = vec![0; PIECE];
    loop {
        match rustix::io::read(&from, &mut buffer[..]) {
            Err(Errno::INTR) => {}
            // A terminal that is gone returns an error for ever: that is its end.
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        }
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(this.pieces.poll_recv(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(piece) => this.rest = piece,
            }
        }
        let take = this.rest.len().min(into.remaining());
        into.put_slice(&this.rest[..take]);
        this.rest.drain(..take);
        Poll::Ready(Ok(()))
    }
}
