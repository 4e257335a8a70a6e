//! Events of sandboxes, as the engine reports them, without gaps, even if the connection is lost or the engine
//! restarts.
//!
//! An engine remembers its last events, but not for long and not across a restart. So after a lost connection, three
//! things are done in this order: the events since the last one are replayed, the current sandboxes are compared with
//! the known ones, and then new events are awaited again. The known state of each sandbox decides which events are
//! reported (see [`kennel_types::Status`]), so none is reported twice.

use crate::engine::Engine;
use crate::info::{end_cause, status};
use crate::rundir::RunDirs;
use crate::{labels, names, summaries};
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::{Stream, StreamExt, stream};
use kennel_core::{EventStream, Result};
use kennel_types::{EndCause, Event, EventKind, SandboxId, Status, steps};
use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long to wait for an engine that is gone.
const PATIENCE: Duration = Duration::from_mins(1);

type Live = Pin<Box<dyn Stream<Item = Result<EventMessage, bollard::errors::Error>> + Send>>;

struct EngineWatch {
    engine: Arc<Engine>,
    installation: String,
    /// Tells which ends were requested.
    run_dirs: Arc<RunDirs>,
    known: Known,
    /// The time of the last event, in nanoseconds since 1970.
    heard: u128,
    live: Option<Live>,
}

/// Returns the events from now on. If the engine is not available, this fails now, not with the first event.
pub(crate) async fn watch(engine: Arc<Engine>, installation: &str, run_dirs: Arc<RunDirs>) -> Result<EventStream> {
    let known = Known { provider: engine.kind().word(), ..Known::default() };
    let mut watch =
        EngineWatch { engine, installation: installation.to_owned(), run_dirs, known, heard: now(), live: None };
    watch.live = Some(watch.listen(watch.heard).await?);
    watch.known.seen = watch.list().await?;
    // The engine has replied, so its kind is known now.
    watch.known.provider = watch.engine.kind().word();
    Ok(Box::pin(stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        match watch.next().await {
            Ok(event) => Some((Ok(event), Some(watch))),
            Err(error) => Some((Err(error), None)),
        }
    })))
}

impl EngineWatch {
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

    async fn list(&mut self) -> Result<HashMap<SandboxId, Seen>> {
        let listed = summaries(&self.engine, &self.installation, None).await?.into_iter();
        Ok(listed
            .filter_map(|found| {
                let labels = found.labels.unwrap_or_default();
                let id = labels::sandbox_of(&labels, &self.installation)?;
                let container = found.names.unwrap_or_default().into_iter().next();
                let name = names::sandbox(container.as_deref(), &labels).unwrap_or_else(|| id.to_string());
                Some((id, Seen { status: status(&found.state), name: Some(name) }))
            })
            .collect())
    }

    fn hear(&mut self, message: EventMessage) {
        if let Some(at) = message.time_nano.and_then(|at| u128::try_from(at).ok()) {
            self.heard = self.heard.max(at);
        }
        let Some(mut report) = Report::read(message, &self.installation) else { return };
        if report.cause.is_some() && self.run_dirs.was_stopped(&report.sandbox) {
            report.cause = Some(EndCause::Requested);
        }
        self.known.take(report);
    }
}

/// What an engine reported about a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    time_ms: u64,
    sandbox: SandboxId,
    change: Change,
    name: Option<String>,
    cause: Option<EndCause>,
    exit_code: Option<i32>,
}

/// The kind of an engine's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Event(EventKind),
    /// The kernel has killed a process of the sandbox, because its memory ran out. The sandbox may continue.
    OutOfMemory,
}

impl Report {
    /// Reads an engine's event. Returns `None` if it is about something else.
    fn read(message: EventMessage, installation: &str) -> Option<Self> {
        // Docker's name of the event, and Podman's if it differs.
        let change = match message.action?.as_str() {
            "create" => Change::Event(EventKind::Created),
            "start" => Change::Event(EventKind::Started),
            "pause" => Change::Event(EventKind::Paused),
            "unpause" => Change::Event(EventKind::Resumed),
            "rename" => Change::Event(EventKind::Renamed),
            "die" | "died" => Change::Event(EventKind::Stopped),
            "destroy" | "remove" => Change::Event(EventKind::Removed),
            "oom" => Change::OutOfMemory,
            _ => return None,
        };
        let attributes = message.actor?.attributes?;
        let sandbox = labels::sandbox_of(&attributes, installation)?;
        let main = attributes.get(labels::MAIN).is_some_and(|text| text == "true");
        let ended = change == Change::Event(EventKind::Stopped);
        let code = ["exitCode", "containerExitCode"].into_iter().find_map(|key| attributes.get(key)?.parse().ok());
        let code: Option<i32> = code.filter(|_| ended);
        let nanos = message.time_nano.and_then(|at| u64::try_from(at).ok());
        Some(Self {
            time_ms: nanos.map_or_else(|| (now() / 1_000_000) as u64, |nanos| nanos / 1_000_000),
            name: names::sandbox(attributes.get("name").map(String::as_str), &attributes),
            cause: code.map(|code| end_cause(main, code, false)),
            exit_code: code.filter(|_| main),
            sandbox,
            change,
        })
    }
}

