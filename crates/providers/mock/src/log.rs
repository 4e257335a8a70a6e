//! The log of the main process, in memory and bounded.

use kennel_core::{LogChunk, LogOptions, LogStream};
use kennel_proto::Channel;
use kennel_provider::keep_last_lines;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The number of bytes that are kept.
const CAP: usize = 1024 * 1024;

#[derive(Default)]
pub(crate) struct Log {
    kept: Mutex<Kept>,
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    chunks: VecDeque<LogChunk>,
    /// The number of chunks that were removed before the first one here.
    gone: usize,
    bytes: usize,
    /// Whether more output may follow.
    open: bool,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, channel: Channel, bytes: &[u8]) {
        let mut kept = self.lock();
        kept.bytes += bytes.len();
        kept.chunks.push_back(LogChunk { channel, bytes: bytes.to_vec() });
        while kept.bytes > CAP {
            let Some(oldest) = kept.chunks.pop_front() else { break };
            kept.bytes -= oldest.bytes.len();
            kept.gone += 1;
        }
        drop(kept);
        self.changed.notify_waiters();
    }

    pub(crate) fn open(&self, open: bool) {
        self.lock().open = open;
        self.changed.notify_waiters();
    }

    pub(crate) fn read(self: &Arc<Self>, options: LogOptions) -> LogStream {
        let (mut ready, next) = {
            let kept = self.lock();
            (kept.chunks.clone(), kept.gone + kept.chunks.len())
        };
        if let Some(lines) = options.tail {
            keep_last_lines(&mut ready, lines);
        }
        let state = (self.clone(), ready, next, options.follow);
        Box::pin(futures_util::stream::try_unfold(state, async |(log, mut ready, mut next, follow)| {
            loop {
                if let Some(chunk) = ready.pop_front() {
                    return Ok(Some((chunk, (log, ready, next, follow))));
                }
                if !follow {
                    return Ok(None);
                }
                let changed = log.changed.notified();
                let open = {
                    let kept = log.lock();
                    ready.extend(kept.chunks.iter().skip(next.saturating_sub(kept.gone)).cloned());
                    next = kept.gone + kept.chunks.len();
                    kept.open
                };
                if ready.is_empty() {
                    if !open {
                        return Ok(None);
                    }
                    changed.await;
                }
            }
        }))
    }
}
