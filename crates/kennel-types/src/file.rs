//! Files as they are inside a sandbox. Names are bytes: any name a Linux directory can hold.

use serde::{Deserialize, Serialize};

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device: it can be seen and removed, never read or written.
    Other,
}

/// What `stat` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner inside the sandbox.
    pub uid: u32,
    /// Group inside the sandbox.
    pub gid: u32,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a symbolic link points.
    pub target: Option<Vec<u8>>,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name, without the directory.
    pub name: Vec<u8>,
    /// What `stat` tells of it; links are not followed.
    pub stat: FileStat,
}

/// A change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchKind,
    /// The path, relative to the watched one; empty for itself.
    pub path: Vec<u8>,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// It appeared, made or moved here.
    Created,
    /// Its content or attributes changed.
    Modified,
    /// It went, removed or moved away.
    Removed,
    /// Changes were lost before this one: look again.
    Missed,
}
