//! One stream of a connection: a request and everything that follows from it.

use crate::keeper::{End, Keeper, elapsed};
use crate::process::{Next, Process, Reader};
use crate::tree::fail;
use kennel_proto::{Attach, Body, Channel, Failure, FailureKind, Outcome, Reply, Request, Spawn, caps};
use kennel_provider::keeper_server::Link;
use minicbor::Encode;
use std::sync::Arc;

/// The stream was closed by the host: nothing more may be sent.
struct Closed;

/// Why a stream ends early.
enum Stop {
    Failed(Failure),
    Closed,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

pub(crate) async fn answer(keeper: Arc<Keeper>, request: Request, mut link: Link) {
    let brief = matches!(
        request,
        Request::Processes
            | Request::Kill { .. }
            | Request::Stats
            | Request::Idle { .. }
            | Request::EndIfIdle
            | Request::Tie { .. }
    );
    let _busy = (!brief).then(|| keeper.usage.begin());
    let done = match request {
        Request::Spawn(spawn) => run(&keeper, &spawn, &mut link).await,
        Request::Attach(attach) => reattach(&keeper, &attach, &mut link).await,
        request => files(&keeper, request, &mut link).await,
    };
    match done {
        Ok(Some(outcome)) => link.send(Body::Reply(Reply::Done(outcome))).await,
        Ok(None) | Err(Stop::Closed) => {}
        Err(Stop::Failed(failure)) => link.send(Body::Fail(failure)).await,
    }
}

async fn run(keeper: &Arc<Keeper>, spawn: &Spawn, link: &mut Link) -> Result<Option<Outcome>, Stop> {
    let process = keeper.spawn(spawn, None)?;
    let (reader, reply) = process.attach([0; 2]);
    let ended = relay(Attached { process, reader, tied: !spawn.detached, closed: false }, reply, link).await;
    if spawn.last {
        keeper.shut_down(End::Stopped);
    }
    ended
}

async fn reattach(keeper: &Arc<Keeper>, attach: &Attach, link: &mut Link) -> Result<Option<Outcome>, Stop> {
    let process = keeper.process(attach.process)?;
    let (reader, reply) = process.attach([attach.stdout, attach.stderr]);
    let tied = process.linger.is_some();
    relay(Attached { process, reader, tied, closed: false }, reply, link).await
}

/// An attached reader. Dropping it ends a tied command.
struct Attached {
    process: Arc<Process>,
    reader: Reader,
    tied: bool,
    /// Whether the host has closed the stream.
    closed: bool,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.process.detach(&self.reader);
        match self.process.linger.filter(|_| !self.closed) {
            _ if !self.tied => {}
            None => self.process.give_up(),
            Some(linger) => {
                let (process, readers) = (self.process.clone(), self.process.readers());
                tokio::spawn(async move {
                    elapsed(linger).await;
                    // A later reader has taken it over, or has lost its connection too.
                    if process.readers() == readers {
                        process.give_up();
                    }
                });
            }
        }
    }
}

async fn relay(mut attached: Attached, reply: Reply, link: &mut Link) -> Result<Option<Outcome>, Stop> {
    link.send(Body::Reply(reply)).await;
    let process = attached.process.clone();
    loop {
        let changed = process.changed.notified();
        while let Ok(body) = link.inbox.try_recv() {
            take(&mut attached, body)?;
        }
        match process.next(&mut attached.reader) {
            Next::Data(channel, offset, bytes) => link.send(Body::Data { channel, offset, bytes }).await,
            Next::Taken(offset) => link.send(Body::Consumed { channel: Channel::Stdin, offset }).await,
            Next::Exit(report) => {
                for channel in [Channel::Stdout, Channel::Stderr] {
                    link.send(Body::Eof(channel)).await;
                }
                link.send(Body::Exit(report)).await;
                return Ok(None);
            }
            Next::TakenOver => {
                // Another reader has taken the command over.
                attached.tied = false;
                link.send(Body::Close).await;
                return Ok(None);
            }
            Next::Wait => tokio::select! {
                body = link.inbox.recv() => take(&mut attached, body.unwrap_or(Body::Close))?,
                () = changed => {}
            },
        }
    }
}

fn take(attached: &mut Attached, body: Body) -> Result<(), Stop> {
    match body {
        Body::Data { channel: Channel::Stdin, offset, bytes } => {
            if !attached.process.feed(offset, &bytes) {
                return Err(fail(FailureKind::Invalid, "standard input out of order or past its window").into());
            }
        }
        Body::Eof(Channel::Stdin) => attached.process.close_stdin(),
        Body::Consumed { channel, offset } => attached.process.consumed(&attached.reader, channel, offset),
        Body::Signal(signal) => attached.process.signal(signal),
        Body::Resize(_) => {}
        Body::Close => {
            attached.closed = true;
            return Err(Stop::Closed);
        }
        _ => return Err(fail(FailureKind::Invalid, "a frame that only a keeper sends").into()),
    }
    Ok(())
}

