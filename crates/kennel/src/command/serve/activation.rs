//! What systemd and a service have to do with each other: sockets that were opened before, and messages about readiness.

use kennel_core::{Error, Result};
use kennel_server::Passed;
use listenfd::ListenFd;
use sd_notify::NotifyState;

/// Takes the sockets that were passed to this process (`LISTEN_FDS`).
pub(super) fn passed_sockets() -> Result<Vec<Passed>> {
    let mut all = ListenFd::from_env();
    let failed = |error| Error::io("use a socket from LISTEN_FDS: expected a listening TCP or unix socket", error);
    let mut passed = Vec::new();
    for at in 0..all.len() {
        // A socket of another kind is left in place.
        if let Ok(Some(listener)) = all.take_unix_listener(at) {
            passed.push(Passed::Unix(listener));
        } else if let Some(listener) = all.take_tcp_listener(at).map_err(failed)? {
            passed.push(Passed::Tcp(listener));
        }
    }
    Ok(passed)
}

/// Tells the service manager, if there is one, that requests are answered.
pub(super) fn tell_ready() {
    tell(NotifyState::Ready);
}

/// Tells the service manager, if there is one, that the server ends.
pub(super) fn tell_stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "could not tell the service manager");
    }
}
