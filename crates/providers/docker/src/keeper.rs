//! Reaching the keeper in a container: through the socket it puts into its run directory, or through the engine.
//!
//! The inside can replace that socket, so who answers is compared with what the engine says the first process is.

use crate::Docker;
use crate::info::Container;
use crate::plan::SOCKET;
use kennel_core::{ByteStream, Dialed, Error, Keeper, Result, connect_socket};
use kennel_proto::Request;
use kennel_types::ErrorCode;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Why a keeper was not reached.
pub(crate) enum Missed {
    /// Its container does not run; as it was last seen, or gone.
    Ended(Option<Box<Container>>),
    /// Something else.
    Failed(Error),
}

/// One attempt that came to nothing.
pub(crate) enum Attempt {
    /// It may just be starting.
    NotYet(Error),
    /// Trying again is of no use.
    Missed(Missed),
}

impl From<Error> for Missed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Docker {
    /// Connects to the keeper of a container, and waits for it so long while it is just starting.
    pub(crate) async fn reach(
        &self,
        container: &Container,
        within: Duration,
    ) -> Result<(Box<dyn ByteStream>, Container), Missed> {
        let now = self.inspect(&container.engine_id).await?;
        self.reach_from(now, within).await
    }

    /// Connects to the keeper of a container that was inspected just now, and waits for it so long while it is just starting.
    pub(crate) async fn reach_from(
        &self,
        mut now: Option<Container>,
        within: Duration,
    ) -> Result<(Box<dyn ByteStream>, Container), Missed> {
        let until = Instant::now().checked_add(within);
        let mut pause = Duration::from_millis(1);
        loop {
            let container = match now {
                Some(container) if container.is_running() => container,
                other => return Err(Missed::Ended(other.map(Box::new))),
            };
            let attempt = match &container.run_dir {
                Some(run_dir) => connect_to(&run_dir.join(SOCKET), &container).await,
                None => self.connect_through(&container).await,
            };
            let error = match attempt {
                Ok(stream) => return Ok((stream, container)),
                Err(Attempt::NotYet(error)) => error,
                Err(Attempt::Missed(missed)) => return Err(missed),
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                let name = &container.info.name;
                let message = format!("the keeper of sandbox {name} did not answer within {within:?}");
                return Err(Error::new(ErrorCode::Timeout, message).caused_by(error).into());
            }
            back_off(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
            now = self.inspect(&container.engine_id).await?;
        }
    }
}

async fn connect_to(socket: &Path, container: &Container) -> Result<Box<dyn ByteStream>, Attempt> {
    let Some(pid) = container.pid else { return Err(Attempt::NotYet(Error::stopped(&container.info.name))) };
    match connect_socket(socket, Some(pid)).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if is_starting(&error) => Err(Attempt::NotYet(error)),
        Err(error) => Err(Attempt::Missed(error.into())),
    }
}

/// Says hello, as someone who does not own the sandbox.
pub(crate) async fn greet(stream: Box<dyn ByteStream>) -> Result<Keeper> {
    Keeper::connect(unowned(stream)).await
}

/// The same to a keeper that is just starting, and may take so long for that.
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
        // It may be gone before it can answer.
        Err(error) if error.code() == ErrorCode::Stopped => Ok(()),
        result => result.map(drop),
    }
}

/// Tells one socket from the one that takes its place after the next start.
pub(crate) type SocketMark = (u64, i64, i64);

/// That of the socket which is there now.
pub(crate) fn socket_mark(socket: &Path) -> Option<SocketMark> {
    let meta = socket.symlink_metadata().ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Whether this is what a keeper that does not listen yet looks like: no socket, nobody behind it, or its permissions
/// not yet set. A refusal of ours has no I/O error below it and is final.
fn is_starting(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| matches!(error.kind(), ConnectionRefused | NotFound | PermissionDenied))
}

#[allow(clippy::disallowed_methods)] // a backoff: the socket appears in a directory the inside owns, so no event is sure
pub(crate) async fn back_off(pause: Duration) {
    tokio::time::sleep(pause).await;
}