/// A sandbox as it was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: Status,
    /// Its name, unless only events were seen that do not contain it.
    name: Option<String>,
}

/// The reported states, and the events to report.
#[derive(Default)]
struct Known {
    provider: &'static str,
    seen: HashMap<SandboxId, Seen>,
    /// Sandboxes of which a process was killed because memory ran out, since they were started.
    out_of_memory: HashSet<SandboxId>,
    told: VecDeque<Event>,
}

impl Known {
    /// Adds the events of a report, unless they are already known.
    fn take(&mut self, report: Report) {
        let before = self.seen.get(&report.sandbox).cloned();
        let Change::Event(kind) = report.change else {
            self.out_of_memory.insert(report.sandbox);
            return;
        };
        let name = report.name.clone().or_else(|| before.as_ref().and_then(|seen| seen.name.clone()));
        if kind == EventKind::Renamed
            && let Some(seen) = self.seen.get_mut(&report.sandbox)
            && seen.name != name
        {
            seen.name.clone_from(&name);
            self.tell(&report, EventKind::Renamed);
        }
        let was = before.map(|seen| seen.status);
        let now = Status::after(was, kind);
        for step in steps(was, now) {
            self.tell(&report, step);
        }
        match now {
            Some(status) => drop(self.seen.insert(report.sandbox, Seen { status, name })),
            None => drop(self.seen.remove(&report.sandbox)),
        }
    }

    fn tell(&mut self, report: &Report, kind: EventKind) {
        let oom = match kind {
            EventKind::Started | EventKind::Stopped => self.out_of_memory.remove(&report.sandbox),
            _ => false,
        };
        let ended = kind == EventKind::Stopped;
        let killed = oom && report.exit_code == Some(KILLED) && report.cause != Some(EndCause::Requested);
        self.told.push_back(Event {
            time_ms: report.time_ms,
            provider: self.provider.to_owned(),
            sandbox: Some(report.sandbox.clone()),
            kind,
            name: report.name.clone().filter(|_| kind == EventKind::Renamed),
            cause: if killed { Some(EndCause::OutOfMemory) } else { report.cause }.filter(|_| ended),
            exit_code: report.exit_code.filter(|_| ended),
        });
    }

    /// Adds the events that must have happened to reach the current state.
    fn compare(&mut self, there: HashMap<SandboxId, Seen>) {
        let time_ms = (now() / 1_000_000) as u64;
        let ids: HashSet<SandboxId> = self.seen.keys().chain(there.keys()).cloned().collect();
        for sandbox in ids {
            let (before, now) = (self.seen.get(&sandbox), there.get(&sandbox));
            let name = now.and_then(|seen| seen.name.clone());
            let change = Change::Event(EventKind::Missed);
            let report = Report { time_ms, sandbox, change, name, cause: None, exit_code: None };
            let renamed = before.zip(now).is_some_and(|(before, now)| before.name != now.name);
            let kinds = steps(before.map(|seen| seen.status), now.map(|seen| seen.status));
            for kind in renamed.then_some(EventKind::Renamed).into_iter().chain(kinds) {
                self.tell(&report, kind);
            }
        }
        self.seen = there;
    }
}