async fn files(keeper: &Keeper, request: Request, link: &mut Link) -> Result<Option<Outcome>, Stop> {
    let tree = &keeper.tree;
    if request.user().is_some() {
        return Err(fail(FailureKind::Unsupported, "the mock has no users").into());
    }
    match request {
        Request::Processes => return Ok(Some(Outcome::Processes(keeper.list()))),
        Request::Stats => return Ok(Some(Outcome::Stats(keeper.stats()))),
        Request::EndIfIdle => {
            let report = keeper.usage.report(false);
            if !report.in_use {
                keeper.shut_down(End::Idle);
            }
            return Ok(Some(Outcome::Idle(report)));
        }
        Request::Tie { .. } => return Ok(Some(Outcome::Nothing)),
        Request::Idle { reset } => return Ok(Some(Outcome::Idle(keeper.usage.report(reset)))),
        Request::Kill { process, signal } => keeper.process(process)?.signal(if signal == 0 { 15 } else { signal }),
        Request::Shutdown { .. } => keeper.shut_down(End::Stopped),
        Request::Read { path, offset, limit, .. } => {
            let content = tree.read(&path)?;
            let start = (offset as usize).min(content.len());
            let end = limit.map_or(content.len(), |limit| start.saturating_add(limit as usize).min(content.len()));
            let mut outlet = Outlet::open(link).await;
            outlet.push(&content[start..end]).await?;
        }
        Request::Write { path, mode, parents, offset, .. } => {
            let bytes = receive(link).await?;
            match offset {
                Some(offset) => tree.write_at(&path, offset, &bytes, mode, parents)?,
                None => tree.write(&path, bytes, mode, parents)?,
            }
        }
        Request::List { path, depth, .. } => {
            let entries = tree.list(&path, depth.unwrap_or(1))?;
            let mut outlet = Outlet::open(link).await;
            for entry in entries {
                outlet.push(&item(&entry)).await?;
            }
        }
        Request::Stat { path, .. } => return Ok(Some(Outcome::Stat(tree.stat(&path)?))),
        Request::Mkdir { path, parents, mode, .. } => tree.mkdir(&path, parents, mode)?,
        Request::Move { from, to, replace, .. } => tree.rename(&from, &to, replace)?,
        Request::Remove { path, recursive, .. } => tree.remove(&path, recursive)?,
        Request::Chmod { path, mode, .. } => tree.chmod(&path, mode)?,
        Request::Symlink { .. } => return Err(fail(FailureKind::Unsupported, "the mock has no symlinks").into()),
        Request::Connect { .. } | Request::Listen { .. } | Request::Accept { .. } => {
            return Err(fail(FailureKind::Unsupported, "the mock has no sockets").into());
        }
        Request::Watch { path, recursive, .. } => {
            let mut changes = tree.watch(&path, recursive)?;
            let mut outlet = Outlet::open(link).await;
            while let Some(change) = outlet.while_open(changes.recv()).await? {
                outlet.push(&item(&change)).await?;
            }
        }
        Request::Spawn(_) | Request::Attach(_) => {
            return Err(fail(FailureKind::Invalid, "it is answered elsewhere").into());
        }
    }
    Ok(Some(Outcome::Nothing))
}

/// Encodes a length and a message.
fn item<T: Encode<()>>(message: &T) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    minicbor::encode(message, &mut bytes).expect("writing to a Vec cannot fail");
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Receives what the host sends on `Stdin`, to its end.
async fn receive(link: &mut Link) -> Result<Vec<u8>, Stop> {
    link.send(Body::Reply(Reply::Ready { stdin_window: caps::WINDOW })).await;
    let mut bytes = Vec::new();
    loop {
        match link.inbox.recv().await {
            Some(Body::Data { channel: Channel::Stdin, offset, bytes: more }) => {
                if offset != bytes.len() as u64 {
                    return Err(fail(FailureKind::Invalid, "content out of order").into());
                }
                bytes.extend_from_slice(&more);
                link.send(Body::Consumed { channel: Channel::Stdin, offset: bytes.len() as u64 }).await;
            }
            Some(Body::Eof(Channel::Stdin)) => return Ok(bytes),
            Some(Body::Close) | None => return Err(Stop::Closed),
            Some(_) => return Err(fail(FailureKind::Invalid, "unexpected while a file is written").into()),
        }
    }
}

/// Sends bytes on `Stdout`, at most one window ahead.
struct Outlet<'l> {
    link: &'l mut Link,
    sent: u64,
    consumed: u64,
}

impl<'l> Outlet<'l> {
    async fn open(link: &'l mut Link) -> Self {
        link.send(Body::Reply(Reply::Ready { stdin_window: 0 })).await;
        Self { link, sent: 0, consumed: 0 }
    }

    async fn push(&mut self, mut bytes: &[u8]) -> Result<(), Closed> {
        while !bytes.is_empty() {
            let room = caps::WINDOW - (self.sent - self.consumed);
            if room == 0 {
                let body = self.link.inbox.recv().await;
                self.take(body.as_ref())?;
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room as usize).min(caps::DATA));
            let data = Body::Data { channel: Channel::Stdout, offset: self.sent, bytes: now.to_vec() };
            self.link.send(data).await;
            self.sent += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Waits for something while the stream is open.
    async fn while_open<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, Closed> {
        tokio::pin!(wait);
        loop {
            tokio::select! {
                value = &mut wait => return Ok(value),
                body = self.link.inbox.recv() => self.take(body.as_ref())?,
            }
        }
    }

    fn take(&mut self, body: Option<&Body>) -> Result<(), Closed> {
        match body {
            Some(Body::Consumed { channel: Channel::Stdout, offset }) => {
                self.consumed = self.consumed.max(self.sent.min(*offset));
                Ok(())
            }
            _ => Err(Closed),
        }
    }
}
