//! Which sandboxes are paused. The keeper of a paused sandbox does not respond, so a request must not wait on a connection
//! that was opened before: a new connection tells at once, or wakes a sandbox that sleeps because it was idle.

use crate::app::App;
use kennel_engine::{EngineEvent, NumberedEvent};
use kennel_types::{EventKind, SandboxId, Status};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The sandboxes that are paused, as far as the server knows.
#[derive(Default)]
pub(crate) struct Paused(Mutex<HashSet<SandboxId>>);

impl Paused {
    /// Whether a sandbox is paused.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Notes whether a sandbox is paused.
    pub(crate) fn set(&self, id: &SandboxId, is_paused: bool) {
        // No code panics while it holds the lock.
        let mut paused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_paused {
            paused.insert(id.clone());
        } else {
            paused.remove(id);
        }
    }

    /// Learns from events what other processes pause and resume, without an end.
    pub(crate) async fn run(&self, app: &App) {
        let mut reader = app.events.after(None);
        loop {
            let NumberedEvent { event, .. } = reader.next().await;
            match event {
                EngineEvent::Happened(event) => {
                    let Some(id) = &event.sandbox else { continue };
                    match event.kind {
                        EventKind::Paused => self.set(id, true),
                        EventKind::Created | EventKind::Renamed | EventKind::Missed => {}
                        EventKind::Started | EventKind::Resumed | EventKind::Stopped | EventKind::Removed => {
                            self.set(id, false);
                        }
                    }
                }
                EngineEvent::Listed(listed) => self.set(&listed.sandbox_id, listed.status == Status::Paused),
            }
        }
    }
}