/// The exit code of a process that was killed.
const KILLED: i32 = 128 + 9;

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
    use EventKind::{Created, Paused, Removed, Renamed, Resumed, Started, Stopped};

    fn id(name: &str) -> SandboxId {
        SandboxId::new(name).unwrap()
    }

    fn report(name: &str, kind: EventKind) -> Report {
        let change = Change::Event(kind);
        Report { time_ms: 1, sandbox: id(name), change, name: Some(name.into()), cause: None, exit_code: None }
    }

    fn told(known: &mut Known) -> Vec<EventKind> {
        known.told.drain(..).map(|event| event.kind).collect()
    }

    fn message(action: &str, installation: &str, more: &[(&str, &str)]) -> EventMessage {
        let mut attributes = serde_json::json!({"kennel.id": "abc", "kennel.installation": installation});
        for (key, value) in more {
            attributes[*key] = (*value).into();
        }
        let message = serde_json::json!({
            "Type": "container", "Action": action, "timeNano": 1_700_000_000_000_000_000_i64,
            "Actor": {"ID": "0123", "Attributes": attributes},
        });
        serde_json::from_value(message).unwrap()
    }

    #[test]
    fn events_of_other_containers_are_ignored() {
        let read = |action: &str, installation: &str| {
            Report::read(message(action, installation, &[]), "here").map(|report| report.change)
        };
        let words = [
            ("create", Created),
            ("start", Started),
            ("pause", Paused),
            ("unpause", Resumed),
            ("rename", Renamed),
            ("die", Stopped),
            ("died", Stopped),
            ("destroy", Removed),
            ("remove", Removed),
        ];
        for (word, kind) in words {
            assert_eq!(read(word, "here"), Some(Change::Event(kind)), "{word}");
        }
        assert_eq!(read("oom", "here"), Some(Change::OutOfMemory));
        assert_eq!(read("exec_start: sh", "here"), None);
        assert_eq!(read("die", "there"), None);
    }

    #[test]
    fn an_end_has_its_exit_code_and_cause() {
        let read = |more: &[(&str, &str)]| {
            let report = Report::read(message("die", "here", more), "here").unwrap();
            (report.exit_code, report.cause)
        };
        let main = ("kennel.main", "true");
        assert_eq!(read(&[main, ("exitCode", "7")]), (Some(7), Some(EndCause::Exited)));
        assert_eq!(read(&[main, ("containerExitCode", "0")]), (Some(0), Some(EndCause::Exited)));
        assert_eq!(read(&[("exitCode", "80")]), (None, Some(EndCause::Idle)));
        assert_eq!(read(&[("exitCode", "81")]), (None, Some(EndCause::OwnerGone)));
        assert_eq!(read(&[("exitCode", "137")]), (None, Some(EndCause::Killed)));
        assert_eq!(read(&[]), (None, None));
    }

    #[test]
    fn an_end_by_oom_kill_is_reported() {
        let mut known = Known::default();
        let killed = Report { exit_code: Some(KILLED), cause: Some(EndCause::Exited), ..report("a", Stopped) };
        let oom = Report { change: Change::OutOfMemory, ..report("a", Started) };
        for report in [report("a", Started), oom, killed.clone(), report("a", Started), killed] {
            known.take(report);
        }
        let causes: Vec<Option<EndCause>> =
            known.told.drain(..).filter(|event| event.kind == Stopped).map(|event| event.cause).collect();
        assert_eq!(causes, [Some(EndCause::OutOfMemory), Some(EndCause::Exited)]);
    }

    #[test]
    fn no_event_is_reported_twice() {
        let mut known = Known::default();
        for kind in [Created, Created, Started, Started, Stopped, Stopped, Started, Removed, Removed, Stopped] {
            known.take(report("a", kind));
        }
        assert_eq!(told(&mut known), [Created, Started, Stopped, Started, Stopped, Removed]);
    }

    #[test]
    fn pauses_and_renames_are_reported() {
        let mut known = Known::default();
        for kind in [Started, Paused, Paused, Resumed, Resumed] {
            known.take(report("a", kind));
        }
        known.take(Report { name: Some("other".into()), ..report("a", Renamed) });
        known.take(Report { name: Some("other".into()), ..report("a", Renamed) });
        assert_eq!(known.told.back().unwrap().name.as_deref(), Some("other"));
        assert_eq!(told(&mut known), [Created, Started, Paused, Resumed, Renamed]);
    }

    #[test]
    fn missed_events_are_derived_from_a_listing() {
        let mut known = Known::default();
        for name in ["gone", "ended", "same", "renamed"] {
            known.take(report(name, Created));
            known.take(report(name, Started));
        }
        known.told.clear();
        let seen = |name: &str, status| (id(name), Seen { status, name: Some(name.to_owned()) });
        let mut there =
            HashMap::from([seen("ended", Status::Stopped), seen("same", Status::Running), seen("new", Status::Paused)]);
        there.insert(id("renamed"), Seen { status: Status::Running, name: Some("other".into()) });
        known.compare(there);
        let mut found: Vec<(String, EventKind)> =
            known.told.drain(..).map(|event| (event.sandbox.unwrap().to_string(), event.kind)).collect();
        // The events of one sandbox are in order. The order of sandboxes is arbitrary.
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            ("ended", Stopped),
            ("gone", Stopped),
            ("gone", Removed),
            ("new", Created),
            ("new", Started),
            ("new", Paused),
            ("renamed", Renamed),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
        // They are not reported again when the engine reports them.
        known.take(report("new", Started));
        known.take(report("ended", Stopped));
        assert_eq!(told(&mut known), []);
    }
}
