//! Images as the root filesystem of a sandbox.

use crate::Native;
use kennel_core::{Error, PullProgress, Result};
use kennel_image::{Held, Progress, PullOptions, Reference, Store};
use kennel_provider::TakenImage;
use kennel_types::{ErrorCode, NextStep, Pull};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes in the largest passwd or group file that is read.
const ACCOUNTS: u64 = 1024 * 1024;

impl Native {
    /// Uses the images in this store. Missing ones are pulled according to `options`.
    #[must_use]
    pub fn with_images(mut self, store: Store, options: PullOptions) -> Self {
        self.images = Some((store, Mutex::new(options)));
        self
    }

    /// Pulls images as these options say from now on, for a caller that learns of them after [`Self::prepare`].
    pub fn pull_with(&self, options: PullOptions) {
        if let Some((_, pull)) = &self.images {
            *pull.lock().unwrap_or_else(PoisonError::into_inner) = options;
        }
    }

    /// Pulls an image into the store, according to `when`.
    pub(crate) async fn fetch(&self, name: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        let Some((store, options)) = self.images.as_ref().filter(|_| when != Pull::Never) else { return Ok(()) };
        let reference: Reference = name.parse()?;
        let options = PullOptions { when, ..options.lock().unwrap_or_else(PoisonError::into_inner).clone() };
        let told = |Progress { part, doing, bytes }| tell(PullProgress { part, doing: doing.to_string(), bytes });
        store.pull(&reference, &options, &told).await.map(drop)
    }

    /// Returns the image with this name. It is not removed from the store while the result lives.
    pub(crate) fn hold(&self, name: &str) -> Result<Held> {
        let reference: Reference = name.parse()?;
        let (store, _) = self.images.as_ref().ok_or_else(|| Error::unsupported("native", "images without a store"))?;
        store.hold(&reference)?.ok_or_else(|| {
            let steps = [NextStep::PullImage { image: name.to_owned() }, NextStep::LoadImage];
            Error::new(ErrorCode::ImageNotFound, format!("there is no image {name} here"))
                .suggest(NextStep::either(steps))
        })
    }
}

/// Returns what a sandbox's record contains of its image.
pub(crate) fn taken(held: &Held) -> TakenImage {
    let config = &held.image.config;
    TakenImage {
        layers: held.image.layers.iter().rev().cloned().collect(),
        env: config.env.clone(),
        user: config.user.clone().filter(|user| !user.is_empty()),
        command: config.entrypoint.iter().chain(&config.cmd).cloned().collect(),
    }
}

/// Reads a file in `/etc` of an image, from the topmost layer that has it. Symlinks in the image are not followed.
pub(crate) fn etc_file(layers: &[impl AsRef<Path>], name: &str) -> String {
    let path = Path::new("etc").join(name);
    let read = |layer: &Path| {
        let root = std::fs::File::open(layer).ok()?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat2(&root, &path, flags, Mode::empty(), resolve).ok()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
        let mut text = Vec::new();
        (kind == FileType::RegularFile).then_some(())?;
        std::fs::File::from(file).take(ACCOUNTS).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    layers.iter().find_map(|layer| read(layer.as_ref())).unwrap_or_default()
}
