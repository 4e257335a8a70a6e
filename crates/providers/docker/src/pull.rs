//! Images that are not there yet.

use crate::Docker;
use crate::create::image_name;
use crate::engine::status;
use bollard::errors::Error as EngineError;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use kennel_core::{Error, PullProgress, Result, printable};
use kennel_types::{ErrorCode, Pull};

impl Docker {
    /// Has the engine pull the image, if `when` says so.
    pub(crate) async fn fetch(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        let image = image_name(image)?;
        if when == Pull::Never || (when == Pull::Missing && self.has_image(image).await?) {
            return Ok(());
        }
        let (name, tag) = name_and_tag(image);
        let query = CreateImageOptionsBuilder::default().from_image(name).tag(tag).build();
        let mut parts = Box::pin(self.engine.api().await?.create_image(Some(query), None, None));
        while let Some(part) = parts.next().await {
            match part {
                Ok(part) => told(part).into_iter().for_each(tell),
                Err(error) => return Err(self.not_pulled(image, error)),
            }
        }
        Ok(())
    }

    async fn has_image(&self, image: &str) -> Result<bool> {
        match self.engine.api().await?.inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == Some(404) => Ok(false),
            Err(error) => Err(self.engine.error(format!("look at the image {image}"), error)),
        }
    }

    fn not_pulled(&self, image: &str, error: EngineError) -> Error {
        let reason = match &error {
            EngineError::DockerResponseServerError { message, .. } => message,
            EngineError::DockerStreamError { error } => error,
            _ => return self.engine.error(format!("pull the image {image}"), error),
        };
        let message = format!("pull the image {image}: {}", printable(reason));
        Error::new(ErrorCode::ImageNotFound, message)
            .hint(format!("{word} pull {image}, or {word} images", word = self.engine.kind().word()))
            .caused_by(error)
    }
}

/// An image's name, and its tag: without one the engine would pull all there are. What is named by its content has none.
fn name_and_tag(image: &str) -> (&str, &str) {
    if image.contains('@') {
        return (image, "");
    }
    match image.rsplit_once(':') {
        // A colon before a slash is of the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

fn told(part: CreateImageInfo) -> Option<PullProgress> {
    let size = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let bytes = part.progress_detail.and_then(|detail| Some((size(detail.current)?, size(detail.total)?)));
    let text = |text: Option<String>| printable(&text.unwrap_or_default());
    Some(PullProgress { part: text(Some(part.id?)), doing: text(part.status), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_told_from_a_port() {
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
