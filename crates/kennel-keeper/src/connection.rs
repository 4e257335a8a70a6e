//! One connection of a host: decodes received bytes into frames, and encodes outgoing frames into bytes.

use kennel_proto::{Body, Channel, DecodeError, Decoder, Frame, encode, encode_data_header};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// How long a frame is held back that the host does not wait for. The frame that usually follows arrives within this time,
/// and then one write wakes the host once.
const HOLD: Duration = Duration::from_millis(2);

/// The number of bytes that may be queued for writing before streams must wait.
const OUTGOING: usize = 256 * 1024;

pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    decoder: Decoder,
    outgoing: Vec<u8>,
    /// Everything before this position has been written.
    written: usize,
    /// Since when the queued frames are held back. `None` if the host waits for one of them.
    held_since: Option<Instant>,
    /// Whether a valid hello was received.
    pub(crate) greeted: bool,
    /// Whether a tied sandbox lives as long as this connection.
    pub(crate) owner: bool,
    /// Whether the sandbox ends when this connection is lost.
    pub(crate) ties: bool,
    /// The streams, each with the id of its task.
    pub(crate) streams: HashMap<u32, u64>,
    /// Whether the event loop waits until the socket is writable.
    pub(crate) waits_to_write: bool,
    /// Whether a stream had output but there was no room to queue it.
    pub(crate) waits_for_room: bool,
}

/// The connection cannot be used any longer.
pub(crate) struct Broken;

impl From<DecodeError> for Broken {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: Decoder::new(),
            outgoing: Vec::new(),
            written: 0,
            held_since: None,
            greeted: false,
            owner: false,
            ties: false,
            streams: HashMap::new(),
            waits_to_write: false,
            waits_for_room: false,
        }
    }

    /// Reads once, and returns the complete frames that have arrived.
    pub(crate) fn read(&mut self, scratch: &mut [MaybeUninit<u8>]) -> Result<Vec<Frame>, Broken> {
        match rustix::io::read(&self.socket, scratch) {
            Ok(([], _)) => return Err(Broken),
            Ok((bytes, _)) => self.decoder.feed(bytes),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Vec::new()),
            Err(_) => return Err(Broken),
        }
        let mut frames = Vec::new();
        while let Some(frame) = self.decoder.next_frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Reads and discards everything until the host closes the connection or the time is over.
    pub(crate) fn wait_until_hung_up(&self, until: Instant) {
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut bytes) {
                Ok(1..) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                    let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                    if !matches!(poll(&mut fds, Some(&timeout)), Ok(1..) | Err(Errno::INTR)) || left.is_zero() {
                        return;
                    }
                }
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Queues a frame.
    pub(crate) fn send(&mut self, stream: u32, body: Body) {
        self.held_since = None;
        encode(&Frame { stream, body }, &mut self.outgoing);
    }

    /// Queues a frame that the host does not wait for. It may be held back for a moment.
    pub(crate) fn send_soon(&mut self, stream: u32, body: Body) {
        if !self.has_outgoing() {
            self.held_since = Some(Instant::now());
        }
        encode(&Frame { stream, body }, &mut self.outgoing);
    }

    /// Until when the queued frames are held back. Without a stream, nothing would follow them.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.held_since.filter(|_| !self.streams.is_empty()).map(|since| since + HOLD)
    }

    /// Queues bytes of a channel.
    pub(crate) fn send_data(&mut self, stream: u32, channel: Channel, offset: u64, bytes: &[u8]) {
        self.held_since = None;
        self.outgoing.extend_from_slice(&encode_data_header(stream, channel, offset, bytes.len()));
        self.outgoing.extend_from_slice(bytes);
    }

    /// Whether more output may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.outgoing.len() - self.written < OUTGOING
    }

    /// Whether bytes wait to be written.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.written < self.outgoing.len()
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        self.held_since = None;
        while self.has_outgoing() {
            match rustix::io::write(&self.socket, &self.outgoing[self.written..]) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Broken),
            }
        }
        if self.written == self.outgoing.len() {
            self.outgoing.clear();
            self.written = 0;
        } else if self.written > OUTGOING {
            self.outgoing.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_without_a_waiting_receiver_are_delayed() {
        let (socket, _host) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(socket.into());
        connection.send_soon(0, Body::Pong);
        assert_eq!(connection.held_until(), None, "without a stream, nothing follows");
        connection.streams.insert(1, 1);
        let until = connection.held_until().expect("a stream is open");
        connection.send_soon(1, Body::Eof(Channel::Stdout));
        assert_eq!(connection.held_until(), Some(until), "a second one is not held longer");
        connection.send(1, Body::Pong);
        assert_eq!(connection.held_until(), None, "the host waits for this one");
        connection.send_soon(1, Body::Eof(Channel::Stderr));
        assert_eq!(connection.held_until(), None, "and gets everything that is queued");
        assert!(connection.flush().is_ok());
        assert!(!connection.has_outgoing());
        connection.send_soon(1, Body::Eof(Channel::Stderr));
        assert!(connection.held_until().is_some());
        connection.send_data(1, Channel::Stdout, 0, b"x");
        assert_eq!(connection.held_until(), None);
    }
}
