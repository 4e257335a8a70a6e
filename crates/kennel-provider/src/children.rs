//! Child processes that outlive what this process wanted of them.
//!
//! A long-running process starts helpers that others take over. It must still reap them when they end, perhaps days
//! later. A descriptor for each of them would exhaust the limit of the process, so they are known by their ids, and looked
//! at when a child has ended.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Children of this process that are reaped when they end.
#[derive(Clone, Debug, Default)]
pub struct Children(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    left: Vec<Pid>,
    /// Whether a task waits for the ends of children.
    is_watched: bool,
}

impl State {
    fn reap(&mut self) {
        let runs = |child: &Pid| {
            let ended = waitid(WaitId::Pid(*child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            matches!(ended, Ok(None) | Err(rustix::io::Errno::INTR))
        };
        self.left.retain(runs);
    }
}

impl Children {
    /// Reaps a child when it ends. Nobody else may reap it. This needs an async runtime, as long as the child runs.
    pub fn reap_later(&self, child: Pid) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.left.push(child);
        if !state.is_watched {
            tokio::spawn(reap_at_each_end(Arc::downgrade(&self.0), signal(SignalKind::child())?));
            state.is_watched = true;
        }
        // Its signal may have arrived before anybody waited for it.
        state.reap();
        Ok(())
    }
}

/// Reaps after each signal, as long as there is somebody to add children.
async fn reap_at_each_end(state: std::sync::Weak<Mutex<State>>, mut ends: Signal) {
    while ends.recv().await.is_some() {
        let Some(state) = state.upgrade() else { return };
        state.lock().unwrap_or_else(PoisonError::into_inner).reap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn children_are_reaped_at_their_end() {
        let children = Children::default();
        let mut started = Vec::new();
        for seconds in ["0", "60"] {
            #[expect(clippy::zombie_processes, reason = "`Children` waits for it, which is what is tested")]
            let child = std::process::Command::new("sleep").arg(seconds).spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32).unwrap();
            children.reap_later(pid).unwrap();
            started.push(pid);
        }
        let left = || children.0.lock().unwrap().left.clone();
        let until = async |count: usize| {
            tokio::time::timeout(Duration::from_mins(1), async {
                while left().len() > count {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .expect("it is reaped");
        };
        until(1).await;
        assert_eq!(left(), [started[1]]);
        rustix::process::kill_process(started[1], rustix::process::Signal::KILL).unwrap();
        until(0).await;
        for pid in started {
            assert!(!std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists(), "no zombie is left");
        }
    }
}
