//! One volume, and the removal of volumes that nobody uses.

use super::inventory::{sees, volume};
use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::error::{Outcome, api_error};
use crate::extract::{OptionalJson, Path};
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Routes, schema};
use axum::extract::State;
use axum::http::Method;
use axum::{Extension, Json};
use kennel_api::{FailedVolume, PruneVolumes, PrunedVolumes, Scope, VolumeView};
use kennel_core::{Error, VolumeOptions, printable};
use kennel_types::ErrorCode;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                response: (200, Content::Json(schema::<VolumeView>)),
                ..operation(
                    Method::GET,
                    "/v1/volumes/{volume}",
                    "getVolume",
                    Scope::Read,
                    "A volume, with its size if that can be measured.",
                )
            },
            get,
        )
        .add(
            Operation {
                request: Content::OptionalJson(schema::<PruneVolumes>),
                response: (200, Content::Json(schema::<PrunedVolumes>)),
                ..operation(
                    Method::POST,
                    "/v1/volumes/prune",
                    "pruneVolumes",
                    Scope::Create,
                    "Removes the data volumes that no sandbox uses. Providers that do not respond keep theirs.",
                )
            },
            prune,
        )
}

async fn get(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<Json<VolumeView>> {
    let mut listing = app.engine.volumes(VolumeOptions { sizes: true }).await?;
    listing.found.retain(|found| sees(&identity, found));
    match listing.find(&name) {
        Ok(found) => Ok(Json(volume(found.clone()))),
        Err(error) if error.code() == ErrorCode::NotFound => Err(Error::no_volume(printable(&name)).into()),
        Err(error) => Err(error.into()),
    }
}

async fn prune(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    OptionalJson(asked): OptionalJson<PruneVolumes>,
) -> Outcome<Json<PrunedVolumes>> {
    let listing = app.engine.volumes(VolumeOptions { sizes: true }).await?;
    let unused = listing.unused(asked.caches).into_iter().filter(|found| sees(&identity, found));
    let (mut volumes, mut failed, mut freed_bytes) = (Vec::new(), Vec::new(), 0_u64);
    for found in unused {
        let removed = if asked.dry_run { Ok(()) } else { found.remove().await };
        match removed {
            Ok(()) => {
                freed_bytes = freed_bytes.saturating_add(found.info.size.unwrap_or(0));
                volumes.push(volume(found));
            }
            // Meanwhile, a sandbox uses it, or someone else has removed it.
            Err(error) if matches!(error.code(), ErrorCode::Conflict | ErrorCode::NotFound) => {}
            Err(error) => failed.push(FailedVolume {
                name: found.info.name,
                provider: found.info.provider,
                error: api_error(&error, id.as_str()),
            }),
        }
    }
    Ok(Json(PrunedVolumes { volumes, freed_bytes, failed }))
}
