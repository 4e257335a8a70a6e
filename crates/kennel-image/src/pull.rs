//! Pulls images from registries.

mod download;
mod registry;

use crate::credentials::Credentials;
use crate::error::{Error, Result, may_pass, unsound};
use crate::image::{Described, Image, each_once};
use crate::layer::{self, Stream, Unpacked};
use crate::limits::{Limits, Tally};
use crate::load::described::{check, choose, is_index, named_blob, parse};
use crate::load::{check_layers, install};
use crate::operation::Operation;
use crate::progress::{Doing, Progress, Tell, blocking};
use crate::store::Store;
use crate::{Digest, Reference};
use download::Download;
use futures_util::StreamExt;
use kennel_types::{ErrorCode, LimitReason, Pull};
use oci_spec::image::{ImageIndex, ImageManifest};
use registry::{Registry, endpoints};
use std::collections::{BTreeMap, HashSet};
use std::io::Seek;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// The number of layers that are downloaded at the same time.
const AT_ONCE: usize = 3;
/// Bytes in the largest manifest or configuration.
const DESCRIPTION: u64 = 4 << 20;

/// Options for pulling an image.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// When to pull: always, if the image is missing, or never.
    pub when: Pull,
    /// Limits on its size.
    pub limits: Limits,
    /// Where logins are searched for.
    pub credentials: Credentials,
    /// Registries, by host and port, whose certificates are not verified and that may use plain HTTP. Registries on
    /// this machine always may.
    pub insecure: Vec<String>,
    /// Mirrors to try before a registry, in order: `host`, `host:port/path`, or with a scheme.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Proxies for registries.
    pub proxies: Proxies,
    /// How many times in a row a download may fail without progress.
    pub attempts: u32,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            when: Pull::default(),
            limits: Limits::default(),
            credentials: Credentials::default(),
            insecure: Vec::new(),
            mirrors: BTreeMap::new(),
            proxies: Proxies::default(),
            attempts: 5,
        }
    }
}

/// Proxies for registries.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// For plain HTTP.
    pub http: Option<String>,
    /// For HTTPS.
    pub https: Option<String>,
    /// Hosts that are contacted without a proxy, separated by commas.
    pub none: Option<String>,
}

impl Store {
    /// Pulls an image, according to `when`. An interrupted download is continued, also by a later call. Content that
    /// does not match its digest is refused.
    pub async fn pull(&self, reference: &Reference, options: &PullOptions, tell: Tell<'_>) -> Result<Image> {
        if options.when != Pull::Always
            && let Some(image) = self.get(reference)?
        {
            return Ok(image);
        }
        if options.when == Pull::Never {
            return Err(Self::no_image(&reference.familiar()));
        }
        let mut failed = None;
        for endpoint in endpoints(reference, options)? {
            let mirrored = endpoint.mirror;
            match self.pull_from(Registry::connect(endpoint, reference, options).await, reference, options, tell).await
            {
                Ok(image) => return Ok(image),
                // Skip a mirror that does not have the image or is not available. A mirror that sends wrong content is
                // an error.
                Err(error) if mirrored && (may_pass(&error) || is_elsewhere(&error)) => failed = Some(error),
                Err(error) => return Err(error.context(format!("pull {}", reference.familiar()))),
            }
        }
        Err(failed.unwrap_or_else(|| Self::no_image(&reference.familiar())))
    }

    async fn pull_from(
        &self,
        registry: Result<Registry>,
        reference: &Reference,
        options: &PullOptions,
        tell: Tell<'_>,
    ) -> Result<Image> {
        let registry = Arc::new(registry?);
        let (digest, manifest) = find(&registry, reference).await?;
        if let Some(image) = self.get(reference)?
            && image.manifest == Some(digest)
        {
            return Ok(image);
        }
        let (config, size) = named_blob(manifest.config())?;
        if size > DESCRIPTION {
            return Err(Error::limit(LimitReason::TooLarge, "the image's configuration is too large"));
        }
        let bytes = registry.small_blob(&config, size).await?;
        check("the configuration", &config, &bytes)?;
        let described = Described::read(&bytes)?;
        check_layers(&described, manifest.layers().len(), &options.limits)?;
        let wanted = wanted(&described, &manifest, &options.limits)?;
        let (store, ids) = (self.clone(), each_once(&described.diff_ids));
        let work = blocking(tell, move |_| {
            let work = Operation::begin(&store)?;
            work.needs(&store, &ids)?;
            Ok(work)
        });
        let work = Arc::new(work.await?);
        let fetching = Fetching {
            store: self,
            work: &work,
            registry: &registry,
            tally: Arc::new(Tally::new(options.limits)),
            attempts: options.attempts,
            downloads: Mutex::default(),
            tell,
        };
        let fetched = fetching.all(wanted).await;
        let installed = match fetched {
            Ok(layers) => {
                let (store, work) = (self.clone(), work.clone());
                let image = vec![(reference.clone(), Some(digest), described)];
                blocking(tell, move |_| install(&store, &work, &layers, image)).await
            }
            Err(error) => Err(error),
        };
        // Partial downloads are worth keeping only if a later attempt may succeed.
        let keep = installed.as_ref().is_err_and(may_pass);
        fetching.end(keep);
        installed?.pop().ok_or_else(|| Error::new(ErrorCode::Internal, "no image was created"))
    }
}

