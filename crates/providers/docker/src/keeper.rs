//! Connects to the keeper in a container: through the socket in its run directory, or through the engine.
//!
//! Processes inside can replace that socket. So the peer must be the process that the engine reports as the container's
//! first.

use crate::Docker;
use crate::info::Container;
use crate::plan::SOCKET;
use kennel_core::{ByteStream, Dialed, Error, Keeper, Result};
use kennel_proto::Request;
use kennel_provider::connect_socket;
use kennel_types::ErrorCode;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Why there is no connection to a keeper.
pub(crate) enum NotConnected {
    /// The container is not running. Contains its last known state, or `None` if it is gone.
    Ended(Option<Box<Container>>),
    /// Any other error.
    Failed(Error),
}

/// Why one attempt to connect failed.
pub(crate) enum AttemptError {
    /// The keeper may just be starting: another attempt may succeed.
    Retry(Error),
    /// Another attempt would not help.
    Final(NotConnected),
}

impl From<Error> for NotConnected {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Docker {
    /// Connects to the keeper of a container. If it is just starting, waits up to a time limit.
    pub(crate) async fn reach(
        &self,
        container: &Container,
        within: Duration,
    ) -> Result<(Box<dyn ByteStream>, Container), NotConnected> {
        let now = self.inspect(&container.engine_id).await?;
        self.reach_from(now, within).await
    }

    /// Connects to the keeper of a container that was inspected just now, and waits for it so long while it is just starting.
    pub(crate) async fn reach_from(
        &self,
        mut now: Option<Container>,
        within: Duration,
    ) -> Result<(Box<dyn ByteStream>, Container), NotConnected> {
        let until = Instant::now().checked_add(within);
        let mut pause = Duration::from_millis(1);
        loop {
            let container = match now {
                Some(container) if container.is_running() => container,
                other => return Err(NotConnected::Ended(other.map(Box::new))),
            };
            let attempt = match &container.run_dir {
                Some(run_dir) => connect_to(&run_dir.join(SOCKET), &container).await,
                None => self.connect_by_engine(&container).await,
            };
            let error = match attempt {
                Ok(stream) => return Ok((stream, container)),
                Err(AttemptError::Retry(error)) => error,
                Err(AttemptError::Final(error)) => return Err(error),
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                let name = &container.info.name;
                let message = format!("the keeper of sandbox {name} did not reply within {within:?}");
                return Err(Error::new(ErrorCode::Timeout, message).caused_by(error).into());
            }
            back_off(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
            now = self.inspect(&container.engine_id).await?;
        }
    }
}

async fn connect_to(socket: &Path, container: &Container) -> Result<Box<dyn ByteStream>, AttemptError> {
    let Some(pid) = container.pid else { return Err(AttemptError::Retry(Error::stopped(&container.info.name))) };
    match connect_socket(socket, Some(pid)).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if is_starting(&error) => Err(AttemptError::Retry(error)),
        Err(error) => Err(AttemptError::Final(error.into())),
    }
}

/// Performs the handshake, without being the owner of the sandbox.
pub(crate) async fn greet(stream: Box<dyn ByteStream>) -> Result<Keeper> {
    Keeper::connect(unowned(stream)).await
}

/// Performs the handshake with a keeper that is just starting. The reply may take `within`.
pub(crate) async fn greet_starting(stream: Box<dyn ByteStream>, within: Duration) -> Result<Keeper> {
    Keeper::connect_starting(unowned(stream), within).await
}

fn unowned(stream: Box<dyn ByteStream>) -> Dialed {
    Dialed { stream, token: None, owner: false }
}

/// Asks the keeper to end everything.
pub(crate) async fn shut_down(stream: Box<dyn ByteStream>, grace: Duration) -> Result<()> {
    let keeper = greet(stream).await?;
    let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
    match keeper.call(Request::Shutdown { grace_ms }).await {
        // The keeper may be gone before it can reply.
        Err(error) if error.code() == ErrorCode::Stopped => Ok(()),
        result => result.map(drop),
    }
}

/// Distinguishes a socket from the one that replaces it at the next start.
pub(crate) type SocketMark = (u64, i64, i64);

/// Returns the mark of the current socket.
pub(crate) fn socket_mark(socket: &Path) -> Option<SocketMark> {
    let meta = socket.symlink_metadata().ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Whether the error is typical for a keeper that does not listen yet: no socket, nobody listens, or its permissions
/// are not set yet. A keeper that ends before it accepts the connection resets it; the next inspection shows whether its
/// container has ended. A refusal by Kennel has no underlying I/O error and is final.
fn is_starting(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, PermissionDenied};
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| matches!(error.kind(), ConnectionRefused | ConnectionReset | NotFound | PermissionDenied))
}

#[expect(clippy::disallowed_methods, reason = "a backoff: processes inside own the directory, so no event is reliable")]
pub(crate) async fn back_off(pause: Duration) {
    tokio::time::sleep(pause).await;
}
