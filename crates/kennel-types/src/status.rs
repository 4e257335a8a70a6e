//! The state machine of a sandbox. Providers do not decide themselves what is allowed in which state: they ask
//! [`Status::verdict`]. Watchers do not decide themselves which events lead from one state to another: they ask
//! [`steps`].

use crate::EventKind;
use serde::{Deserialize, Serialize};

/// The state of a sandbox.
///
/// ```text
///                                        pause
///    create             start          +-------> paused
///   --------> created --------> running           |  |
///                |              ^  |  ^-- unpause -+  |
///                |        start |  | stop, or its end | stop
///                |              |  v                  |
///                |           stopped <----------------+
///                |              |
///                +--- remove ---+---> gone        (by force also from running and paused)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Created, but never started.
    Created,
    /// The keeper runs.
    Running,
    /// All processes are paused.
    Paused,
    /// Ended or stopped. It can be started again.
    Stopped,
}

/// An operation on a sandbox that depends on its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Start it.
    Start,
    /// End all its processes.
    Stop,
    /// Pause all its processes.
    Pause,
    /// Resume all its processes.
    Unpause,
    /// Connect to its keeper.
    Connect,
    /// Give it another name.
    Rename,
    /// Remove it, unless it has processes.
    Remove,
    /// Remove it, whatever runs in it.
    ForceRemove,
}

/// Whether an operation is allowed in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation can be carried out.
    Proceed,
    /// The sandbox is already in the state that the operation leads to.
    Done,
    /// The operation is not allowed.
    Refused(Refusal),
}

/// Why an operation is not allowed in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no processes.
    NotRunning,
    /// Its processes are paused.
    Paused,
    /// It has processes.
    Running,
    /// It is tied to its creator, and others cannot change it.
    Tied,
}

impl Status {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Created, Self::Running, Self::Paused, Self::Stopped];

    /// Whether the sandbox has processes.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    /// Whether an operation is allowed on a sandbox in this state. A `tied` sandbox cannot be paused, resumed or
    /// renamed.
    #[expect(clippy::match_same_arms, reason = "one arm for each transition reads like the table that it is")]
    pub fn verdict(self, operation: Operation, tied: bool) -> Verdict {
        use Operation::{Connect, ForceRemove, Pause, Remove, Rename, Start, Stop, Unpause};
        use Verdict::{Done, Proceed, Refused};
        match (operation, self) {
            (Pause | Unpause | Rename, _) if tied => Refused(Refusal::Tied),
            (Start, Self::Created | Self::Stopped) => Proceed,
            (Start, Self::Running) => Done,
            (Start, Self::Paused) => Refused(Refusal::Paused),
            (Stop, Self::Running | Self::Paused) => Proceed,
            (Stop, Self::Created | Self::Stopped) => Done,
            (Pause, Self::Running) | (Unpause, Self::Paused) => Proceed,
            (Pause, Self::Paused) | (Unpause, Self::Running) => Done,
            (Pause | Unpause, Self::Created | Self::Stopped) => Refused(Refusal::NotRunning),
            (Connect, Self::Running) => Proceed,
            (Connect, Self::Paused) => Refused(Refusal::Paused),
            (Connect, Self::Created | Self::Stopped) => Refused(Refusal::NotRunning),
            (Remove, Self::Running | Self::Paused) => Refused(Refusal::Running),
            (Remove, Self::Created | Self::Stopped) | (ForceRemove | Rename, _) => Proceed,
        }
    }

    /// The state after an event, as far as the event fits the state. `None` stands for a sandbox that does not exist.
    #[expect(clippy::match_same_arms, reason = "one arm for each transition reads like the table that it is")]
    pub fn after(before: Option<Self>, event: EventKind) -> Option<Self> {
        match (event, before) {
            (EventKind::Created, None) => Some(Self::Created),
            (EventKind::Started, None | Some(Self::Created | Self::Stopped)) => Some(Self::Running),
            (EventKind::Paused, Some(Self::Running)) => Some(Self::Paused),
            (EventKind::Resumed, Some(Self::Paused)) => Some(Self::Running),
            (EventKind::Stopped, Some(Self::Running | Self::Paused)) => Some(Self::Stopped),
            (EventKind::Removed, _) => None,
            _ => before,
        }
    }
}

