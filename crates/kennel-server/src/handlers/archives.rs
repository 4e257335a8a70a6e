//! Tar archives of files inside, out of a sandbox and into it.

use super::files::BodyReader;
use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Failure, Outcome};
use crate::extract::{Path, Query};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kennel_api::{Scope, Unpacked};
use kennel_core::copy::Copier;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;

/// How much of an archive is ahead of the client.
const AHEAD: usize = 256 << 10;
/// The size of a piece of an archive.
const PIECE: usize = 64 << 10;

pub(super) fn add(routes: Routes) -> Routes {
    const PATH: &str = "/v1/sandboxes/{sandbox}/files/archive";
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ArchiveQuery>),
                response: (200, Content::Bytes),
                ..operation(Method::GET, PATH, "packFiles", Scope::Read, "A tar archive of a file or directory.")
            },
            pack,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<ArchiveQuery>),
                request: Content::Bytes,
                response: (200, Content::Json(schema::<Unpacked>)),
                ..operation(
                    Method::PUT,
                    PATH,
                    "unpackFiles",
                    Scope::Exec,
                    "Unpacks a tar archive, which is not compressed, into a directory.",
                )
            },
            unpack,
        )
}

/// What is packed, or where an archive is unpacked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchiveQuery {
    /// The path inside. A relative path starts at the sandbox's working directory.
    path: String,
    /// The user; defaults to that of the sandbox.
    user: Option<String>,
}

async fn copier(app: &AppState, identity: &Identity, name: &str, query: &ArchiveQuery) -> Outcome<Copier> {
    if query.path.is_empty() {
        return Err(Failure::invalid("the path is empty"));
    }
    let sandbox = app.sandbox(identity, name).await?;
    Ok(Copier::new(&sandbox, query.user.as_deref(), |_| {}).await?)
}

async fn pack(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<ArchiveQuery>,
) -> Outcome<Response> {
    let mut copier = copier(&app, &identity, &name, &query).await?;
    let (to, mut from) = tokio::io::duplex(AHEAD);
    // It also ends when the client is gone, because nobody reads then.
    let packing = tokio::spawn(async move { copier.pack_stream(query.path.as_bytes(), to, "the response").await });
    let mut first = vec![0; PIECE];
    let count = from.read(&mut first).await.unwrap_or(0);
    if count == 0 {
        // Nothing was sent yet, so an error still has its own response.
        crate::app::joined(packing.await)?;
        return Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::empty()).into_response());
    }
    first.truncate(count);
    let state = Some((first, from, packing));
    let pieces = futures_util::stream::unfold(state, |state| async move {
        let (piece, mut from, packing) = state?;
        let mut next = vec![0; PIECE];
        match from.read(&mut next).await {
            Ok(count) if count > 0 => {
                next.truncate(count);
                Some((Ok(piece), Some((next, from, packing))))
            }
            // Without an error, the client must not take an incomplete archive for a complete one.
            _ => match crate::app::joined(packing.await) {
                Ok(()) => Some((Ok(piece), None)),
                Err(error) => Some((Err(std::io::Error::other(error)), None)),
            },
        }
    });
    let headers = [(header::CONTENT_TYPE, "application/x-tar"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

async fn unpack(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<ArchiveQuery>,
    request: Request,
) -> Outcome<Json<Unpacked>> {
    let mut copier = copier(&app, &identity, &name, &query).await?;
    let (archive, stalled) = BodyReader::new(request);
    let unpacked = copier.unpack_stream(archive, "the body", query.path.as_bytes(), &query.path).await;
    unpacked.map_err(|error| stalled.or(error))?;
    let counts = copier.counts();
    Ok(Json(Unpacked { files: counts.files, skipped: counts.skipped, incomplete: counts.incomplete }))
}
