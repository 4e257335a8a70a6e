//! The log of the main process, written to a place that processes inside cannot reach.

use crate::sys;
use kennel_proto::log::{RECORD, encode};
use kennel_proto::{Channel, LogSink};
use rustix::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of bytes that may wait for a slow engine before the main process must wait.
const PENDING: usize = 64 * 1024;

pub(crate) enum Log {
    Nowhere,
    /// To the engine, which may be slow.
    Engine {
        out: [OwnedFd; 2],
        pending: [Vec<u8>; 2],
    },
    /// To two files in turn.
    Files {
        files: [OwnedFd; 2],
        current: usize,
        written: u64,
        cap: u64,
    },
}

impl Log {
    pub(crate) fn open(sink: LogSink) -> Self {
        match sink {
            LogSink::Nowhere => Self::Nowhere,
            LogSink::Passthrough => {
                let dup = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok();
                match (dup(rustix::stdio::stdout()), dup(rustix::stdio::stderr())) {
                    (Some(out), Some(err)) => {
                        for fd in [&out, &err] {
                            let _ = rustix::io::ioctl_fionbio(fd, true);
                        }
                        Self::Engine { out: [out, err], pending: Default::default() }
                    }
                    _ => Self::Nowhere,
                }
            }
            LogSink::Files { first, second, cap } => match (sys::inherited(first), sys::inherited(second)) {
                (Some(first), Some(second)) => {
                    let length = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64);
                    // Continue in the file that has room.
                    let (one, two) = (length(&first), length(&second));
                    let current = usize::from(one >= cap && two < cap);
                    Self::Files { files: [first, second], current, written: [one, two][current], cap }
                }
                _ => Self::Nowhere,
            },
        }
    }

    /// Whether more can be written now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Engine { pending, .. } => pending.iter().all(|bytes| bytes.len() < PENDING),
            Self::Nowhere | Self::Files { .. } => true,
        }
    }

    /// Whether output waits for the engine.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Engine { pending, .. } if pending.iter().any(|bytes| !bytes.is_empty()))
    }

    pub(crate) fn write(&mut self, channel: Channel, bytes: &[u8]) {
        let index = usize::from(channel == Channel::Stderr);
        match self {
            Self::Nowhere => {}
            Self::Engine { pending, .. } => {
                pending[index].extend_from_slice(bytes);
                self.flush();
            }
            Self::Files { files, current, written, cap } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
                let mut record = Vec::with_capacity(bytes.len() + 16);
                for piece in bytes.chunks(RECORD) {
                    encode(now, channel, piece, &mut record);
                }
                if *written > *cap {
                    *current = 1 - *current;
                    *written = 0;
                    let _ = rustix::fs::ftruncate(&files[*current], 0);
                }
                // A full disk must not stop the sandbox. A truncated record ends the readable part of the file.
                let mut rest = &record[..];
                while let Ok(count @ 1..) = rustix::io::write(&files[*current], rest) {
                    rest = &rest[count..];
                }
                *written += record.len() as u64;
            }
        }
    }

    /// Writes waiting output, as much as the engine accepts.
    pub(crate) fn flush(&mut self) {
        let Self::Engine { out, pending } = self else { return };
        for (fd, bytes) in out.iter().zip(pending) {
            while !bytes.is_empty() {
                match rustix::io::write(fd, bytes) {
                    Ok(count) => drop(bytes.drain(..count)),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                    Err(_) => bytes.clear(), // The engine no longer reads it.
                }
            }
        }
    }
}
