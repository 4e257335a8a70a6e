//! Sandboxes that stop by themselves because nobody uses them.

use crate::Provider;
use kennel_types::{EndCause, SandboxId, Status};
use std::time::Duration;
use tokio::time::Instant;

/// Whether a sandbox has stopped because it was idle. Its keeper does not respond any more, and its last processes may take
/// this long to end.
pub async fn has_ended_idle(provider: &dyn Provider, id: &SandboxId, within: Duration) -> bool {
    let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
    while let Ok(info) = provider.get(id.as_str()).await {
        match info.status {
            Status::Stopped => return info.end_cause == Some(EndCause::Idle),
            Status::Running if began.elapsed() < within => {}
            _ => break,
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a backoff: the last processes of the sandbox may still be ending"
        )]
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    false
}
