//! The lifecycle of sandboxes on disk: whether they run, which process keeps them alive, and how they start and end.

use super::{Record, Records, Starting};
use crate::InstructedHelper;
use futures_util::StreamExt;
use kennel_core::{Dialed, Error, LogOptions, Result};
use kennel_types::{ErrorCode, SandboxId};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::time::Duration;

impl Records {
    /// Whether the sandbox runs: whether a process holds its lock.
    pub fn is_running(&self, id: &SandboxId) -> bool {
        let Ok(lock) = std::fs::File::open(self.dir(id).join("lock")) else { return false };
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Ends a sandbox that is tied to this process. The process that keeps it alive also removes it, so it is enough
    /// that nothing runs inside: the keeper closes the connection, or no process listens any more. Returns whether this
    /// is the case; otherwise it must be ended like any other.
    pub async fn end_owned(&self, id: &SandboxId, dialed: Result<Dialed>) -> Result<bool> {
        match kennel_core::shut_down(dialed, Duration::ZERO).await {
            // It never ran.
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(false),
            Err(error) if !error.is_refused() => self.end(id, Err(error), Duration::ZERO).await?,
            _ => {}
        }
        // From now on it is gone for all other processes, and its name is free.
        let _ = std::fs::remove_file(self.dir(id).join("sandbox.json"));
        Ok(true)
    }

    /// Ends the sandbox through its keeper. If the keeper cannot be reached, kills the process that holds its lock.
    /// Returns when it has ended.
    pub async fn end(&self, id: &SandboxId, dialed: Result<Dialed>, grace: Duration) -> Result<()> {
        if let Err(error) = kennel_core::shut_down(dialed, grace).await {
            // It may be about to end by itself.
            const BY_ITSELF: Duration = Duration::from_millis(500);
            if let Ok(ended) = tokio::time::timeout(BY_ITSELF, self.wait_until_ended(id)).await {
                return ended;
            }
            // The process that held the lock may have released it just now, and can no longer be found.
            if self.kill_holder(id).is_err() && self.is_running(id) {
                return Err(error);
            }
        }
        self.wait_until_ended(id).await
    }

    /// The process that keeps the sandbox alive, if there is one.
    pub fn holder(&self, id: &SandboxId) -> Option<Pid> {
        let text = std::fs::read_to_string(self.dir(id).join("lock")).ok()?;
        // The lock is held and names this process, so its id cannot have been reused.
        text.trim().parse().ok().and_then(Pid::from_raw).filter(|_| self.is_running(id))
    }

    /// Kills the process that keeps the sandbox alive. All processes inside die with it.
    fn kill_holder(&self, id: &SandboxId) -> Result<()> {
        let what = || format!("end sandbox {id}");
        let nobody = || Error::new(ErrorCode::Internal, format!("{}: no process holds its lock", what()));
        let pid = self.holder(id).ok_or_else(nobody)?;
        let holder = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Error::io(what(), error))?;
        if self.holder(id) == Some(pid) {
            rustix::process::pidfd_send_signal(holder, Signal::KILL).map_err(|error| Error::io(what(), error))?;
        }
        Ok(())
    }

    /// Waits until the sandbox and its main process have started. If this takes too long, the sandbox is ended, because
    /// half started does not count as started. `line` connects to its keeper.
    pub async fn confirm(
        &self,
        record: &Record,
        told: InstructedHelper,
        line: impl Future<Output = Result<Dialed>>,
    ) -> Result<()> {
        const ENDS_WITHIN: Duration = Duration::from_secs(1);
        let (within, process) = (record.spec.startup(), told.process());
        let started = async {
            told.reply().await?.map_err(|reason| Error::not_started(&record.name, reason))?;
            self.confirm_main(record, line.await).await
        };
        if let Ok(done) = tokio::time::timeout(within, started).await {
            return done;
        }
        process.kill();
        // Do not wait for a process that the kernel does not let go: this function must not hang.
        let _ = tokio::time::timeout(ENDS_WITHIN, self.wait_until_ended(&record.id)).await;
        Err(Error::too_slow(format!("start sandbox {}", record.name), within))
    }

    /// Checks that the main process of a new sandbox runs, or did run: the keeper replies from then on. If it could not
    /// be started, the last entry of its log contains the reason.
    async fn confirm_main(&self, record: &Record, dialed: Result<Dialed>) -> Result<()> {
        // A connection to a tied sandbox would count as its owner, and closing it would end the sandbox.
        if record.spec.command.is_none() || record.spec.tied {
            return Ok(());
        }
        if let Ok(dialed) = dialed
            && kennel_core::Keeper::connect_starting(dialed, record.spec.startup()).await.is_ok()
        {
            return Ok(());
        }
        if record.spec.auto_remove {
            // Whoever keeps it alive waits for us before it removes what we are about to read.
            self.wait_for_exit_code(&record.id).await;
        } else {
            self.wait_until_ended(&record.id).await?;
        }
        let mut log = crate::follow_log(self.dir(&record.id), LogOptions { tail: Some(1), follow: false }, || true)?;
        let mut last = Vec::new();
        while let Some(chunk) = log.next().await {
            last.extend(chunk?.bytes);
        }
        let last = String::from_utf8_lossy(&last);
        match (self.exit_code(&record.id), last.trim_end().strip_prefix(kennel_proto::log::NOTE)) {
            (Some(code @ 125..=127), Some(reason)) => {
                Err(Error::not_started(&record.name, kennel_core::printable(reason)).exit_code(code))
            }
            _ => Ok(()),
        }
    }

    /// Waits until there is an exit code, or no process is left to write one.
    #[expect(clippy::disallowed_methods, reason = "a backoff: the keeper writes the code, and tells nobody")]
    async fn wait_for_exit_code(&self, id: &SandboxId) {
        const AGAIN: Duration = Duration::from_millis(2);
        while self.exit_code(id).is_none() && self.is_running(id) {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until no process holds the lock.
    pub async fn wait_until_ended(&self, id: &SandboxId) -> Result<()> {
        let path = self.dir(id).join("lock");
        let waited = tokio::task::spawn_blocking(move || match std::fs::File::open(&path) {
            Ok(lock) => rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockShared))
                .map_err(|error| Error::io(format!("wait for {}", path.display()), error)),
            Err(_) => Ok(()), // The directory is gone.
        });
        waited.await.map_err(|error| Error::new(ErrorCode::Internal, format!("wait for the sandbox: {error}")))?
    }

    /// Waits until no other process is starting the sandbox, and locks it.
    pub async fn starting(&self, record: &Record) -> Result<Starting> {
        let id = &record.id;
        if self.is_owned(id) {
            return Ok(Starting { _lock: None }); // This process holds the lock as long as it lives.
        }
        let path = self.dir(id).join("sandbox.json");
        let what = || format!("lock {}", path.display());
        let lock = std::fs::File::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::no_sandbox(id),
            _ => Error::io(what(), error),
        })?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(Starting { _lock: Some(lock) });
        }
        if record.spec.tied {
            let message =
                format!("start sandbox {}: it is tied to its creator, and only its creator can start it", record.name);
            return Err(Error::new(ErrorCode::PermissionDenied, message));
        }
        let waited = tokio::task::spawn_blocking(move || {
            rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive)).map(|()| lock)
        });
        match waited.await {
            Ok(Ok(lock)) => Ok(Starting { _lock: Some(lock) }),
            Ok(Err(error)) => Err(Error::io(what(), error)),
            Err(error) => Err(Error::new(ErrorCode::Internal, format!("{}: {error}", what()))),
        }
    }
}
