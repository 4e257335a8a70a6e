//! Standard input of this process.

use kennel_core::copy::PipeReader;
use rustix::fs::FileType;

/// What standard input is to a command inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A terminal: passed if asked for.
    Terminal,
    /// A pipe, file or socket: someone put something there to be read.
    Content,
    /// `/dev/null`, closed, or another device: nothing to pass.
    Nothing,
}

/// What standard input is now.
pub(crate) fn kind() -> Kind {
    let stdin = rustix::stdio::stdin();
    let Ok(stat) = rustix::fs::fstat(stdin) else { return Kind::Nothing };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::RegularFile | FileType::Socket => Kind::Content,
        FileType::CharacterDevice if rustix::termios::isatty(stdin) => Kind::Terminal,
        _ => Kind::Nothing,
    }
}

/// Starts to read standard input.
pub(crate) fn open() -> PipeReader {
    PipeReader::new(rustix::stdio::stdin())
}
