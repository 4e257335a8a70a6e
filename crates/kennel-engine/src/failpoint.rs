//! Failpoints: named steps at which a test ends the process.
//!
//! Each step lies between two effects: a change of the store, or a call that changes a sandbox. What a crash leaves
//! depends only on which effects came before it, so a test that kills the process at each step has tried every crash.
//! The front end of the test passes the failpoints in. They are compiled only with the feature `failpoints`; without
//! it, this type is empty, and reaching a step does nothing.

#[cfg(feature = "failpoints")]
use std::sync::{Arc, Mutex, PoisonError};

/// The failpoints of one engine. The default has none.
#[derive(Clone, Default)]
pub struct Failpoints {
    #[cfg(feature = "failpoints")]
    armed: Option<Arc<Armed>>,
}

#[cfg(feature = "failpoints")]
struct Armed {
    /// The step at which the process is killed, counted from 0.
    kill_at: Option<usize>,
    reached: Mutex<Vec<&'static str>>,
}

#[cfg(feature = "failpoints")]
impl Failpoints {
    /// Records the steps that are reached, and kills the process with SIGKILL at the step with this index.
    pub fn kill_at(index: Option<usize>) -> Self {
        Self { armed: Some(Arc::new(Armed { kill_at: index, reached: Mutex::default() })) }
    }

    /// Returns the names of the steps that were reached, in order.
    pub fn reached(&self) -> Vec<&'static str> {
        let armed = self.armed.iter();
        armed.flat_map(|armed| armed.reached.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }
}

impl Failpoints {
    /// Reaches a step.
    #[cfg(feature = "failpoints")]
    pub(crate) fn reach(&self, step: &'static str) {
        let Some(armed) = &self.armed else { return };
        let mut reached = armed.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.push(step);
        if armed.kill_at == Some(reached.len() - 1) {
            // The signal is pending before the call returns, and nothing of this process runs after it.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }

    /// Reaches a step.
    #[cfg(not(feature = "failpoints"))]
    #[expect(clippy::unused_self, reason = "there is something to reach only with the feature")]
    pub(crate) fn reach(&self, _step: &'static str) {}
}
