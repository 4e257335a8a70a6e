//! Lets the engine pull missing images, with the user's login for their registry.

use crate::Docker;
use crate::create::image_name;
use crate::engine::status;
use crate::logins::packed;
use crate::streams::each_line;
use bollard::errors::Error as EngineError;
use bollard::models::CreateImageInfo;
use kennel_core::{Error, PullProgress, Result, printable};
use kennel_image::Reference;
use kennel_types::{ErrorCode, NextStep, Pull};

/// The HTTP header for a login.
const LOGIN: &str = "X-Registry-Auth";

impl Docker {
    /// Lets the engine pull the image, according to `when`.
    pub(crate) async fn fetch(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        let image = image_name(image)?;
        if when == Pull::Never || (when == Pull::Missing && self.has_image(image).await?) {
            return Ok(());
        }
        self.engine.api().await?;
        let (name, tag) = name_and_tag(image);
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("fromImage", name)
            .append_pair("tag", tag)
            .finish();
        let mut request = hyper::Request::post(format!("/images/create?{query}"));
        if let Some(login) = self.login(image).await? {
            request = request.header(LOGIN, packed(&login.said));
        }
        let request = request.body(bollard::body_full(hyper::body::Bytes::new()));
        let request = request.map_err(|error| self.not_pulled(image, error.into()))?;
        let answer = self.engine.post(request).await.map_err(|error| self.not_pulled(image, error))?;
        each_line(&self.engine, &format!("pull the image {image}"), answer, |line| {
            told(line).map_err(|error| self.not_pulled(image, EngineError::DockerStreamError { error }))?.map(tell);
            Ok(())
        })
        .await
    }

    async fn has_image(&self, image: &str) -> Result<bool> {
        self.id_of_image(image).await.map(|id| id.is_some())
    }

    /// Returns the id of an image of the engine. Returns `None` if the engine does not have it.
    pub(crate) async fn id_of_image(&self, image: &str) -> Result<Option<String>> {
        match self.engine.api().await?.inspect_image(image).await {
            Ok(found) => Ok(Some(found.id.unwrap_or_default())),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(self.engine.error(format!("inspect the image {image}"), error)),
        }
    }

    fn not_pulled(&self, image: &str, error: EngineError) -> Error {
        let reason = match &error {
            EngineError::DockerResponseServerError { message, .. } => message,
            EngineError::DockerStreamError { error } => error,
            _ => return self.engine.error(format!("pull the image {image}"), error),
        };
        let message = format!("pull the image {image}: {}", printable(reason));
        let word = self.engine.kind().word();
        let made = if wants_login(reason) {
            let registry = image.parse::<Reference>().map(|image| image.registry().to_owned()).unwrap_or_default();
            let registry = Some(registry).filter(|registry| !registry.is_empty());
            Error::new(ErrorCode::PermissionDenied, message)
                .suggest(NextStep::LogIn { program: word.to_owned(), registry })
        } else {
            let steps = [
                NextStep::run_on_host_to("check the name", format!("{word} images")),
                NextStep::BuildImage { image: image.to_owned() },
            ];
            Error::new(ErrorCode::ImageNotFound, message).suggest(NextStep::either(steps))
        };
        made.caused_by(error)
    }
}

/// Returns an image's name and tag. Without a tag the engine would pull all tags. A name with a digest has none.
fn name_and_tag(image: &str) -> (&str, &str) {
    if image.contains('@') {
        return (image, "");
    }
    match image.rsplit_once(':') {
        // A colon before a slash belongs to the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

/// Whether a registry refused because of a missing or insufficient login. For a missing image, Docker's own registry
/// also mentions that one may be needed.
fn wants_login(reason: &str) -> bool {
    let said = |words: &str| reason.contains(words);
    !said("does not exist")
        && ["no basic auth credentials", "unauthorized", "authentication required"].iter().any(|it| said(it))
}

/// Parses a line of the engine's progress output, or returns why the pull failed.
fn told(line: &[u8]) -> Result<Option<PullProgress>, String> {
    #[derive(serde::Deserialize)]
    struct Said {
        error: Option<String>,
        #[serde(flatten)]
        part: CreateImageInfo,
    }
    let Ok(Said { error, part }) = serde_json::from_slice::<Said>(line) else { return Ok(None) };
    if let Some(error) = error {
        return Err(error);
    }
    let size = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let bytes = part.progress_detail.and_then(|detail| Some((size(detail.current)?, size(detail.total)?)));
    let text = |text: Option<String>| printable(&text.unwrap_or_default());
    Ok(part.id.map(|id| PullProgress { part: text(Some(id)), doing: text(part.status), bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_ports_are_distinguished() {
        for (image, parts) in [
            ("debian", ("debian", "latest")),
            ("debian:12", ("debian", "12")),
            ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")),
            ("localhost:5000/a/b:c", ("localhost:5000/a/b", "c")),
            ("a@sha256:00", ("a@sha256:00", "")),
        ] {
            assert_eq!(name_and_tag(image), parts, "{image}");
        }
    }
}
