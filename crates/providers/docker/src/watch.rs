//! Events of sandboxes, as the engine reports them, without gaps, even if the connection is lost or the engine
//! restarts.
//!
//! An engine remembers its last events, but not for long and not across a restart. So after a lost connection, three
//! things are done in this order: the events since the last one are replayed, the current sandboxes are compared with
//! the known ones, and then new events are awaited again. The known state of each sandbox decides which events are
//! reported, so none is reported twice.
//!
//! ```text
//!   (unknown) --created--> made --started--> runs --stopped--> ended --started--> runs
//!                 each of them --removed--> (unknown)
//! ```

use crate::engine::Engine;
use crate::{labels, summaries};
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::{Stream, StreamExt, stream};
use kennel_core::{EventStream, Result};
use kennel_types::{Event, EventKind, SandboxId};
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long to wait for an engine that is gone.
const PATIENCE: Duration = Duration::from_mins(1);

/// The state of a sandbox, as far as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Made,
    Runs,
    Ended,
}

impl Phase {
    /// Converts the engine's name of a state.
    pub(crate) fn of(state: &str) -> Self {
        match state {
            "running" | "paused" | "restarting" | "stopping" => Self::Runs,
            "created" | "configured" | "initialized" => Self::Made,
            _ => Self::Ended,
        }
    }
}

type Live = Pin<Box<dyn Stream<Item = Result<EventMessage, bollard::errors::Error>> + Send>>;

struct Watch {
    engine: Arc<Engine>,
    installation: String,
    known: Known,
    /// The time of the last event, in nanoseconds since 1970.
    heard: u128,
    live: Option<Live>,
}

/// Returns the events from now on. If the engine is not available, this fails now, not with the first event.
pub(crate) async fn watch(engine: Arc<Engine>, installation: &str) -> Result<EventStream> {
    let mut watch =
        Watch { engine, installation: installation.to_owned(), known: Known::default(), heard: now(), live: None };
    watch.live = Some(watch.listen(watch.heard).await?);
    let there = watch.list().await?;
    watch.known.phases = there;
    Ok(Box::pin(stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        match watch.next().await {
            Ok(event) => Some((Ok(event), Some(watch))),
            Err(error) => Some((Err(error), None)),
        }
    })))
}