/// The events that lead from one observed state to a later one. `None` stands for a sandbox that does not exist. If
/// several sequences are possible, this is the shortest.
pub fn steps(before: Option<Status>, after: Option<Status>) -> Vec<EventKind> {
    let mut events = Vec::new();
    let mut at = before;
    while at != after {
        let next = match (at, after) {
            (None, _) => EventKind::Created,
            (Some(Status::Running | Status::Paused), None | Some(Status::Stopped)) => EventKind::Stopped,
            (Some(_), None) => EventKind::Removed,
            (Some(Status::Created | Status::Stopped), Some(Status::Running | Status::Paused | Status::Stopped)) => {
                EventKind::Started
            }
            (Some(_), Some(Status::Paused)) => EventKind::Paused,
            (Some(Status::Paused), Some(Status::Running)) => EventKind::Resumed,
            // A sandbox that was started is never merely created again.
            (Some(_), Some(_)) => break,
        };
        events.push(next);
        at = Status::after(at, next);
    }
    events
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{Created, Paused, Removed, Resumed, Started, Stopped};

    const STATES: [Option<Status>; 5] =
        [None, Some(Status::Created), Some(Status::Running), Some(Status::Paused), Some(Status::Stopped)];

    #[test]
    fn steps_lead_from_any_state_to_any_later_one() {
        for before in STATES {
            for after in STATES {
                let reached = steps(before, after).into_iter().fold(before, Status::after);
                let impossible = after == Some(Status::Created) && before.is_some() && before != after;
                assert_eq!(reached == after, !impossible, "{before:?} to {after:?} ends in {reached:?}");
            }
        }
    }

    #[test]
    fn the_shortest_sequence_of_events_is_returned() {
        let between = |before, after| steps(before, after);
        assert_eq!(between(None, Some(Status::Paused)), [Created, Started, Paused]);
        assert_eq!(between(None, Some(Status::Stopped)), [Created, Started, Stopped]);
        assert_eq!(between(Some(Status::Paused), Some(Status::Running)), [Resumed]);
        assert_eq!(between(Some(Status::Paused), None), [Stopped, Removed]);
        assert_eq!(between(Some(Status::Stopped), Some(Status::Running)), [Started]);
        assert_eq!(between(Some(Status::Running), Some(Status::Running)), []);
    }

    #[test]
    fn an_event_that_does_not_fit_changes_nothing() {
        assert_eq!(Status::after(None, Stopped), None);
        assert_eq!(Status::after(Some(Status::Created), Stopped), Some(Status::Created));
        assert_eq!(Status::after(Some(Status::Stopped), Paused), Some(Status::Stopped));
        assert_eq!(Status::after(Some(Status::Running), Created), Some(Status::Running));
    }

    #[test]
    fn an_operation_that_proceeds_leads_to_a_state_where_it_is_done() {
        let effects = [
            (Operation::Start, Started),
            (Operation::Stop, Stopped),
            (Operation::Pause, Paused),
            (Operation::Unpause, Resumed),
        ];
        for (operation, event) in effects {
            for status in Status::ALL {
                if status.verdict(operation, false) == Verdict::Proceed {
                    let after = Status::after(Some(status), event).expect("only a removal removes");
                    assert_eq!(after.verdict(operation, false), Verdict::Done, "{operation:?} from {status}");
                }
            }
        }
    }

    #[test]
    fn only_force_removes_what_runs() {
        for status in Status::ALL {
            assert_eq!(status.verdict(Operation::ForceRemove, false), Verdict::Proceed);
            let refused = status.verdict(Operation::Remove, false) == Verdict::Refused(Refusal::Running);
            assert_eq!(refused, status.is_up());
        }
    }

    #[test]
    fn a_tied_sandbox_is_neither_paused_nor_renamed() {
        for status in Status::ALL {
            for operation in [Operation::Pause, Operation::Unpause, Operation::Rename] {
                assert_eq!(status.verdict(operation, true), Verdict::Refused(Refusal::Tied));
            }
        }
    }
}
