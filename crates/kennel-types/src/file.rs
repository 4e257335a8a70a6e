//! Files inside a sandbox. File names are bytes, because Linux allows almost any byte in a name.

use serde::{Deserialize, Serialize};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A FIFO, socket or device. It can be listed and removed, but not read or written.
    Other,
}

/// The result of `stat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileStat {
    /// The kind of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner inside the sandbox.
    pub uid: u32,
    /// Group inside the sandbox.
    pub gid: u32,
    /// Time of the last modification, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name, without the path of the directory.
    pub name: Vec<u8>,
    /// The result of `stat` on the entry. Symlinks are not followed.
    pub stat: FileStat,
}

/// An entry of a listing that descends into directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// The path relative to the listed directory.
    pub path: Vec<u8>,
    /// The result of `stat` on the entry. Symlinks are not followed.
    pub stat: FileStat,
    /// Whether it is a directory whose entries belong to the listing, but cannot be read.
    pub unreadable: bool,
}

/// A change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// The kind of change.
    pub kind: WatchKind,
    /// The path relative to the watched path; empty for the watched path itself.
    pub path: Vec<u8>,
}

/// The kinds of [`WatchEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// The path was created or moved here.
    Created,
    /// The content or the attributes changed.
    Modified,
    /// The path was removed or moved away.
    Removed,
    /// Changes before this one were lost. Read the directory again.
    Missed,
}
