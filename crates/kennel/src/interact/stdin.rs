//! Forwards standard input to a command. It recognises the keys that detach, and sends input again that was lost with a
//! connection.

use crate::input;
use kennel_core::Stdin;
use kennel_core::copy::PipeReader;
use kennel_proto::caps;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// A task that forwards standard input to a command. It ends when this is dropped.
pub(super) struct StdinForwarder {
    left: Arc<Notify>,
    renewed: mpsc::UnboundedSender<Stdin>,
    task: tokio::task::AbortHandle,
}

impl StdinForwarder {
    /// Starts to read standard input. `keeps` buffers input that could be lost with a connection. `keys` enables
    /// Ctrl-P Ctrl-Q to detach.
    pub(super) fn start(stdin: Stdin, keeps: bool, keys: bool) -> Self {
        let left = Arc::<Notify>::default();
        let (renewed, renewals) = mpsc::unbounded_channel();
        let keys = keys.then(Keys::default);
        let forwarding = Forwarding { input: input::open(), stdin, keys, left: left.clone() };
        let task =
            if keeps { tokio::spawn(forwarding.again_and_again(renewals)) } else { tokio::spawn(forwarding.once()) };
        Self { left, renewed, task: task.abort_handle() }
    }

    /// Waits until the user presses the keys that detach.
    pub(super) async fn detached(&self) {
        self.left.notified().await;
    }

    /// Continues on a new connection.
    pub(super) fn reconnect(&self, stdin: Stdin) {
        let _ = self.renewed.send(stdin);
    }
}

impl Drop for StdinForwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Forwarding {
    input: PipeReader,
    stdin: Stdin,
    keys: Option<Keys>,
    left: Arc<Notify>,
}

impl Forwarding {
    /// Forwards input until it ends, or until the command accepts no more.
    async fn once(mut self) {
        while let Some(bytes) = self.input.next().await {
            if self.stdin.write(&bytes).await.is_err() {
                return;
            }
        }
        self.stdin.close();
    }

    /// Forwards input over any number of connections, and sends lost input again on each new one.
    async fn again_and_again(mut self, mut renewals: mpsc::UnboundedReceiver<Stdin>) {
        let mut said = Said { first: self.stdin.position().await, bytes: Vec::new() };
        let mut over = false;
        loop {
            let piece = tokio::select! {
                stdin = renewals.recv() => {
                    let Some(stdin) = stdin else { return };
                    self.stdin = stdin;
                    let missing = said.since(self.stdin.position().await).to_vec();
                    // If this fails, the connection is lost again, and another one will follow.
                    if self.stdin.write(&missing).await.is_ok() && over {
                        self.stdin.close();
                    }
                    continue;
                }
                piece = self.input.next(), if !over => piece,
            };
            let Some(bytes) = piece else {
                over = true;
                self.stdin.close();
                continue;
            };
            let (bytes, leaves) = match &mut self.keys {
                Some(keys) => keys.filter(&bytes),
                None => (bytes, false),
            };
            said.push(&bytes);
            // If this fails, the bytes are sent again on the next connection.
            let _ = self.stdin.write(&bytes).await;
            if leaves {
                self.left.notify_one();
            }
        }
    }
}

/// The most recently sent input. At most one flow control window of it can be lost with a connection.
struct Said {
    /// The position in the input of the first byte in `bytes`.
    first: u64,
    bytes: Vec<u8>,
}

impl Said {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let spare = self.bytes.len().saturating_sub(caps::WINDOW as usize + bytes.len());
        self.bytes.drain(..spare);
        self.first += spare as u64;
    }

    fn since(&self, position: u64) -> &[u8] {
        let skip = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.bytes.get(skip..).unwrap_or_default()
    }
}

/// Recognises Ctrl-P Ctrl-Q in the input.
#[derive(Default)]
pub(super) struct Keys {
    /// Whether Ctrl-P was pressed. It is held back until the next key.
    held: bool,
}

impl Keys {
    /// Returns the bytes for the command, and whether the user detaches after them.
    pub(super) fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        const CTRL_P: u8 = 0x10;
        const CTRL_Q: u8 = 0x11;
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for &key in typed {
            if std::mem::take(&mut self.held) {
                if key == CTRL_Q {
                    return (passed, true);
                }
                passed.push(CTRL_P);
            }
            if key == CTRL_P {
                self.held = true;
            } else {
                passed.push(key);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_keys_are_recognised_and_other_input_passed_on() {
        let mut keys = Keys::default();
        assert_eq!(keys.filter(b"ab\x10c"), (b"ab\x10c".to_vec(), false));
        assert_eq!(keys.filter(b"x\x10"), (b"x".to_vec(), false));
        assert_eq!(keys.filter(b"\x10"), (b"\x10".to_vec(), false));
        assert_eq!(keys.filter(b"\x11lost"), (Vec::new(), true));
        assert_eq!(keys.filter(b"\x11"), (b"\x11".to_vec(), false), "Ctrl-Q alone is a key like others");
    }

    #[test]
    fn input_that_was_not_received_is_sent_again() {
        let mut said = Said { first: 100, bytes: Vec::new() };
        said.push(b"hello ");
        said.push(b"world");
        assert_eq!(said.since(106), b"world");
        assert_eq!(said.since(100), b"hello world");
        assert_eq!(said.since(111), b"");
        assert_eq!(said.since(500), b"");
        for _ in 0..40 {
            said.push(&vec![b'x'; 64 * 1024]);
        }
        assert!(said.bytes.len() <= caps::WINDOW as usize + 64 * 1024);
        let end = said.first + said.bytes.len() as u64;
        assert_eq!(end, 111 + 40 * 64 * 1024);
        assert_eq!(said.since(end - caps::WINDOW).len() as u64, caps::WINDOW, "a whole window is kept");
    }
}