fn is_elsewhere(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::ImageNotFound | ErrorCode::PermissionDenied | ErrorCode::LimitExceeded)
}

/// Returns the verified manifest of an image for this machine, and its digest.
async fn find(registry: &Registry, reference: &Reference) -> Result<(Digest, ImageManifest)> {
    let mut text = registry.manifest(&reference.version()).await?;
    if let Some(expected) = reference.digest() {
        check("the manifest", expected, &text)?;
    }
    if is_index(&text)? {
        let index: ImageIndex = parse("the index", &text)?;
        let (digest, size) = named_blob(choose(&index)?)?;
        text = registry.manifest(&digest.to_string()).await?;
        check("the manifest", &digest, &text)?;
        if text.len() as u64 != size {
            return Err(unsound(format!("the manifest has {} bytes: expected {size}", text.len())));
        }
        if is_index(&text)? {
            return Err(unsound("the index refers to another index: expected a manifest"));
        }
    }
    Ok((Digest::compute(&text), parse("the manifest", &text)?))
}

/// Layers by the digest of their download, with their diff id and download size.
type Wanted = BTreeMap<Digest, (Digest, u64)>;

/// Returns the layers of an image.
fn wanted(described: &Described, manifest: &ImageManifest, limits: &Limits) -> Result<Wanted> {
    let mut wanted = Wanted::new();
    let mut known = HashSet::new();
    for (id, layer) in described.diff_ids.iter().zip(manifest.layers()) {
        let (blob, size) = named_blob(layer)?;
        if size > limits.bytes {
            return Err(Error::limit(
                LimitReason::TooLarge,
                format!("layer {} is larger than the limit for an image", blob.short()),
            ));
        }
        // The same layer may occur twice, but is downloaded once.
        if known.insert(*id) && wanted.insert(blob, (*id, size)).is_some() {
            return Err(unsound(format!("layer {} is listed with two different diff ids", blob.short())));
        }
    }
    Ok(wanted)
}

struct Fetching<'a> {
    store: &'a Store,
    work: &'a Arc<Operation>,
    registry: &'a Arc<Registry>,
    tally: Arc<Tally>,
    attempts: u32,
    /// Locked by this process until the pull ends.
    downloads: Mutex<Vec<Arc<Download>>>,
    tell: Tell<'a>,
}

impl Fetching<'_> {
    /// Downloads and unpacks missing layers, a few at a time.
    async fn all(&self, wanted: Wanted) -> Result<BTreeMap<Digest, Unpacked>> {
        // All downloads are locked first, in the order of their digests. This global lock order prevents deadlock.
        let mut downloads = Vec::new();
        for (blob, (id, size)) in wanted {
            downloads.extend(self.lock(id, blob, size).await?.map(|download| (id, download)));
        }
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let mut layers = BTreeMap::new();
        let mut failed = None;
        {
            let each = downloads.into_iter().map(|(id, download)| self.one(id, download, alive.clone()));
            let mut running = futures_util::stream::iter(each).buffer_unordered(AT_ONCE);
            while let Some(done) = running.next().await {
                match done {
                    Ok(layer) => drop(layers.insert(layer.diff_id, layer)),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
        }
        // Threads that still unpack notice that they were abandoned. Wait for them, so that nothing is left when this
        // ends.
        drop(alive);
        let _ = all_gone.recv().await;
        failed.map_or(Ok(layers), Err)
    }

    /// Locks the download of a layer. Returns `None` if the layer already exists.
    async fn lock(&self, id: Digest, blob: Digest, size: u64) -> Result<Option<Arc<Download>>> {
        let is_here = || {
            let here = self.store.has_layer(&id);
            if here {
                (self.tell)(Progress { part: blob.short(), doing: Doing::Present, bytes: None });
            }
            here
        };
        if is_here() {
            return Ok(None);
        }
        let download = Arc::new(Download::lock(self.store, blob, size, self.tell).await?);
        self.downloads.lock().unwrap_or_else(PoisonError::into_inner).push(download.clone());
        // The process that held the lock may have completed the layer.
        Ok((!is_here()).then_some(download))
    }

    async fn one(&self, id: Digest, download: Arc<Download>, alive: mpsc::Sender<()>) -> Result<Unpacked> {
        let part = download.part().to_owned();
        let fetched = download.fetch(self.registry, self.attempts, self.tell).await;
        fetched.map_err(|error| error.context(format!("layer {part}")))?;
        let (store, work, tally) = (self.store.clone(), self.work.clone(), self.tally.clone());
        let unpacked = blocking(self.tell, move |teller| {
            let _alive = alive;
            let mut file = download.file();
            file.rewind().map_err(|error| Error::io("read a layer", error))?;
            // Its digest was verified after the download.
            let size = Some(download.size());
            let stream = Stream { from: file, size, blob: None, diff_id: Some(id), part };
            let unpacked = layer::unpack(&store, &work, stream, &tally, teller);
            // Drop this before the waiting task continues.
            drop(work);
            unpacked
        });
        unpacked.await
    }

    /// Releases the downloads, and removes those that are of no use.
    fn end(&self, keep: bool) {
        for download in self.downloads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if !keep || download.is_empty() {
                download.discard();
            }
        }
    }
}
