//! Volumes, images, providers, and what the server measures.

use super::operation;
use crate::app::AppState;
use crate::auth::Identity;
use crate::convert::name_of;
use crate::error::Outcome;
use crate::extract::{Path, Query};
use crate::metrics::{Counted, Measured};
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use futures_util::StreamExt as _;
use kennel_api::{ImageView, List, Page, ProviderView, Scope, SilentProvider, VolumeView};
use kennel_core::{Error, VolumeOptions, printable};
use kennel_engine::{Engine, FoundVolume, VolumeListing};
use kennel_types::SandboxInfo;
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                query: QuerySchema::Of(fields::<VolumeQuery>),
                response: (200, Content::Json(schema::<Page<VolumeView>>)),
                ..operation(Method::GET, "/v1/volumes", "listVolumes", Scope::Read, "The volumes.")
            },
            volumes,
        )
        .add(
            operation(
                Method::DELETE,
                "/v1/volumes/{volume}",
                "removeVolume",
                Scope::Create,
                "Removes a volume that no sandbox uses, and its content.",
            ),
            remove_volume,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<List<ImageView>>)),
                ..operation(
                    Method::GET,
                    "/v1/images",
                    "listImages",
                    Scope::Read,
                    "The images in Kennel's own store. Engines have their own.",
                )
            },
            images,
        )
        .add(
            Operation {
                response: (200, Content::Json(schema::<List<ProviderView>>)),
                ..operation(
                    Method::GET,
                    "/v1/providers",
                    "listProviders",
                    Scope::Read,
                    "The providers, whether they can be used, and their modes.",
                )
            },
            providers,
        )
        .add(
            Operation {
                response: (200, Content::Metrics),
                ..operation(
                    Method::GET,
                    "/metrics",
                    "getMetrics",
                    Scope::Read,
                    "What the server measures, in the text format of Prometheus.",
                )
            },
            metrics,
        )
}

/// What a list of volumes contains.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct VolumeQuery {
    /// Also measure sizes. This is slow if there are many files.
    sizes: bool,
}

async fn volumes(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Query(query): Query<VolumeQuery>,
) -> Outcome<Json<Page<VolumeView>>> {
    let VolumeListing { found, silent } = app.engine.volumes(VolumeOptions { sizes: query.sizes }).await?;
    let seen = found.into_iter().filter(|found| sees(&identity, found));
    let silent = silent.into_iter().map(|silent| SilentProvider {
        provider: silent.provider.name().to_owned(),
        message: silent.error.to_string(),
    });
    Ok(Json(Page { items: seen.map(volume).collect(), next_cursor: None, silent: silent.collect() }))
}

pub(super) fn sees(identity: &Identity, found: &FoundVolume) -> bool {
    identity.sees_project(found.info.project.as_deref())
}

pub(super) fn volume(found: FoundVolume) -> VolumeView {
    VolumeView {
        name: found.info.name,
        provider: found.info.provider,
        kind: found.info.kind.name().to_owned(),
        project: found.info.project,
        size_bytes: found.info.size,
        created_ms: found.info.created_ms,
        used_by: found.info.used_by.iter().map(|user| user.id.to_string()).collect(),
    }
}

async fn remove_volume(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Outcome<StatusCode> {
    let mut listing = app.engine.volumes(VolumeOptions::default()).await?;
    listing.found.retain(|found| sees(&identity, found));
    match listing.find(&name) {
        Ok(found) => found.remove().await?,
        Err(error) if listing.found.iter().any(|found| found.info.name == name) => return Err(error.into()),
        Err(_) => return Err(Error::no_volume(printable(&name)).into()),
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn images(State(app): State<AppState>) -> Outcome<Json<List<ImageView>>> {
    let images = app.engine.images()?.list()?;
    Ok(Json(List { items: images.iter().map(image_view).collect() }))
}

pub(super) fn image_view(image: &kennel_image::Image) -> ImageView {
    ImageView {
        name: image.reference.to_string(),
        id: image.id.to_string(),
        size_bytes: image.size,
        created_ms: image.created.map(|seconds| seconds.saturating_mul(1000)),
    }
}

async fn providers(State(app): State<AppState>) -> Outcome<Json<List<ProviderView>>> {
    let mut items = Vec::new();
    for kind in app.engine.named().map_or_else(|| Engine::PROVIDERS.to_vec(), |only| vec![only]) {
        items.push(match app.engine.provider(kind) {
            Ok(provider) => {
                let probed = provider.probe().await;
                ProviderView {
                    name: kind.name().to_owned(),
                    available: probed.available,
                    detail: probed.detail,
                    modes: provider.modes().iter().map(|mode| mode.name()).collect(),
                }
            }
            Err(error) => ProviderView {
                name: kind.name().to_owned(),
                available: false,
                detail: error.to_string(),
                modes: Vec::new(),
            },
        });
    }
    Ok(Json(List { items }))
}

async fn metrics(State(app): State<AppState>, Extension(identity): Extension<Identity>) -> Outcome<impl IntoResponse> {
    let listing = app.engine.list().await?;
    let seen: Vec<&SandboxInfo> = listing.found.iter().filter(|info| identity.sees(info)).collect();
    let counted = seen.iter().map(|info| Counted { provider: info.provider.clone(), status: name_of(&info.status) });
    let up: Vec<SandboxInfo> = seen.iter().filter(|info| info.status.is_up()).map(|info| (*info).clone()).collect();
    let measuring = up.into_iter().map(|info| measure(app.clone(), identity.clone(), info));
    let measured: Vec<Option<Measured>> =
        futures_util::stream::iter(measuring).buffer_unordered(MEASURED_AT_ONCE).collect().await;
    let measured: Vec<Measured> = measured.into_iter().flatten().collect();
    let text = app.metrics.text(&counted.collect::<Vec<_>>(), &measured, app.options.pools.as_ref());
    Ok(([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

/// How many sandboxes are measured at once.
const MEASURED_AT_ONCE: usize = 32;
/// How long the measurement of one sandbox may take. One that takes longer is left out.
const MEASURED_WITHIN: Duration = Duration::from_secs(2);

/// Measures what a sandbox uses. A sandbox that ended meanwhile has no figures.
async fn measure(app: AppState, identity: Identity, info: SandboxInfo) -> Option<Measured> {
    let stats = async { app.sandbox(&identity, info.id.as_str()).await?.stats().await };
    let stats = tokio::time::timeout(MEASURED_WITHIN, stats).await.ok()?.ok()?;
    Some(Measured { sandbox: info.id.to_string(), name: info.name, provider: info.provider, stats })
}