impl Watch {
    async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.known.told.pop_front() {
                return Ok(event);
            }
            let Some(live) = &mut self.live else {
                self.resume().await?;
                continue;
            };
            match live.next().await {
                Some(Ok(message)) => self.hear(message),
                // The connection was lost, or the engine closed it.
                _ => self.live = None,
            }
        }
    }

    /// Continues from the last event, as soon as the engine replies again.
    async fn resume(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(20);
        loop {
            match self.catch_up().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => back_off(pause).await,
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn catch_up(&mut self) -> Result<()> {
        let from = now();
        let mut missed = self.ask(self.heard, Some(from)).await?;
        while let Some(message) = missed.next().await {
            self.hear(message.map_err(|error| self.engine.error("watch the sandboxes", error))?);
        }
        let live = self.listen(from).await?;
        let there = self.list().await?;
        self.known.compare(there);
        self.live = Some(live);
        Ok(())
    }

    /// Requests the engine's events from a time on, whenever the stream is first read.
    async fn listen(&mut self, from: u128) -> Result<Live> {
        self.ask(from, None).await
    }

    async fn ask(&mut self, from: u128, until: Option<u128>) -> Result<Live> {
        let label = format!("{}={}", labels::INSTALLATION, self.installation);
        // Do not filter by kind: Podman names events differently in filters and in reports.
        let filters = HashMap::from([("type", vec!["container".to_owned()]), ("label", vec![label])]);
        let mut query = EventsOptionsBuilder::default().since(&seconds(from)).filters(&filters);
        if let Some(until) = until {
            query = query.until(&seconds(until));
        }
        Ok(Box::pin(self.engine.api().await?.events(Some(query.build()))))
    }

    async fn list(&mut self) -> Result<HashMap<SandboxId, Phase>> {
        let listed = summaries(&self.engine, &self.installation, None).await?.into_iter();
        Ok(listed
            .filter_map(|found| {
                let id = labels::sandbox_of(&found.labels.unwrap_or_default(), &self.installation)?;
                Some((id, Phase::of(&found.state)))
            })
            .collect())
    }

    fn hear(&mut self, message: EventMessage) {
        if let Some(at) = message.time_nano.and_then(|at| u128::try_from(at).ok()) {
            self.heard = self.heard.max(at);
        }
        if let Some(Event { sandbox, kind }) = event(message, &self.installation) {
            self.known.take(sandbox, kind);
        }
    }
}

/// The reported states, and the events to report.
#[derive(Default)]
struct Known {
    phases: HashMap<SandboxId, Phase>,
    told: VecDeque<Event>,
}

impl Known {
    /// Adds an event, unless it is already known.
    fn take(&mut self, sandbox: SandboxId, kind: EventKind) {
        let before = self.phases.get(&sandbox).copied();
        let mut tell = |kind| self.told.push_back(Event { sandbox: sandbox.clone(), kind });
        let after = match (kind, before) {
            (EventKind::Created, None) => {
                tell(EventKind::Created);
                Some(Phase::Made)
            }
            (EventKind::Started, None | Some(Phase::Made | Phase::Ended)) => {
                if before.is_none() {
                    tell(EventKind::Created);
                }
                tell(EventKind::Started);
                Some(Phase::Runs)
            }
            (EventKind::Stopped, Some(Phase::Runs)) => {
                tell(EventKind::Stopped);
                Some(Phase::Ended)
            }
            (EventKind::Removed, Some(phase)) => {
                if phase == Phase::Runs {
                    tell(EventKind::Stopped);
                }
                tell(EventKind::Removed);
                None
            }
            _ => before,
        };
        match after {
            Some(phase) => self.phases.insert(sandbox, phase),
            None => self.phases.remove(&sandbox),
        };
    }

    /// Adds the events that must have happened to reach the current state.
    fn compare(&mut self, there: HashMap<SandboxId, Phase>) {
        let gone: Vec<SandboxId> = self.phases.keys().filter(|id| !there.contains_key(*id)).cloned().collect();
        for id in gone {
            self.take(id, EventKind::Removed);
        }
        for (id, phase) in there {
            self.take(id.clone(), EventKind::Created);
            match phase {
                Phase::Made => {}
                Phase::Runs => self.take(id, EventKind::Started),
                Phase::Ended => {
                    self.take(id.clone(), EventKind::Stopped);
                    self.phases.insert(id, Phase::Ended);
                }
            }
        }
    }
}

fn event(message: EventMessage, installation: &str) -> Option<Event> {
    // Docker's word, and Podman's if it differs.
    let kind = match message.action?.as_str() {
        "create" => EventKind::Created,
        "start" => EventKind::Started,
        "die" | "died" => EventKind::Stopped,
        "destroy" | "remove" => EventKind::Removed,
        _ => return None,
    };
    let sandbox = labels::sandbox_of(&message.actor?.attributes?, installation)?;
    Some(Event { sandbox, kind })
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

/// A time in the engines' format.
fn seconds(nanos: u128) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

#[expect(clippy::disallowed_methods, reason = "a backoff: an engine does not report that it is running again")]
async fn back_off(pause: Duration) {
    tokio::time::sleep(pause).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{Created, Removed, Started, Stopped};

    fn id(name: &str) -> SandboxId {
        SandboxId::new(name).unwrap()
    }

    fn told(known: &mut Known) -> Vec<EventKind> {
        known.told.drain(..).map(|event| event.kind).collect()
    }

    #[test]
    fn events_of_our_containers_are_read_and_others_left() {
        let read = |action: &str, installation: &str| {
            let message = serde_json::json!({
                "Type": "container", "Action": action, "time": 1,
                "Actor": {"ID": "0123", "Attributes": {"kennel.id": "abc", "kennel.installation": installation}},
            });
            event(serde_json::from_value(message).unwrap(), "here").map(|event| event.kind)
        };
        assert_eq!(read("create", "here"), Some(Created));
        assert_eq!(read("start", "here"), Some(Started));
        assert_eq!(read("die", "here"), Some(Stopped));
        assert_eq!(read("destroy", "here"), Some(Removed));
        assert_eq!(read("remove", "here"), Some(Removed));
        assert_eq!(read("exec_start: sh", "here"), None);
        assert_eq!(read("die", "there"), None);
    }

    #[test]
    fn nothing_is_told_twice() {
        let mut known = Known::default();
        for kind in [Created, Created, Started, Started, Stopped, Stopped, Started, Removed, Removed, Stopped] {
            known.take(id("a"), kind);
        }
        assert_eq!(told(&mut known), [Created, Started, Stopped, Started, Stopped, Removed]);
    }

    #[test]
    fn what_was_missed_is_made_up_for() {
        let mut known = Known::default();
        for name in ["gone", "ended", "same"] {
            known.take(id(name), Created);
            known.take(id(name), Started);
        }
        known.told.clear();
        let there = [("ended", Phase::Ended), ("same", Phase::Runs), ("new", Phase::Runs)];
        known.compare(there.into_iter().map(|(name, phase)| (id(name), phase)).collect());
        let mut found: Vec<(String, EventKind)> =
            known.told.drain(..).map(|event| (event.sandbox.to_string(), event.kind)).collect();
        // Of one sandbox in order; which comes first is left to chance.
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [("ended", Stopped), ("gone", Stopped), ("gone", Removed), ("new", Created), ("new", Started)];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
        // And is not told again when the engine comes to it.
        known.take(id("new"), Started);
        known.take(id("ended"), Stopped);
        assert_eq!(told(&mut known), []);
    }
}
