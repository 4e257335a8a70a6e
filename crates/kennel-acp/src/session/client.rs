//! A client of a session's relay, for any transport.

use super::core::Order;
use super::hub::{Ended, Hub, Item, Outgoing, Step};
use crate::lines::LINE;
use kennel_core::{Error, Result};
use kennel_engine::{Messages, SessionId};
use kennel_types::ErrorCode;
use serde::de::IgnoredAny;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// How much is read from the store at once.
const FETCHED: usize = 64;
const FETCHED_BYTES: usize = 1 << 20;
/// A client waits while the agent has not taken this many bytes.
pub(super) const AHEAD: usize = 1 << 20;

/// How a client joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// Continue after this position; 0 is the beginning. `None` begins with what the agent sends from now on.
    pub after: Option<u64>,
    /// Only watch: get everything, and send nothing.
    pub watch: bool,
}

/// A client. It leaves when it is dropped.
pub struct Client {
    pub(super) hub: Arc<Hub>,
    pub(super) number: u64,
    pub(super) position: u64,
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) ahead: watch::Receiver<usize>,
    pub(super) changes: watch::Receiver<u64>,
    pub(super) messages: Messages,
    pub(super) session: SessionId,
    pub(super) fetched: VecDeque<Outgoing>,
}

/// The part of a client that sends.
#[derive(Clone)]
pub struct Sender {
    number: u64,
    orders: mpsc::Sender<Order>,
    ahead: watch::Receiver<usize>,
}

impl Client {
    /// The position of the last message before the first one that this client gets.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The part that sends, for a task of its own.
    pub fn sender(&self) -> Sender {
        Sender { number: self.number, orders: self.orders.clone(), ahead: self.ahead.clone() }
    }

    /// Returns the next message, or how the relay has ended.
    pub async fn next(&mut self) -> Result<std::result::Result<Outgoing, Ended>> {
        loop {
            self.changes.mark_unchanged();
            if let Some(message) = self.fetched.pop_front() {
                return Ok(Ok(message));
            }
            match self.hub.step(self.number) {
                Step::Send(message) => return Ok(Ok(message)),
                Step::End(ended) => return Ok(Err(ended)),
                // The sender is in the hub, so it is there.
                Step::Wait => drop(self.changes.changed().await),
                Step::Fetch(after) => {
                    let found = self.messages.seen(&self.session, after, FETCHED, FETCHED_BYTES).await?;
                    if found.is_empty() {
                        let message = "the messages of this session were removed";
                        return Err(Error::new(ErrorCode::NotFound, message));
                    }
                    for message in found {
                        self.fetched.extend(self.hub.offer(self.number, &Item::from(message)));
                    }
                }
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hub.leave(self.number);
    }
}

impl Sender {
    /// Sends a message. Returns when it is stored, or was refused; the client gets the reason as a message. Fails if the relay
    /// has ended.
    pub async fn send(&self, message: Vec<u8>) -> Result<()> {
        let ended = || Error::new(ErrorCode::Stopped, "the relay has ended");
        self.ahead.clone().wait_for(|ahead| *ahead < AHEAD).await.map_err(|_| ended())?;
        let (done, stored) = oneshot::channel();
        let order = Order { client: self.number, line: line(message), done };
        self.orders.send(order).await.map_err(|_| ended())?;
        stored.await.map_err(|_| ended())
    }
}

/// Makes one line of a message, which may contain line breaks between its values.
fn line(mut message: Vec<u8>) -> Vec<u8> {
    while message.last().is_some_and(|byte| *byte == b'\n' || *byte == b'\r') {
        message.pop();
    }
    let breaks = |byte: &u8| *byte == b'\n' || *byte == b'\r';
    // Within a string, a line break is not JSON. Then the message is refused as it is.
    if message.len() < LINE && message.iter().any(breaks) && serde_json::from_slice::<IgnoredAny>(&message).is_ok() {
        message.iter_mut().filter(|byte| breaks(byte)).for_each(|byte| *byte = b' ');
    }
    message.push(b'\n');
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_one_line() {
        let made = |text: &str| String::from_utf8(line(text.as_bytes().to_vec())).unwrap();
        assert_eq!(made("{\"a\":1}"), "{\"a\":1}\n");
        assert_eq!(made("{\r\n  \"a\": \"b\\n\"\n}\n"), "{    \"a\": \"b\\n\" }\n");
        assert_eq!(made("{\"a\":\"x\ny\"}"), "{\"a\":\"x\ny\"}\n", "it is refused later");
    }
}
