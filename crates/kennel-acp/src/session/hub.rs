//! The clients of a session's relay: who owns the turn, and what each client still has to get.
//!
//! A message of the agent is published once it is stored. Recent messages are kept in memory; a client that is further behind
//! reads them from the store. So a slow client costs no memory, and blocks neither the agent nor other clients.
//!
//! - Notifications are for all clients.
//! - Requests of the agent are for the owner only, until they are answered. A new owner gets those that are open.
//! - A response is for the client that asked. If it has left, it is for clients that continue at a position.

use kennel_engine::Message;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The bytes of recent messages that are kept in memory. The last message is always kept.
const RECENT: usize = 4 << 20;

/// A message for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its position among the messages of the agent that clients see. `None` if the relay itself sends it.
    pub position: Option<u64>,
    /// The line, with its newline.
    pub bytes: Arc<[u8]>,
}

/// A message of the agent.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) position: u64,
    pub(super) kind: Kind,
    pub(super) bytes: Arc<[u8]>,
}

#[derive(Clone)]
pub(super) enum Kind {
    Notification,
    Request,
    /// A response, and the client that asked.
    Response(Option<u64>),
}

impl From<Message> for Item {
    fn from(message: Message) -> Self {
        let kind = match (&message.method, &message.id) {
            (Some(_), None) => Kind::Notification,
            (Some(_), Some(_)) => Kind::Request,
            (None, _) => Kind::Response(None),
        };
        Self { position: message.position.unwrap_or(0), kind, bytes: message.content.into() }
    }
}

/// How a relay ended, for its clients.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The agent ended, and nobody waited for it.
    Agent,
    /// The agent or its sandbox failed. The text is not escaped.
    Failed(Arc<kennel_core::Error>),
    /// The relay ended or was replaced; the agent goes on.
    Relay,
}

/// The clients of a relay.
pub(super) struct Hub {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    recent: VecDeque<Item>,
    recent_bytes: usize,
    /// The position of the last message.
    last: u64,
    clients: BTreeMap<u64, Member>,
    joined: u64,
    owner: Option<u64>,
    /// The agent's requests that have no response, by position.
    open: BTreeMap<u64, Arc<[u8]>>,
    ended: Option<Ended>,
}

struct Member {
    /// It has got, or passed over, everything up to this position.
    cursor: u64,
    only_watches: bool,
    /// Whether it continues at a position that it knows. It has seen everything up to `began`.
    continues: bool,
    began: u64,
    direct: VecDeque<Outgoing>,
}

/// What a client does next.
pub(super) enum Step {
    Send(Outgoing),
    Wait,
    /// Read messages after this position from the store.
    Fetch(u64),
    End(Ended),
}

