//! Files: their metadata, the entries of a directory, and changes.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// The metadata of a path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stat {
    /// The kind of file.
    #[n(0)]
    pub kind: FileKind,
    /// The size in bytes.
    #[n(1)]
    pub size: u64,
    /// Permission bits.
    #[n(2)]
    pub mode: u32,
    /// Owner.
    #[n(3)]
    pub uid: u32,
    /// Group.
    #[n(4)]
    pub gid: u32,
    /// Time of the last modification, in milliseconds since 1970.
    #[n(5)]
    pub modified_ms: i64,
    /// The target of a symlink.
    #[n(6)]
    pub target: Option<ByteVec>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    /// A regular file.
    #[n(0)]
    File,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symlink.
    #[n(2)]
    Symlink,
    /// A FIFO, socket or device.
    #[n(3)]
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// The name, or in a listing to a depth the relative path.
    #[n(0)]
    pub name: ByteVec,
    /// Its metadata.
    #[n(1)]
    pub stat: Stat,
    /// Whether it is a directory whose entries belong to the listing, but cannot be read.
    #[n(2)]
    #[cbor(default)]
    pub unreadable: bool,
}

/// A change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WatchItem {
    /// The kind of change.
    #[n(0)]
    pub kind: WatchKind,
    /// The changed path, relative to the watched path.
    #[n(1)]
    pub path: ByteVec,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum WatchKind {
    /// The path was created.
    #[n(0)]
    Created,
    /// The path was modified.
    #[n(1)]
    Modified,
    /// The path was removed.
    #[n(2)]
    Removed,
    /// Changes before this one were lost.
    #[n(3)]
    Missed,
}
