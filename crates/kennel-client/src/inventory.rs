//! Volumes, images, builds, pools and providers.

use crate::client::{RequestBody, escape, query};
use crate::error::Received;
use crate::lines::JsonLines;
use crate::{Client, files};
use http_body_util::{BodyExt as _, Full};
use hyper::Method;
use hyper::body::Bytes;
use kennel_api::stream::{BuildLine, PullLine};
use kennel_api::{
    BuildImage, ImageView, List, Page, PoolView, ProviderView, PruneVolumes, PrunedVolumes, PullImage, RemovedImages,
    SetPool, VolumeView,
};
use kennel_types::{Error, ErrorCode, Result};
use serde::Serialize;
use tokio::io::AsyncRead;

const NONE: Option<&()> = None;

impl Client {
    /// Returns the volumes, and the providers that did not respond.
    pub async fn volumes(&self) -> Result<Page<VolumeView>> {
        self.get("/v1/volumes").await
    }

    /// Returns a volume, with its size if that can be measured.
    pub async fn volume(&self, volume: &str) -> Result<VolumeView> {
        self.get(&format!("/v1/volumes/{}", escape(volume))).await
    }

    /// Removes a volume that no sandbox uses.
    pub async fn remove_volume(&self, volume: &str) -> Result<()> {
        self.done(Method::DELETE, &format!("/v1/volumes/{}", escape(volume)), NONE).await
    }

    /// Removes volumes that no sandbox uses. The first one that could not be removed is an error.
    pub async fn prune_volumes(&self, request: PruneVolumes) -> Result<Vec<VolumeView>> {
        let pruned: PrunedVolumes<Received> = self.call(Method::POST, "/v1/volumes/prune", Some(&request)).await?;
        match pruned.failed.into_iter().next() {
            Some(failed) => Err(failed.error.into_error().context(format_args!("remove volume {}", failed.name))),
            None => Ok(pruned.volumes),
        }
    }

    /// Returns the images in Kennel's own store.
    pub async fn images(&self) -> Result<Vec<ImageView>> {
        let list: List<ImageView> = self.get("/v1/images").await?;
        Ok(list.items)
    }

    /// Pulls an image, and reports its progress. Returns the image, if it is in Kennel's own store.
    pub async fn pull(&self, request: &PullImage, mut tell: impl FnMut(PullLine)) -> Result<Option<ImageView>> {
        let mut lines = self.lines("/v1/images/pull", json(request)?, true).await?;
        loop {
            match lines.next::<PullLine<Received>>().await? {
                Some(PullLine::Done { image }) => return Ok(image),
                Some(PullLine::Error { error }) => return Err(error.into_error()),
                Some(PullLine::Progress { part, doing, done_bytes, total_bytes }) => {
                    tell(PullLine::Progress { part, doing, done_bytes, total_bytes });
                }
                Some(PullLine::Missed { lines }) => tell(PullLine::Missed { lines }),
                None => return Err(broke("pull the image")),
            }
        }
    }

    /// Removes an image from Kennel's own store.
    pub async fn remove_image(&self, name: &str) -> Result<RemovedImages> {
        let path = format!("/v1/images{}", query(&[("name", Some(name.to_owned()))]));
        self.call(Method::DELETE, &path, NONE).await
    }

    /// Builds an image from a directory of the server's host, and reports each line of the build.
    pub async fn build(&self, request: &BuildImage, tell: impl FnMut(&str)) -> Result<()> {
        built(self.lines("/v1/builds", json(request)?, true).await?, tell).await
    }

    /// Builds an image from a tar archive, and reports each line of the build. `file` is the build file in the archive.
    pub async fn build_archive(
        &self,
        tag: &str,
        file: Option<&str>,
        archive: impl AsyncRead + Unpin + Send + 'static,
        tell: impl FnMut(&str),
    ) -> Result<()> {
        let parameters = query(&[("tag", Some(tag.to_owned())), ("file", file.map(ToOwned::to_owned))]);
        let path = format!("/v1/builds/upload{parameters}");
        built(self.lines(&path, files::streamed(archive), false).await?, tell).await
    }

    /// Returns the pools.
    pub async fn pools(&self) -> Result<Vec<PoolView>> {
        let list: List<PoolView> = self.get("/v1/pools").await?;
        Ok(list.items)
    }

    /// Creates a pool, or replaces it.
    pub async fn set_pool(&self, pool: &str, request: &SetPool) -> Result<PoolView> {
        self.call(Method::PUT, &format!("/v1/pools/{}", escape(pool)), Some(request)).await
    }

    /// Removes a pool.
    pub async fn remove_pool(&self, pool: &str) -> Result<()> {
        self.done(Method::DELETE, &format!("/v1/pools/{}", escape(pool)), NONE).await
    }

    /// Returns the providers of the server's machine.
    pub async fn providers(&self) -> Result<Vec<ProviderView>> {
        let list: List<ProviderView> = self.get("/v1/providers").await?;
        Ok(list.items)
    }

    async fn lines(&self, path: &str, body: RequestBody, is_json: bool) -> Result<JsonLines> {
        Ok(JsonLines::new(self.send(Method::POST, path, body, is_json).await?.into_body()))
    }
}

async fn built(mut lines: JsonLines, mut tell: impl FnMut(&str)) -> Result<()> {
    loop {
        match lines.next::<BuildLine<Received>>().await? {
            Some(BuildLine::Output { text }) => tell(&text),
            Some(BuildLine::Missed { .. }) => {}
            Some(BuildLine::Done { .. }) => return Ok(()),
            Some(BuildLine::Error { error }) => return Err(error.into_error()),
            None => return Err(broke("build the image")),
        }
    }
}

fn json(request: &impl Serialize) -> Result<RequestBody> {
    let json = serde_json::to_vec(request)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("write the request: {error}")))?;
    Ok(Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed())
}

fn broke(what: &str) -> Error {
    Error::new(ErrorCode::Aborted, format!("{what}: the connection broke"))
}
