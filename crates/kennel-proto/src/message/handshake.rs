//! The handshake of a connection, and the features of a keeper.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// The host's half of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// The newest protocol generation that the host supports.
    #[n(0)]
    pub generation: u32,
    /// The secret, for a keeper that cannot tell peers inside from peers outside.
    #[n(1)]
    pub token: Option<ByteVec>,
    /// Whether a tied sandbox lives as long as this connection.
    #[n(2)]
    pub owner: bool,
}

/// The keeper's half of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The protocol generation that both sides support.
    #[n(0)]
    pub generation: u32,
    /// The keeper's version.
    #[n(1)]
    pub version: String,
    /// The process id of the main process, if there is one.
    #[n(2)]
    pub main: Option<u64>,
    /// What the keeper supports beyond the first keepers. They do not send this field, which means that they have none
    /// of these features.
    #[n(3)]
    #[cbor(default)]
    pub features: Features,
}

/// A set of features of a keeper, as bits. A host sends the request or field of a feature only to a keeper that has it:
/// a keeper closes the connection when it receives an unknown request, and skips an unknown field. A keeper with a
/// feature understands its messages; it may still refuse them as unsupported. Unknown bits are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Features(#[n(0)] u64);

impl Features {
    /// [`Request::Symlink`](crate::Request::Symlink).
    pub const SYMLINK: Self = Self(1);
    /// [`Request::Chmod`](crate::Request::Chmod).
    pub const CHMOD: Self = Self(1 << 1);
    /// [`Request::Connect`](crate::Request::Connect).
    pub const CONNECT: Self = Self(1 << 2);
    /// [`Request::Listen`](crate::Request::Listen) and [`Request::Accept`](crate::Request::Accept).
    pub const LISTEN: Self = Self(1 << 3);
    /// [`Request::Idle`](crate::Request::Idle) and [`Request::EndIfIdle`](crate::Request::EndIfIdle).
    pub const IDLE: Self = Self(1 << 6);
    /// [`Spawn::tag`](crate::Spawn::tag).
    pub const TAG: Self = Self(1 << 7);
    /// [`Spawn::hold`](crate::Spawn::hold).
    pub const HOLD: Self = Self(1 << 8);
    /// [`Spawn::linger_ms`](crate::Spawn::linger_ms).
    pub const LINGER: Self = Self(1 << 9);
    /// The field `offset` of [`Request::Write`](crate::Request::Write).
    pub const WRITE_AT: Self = Self(1 << 10);
    /// The field `depth` of [`Request::List`](crate::Request::List).
    pub const LIST_DEPTH: Self = Self(1 << 11);
    /// [`Request::Tie`](crate::Request::Tie).
    pub const TIE: Self = Self(1 << 12);
    /// Starting a command with a tag, held output or a linger time.
    pub const COMMANDS: Self = Self(Self::TAG.0 | Self::HOLD.0 | Self::LINGER.0);
    /// Sockets inside.
    pub const SOCKETS: Self = Self(Self::CONNECT.0 | Self::LISTEN.0);
    /// All features that this crate knows.
    pub const ALL: Self = Self::FIRST
        .union(Self::SOCKETS)
        .union(Self::IDLE)
        .union(Self::COMMANDS)
        .union(Self::WRITE_AT)
        .union(Self::LIST_DEPTH)
        .union(Self::TIE);
    /// The features that keepers of generation 1 can have.
    pub const FIRST: Self = Self(Self::SYMLINK.0 | Self::CHMOD.0);

    /// Returns the features that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the features that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all features of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
