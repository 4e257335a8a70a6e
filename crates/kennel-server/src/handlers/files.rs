//! Files inside a sandbox.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::convert;
use crate::error::{Failure, Outcome};
use crate::extract::{Json as JsonBody, Path, Query};
use crate::patience::{Stalled, patient};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use kennel_api::{FileEntry, FileInfo, FileListing, MkdirRequest, MoveRequest, Scope};
use kennel_core::{Error, FileReader, Files, Sandbox, WriteOptions};
use kennel_types::{ErrorCode, FileKind, FileStat};
use schemars::JsonSchema;
use serde::Deserialize;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

const FILES: &str = "/v1/sandboxes/{sandbox}/files";

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ReadQuery>),
                response: (200, Content::Bytes),
                ..operation(
                    Method::GET,
                    FILES,
                    "readFile",
                    Scope::Read,
                    "The content of a file. The header `Range` selects a part, with status 206.",
                )
            },
            read,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<WriteQuery>),
                request: Content::Bytes,
                ..operation(
                    Method::PUT,
                    FILES,
                    "writeFile",
                    Scope::Exec,
                    "Writes a file from the body: completely or not at all, or in place at an offset.",
                )
            },
            write,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<RemoveQuery>),
                ..operation(Method::DELETE, FILES, "removeFile", Scope::Exec, "Removes a file or a directory.")
            },
            remove,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ListQuery>),
                response: (200, Content::Json(schema::<FileListing>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/files/list",
                    "listFiles",
                    Scope::Read,
                    "The entries of a directory, to a depth.",
                )
            },
            list,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<StatQuery>),
                response: (200, Content::Json(schema::<FileInfo>)),
                ..operation(
                    Method::GET,
                    "/v1/sandboxes/{sandbox}/files/stat",
                    "statFile",
                    Scope::Read,
                    "The metadata of a file.",
                )
            },
            stat,
        )
        .add(
            Operation {
                request: Content::Json(schema::<MkdirRequest>),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/files/mkdir",
                    "makeDirectory",
                    Scope::Exec,
                    "Creates a directory.",
                )
            },
            mkdir,
        )
        .add(
            Operation {
                request: Content::Json(schema::<MoveRequest>),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/files/move",
                    "moveFile",
                    Scope::Exec,
                    "Moves a file or a directory.",
                )
            },
            rename,
        )
}

/// Returns the absolute path inside. A relative path starts at the sandbox's working directory.
pub(super) fn inside(sandbox: &Sandbox, path: &str) -> Outcome<String> {
    match path {
        "" => Err(Failure::invalid("the path is empty")),
        path if path.starts_with('/') => Ok(path.to_owned()),
        path => Ok(format!("{}/{path}", sandbox.info().workdir.trim_end_matches('/'))),
    }
}

pub(super) async fn open(
    app: &AppState,
    identity: &Identity,
    name: &str,
    user: Option<&str>,
) -> Outcome<(Sandbox, Files)> {
    let sandbox = app.sandbox(identity, name).await?;
    let files = sandbox.files(user).await?;
    Ok((sandbox, files))
}

/// Which file to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReadQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn read(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> Outcome<Response> {
    let (sandbox, files) = open(&app, &identity, &name, query.user.as_deref()).await?;
    let path = inside(&sandbox, &query.path)?;
    let stat = files.stat(&path, true).await?;
    if stat.kind != FileKind::File {
        return Err(Failure::invalid(format!("read {path:?}: it is not a regular file")));
    }
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let range = match range.map(|text| range_of(text, stat.size)) {
        None | Some(Range::Ignored) => None,
        Some(Range::Part(part)) => Some(part),
        Some(Range::Beyond) => {
            let error = Error::new(ErrorCode::InvalidConfig, format!("the range is beyond the end of {path:?}"));
            let size =
                format!("bytes */{}", stat.size).parse().map_err(|_| Failure::invalid("the range is invalid"))?;
            return Err(
                Failure::with_status(StatusCode::RANGE_NOT_SATISFIABLE, error).header(header::CONTENT_RANGE, size)
            );
        }
    };
    let mut response = Response::builder()
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    let reader = if let Some((first, last)) = range {
        let length = last - first + 1;
        response = response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(header::CONTENT_RANGE, format!("bytes {first}-{last}/{}", stat.size))
            .header(header::CONTENT_LENGTH, length);
        files.open(&path, first, Some(length)).await?
    } else if stat.size > 0 {
        response = response.header(header::CONTENT_LENGTH, stat.size);
        files.open(&path, 0, Some(stat.size)).await?
    } else {
        // Files such as those in /proc have content, but no size.
        files.open(&path, 0, None).await?
    };
    Ok(response
        .body(Body::from_stream(chunks(reader)))
        .map_err(|_| Failure::invalid("the path is invalid"))?
        .into_response())
}

fn chunks(reader: FileReader) -> impl futures_util::Stream<Item = io::Result<Vec<u8>>> + Send {
    futures_util::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.chunk().await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

/// The part of a file that a header `Range` selects.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// The first and the last byte.
    Part((u64, u64)),
    /// Beyond the end.
    Beyond,
    /// The header has another form, so it is ignored, as HTTP allows.
    Ignored,
}

/// Parses a header `Range` with one range.
fn range_of(text: &str, size: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|text| text.split_once('-')) else {
        return Range::Ignored;
    };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let part = match (first, last) {
        ("", last) => number(last).map(|count| (size.saturating_sub(count), size.saturating_sub(1), count > 0)),
        (first, "") => number(first).map(|first| (first, size.saturating_sub(1), true)),
        (first, last) => number(first)
            .zip(number(last))
            .filter(|(first, last)| first <= last)
            .map(|(first, last)| (first, last.min(size.saturating_sub(1)), true)),
    };
    match part {
        None => Range::Ignored,
        Some((first, last, true)) if first < size => Range::Part((first, last)),
        Some(_) => Range::Beyond,
    }
}

