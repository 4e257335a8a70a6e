//! Events of sandboxes on disk.

use super::Records;
use crate::{EventStream, Result};
use kennel_types::{Event, EventKind, SandboxId, Status};
use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;
use std::time::Duration;

/// Returns the events of these sandboxes from now on. It compares their states repeatedly. So every change is seen,
/// unless it is undone before the next comparison.
pub fn watch_records(records: Records) -> Result<EventStream> {
    let mut seen = states(&records)?;
    let mut ready: VecDeque<Event> = VecDeque::new();
    Ok(Box::pin(futures_util::stream::poll_fn({
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        move |context| {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Poll::Ready(Some(Ok(event)));
                }
                if tick.poll_tick(context).is_pending() {
                    return Poll::Pending;
                }
                match states(&records) {
                    Ok(now) => {
                        ready = differences(&seen, &now);
                        seen = now;
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
        }
    })))
}

type States = BTreeMap<SandboxId, Status>;

fn states(records: &Records) -> Result<States> {
    Ok(records.list()?.into_iter().map(|record| (record.id.clone(), records.info(&record).status)).collect())
}

fn differences(before: &States, now: &States) -> VecDeque<Event> {
    let mut events = VecDeque::new();
    let mut tell = |sandbox: &SandboxId, kind| events.push_back(Event { sandbox: sandbox.clone(), kind });
    for (id, status) in now {
        let was = before.get(id);
        if was.is_none() {
            tell(id, EventKind::Created);
        }
        match (was, status) {
            (Some(Status::Running), Status::Running) => {}
            (_, Status::Running) => tell(id, EventKind::Started),
            (Some(Status::Running), _) => tell(id, EventKind::Stopped),
            _ => {}
        }
    }
    for (id, was) in before.iter().filter(|(id, _)| !now.contains_key(*id)) {
        if *was == Status::Running {
            tell(id, EventKind::Stopped);
        }
        tell(id, EventKind::Removed);
    }
    events
}
