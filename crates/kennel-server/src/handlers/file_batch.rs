//! Several files in one request. A file that fails does not stop the others.

use super::files::{inside, octal, open};
use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome, api_error};
use crate::extract::{Json as Body, MAX_JSON, Path};
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kennel_api::{FileContent, FileContents, FileToWrite, ReadFiles, Scope, WriteFiles, WrittenFile, WrittenFiles};
use kennel_core::{Error, Files, Result, Sandbox, WriteOptions};
use kennel_types::{ErrorCode, FileKind, LimitReason};

/// How many files a request may have.
const MOST: usize = 1000;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<ReadFiles>),
                response: (200, Content::Json(schema::<FileContents>)),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/files/read",
                    "readFiles",
                    Scope::Read,
                    "The contents of several files, 16 MiB at most. A file that cannot be read has an error of its own.",
                )
            },
            read,
        )
        .add(
            Operation {
                request: Content::Json(schema::<WriteFiles>),
                response: (200, Content::Json(schema::<WrittenFiles>)),
                ..operation(
                    Method::POST,
                    "/v1/sandboxes/{sandbox}/files/write",
                    "writeFiles",
                    Scope::Exec,
                    "Writes several files. A file that cannot be written has an error of its own.",
                )
            },
            write,
        )
}

fn check_count(count: usize) -> Outcome<()> {
    if (1..=MOST).contains(&count) {
        return Ok(());
    }
    Err(Failure::invalid(format!("invalid number of files {count}: expected 1 to {MOST}")))
}

async fn read(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    Body(request): Body<ReadFiles>,
) -> Outcome<Json<FileContents>> {
    check_count(request.paths.len())?;
    let (sandbox, files) = open(&app, &identity, &name, request.user.as_deref()).await?;
    let mut left = MAX_JSON;
    let mut found = Vec::with_capacity(request.paths.len());
    for path in request.paths {
        found.push(match read_one(&sandbox, &files, &path, left).await {
            // The keeper is gone, and with it all files.
            Err(error) if matches!(error.code(), ErrorCode::Stopped | ErrorCode::NotAvailable) => {
                return Err(error.into());
            }
            Ok(bytes) => {
                left -= bytes.len();
                let (text, base64) = match String::from_utf8(bytes) {
                    Ok(text) => (Some(text), None),
                    Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
                };
                FileContent { path, text, base64, error: None }
            }
            Err(error) => FileContent { path, text: None, base64: None, error: Some(api_error(&error, id.as_str())) },
        });
    }
    Ok(Json(FileContents { files: found }))
}

async fn read_one(sandbox: &Sandbox, files: &Files, path: &str, left: usize) -> Result<Vec<u8>> {
    let inside = inside(sandbox, path).map_err(Failure::into_error)?;
    let stat = files.stat(&inside, true).await?;
    if stat.kind != FileKind::File {
        return Err(Error::new(ErrorCode::InvalidConfig, format!("read {path:?}: it is not a regular file")));
    }
    if stat.size > left as u64 {
        let message = format!("read {path:?}: with it, the response would have more than {MAX_JSON} bytes");
        return Err(Error::limit(LimitReason::TooLarge, message));
    }
    files.read(&inside, left).await
}

async fn write(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    Body(request): Body<WriteFiles>,
) -> Outcome<Json<WrittenFiles>> {
    check_count(request.files.len())?;
    let mut wanted = Vec::with_capacity(request.files.len());
    // A request that is malformed writes nothing.
    for file in request.files {
        let mode = file.mode.as_deref().map(octal).transpose()?;
        let bytes = content(&file)?;
        wanted.push((file.path, bytes, WriteOptions { mode, parents: true }));
    }
    let (sandbox, files) = open(&app, &identity, &name, request.user.as_deref()).await?;
    let mut written = Vec::with_capacity(wanted.len());
    for (path, bytes, options) in wanted {
        let done = match inside(&sandbox, &path) {
            Ok(inside) => files.write(&inside, &bytes, options).await,
            Err(failure) => Err(failure.into_error()),
        };
        written.push(WrittenFile { path, error: done.err().map(|error| api_error(&error, id.as_str())) });
    }
    Ok(Json(WrittenFiles { files: written }))
}

fn content(file: &FileToWrite) -> Outcome<Vec<u8>> {
    match (&file.text, &file.base64) {
        (Some(text), None) => Ok(text.clone().into_bytes()),
        (None, Some(text)) => {
            STANDARD.decode(text).map_err(|error| Failure::invalid(format!("base64 of {:?}: {error}", file.path)))
        }
        _ => Err(Failure::invalid(format!("{:?}: expected either text or base64", file.path))),
    }
}
