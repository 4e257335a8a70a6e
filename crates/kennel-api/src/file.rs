//! Files inside a sandbox. Names that are not UTF-8 also appear in base64.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

/// The metadata of a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileInfo {
    /// The kind.
    pub kind: FileKind,
    /// The size.
    pub size_bytes: u64,
    /// The permission bits, as a number.
    pub mode: u32,
    /// The owner inside.
    pub uid: u32,
    /// The group inside.
    pub gid: u32,
    /// The time of the last modification, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The target of a symlink. Bytes that are not UTF-8 are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// An entry of a listing.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// The path relative to the listed directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The exact path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Whether it is a directory whose entries belong to the listing, but cannot be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreadable: bool,
    /// Its metadata. Symlinks are not followed.
    #[serde(flatten)]
    pub info: FileInfo,
}

/// The entries of a directory, sorted by path.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileListing {
    /// The entries.
    pub entries: Vec<FileEntry>,
}

/// What was unpacked from an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unpacked {
    /// Entries that were unpacked.
    pub files: u64,
    /// Entries that were skipped, because they are neither files, directories nor links.
    pub skipped: u64,
    /// Entries that were unpacked without something, for example without a permission.
    pub incomplete: u64,
}

/// Creates a directory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MkdirRequest {
    /// The path inside. A relative path starts at `/`.
    pub path: String,
    /// Also create missing parents, and accept a directory that exists; defaults to true.
    #[serde(default = "yes")]
    pub parents: bool,
    /// The user; defaults to that of the sandbox.
    #[serde(default)]
    pub user: Option<String>,
}

/// Moves a file or a directory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRequest {
    /// The path inside.
    pub from: String,
    /// The new path inside. A file that is there is replaced.
    pub to: String,
    /// The user; defaults to that of the sandbox.
    #[serde(default)]
    pub user: Option<String>,
}

fn yes() -> bool {
    true
}
