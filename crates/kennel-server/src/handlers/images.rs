//! Images: pulls them with progress, and removes them from Kennel's own store.

use super::create::caller_at;
use super::inventory::image_view;
use super::operation;
use super::progress::{self, Endings, Teller};
use crate::app::{AppState, joined};
use crate::auth::Identity;
use crate::error::{Failure, Outcome, api_error};
use crate::extract::{Json as Body, Query};
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use axum::{Extension, Json};
use kennel_api::stream::PullLine;
use kennel_api::{ProviderName, PullImage, PullPolicy, RemovedImages, Scope};
use kennel_core::PullProgress;
use kennel_engine::Settings;
use kennel_image::{PullOptions, Reference};
use kennel_types::{ProviderKind, Pull};
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<PullImage>),
                response: (200, Content::Lines(schema::<PullLine>)),
                ..operation(
                    Method::POST,
                    "/v1/images/pull",
                    "pullImage",
                    Scope::Create,
                    "Pulls an image, and returns the progress as lines. The next pull continues one that was cut off.",
                )
            },
            pull,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<RemoveQuery>),
                response: (200, Content::Json(schema::<RemovedImages>)),
                ..operation(
                    Method::DELETE,
                    "/v1/images",
                    "removeImage",
                    Scope::Admin,
                    "Removes an image from Kennel's own store. Layers that sandboxes use stay.",
                )
            },
            remove,
        )
}

async fn pull(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Body(asked): Body<PullImage>,
) -> Outcome<Response> {
    let reference: Reference = asked.image.parse()?;
    let when = match asked.pull {
        None | Some(PullPolicy::Always) => Pull::Always,
        Some(PullPolicy::Missing) => Pull::Missing,
        Some(PullPolicy::Never) => Pull::Never,
    };
    let kind = match asked.provider {
        None | Some(ProviderName::Native) => ProviderKind::Native,
        Some(ProviderName::Podman) => ProviderKind::Podman,
        Some(ProviderName::Docker) => ProviderKind::Docker,
        Some(ProviderName::Local) => return Err(Failure::invalid("provider local has no images")),
    };
    if let Some(only) = app.engine.named().filter(|only| *only != kind) {
        return Err(Failure::invalid(format!("provider {}: this server uses only {}", kind.name(), only.name())));
    }
    let failed_id = id.clone();
    let endings = Endings {
        missed: |lines| PullLine::Missed { lines },
        failed: Box::new(move |error| PullLine::Error { error: api_error(error, failed_id.as_str()) }),
    };
    if kind != ProviderKind::Native {
        let provider = app.engine.provider(kind)?;
        return Ok(progress::respond(&app, &identity, &headers, endings, move |teller| async move {
            provider.pull(&asked.image, when, &|progress| teller.tell(line(progress))).await?;
            Ok(PullLine::Done { image: None })
        }));
    }
    let settings = Settings::load(&caller_at(&app, None), &app.engine.directories()?)?;
    let options = PullOptions { when, ..app.engine.pull_options(settings.images) };
    let store = app.engine.images()?;
    Ok(progress::respond(&app, &identity, &headers, endings, move |teller: Teller<PullLine>| async move {
        let tell = |kennel_image::Progress { part, doing, bytes }| {
            teller.tell(line(PullProgress { part, doing: doing.to_string(), bytes }));
        };
        let image = store.pull(&reference, &options, &tell).await?;
        Ok(PullLine::Done { image: Some(image_view(&image)) })
    }))
}

fn line(progress: PullProgress) -> PullLine {
    PullLine::Progress {
        part: progress.part,
        doing: progress.doing,
        done_bytes: progress.bytes.map(|(done, _)| done),
        total_bytes: progress.bytes.map(|(_, total)| total),
    }
}

/// Which image is removed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RemoveQuery {
    /// The name of the image, or its id.
    name: String,
}

async fn remove(State(app): State<AppState>, Query(query): Query<RemoveQuery>) -> Outcome<Json<RemovedImages>> {
    // The layers are removed from the disk.
    let removing = tokio::task::spawn_blocking(move || {
        app.engine.images()?.remove(&[query.name], &|| app.engine.image_layers_in_use())
    });
    let removed = joined(removing.await)?;
    Ok(Json(RemovedImages {
        images: removed.images.iter().map(ToString::to_string).collect(),
        freed_bytes: removed.freed,
        layers_in_use: removed.in_use as u64,
    }))
}
