//! The numbered stream of events of all providers.
//!
//! The resident process numbers the events. A reader names the last number that it has seen, and gets what came after it,
//! and then what happens from now on. The stream keeps the newest events only. A reader that is too late, and one that
//! continues after a time without a resident process, gets an explicit `missed` event, and the sandboxes that existed then.
//!
//! No number is used twice, even if the resident process is killed: numbers are reserved in a file before they are used. So
//! numbers only grow, but not always by one.

mod numbers;

use kennel_core::Result;
use kennel_types::{Event, EventKind, SandboxId, SandboxInfo, Status};
use numbers::Numbers;
use serde::Serialize;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// How many events are kept for readers that come later.
const KEPT: usize = 10_000;

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumberedEvent {
    /// The number. Later events have greater numbers.
    pub number: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: EngineEvent,
}

/// An event, or the state of a sandbox after events were missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EngineEvent {
    /// Something happened to a sandbox, or events were missed.
    Happened(Event),
    /// A sandbox that exists after events were missed.
    Listed(ListedSandbox),
}

/// A sandbox that exists after events were missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "event", rename = "listed")]
pub struct ListedSandbox {
    /// When it was listed, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its provider.
    pub provider: String,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: Status,
}

/// The numbered stream. Cheap to clone; all clones are the same stream.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    kept: Mutex<Kept>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

struct Kept {
    events: VecDeque<NumberedEvent>,
    numbers: Numbers,
    /// The greatest number of an event that is not kept any more, or was never seen.
    lost: u64,
}

impl Events {
    /// Continues the stream whose numbers are reserved in this file.
    pub(crate) fn continue_from(path: PathBuf) -> Result<Self> {
        let numbers = Numbers::open(path)?;
        let lost = numbers.last();
        let kept = Mutex::new(Kept { events: VecDeque::new(), numbers, lost });
        Ok(Self { shared: Arc::new(Shared { kept, newest: watch::Sender::new(lost) }) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while it holds the lock.
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: EngineEvent) -> Result<()> {
        let mut kept = self.kept();
        let number = kept.numbers.next()?;
        kept.events.push_back(NumberedEvent { number, event });
        if kept.events.len() > KEPT
            && let Some(oldest) = kept.events.pop_front()
        {
            kept.lost = oldest.number;
        }
        drop(kept);
        self.shared.newest.send_replace(number);
        Ok(())
    }

    /// Adds the event that earlier ones of a provider were missed, and the sandboxes that it has now.
    pub(crate) fn push_listing(&self, provider: &str, sandboxes: Vec<SandboxInfo>) -> Result<()> {
        self.push(EngineEvent::Happened(missed(provider)))?;
        for info in sandboxes {
            let SandboxInfo { provider, id, name, status, .. } = info;
            self.push(EngineEvent::Listed(ListedSandbox {
                time_ms: now_ms(),
                provider,
                sandbox_id: id,
                name,
                status,
            }))?;
        }
        Ok(())
    }

    /// Reads the events after a number, then those that happen from now on. Without a number, only the latter.
    pub fn after(&self, number: Option<u64>) -> EventReader {
        let newest = self.shared.newest.subscribe();
        let last = number.unwrap_or(*newest.borrow());
        // A number that no event has comes from another stream. That reader has missed everything.
        let is_stranger = last > *newest.borrow();
        EventReader { events: self.clone(), newest, last: if is_stranger { 0 } else { last }, is_stranger }
    }
}

/// Reads the numbered stream from a position on.
pub struct EventReader {
    events: Events,
    newest: watch::Receiver<u64>,
    /// The number of the last event that was returned.
    last: u64,
    /// Whether the reader comes from another stream, and was not told yet.
    is_stranger: bool,
}

impl EventReader {
    /// The number after which the next event comes.
    pub fn position(&self) -> u64 {
        self.last
    }

    /// Waits for the next event and returns it. Returns a `missed` event if events after the last one are not kept any more.
    pub async fn next(&mut self) -> NumberedEvent {
        loop {
            if let Some(event) = self.kept() {
                (self.last, self.is_stranger) = (event.number, false);
                return event;
            }
            let last = self.last;
            // The sender is in `self.events`, so the wait cannot fail.
            let _ = self.newest.wait_for(|newest| *newest > last).await;
        }
    }

    /// Returns the next event that is there already.
    fn kept(&self) -> Option<NumberedEvent> {
        let kept = self.events.kept();
        if self.is_stranger || self.last < kept.lost {
            return Some(NumberedEvent { number: kept.lost, event: EngineEvent::Happened(missed("")) });
        }
        let next = kept.events.partition_point(|event| event.number <= self.last);
        kept.events.get(next).cloned()
    }
}

fn missed(provider: &str) -> Event {
    Event {
        time_ms: now_ms(),
        provider: provider.to_owned(),
        sandbox: None,
        kind: EventKind::Missed,
        name: None,
        cause: None,
        exit_code: None,
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn event(name: &str) -> EngineEvent {
        EngineEvent::Happened(Event { name: Some(name.to_owned()), kind: EventKind::Renamed, ..missed("mock") })
    }

    fn names(reader: &mut EventReader) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(NumberedEvent { event, .. }) = reader.next().now_or_never() {
            names.push(match event {
                EngineEvent::Happened(Event { kind: EventKind::Missed, .. }) => "missed".to_owned(),
                EngineEvent::Happened(event) => event.name.unwrap_or_default(),
                EngineEvent::Listed(listed) => format!("listed {}", listed.name),
            });
        }
        names
    }

    #[test]
    fn events_are_replayed_and_then_live() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::continue_from(dir.path().join("events")).unwrap();
        let mut live = events.after(None);
        for name in ["a", "b", "c"] {
            events.push(event(name)).unwrap();
        }
        assert_eq!(names(&mut live), ["a", "b", "c"]);
        let mut all = events.after(Some(0));
        let first = all.next().now_or_never().unwrap().number;
        assert_eq!(names(&mut events.after(Some(first))), ["b", "c"]);
        let last = live.last;
        let mut later = events.after(Some(last));
        assert_eq!(names(&mut later), [""; 0]);
        events.push(event("d")).unwrap();
        assert_eq!(names(&mut later), ["d"]);
    }

    #[test]
    fn a_late_reader_is_told_once_that_it_missed_events() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::continue_from(dir.path().join("events")).unwrap();
        let mut reader = events.after(None);
        for number in 0..KEPT + 3 {
            events.push(event(&number.to_string())).unwrap();
        }
        let seen = names(&mut reader);
        assert_eq!(seen.len(), KEPT + 1, "one for those that are lost");
        assert_eq!(seen[..2], ["missed", "3"]);
    }

    #[test]
    fn event_numbers_grow_over_restarts_and_gaps_are_announced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut last = 0;
        for round in 0..3 {
            // Nothing is written when the stream ends, as if the process were killed.
            let events = Events::continue_from(path.clone()).unwrap();
            let mut reader = events.after(Some(last));
            if round == 0 {
                assert_eq!(names(&mut reader), [""; 0]);
            } else {
                assert_eq!(names(&mut reader), ["missed"], "round {round}");
            }
            events.push(event("x")).unwrap();
            assert_eq!(names(&mut reader), ["x"]);
            assert!(reader.last > last);
            last = reader.last;
            assert_eq!(names(&mut events.after(Some(last + 5))), ["missed", "x"], "a number from somewhere else");
        }
    }
}
