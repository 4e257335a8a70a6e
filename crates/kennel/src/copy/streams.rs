//! What is copied, as something to be read from.

use super::Tally;
use kennel_core::{FileReader, Result};
use std::fs::File;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// A regular file of the host. It is read without waiting for anyone, so no thread is needed.
pub(super) struct Plain(pub(super) File);

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let count = self.get_mut().0.read(into.initialize_unfilled())?;
        into.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// The same, with what is read counted.
pub(super) struct Counted<'a, R> {
    pub(super) from: R,
    pub(super) tally: &'a mut Tally,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<'_, R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        ready!(Pin::new(&mut this.from).poll_read(cx, into))?;
        this.tally.copied(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

type NextChunk = Pin<Box<dyn Future<Output = (FileReader, Result<Option<Vec<u8>>>)>>>;

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
