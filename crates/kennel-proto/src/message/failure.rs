//! Why a request failed.

use minicbor::{Decode, Encode};

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Failure {
    /// The kind of failure.
    #[n(0)]
    pub kind: FailureKind,
    /// A message for people. It comes from inside a sandbox, so it must never be printed unescaped.
    #[n(1)]
    pub message: String,
    /// Which limit was reached, if the kind is [`FailureKind::Limit`]. Earlier keepers do not send it, and earlier hosts
    /// skip it.
    #[n(2)]
    pub limit: Option<Limit>,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), limit: None }
    }

    /// A limit that was reached.
    pub fn limit(limit: Limit, message: impl Into<String>) -> Self {
        Self { limit: Some(limit), ..Self::new(FailureKind::Limit, message) }
    }
}

/// The limits that a request can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Limit {
    /// The size of a request or a file, or the number of its parts.
    #[n(0)]
    Size,
    /// Memory.
    #[n(1)]
    Memory,
    /// Disk space.
    #[n(2)]
    Disk,
    /// The number of commands, processes or open files.
    #[n(3)]
    Number,
    /// The number of requests at once.
    #[n(4)]
    Requests,
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FailureKind {
    /// No such program, file or process.
    #[n(0)]
    NotFound,
    /// Permission denied.
    #[n(1)]
    Denied,
    /// The path already exists.
    #[n(2)]
    Exists,
    /// The request is not valid here.
    #[n(3)]
    Invalid,
    /// A limit was reached.
    #[n(4)]
    Limit,
    /// The program exists but cannot be executed.
    #[n(5)]
    NotExecutable,
    /// Any other failure.
    #[n(6)]
    Other,
    /// The path is not a regular file or directory, or contains a magic link.
    #[n(7)]
    Refused,
    /// The keeper or the kernel does not support it.
    #[n(8)]
    Unsupported,
    /// The sandbox could not be started.
    #[n(9)]
    NotStarted,
    /// The sandbox is ending, and accepts no requests any more.
    #[n(10)]
    Stopping,
}
