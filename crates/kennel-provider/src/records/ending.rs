//! How a sandbox on disk ended: its exit code, and why.

use super::{Record, Records};
use kennel_core::{Error, Result};
use kennel_proto::ending::{IDLE, OWNER_GONE};
use kennel_types::{EndCause, SandboxId};

/// The file that exists if the last end was requested.
const STOP: &str = "stop";

impl Records {
    /// Notes that the sandbox is about to be stopped on request. Call this before it is stopped.
    pub fn note_stop(&self, id: &SandboxId) -> Result<()> {
        let path = self.dir(id).join(STOP);
        std::fs::write(&path, "").map_err(|error| Error::io(format!("write {}", path.display()), error))
    }

    /// Forgets how the sandbox ended the last time. Call this before it is started.
    pub fn forget_end(&self, id: &SandboxId) {
        let _ = std::fs::remove_file(self.dir(id).join(STOP));
        let _ = std::fs::remove_file(self.dir(id).join("exit"));
    }

    /// The exit code of a sandbox that has ended.
    pub(super) fn exit_code(&self, id: &SandboxId) -> Option<i32> {
        self.exit(id).map(|(code, _)| code)
    }

    /// The exit code of the main process, if there was one, and why the sandbox ended.
    pub(super) fn ending(&self, record: &Record) -> (Option<i32>, Option<EndCause>) {
        let exit = self.exit(&record.id);
        let has_main = record.spec.command.is_some() || record.spec.image_main;
        let requested = self.dir(&record.id).join(STOP).exists();
        let cause = match exit {
            _ if requested => EndCause::Requested,
            Some((_, true)) => EndCause::OutOfMemory,
            Some((IDLE, _)) if !has_main => EndCause::Idle,
            Some((OWNER_GONE, _)) if !has_main => EndCause::OwnerGone,
            Some(_) if has_main => EndCause::Exited,
            // Whoever keeps it alive writes the code in the end, unless it is killed.
            _ => EndCause::Killed,
        };
        (exit.map(|(code, _)| code).filter(|_| has_main), Some(cause))
    }

    /// The keeper's exit code, and whether memory ran out.
    fn exit(&self, id: &SandboxId) -> Option<(i32, bool)> {
        let text = std::fs::read_to_string(self.dir(id).join("exit")).ok()?;
        let mut words = text.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next() == Some(kennel_proto::ending::OOM)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{new, records};
    use super::*;
    use kennel_types::SandboxSpec;

    #[test]
    fn the_end_cause_is_derived_from_exit_code_and_note() {
        let root = tempfile::tempdir().unwrap();
        let records = records(root.path());
        let with_main = SandboxSpec { command: Some(vec!["true".into()]), ..SandboxSpec::default() };
        let ending = |spec: &SandboxSpec, exit: Option<&str>, requested: bool| {
            let record = records.create(&kennel_core::new_id().unwrap(), spec, new(spec)).unwrap();
            if let Some(exit) = exit {
                std::fs::write(records.dir(&record.id).join("exit"), exit).unwrap();
            }
            if requested {
                records.note_stop(&record.id).unwrap();
            }
            let found = records.ending(&record);
            records.forget_end(&record.id);
            assert_eq!(records.ending(&record), (None, Some(EndCause::Killed)), "nothing is left of it");
            found
        };
        let without = SandboxSpec::default();
        assert_eq!(ending(&with_main, Some("3"), false), (Some(3), Some(EndCause::Exited)));
        assert_eq!(ending(&with_main, Some("143"), true), (Some(143), Some(EndCause::Requested)));
        assert_eq!(ending(&with_main, Some("137 oom"), false), (Some(137), Some(EndCause::OutOfMemory)));
        assert_eq!(ending(&with_main, None, false), (None, Some(EndCause::Killed)));
        // A main process may return these codes itself.
        assert_eq!(ending(&with_main, Some(&IDLE.to_string()), false), (Some(IDLE), Some(EndCause::Exited)));
        assert_eq!(ending(&without, Some(&IDLE.to_string()), false), (None, Some(EndCause::Idle)));
        assert_eq!(ending(&without, Some(&OWNER_GONE.to_string()), false), (None, Some(EndCause::OwnerGone)));
        assert_eq!(ending(&without, Some("137"), false), (None, Some(EndCause::Killed)));
        assert_eq!(ending(&without, Some("0"), true), (None, Some(EndCause::Requested)));
        assert_eq!(ending(&without, Some("nonsense"), false), (None, Some(EndCause::Killed)));
    }
}