/// How a file is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WriteQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// The permission bits in octal, for example `755`. Defaults to those of the existing file, or 644.
    #[schemars(regex(pattern = "^[0-7]{1,4}$"))]
    mode: Option<String>,
    /// Create missing parent directories; defaults to true.
    parents: Option<bool>,
    /// Write in place, starting at this byte. Without it, the file is replaced when the whole body has arrived.
    offset: Option<u64>,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn write(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> Outcome<StatusCode> {
    let mode = query.mode.as_deref().map(octal).transpose()?;
    let options = WriteOptions { mode, parents: query.parents.unwrap_or(true) };
    let (sandbox, files) = open(&app, &identity, &name, query.user.as_deref()).await?;
    let path = inside(&sandbox, &query.path)?;
    let (content, stalled) = BodyReader::new(request);
    let written = match query.offset {
        None => files.write_from(&path, content, options).await,
        Some(offset) => files.write_at(&path, offset, content, options).await,
    };
    written.map_err(|error| stalled.or(error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses permission bits.
pub(super) fn octal(text: &str) -> Outcome<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let octal = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    octal.ok_or_else(|| Failure::invalid(format!("invalid mode {text:?}: expected octal digits, for example 755")))
}

/// Reads the body of a request.
pub(super) struct BodyReader {
    stream: BodyDataStream,
    rest: Vec<u8>,
    used: usize,
}

impl BodyReader {
    pub(super) fn new(request: Request) -> (Self, Stalled) {
        let (body, stalled) = patient(request.into_body());
        (Self { stream: body.into_data_stream(), rest: Vec::new(), used: 0 }, stalled)
    }
}

impl AsyncRead for BodyReader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.used == self.rest.len() {
            match ready!(self.stream.poll_next_unpin(cx)) {
                Some(Ok(bytes)) => (self.rest, self.used) = (bytes.into(), 0),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let now = into.remaining().min(self.rest.len() - self.used);
        into.put_slice(&self.rest[self.used..self.used + now]);
        self.used += now;
        Poll::Ready(Ok(()))
    }
}

/// What to remove.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RemoveQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// Also remove a directory that is not empty.
    #[serde(default)]
    recursive: bool,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn remove(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Outcome<StatusCode> {
    let (sandbox, files) = open(&app, &identity, &name, query.user.as_deref()).await?;
    files.remove(inside(&sandbox, &query.path)?, query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// How deep to descend; defaults to 1.
    #[schemars(range(min = 1, max = 64))]
    depth: Option<u32>,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn list(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<ListQuery>,
) -> Outcome<Json<FileListing>> {
    let (sandbox, files) = open(&app, &identity, &name, query.user.as_deref()).await?;
    let path = inside(&sandbox, &query.path)?;
    let entries = match query.depth {
        None | Some(1) => {
            let entries = files.list(path).await?.into_iter();
            entries.map(|entry| listed(&entry.name, false, entry.stat)).collect()
        }
        Some(depth) => {
            let entries = files.list_tree(path, depth).await?.into_iter();
            entries.map(|entry| listed(&entry.path, entry.unreadable, entry.stat)).collect()
        }
    };
    Ok(Json(FileListing { entries }))
}

fn listed(path: &[u8], unreadable: bool, stat: FileStat) -> FileEntry {
    let exact = std::str::from_utf8(path).is_err().then(|| STANDARD.encode(path));
    FileEntry {
        path: String::from_utf8_lossy(path).into_owned(),
        path_base64: exact,
        unreadable,
        info: convert::file(stat),
    }
}

/// Which file to look at.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StatQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// Whether a symlink is followed; defaults to true.
    follow: Option<bool>,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn stat(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<StatQuery>,
) -> Outcome<Json<FileInfo>> {
    let (sandbox, files) = open(&app, &identity, &name, query.user.as_deref()).await?;
    let stat = files.stat(inside(&sandbox, &query.path)?, query.follow.unwrap_or(true)).await?;
    Ok(Json(convert::file(stat)))
}

async fn mkdir(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<MkdirRequest>,
) -> Outcome<StatusCode> {
    let (sandbox, files) = open(&app, &identity, &name, request.user.as_deref()).await?;
    files.mkdir(inside(&sandbox, &request.path)?, request.parents).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rename(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<MoveRequest>,
) -> Outcome<StatusCode> {
    let (sandbox, files) = open(&app, &identity, &name, request.user.as_deref()).await?;
    files.rename(inside(&sandbox, &request.from)?, inside(&sandbox, &request.to)?, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        for (text, expected) in [
            ("bytes=0-", Range::Part((0, 9))),
            ("bytes=2-4", Range::Part((2, 4))),
            ("bytes=2-100", Range::Part((2, 9))),
            ("bytes=-3", Range::Part((7, 9))),
            ("bytes=-100", Range::Part((0, 9))),
            ("bytes=10-", Range::Beyond),
            ("bytes=-0", Range::Beyond),
            ("bytes=4-2", Range::Ignored),
            ("bytes=1-2,4-5", Range::Ignored),
            ("bytes=+1-2", Range::Ignored),
            ("lines=1-2", Range::Ignored),
            ("bytes=", Range::Ignored),
        ] {
            assert_eq!(range_of(text, 10), expected, "{text}");
        }
        assert_eq!(range_of("bytes=0-", 0), Range::Beyond);
    }
}
