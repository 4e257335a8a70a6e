//! Standard input of this process.

use kennel_core::copy::PipeReader;
use rustix::fs::FileType;

/// The kind of standard input, which decides whether it is passed to a command in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinKind {
    /// A terminal. It is passed on request.
    Terminal,
    /// A pipe, file or socket. It is always passed.
    Content,
    /// `/dev/null`, another device, or closed. It is never passed.
    Nothing,
}

/// Returns the kind of this process's standard input.
pub(crate) fn kind() -> StdinKind {
    let stdin = rustix::stdio::stdin();
    let Ok(stat) = rustix::fs::fstat(stdin) else { return StdinKind::Nothing };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::RegularFile | FileType::Socket => StdinKind::Content,
        FileType::CharacterDevice if rustix::termios::isatty(stdin) => StdinKind::Terminal,
        _ => StdinKind::Nothing,
    }
}

/// Starts to read this process's standard input.
pub(crate) fn open() -> PipeReader {
    PipeReader::new(rustix::stdio::stdin())
}