impl Hub {
    /// A hub without clients. `last` is the position of the last message that is stored, and `open` are the agent's requests.
    pub(super) fn new(last: u64, open: impl IntoIterator<Item = Item>) -> Arc<Self> {
        let open = open.into_iter().map(|item| (item.position, item.bytes)).collect();
        Arc::new(Self { state: Mutex::new(State { last, open, ..State::default() }), changed: watch::Sender::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Adds a client. Returns its number, and the position at which it begins.
    pub(super) fn join(&self, after: Option<u64>, only_watches: bool) -> (u64, u64) {
        let mut state = self.lock();
        state.joined += 1;
        let number = state.joined;
        let cursor = after.unwrap_or(state.last).min(state.last);
        let (continues, began) = (after.is_some(), after.map_or(0, |_| cursor));
        let member = Member { cursor, only_watches, continues, began, direct: VecDeque::new() };
        state.clients.insert(number, member);
        if state.owner.is_none() && !only_watches {
            state.give_ownership(number);
        }
        drop(state);
        self.wake();
        (number, cursor)
    }

    /// Removes a client. If it was the owner, the oldest one that can own the turn becomes the owner.
    pub(super) fn leave(&self, number: u64) {
        let mut state = self.lock();
        state.clients.remove(&number);
        if state.owner == Some(number) {
            state.owner = None;
            let next = state.clients.iter().find(|(_, member)| !member.only_watches).map(|(number, _)| *number);
            if let Some(next) = next {
                state.give_ownership(next);
            }
        }
        drop(state);
        self.wake();
    }

    /// Whether a client may send a message. If nobody owns the turn, or the owner has nothing open, the client becomes the
    /// owner.
    pub(super) fn may_send(&self, number: u64, has_open: impl Fn(u64) -> bool) -> bool {
        let mut state = self.lock();
        if state.clients.get(&number).is_none_or(|member| member.only_watches) {
            return false;
        }
        match state.owner {
            Some(owner) if owner == number => return true,
            Some(owner) if has_open(owner) || !state.open.is_empty() => return false,
            _ => state.give_ownership(number),
        }
        drop(state);
        self.wake();
        true
    }

    /// The owner of the turn.
    pub(super) fn owner(&self) -> Option<u64> {
        self.lock().owner
    }

    /// Sends a message of the relay itself to a client.
    pub(super) fn tell(&self, number: u64, bytes: Vec<u8>) {
        if let Some(member) = self.lock().clients.get_mut(&number) {
            member.direct.push_back(Outgoing { position: None, bytes: bytes.into() });
        }
        self.wake();
    }

    /// Publishes messages of the agent, which are stored.
    pub(super) fn publish(&self, items: impl IntoIterator<Item = Item>) {
        let mut state = self.lock();
        for item in items {
            state.last = item.position;
            if let Kind::Request = item.kind {
                state.open.insert(item.position, item.bytes.clone());
            }
            state.recent_bytes += item.bytes.len();
            state.recent.push_back(item);
        }
        while state.recent_bytes > RECENT && state.recent.len() > 1 {
            let oldest = state.recent.pop_front().map_or(0, |item| item.bytes.len());
            state.recent_bytes -= oldest;
        }
        drop(state);
        self.wake();
    }

    /// Notes that requests of the agent have a response.
    pub(super) fn answered(&self, positions: impl IntoIterator<Item = u64>) {
        let mut state = self.lock();
        for position in positions {
            state.open.remove(&position);
        }
    }

    /// Tells all clients that the relay has ended. They still get what was published before.
    pub(super) fn end(&self, ended: Ended) {
        self.lock().ended.get_or_insert(ended);
        self.wake();
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// Returns what a client does next.
    pub(super) fn step(&self, number: u64) -> Step {
        let mut state = self.lock();
        loop {
            let last = state.last;
            let Some(member) = state.clients.get_mut(&number) else { return Step::End(Ended::Relay) };
            if let Some(message) = member.direct.pop_front() {
                return Step::Send(message);
            }
            let cursor = member.cursor;
            if cursor >= last {
                return state.ended.clone().map_or(Step::Wait, Step::End);
            }
            let first = state.recent.front().map_or(u64::MAX, |item| item.position);
            if cursor + 1 < first {
                return Step::Fetch(cursor);
            }
            let item = state.recent[(cursor + 1 - first) as usize].clone();
            if let Some(message) = state.offer(number, &item) {
                return Step::Send(message);
            }
        }
    }

    /// Offers a client a message from the store. Returns it if it is the next one, and for this client.
    pub(super) fn offer(&self, number: u64, item: &Item) -> Option<Outgoing> {
        self.lock().offer(number, item)
    }
}

impl State {
    fn give_ownership(&mut self, number: u64) {
        self.owner = Some(number);
        let Some(member) = self.clients.get_mut(&number) else { return };
        // It has passed over these. Later ones it gets in their turn.
        for (position, bytes) in self.open.range(..=member.cursor).filter(|(position, _)| **position > member.began) {
            member.direct.push_back(Outgoing { position: Some(*position), bytes: bytes.clone() });
        }
    }

    /// Moves a client on past a message, if it is the next one. Returns the message if it is for this client.
    fn offer(&mut self, number: u64, item: &Item) -> Option<Outgoing> {
        let asker_is_here = match item.kind {
            Kind::Response(Some(asker)) => self.clients.contains_key(&asker),
            _ => false,
        };
        let member = self.clients.get_mut(&number).filter(|member| item.position == member.cursor + 1)?;
        member.cursor = item.position;
        let is_for_it = match item.kind {
            _ if member.only_watches => true,
            Kind::Notification => true,
            Kind::Request => self.owner == Some(number) && self.open.contains_key(&item.position),
            Kind::Response(Some(asker)) if asker == number => true,
            Kind::Response(_) => !asker_is_here && member.continues,
        };
        is_for_it.then(|| Outgoing { position: Some(item.position), bytes: item.bytes.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(position: u64, kind: Kind) -> Item {
        Item { position, kind, bytes: format!("{position}\n").into_bytes().into() }
    }

    fn all(hub: &Hub, number: u64) -> Vec<u64> {
        std::iter::from_fn(|| match hub.step(number) {
            Step::Send(message) => Some(message.position.unwrap_or(0)),
            Step::Wait | Step::Fetch(_) | Step::End(_) => None,
        })
        .collect()
    }

    #[test]
    fn one_client_owns_the_turn_and_the_others_watch() {
        let hub = Hub::new(0, []);
        let ((owner, _), (second, _), (watcher, _)) =
            (hub.join(None, false), hub.join(None, false), hub.join(None, true));
        hub.publish([item(1, Kind::Notification), item(2, Kind::Request), item(3, Kind::Response(Some(owner)))]);
        assert_eq!(all(&hub, owner), [1, 2, 3]);
        assert_eq!(all(&hub, second), [1]);
        assert_eq!(all(&hub, watcher), [1, 2, 3]);
        assert!(!hub.may_send(second, |_| false), "a request of the agent is open");
        assert!(!hub.may_send(watcher, |_| false));
        hub.leave(owner);
        assert_eq!(all(&hub, second), [2], "the new owner gets the open request");
        hub.answered([2]);
        let (third, _) = hub.join(Some(0), false);
        assert_eq!(all(&hub, third), [1, 3], "it continues, so it gets the response of a client that has left");
        assert!(!hub.may_send(third, |_| true), "the owner waits for a response");
        assert!(hub.may_send(third, |_| false));
        assert_eq!(hub.owner(), Some(third));
    }

    #[test]
    fn a_client_that_is_behind_reads_from_the_store() {
        let hub = Hub::new(0, []);
        let (client, _) = hub.join(None, false);
        let big: Arc<[u8]> = vec![b'x'; RECENT].into();
        for position in 1..=3 {
            hub.publish([Item { position, kind: Kind::Notification, bytes: big.clone() }]);
        }
        assert!(matches!(hub.step(client), Step::Fetch(0)));
        assert!(hub.offer(client, &item(2, Kind::Notification)).is_none(), "not the next one");
        assert!(hub.offer(client, &item(1, Kind::Notification)).is_some());
        assert!(hub.offer(client, &item(2, Kind::Notification)).is_some());
        hub.end(Ended::Agent);
        assert!(matches!(hub.step(client), Step::Send(Outgoing { position: Some(3), .. })));
        assert!(matches!(hub.step(client), Step::End(Ended::Agent)));
    }
}
