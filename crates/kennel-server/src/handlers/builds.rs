//! Builds images with an engine, from a directory of the host or from an archive that the client sends.
//!
//! A caller without the scope `admin` sends an archive. Its images have names below one of its own, so that they cannot take
//! the place of an image that others use.

use super::create::caller_at;
use super::files::BodyReader;
use super::operation;
use super::progress::{self, Endings, Teller};
use crate::app::AppState;
use crate::auth::Identity;
use crate::build_dir::BuildDir;
use crate::error::{Failure, Outcome, api_error};
use crate::extract::{self, Json as Body, RawQuery};
use crate::permissions;
use crate::request_id::RequestId;
use crate::routes::{Content, Operation, Query as QuerySchema, Routes, fields, schema};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use kennel_api::stream::BuildLine;
use kennel_api::{BuildImage, Bytes, Cpus, Scope};
use kennel_core::ImageBuild;
use kennel_engine::Settings;
use kennel_types::{ByteSize, Limits};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            Operation {
                request: Content::Json(schema::<BuildImage>),
                response: (200, Content::Lines(schema::<BuildLine>)),
                ..operation(
                    Method::POST,
                    "/v1/builds",
                    "buildImage",
                    Scope::Admin,
                    "Builds an image from a directory of the server's host, and returns the progress as lines.",
                )
            },
            from_host,
        )
        .add(
            Operation {
                query: QuerySchema::Of(fields::<UploadQuery>),
                request: Content::Bytes,
                response: (200, Content::Lines(schema::<BuildLine>)),
                ..operation(
                    Method::POST,
                    "/v1/builds/upload",
                    "buildUploaded",
                    Scope::Create,
                    "Builds an image from the body, a tar archive, and returns the progress as lines.",
                )
            },
            from_archive,
        )
}

async fn from_host(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Body(asked): Body<BuildImage>,
) -> Outcome<Response> {
    let context = permissions::resolve(&identity, &asked.context)?;
    let file = asked.file.as_deref().map(|file| below(&context, file)).transpose()?;
    let build = ImageBuild {
        file,
        context,
        tag: asked.tag,
        args: asked.args,
        limits: limits(&identity, asked.memory, asked.cpus)?,
        no_cache: asked.no_cache,
        pull: asked.pull,
    };
    respond(&app, &identity, &id, &headers, build, None).await
}

/// How an archive is built.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UploadQuery {
    /// The name of the new image. Without the scope `admin`, it begins with `localhost/ID/`, where ID is that of the token.
    tag: String,
    /// The build file, relative to the top of the archive; defaults to `Dockerfile` or `Containerfile`.
    file: Option<String>,
    /// `NAME=VALUE`: the value of a build argument. May be given several times.
    #[serde(default)]
    arg: Vec<String>,
    /// The memory limit of each step.
    memory: Option<Bytes>,
    /// The CPU limit of each step.
    cpus: Option<Cpus>,
    /// Run all steps again, without the cache.
    #[serde(default)]
    no_cache: bool,
    /// Pull the base image even if it is there.
    #[serde(default)]
    pull: bool,
}

async fn from_archive(
    State(app): State<AppState>,
    Extension(identity): Extension<Identity>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    query: RawQuery,
    request: Request,
) -> Outcome<Response> {
    let (arg, rest) = query.without("arg");
    let asked = UploadQuery { arg, ..extract::query(&rest)? };
    check_name(&identity, &asked.tag)?;
    let args = asked.arg.iter().map(|entry| argument(entry)).collect::<Outcome<BTreeMap<_, _>>>()?;
    let limits = limits(&identity, asked.memory, asked.cpus)?;
    let (archive, stalled) = BodyReader::new(request);
    let dir = BuildDir::receive(&app.engine.directories()?, archive).await.map_err(|error| stalled.or(error))?;
    let context = dir.context();
    let build = ImageBuild {
        file: asked.file.as_deref().map(|file| below(&context, file)).transpose()?,
        context,
        tag: asked.tag,
        args,
        limits,
        no_cache: asked.no_cache,
        pull: asked.pull,
    };
    respond(&app, &identity, &id, &headers, build, Some(dir)).await
}

/// Refuses a name that an image of somebody else could have.
fn check_name(identity: &Identity, tag: &str) -> Outcome<()> {
    let Some(token) = identity.token().filter(|_| !identity.is_admin()) else { return Ok(()) };
    let own = format!("localhost/{}/", token.id);
    if tag.starts_with(&own) {
        return Ok(());
    }
    Err(Failure::forbidden(format!("the name of an image that is built with this token must begin with {own}")))
}

fn argument(entry: &str) -> Outcome<(String, String)> {
    let parts = entry.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or_else(|| Failure::invalid(format!("invalid arg {entry:?}: expected NAME=VALUE")))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The path of a build file, which is inside the context.
fn below(context: &Path, file: &str) -> Outcome<PathBuf> {
    let path = Path::new(file);
    if path.components().all(|part| matches!(part, Component::Normal(_))) && !file.is_empty() {
        return Ok(context.join(path));
    }
    Err(Failure::invalid(format!("invalid file {file:?}: expected a path below the top of the context")))
}

/// The limits of each step: those of the request, which must not be larger than those of the token.
fn limits(identity: &Identity, memory: Option<Bytes>, cpus: Option<Cpus>) -> Outcome<Limits> {
    let mut limits = Limits {
        memory: memory.map(|bytes| ByteSize(bytes.0)),
        millicpus: cpus.map(|cpus| cpus.0),
        ..Limits::default()
    };
    permissions::check_limits(identity, &limits)?;
    if let Some(token) = identity.token() {
        limits.memory = limits.memory.or(token.limits.memory_bytes.map(ByteSize));
        limits.millicpus = limits.millicpus.or(token.limits.millicpus);
    }
    Ok(limits)
}

async fn respond(
    app: &AppState,
    identity: &Identity,
    id: &RequestId,
    headers: &HeaderMap,
    build: ImageBuild,
    dir: Option<BuildDir>,
) -> Outcome<Response> {
    let settings = Settings::load(&caller_at(app, None), &app.engine.directories()?)?;
    let provider = app.engine.choose_for_builds(&settings).await?.provider;
    let failed_id = id.clone();
    let endings = Endings {
        missed: |lines| BuildLine::Missed { lines },
        failed: Box::new(move |error| BuildLine::Error { error: api_error(error, failed_id.as_str()) }),
    };
    Ok(progress::respond(app, identity, headers, endings, move |teller: Teller<BuildLine>| async move {
        // It is removed when the build has ended.
        let _dir = dir;
        provider.build_image(&build, &|text| teller.tell(BuildLine::Output { text })).await?;
        Ok(BuildLine::Done { image: build.tag, provider: provider.name().to_owned() })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_file_is_inside_the_context() {
        let context = Path::new("/context");
        assert_eq!(below(context, "images/Dockerfile").ok(), Some("/context/images/Dockerfile".into()));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(below(context, bad).is_err(), "{bad}");
        }
        assert!(argument("A=b=c").is_ok_and(|parts| parts == ("A".into(), "b=c".into())));
        assert!(argument("A").is_err() && argument("=x").is_err());
    }
}
