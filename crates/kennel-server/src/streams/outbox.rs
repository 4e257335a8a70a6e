//! What is to be sent to a client of a command, and in which order.
//!
//! Each output channel has a queue and a window: bytes beyond the window wait for the client's acknowledgement. Control
//! messages do not wait. The exit is sent after everything else.

use super::session::invalid;
use axum::extract::ws::Message;
use kennel_api::stream::{Frame, ServerMessage, StreamChannel, WINDOW};
use kennel_core::{FanOutEvent, Position, Result, SharedBytes};
use kennel_proto::Channel;
use kennel_types::ExitStatus;
use std::collections::VecDeque;

/// How many bytes may wait here. A client with a full window on one channel still receives the other one.
const QUEUE: usize = 512 * 1024;

/// What is to be sent to a client.
pub(super) struct Outbox {
    control: VecDeque<Message>,
    /// The latest acknowledgement of standard input. A later one replaces it.
    acknowledgement: Option<Message>,
    channels: [Sending; 2],
    exit: Option<ExitStatus>,
    /// Whether the exit was taken.
    done: bool,
}

/// One output channel.
struct Sending {
    channel: StreamChannel,
    queue: VecDeque<Item>,
    /// Bytes in the queue.
    waiting: usize,
    /// The offset after the last queued byte.
    end: u64,
    /// The offset after the last byte that was sent.
    sent: u64,
    /// The client has all bytes before this offset, or was told that they are lost.
    acknowledged: u64,
    /// Ranges that the client was told are lost, after `acknowledged`.
    lost: VecDeque<(u64, u64)>,
}

enum Item {
    Bytes(u64, SharedBytes),
    Lost(u64, u64),
}

impl Sending {
    fn new(channel: StreamChannel, from: u64) -> Self {
        Self {
            channel,
            queue: VecDeque::new(),
            waiting: 0,
            end: from,
            sent: from,
            acknowledged: from,
            lost: VecDeque::new(),
        }
    }

    /// Bytes that were sent and not acknowledged. Lost ones do not count.
    fn ahead(&self) -> u64 {
        let lost: u64 = self.lost.iter().map(|(from, to)| to - from).sum();
        self.sent - self.acknowledged - lost
    }

    fn is_ready(&self) -> bool {
        match self.queue.front() {
            Some(Item::Lost(..)) => true,
            Some(Item::Bytes(_, bytes)) => self.ahead() + bytes.len() as u64 <= WINDOW,
            None => false,
        }
    }

    fn take(&mut self) -> Option<Message> {
        if !self.is_ready() {
            return None;
        }
        Some(match self.queue.pop_front()? {
            Item::Bytes(offset, bytes) => {
                self.waiting -= bytes.len();
                self.sent = offset + bytes.len() as u64;
                Message::Binary(Frame { channel: self.channel, offset, payload: &bytes }.encode().into())
            }
            Item::Lost(offset, bytes) => {
                self.sent = offset + bytes;
                self.lost.push_back((offset, self.sent));
                control(&ServerMessage::Lost { channel: self.channel, offset, bytes })
            }
        })
    }

    fn acknowledge(&mut self, mut offset: u64) -> Result<()> {
        if offset > self.sent {
            let message = format!("ack of {offset} bytes, of which only {} were sent", self.sent);
            return Err(invalid(message));
        }
        // Who has everything before a lost range needs nothing of the range.
        while let Some((_, to)) = self.lost.front().copied().filter(|(from, _)| *from <= offset) {
            offset = offset.max(to);
            self.lost.pop_front();
        }
        self.acknowledged = self.acknowledged.max(offset);
        Ok(())
    }
}

impl Outbox {
    /// An empty outbox for a client that has all output before this position.
    pub(super) fn new(from: Position) -> Self {
        let channels =
            [Sending::new(StreamChannel::Stdout, from.stdout), Sending::new(StreamChannel::Stderr, from.stderr)];
        Self { control: VecDeque::new(), acknowledgement: None, channels, exit: None, done: false }
    }

    /// Adds a control message.
    pub(super) fn say(&mut self, message: Message) {
        self.control.push_back(message);
    }

    /// Adds the acknowledgement of standard input, in place of one that was not sent yet.
    pub(super) fn say_instead(&mut self, acknowledgement: Message) {
        self.acknowledgement = Some(acknowledgement);
    }

    /// Adds output, or the exit.
    pub(super) fn push(&mut self, event: FanOutEvent) {
        let index = |channel| usize::from(channel == Channel::Stderr);
        match event {
            FanOutEvent::Output { channel, offset, bytes } => {
                let sending = &mut self.channels[index(channel)];
                sending.end = offset + bytes.len() as u64;
                sending.waiting += bytes.len();
                sending.queue.push_back(Item::Bytes(offset, bytes));
            }
            FanOutEvent::Missed { channel, bytes } => {
                let sending = &mut self.channels[index(channel)];
                sending.queue.push_back(Item::Lost(sending.end, bytes));
                sending.end += bytes;
            }
            FanOutEvent::Exited(status) => self.exit = Some(status),
        }
    }

    /// Whether more output may be added.
    pub(super) fn has_room(&self) -> bool {
        self.exit.is_none() && !self.done && self.channels.iter().map(|sending| sending.waiting).sum::<usize>() < QUEUE
    }

    /// Whether a message can be sent now.
    pub(super) fn has_message(&self) -> bool {
        !self.control.is_empty()
            || self.acknowledgement.is_some()
            || self.channels.iter().any(Sending::is_ready)
            || (self.exit.is_some() && self.channels.iter().all(|sending| sending.queue.is_empty()))
    }

    /// Whether the exit was taken, after which there is nothing.
    pub(super) fn has_said_everything(&self) -> bool {
        self.done
    }

    /// Returns the next message that can be sent now.
    pub(super) fn take(&mut self) -> Option<Message> {
        let message = self.control.pop_front().or_else(|| self.acknowledgement.take());
        if message.is_some() {
            return message;
        }
        // The one that is further behind first, so that neither starves.
        let behind = |sending: &Sending| sending.waiting;
        let order = if behind(&self.channels[0]) >= behind(&self.channels[1]) { [0, 1] } else { [1, 0] };
        for index in order {
            if let Some(message) = self.channels[index].take() {
                return Some(message);
            }
        }
        let status = self.exit.filter(|_| self.channels.iter().all(|sending| sending.queue.is_empty()))?;
        (self.exit, self.done) = (None, true);
        Some(control(&exit_message(status)))
    }

    /// The client has the output of a channel before this offset. Returns how much of both channels it has.
    pub(super) fn acknowledge(&mut self, channel: StreamChannel, offset: u64) -> Result<Position> {
        let sending = self.channels.iter_mut().find(|sending| sending.channel == channel);
        sending.ok_or_else(|| invalid("ack of channel `stdin`: only output is acknowledged"))?.acknowledge(offset)?;
        let [stdout, stderr] = self.channels.each_ref().map(|sending| sending.acknowledged);
        Ok(Position { stdout, stderr })
    }
}

/// The message about a command's end.
pub(super) fn exit_message(status: ExitStatus) -> ServerMessage {
    ServerMessage::Exit {
        exit_code: status.shell_code(),
        signal: status.signal,
        timed_out: status.timed_out,
        oom_killed: status.oom_killed,
    }
}

fn control(message: &ServerMessage) -> Message {
    // These types consist of numbers and text, so they can be written.
    Message::Text(serde_json::to_string(message).unwrap_or_default().into())
}
