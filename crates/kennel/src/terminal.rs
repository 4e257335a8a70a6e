//! The user's terminal: its size and raw mode.
//!
//! The terminal's settings are restored when the guard is dropped and when the program panics (release builds abort
//! without dropping anything). Signals are handled by the runtime, so the guard is dropped after them as well.

use kennel_core::{Error, Result};
use kennel_types::TermSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::sync::{Mutex, PoisonError};

/// The terminal's settings before raw mode.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// A guard that keeps the terminal in raw mode, in which every key is passed on as bytes. Dropping it restores the
/// settings.
pub(crate) struct Raw(());

impl Raw {
    /// Switches the terminal on standard input to raw mode.
    pub(crate) fn enter() -> Result<Self> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin).map_err(|error| Error::io("read the terminal's settings", error))?;
        let mut raw = before.clone();
        raw.make_raw();
        let mut saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.replace(before).is_none() {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        }
        drop(saved);
        let guard = Self(());
        tcsetattr(stdin, OptionalActions::Drain, &raw).map_err(|error| Error::io("set the terminal to raw", error))?;
        Ok(guard)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // The lock is never held while something can panic, but a panic hook must not block in any case.
    if let Ok(mut saved) = SAVED.try_lock()
        && let Some(before) = saved.take()
    {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before);
    }
}

/// Whether this process is used interactively: standard input and standard output are terminals.
pub(crate) fn is_here() -> bool {
    isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout())
}

/// Whether the user can be asked a question. Standard output need not be a terminal for this.
pub(crate) fn is_asking() -> bool {
    isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stderr())
}

/// Returns the terminal's current size, or a default size if the terminal does not report one.
pub(crate) fn size() -> TermSize {
    let asked = [rustix::stdio::stdout(), rustix::stdio::stdin(), rustix::stdio::stderr()];
    asked
        .into_iter()
        .filter(|descriptor| isatty(descriptor))
        .filter_map(|descriptor| tcgetwinsize(descriptor).ok())
        .map(|size| TermSize { rows: size.ws_row, cols: size.ws_col })
        .find(|size| size.rows > 0 && size.cols > 0)
        .unwrap_or(TermSize { rows: 24, cols: 80 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expectrl::{Expect, Regex};

    /// Set in the process that runs this test again, on its own terminal.
    const INSIDE: &str = "KENNEL_TEST_PANICS_ON_A_TERMINAL";

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test runs itself a second time")]
    fn a_panic_restores_the_terminal() {
        if std::env::var_os(INSIDE).is_some() {
            // A release build aborts on panic, so nothing is dropped.
            std::mem::forget(Raw::enter().unwrap());
            panic!("on purpose");
        }
        let me = std::env::current_exe().unwrap();
        let mut shell = std::process::Command::new("sh");
        let test = "terminal::tests::a_panic_restores_the_terminal";
        shell.arg("-c").arg(format!("stty -g; {INSIDE}=1 {} --exact {test}; echo status-$?; stty -g", me.display()));
        let mut session = expectrl::Session::spawn(shell).unwrap();
        session.set_expect_timeout(Some(std::time::Duration::from_secs(20)));
        let settings = Regex("[0-9a-f:]{20,}\r\n");
        let before = session.expect(settings).unwrap().get(0).unwrap().to_vec();
        session.expect("status-101\r\n").expect("it panicked");
        let after = session.expect(Regex("[0-9a-f:]{20,}\r\n")).unwrap().get(0).unwrap().to_vec();
        assert_eq!(String::from_utf8_lossy(&before), String::from_utf8_lossy(&after));
    }
}
