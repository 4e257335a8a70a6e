//! What a test scripts: answers instead of the toy commands, and faults.

use kennel_types::ErrorCode;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The scripted behaviour of a command: its steps in order, then its result.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub(crate) steps: Vec<Step>,
    pub(crate) exit: i32,
    pub(crate) fails: Option<ErrorCode>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Hold(Gate),
}

impl Answer {
    /// Ends with this exit code.
    pub fn exit(code: i32) -> Self {
        Self { exit: code, ..Self::default() }
    }

    /// Cannot be started: `NotFound`, or `ExecFailed` for a program that cannot be executed.
    pub fn fails(code: ErrorCode) -> Self {
        Self { fails: Some(code), ..Self::default() }
    }

    /// Prints on standard output, as the next step.
    #[must_use]
    pub fn stdout(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.steps.push(Step::Stdout(bytes.into()));
        self
    }

    /// Prints on standard error, as the next step.
    #[must_use]
    pub fn stderr(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.steps.push(Step::Stderr(bytes.into()));
        self
    }

    /// Waits until the gate is open, as the next step.
    #[must_use]
    pub fn hold(mut self, gate: &Gate) -> Self {
        self.steps.push(Step::Hold(gate.clone()));
        self
    }
}

/// Blocks commands until a test releases them.
#[derive(Clone, Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(false) }
    }
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases all current and future waiters.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) async fn passed(&self) {
        // The sender is in `self`, so the wait cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// A call of a provider that a fault can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `create`.
    Create,
    /// `start`.
    Start,
    /// `stop`.
    Stop,
    /// `remove`.
    Remove,
    /// `rename`.
    Rename,
    /// `get`.
    Get,
    /// `list`.
    List,
    /// `dial`.
    Dial,
    /// `logs`.
    Logs,
    /// `watch`.
    Watch,
    /// `volumes`.
    Volumes,
    /// `remove_volume`.
    RemoveVolume,
}

impl Call {
    /// All calls.
    pub const ALL: [Self; 12] = [
        Self::Create,
        Self::Start,
        Self::Stop,
        Self::Remove,
        Self::Rename,
        Self::Get,
        Self::List,
        Self::Dial,
        Self::Logs,
        Self::Watch,
        Self::Volumes,
        Self::RemoveVolume,
    ];
}

/// A fault that happens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next call of this kind fails, and has no effect.
    Fails(Call, ErrorCode),
    /// The next call of this kind that succeeds has its effect, but its reply is lost: it returns `not_available`.
    ReplyLost(Call),
    /// The next connection ends after this many frames from the keeper, including its welcome.
    HangUpAfter(usize),
    /// The next connection sends these bytes after its welcome, and nothing else.
    Garbage(Vec<u8>),
    /// The next connection is accepted but gets no reply.
    NeverAnswers,
}

impl Fault {
    pub(crate) fn is_of_a_connection(&self) -> bool {
        matches!(self, Self::HangUpAfter(_) | Self::Garbage(_) | Self::NeverAnswers)
    }
}

type Rule = Box<dyn Fn(&[String]) -> Option<Answer> + Send + Sync>;

/// The rules and faults of one mock.
#[derive(Default)]
pub(crate) struct Script {
    rules: Mutex<Vec<Rule>>,
    faults: Mutex<VecDeque<Fault>>,
    ran: Mutex<Vec<Vec<String>>>,
}

impl Script {
    pub(crate) fn add(&self, rule: Rule) {
        lock(&self.rules).push(rule);
    }

    pub(crate) fn fault(&self, fault: Fault) {
        lock(&self.faults).push_back(fault);
    }

    /// Returns the answer to a command, newest rule first. Every requested command is recorded.
    pub(crate) fn answer(&self, argv: &[String]) -> Option<Answer> {
        lock(&self.ran).push(argv.to_vec());
        lock(&self.rules).iter().rev().find_map(|rule| rule(argv))
    }

    pub(crate) fn ran(&self) -> Vec<Vec<String>> {
        lock(&self.ran).clone()
    }

    /// Removes and returns the first fault that `wanted` selects.
    pub(crate) fn take<T>(&self, wanted: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        let mut faults = lock(&self.faults);
        let index = faults.iter().position(|fault| wanted(fault).is_some())?;
        wanted(&faults.remove(index)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) type SharedScript = Arc<Script>;
