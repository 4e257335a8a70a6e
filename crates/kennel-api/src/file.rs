//! Files inside a sandbox. Names that are not UTF-8 also appear in base64.

use crate::ApiError;
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

/// Files to read in one request.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadFiles {
    /// The paths inside, at most 1,000. A relative path starts at the sandbox's working directory.
    #[schemars(length(min = 1, max = 1000))]
    pub paths: Vec<String>,
    /// The user; defaults to that of the sandbox.
    #[serde(default)]
    pub user: Option<String>,
}

/// The contents of several files, in the order of the request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileContents<E = ApiError> {
    /// The files.
    pub files: Vec<FileContent<E>>,
}

/// The content of a file. Exactly one of `text`, `base64` and `error` is there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileContent<E = ApiError> {
    /// The path of the request.
    pub path: String,
    /// The content, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The content in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Why the file could not be read. All files of a response have 16 MiB at most; the rest is `limit_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<E>,
}

/// Files to write in one request. Each is written completely or not at all.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteFiles {
    /// The files, at most 1,000. They are written in this order.
    #[schemars(length(min = 1, max = 1000))]
    pub files: Vec<FileToWrite>,
    /// The user; defaults to that of the sandbox.
    #[serde(default)]
    pub user: Option<String>,
}

/// A file to write. Exactly one of `text` and `base64` is required.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileToWrite {
    /// The path inside. A relative path starts at the sandbox's working directory. Missing parents are created.
    pub path: String,
    /// The content as text.
    #[serde(default)]
    pub text: Option<String>,
    /// The content in base64.
    #[serde(default)]
    pub base64: Option<String>,
    /// The permission bits in octal, for example `755`. Defaults to those of the existing file, or 644.
    #[serde(default)]
    #[schemars(regex(pattern = "^[0-7]{1,4}$"))]
    pub mode: Option<String>,
}

/// Which files were written, in the order of the request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WrittenFiles<E = ApiError> {
    /// The files.
    pub files: Vec<WrittenFile<E>>,
}

/// Whether a file was written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WrittenFile<E = ApiError> {
    /// The path of the request.
    pub path: String,
    /// Why the file was not written. Absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<E>,
}

/// What a search has found, sorted by path and line.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileMatches {
    /// What was found: files, or with `text` lines of files.
    pub matches: Vec<FileMatch>,
    /// Whether there is more than the response has.
    pub truncated: bool,
    /// How many files were not searched for the text: larger than 8 MiB, unreadable, or not text.
    pub skipped: u64,
}

/// A file that was found, or a line in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileMatch {
    /// The path relative to the searched directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The exact path in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// The kind of the file.
    pub kind: FileKind,
    /// The number of the line, starting at 1, if a text was searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The line, of which at most 1,000 characters are returned. Bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

fn yes() -> bool {
    true
}
