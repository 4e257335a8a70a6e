//! One download: a growing file that is locked by the downloading process and continued after an interruption.

use super::registry::Registry;
use crate::Digest;
use crate::digest::Hashing;
use crate::error::{Error, Result, may_pass, unsound};
use crate::progress::{Doing, Progress, Tell, blocking};
use crate::store::Store;
use kennel_types::ErrorCode;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The initial delay before another attempt.
const PAUSE: Duration = Duration::from_millis(200);
/// How often progress is reported.
const TELL: Duration = Duration::from_millis(100);

/// A download that this process has locked.
pub(crate) struct Download {
    path: PathBuf,
    file: File,
    blob: Digest,
    size: u64,
    part: String,
}

impl Download {
    /// Locks a download, waiting for other processes.
    pub(crate) async fn lock(store: &Store, blob: Digest, size: u64, tell: Tell<'_>) -> Result<Self> {
        let part = blob.short();
        let path = store.blobs().join(blob.hex());
        let (own, name) = (path.clone(), part.clone());
        let file = blocking(tell, move |teller| {
            let what = |error| Error::io(format!("open {}", own.display()), error);
            loop {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                let file = options.open(&own).map_err(what)?;
                if file.try_lock().is_err() {
                    teller.tell(Progress { part: name.clone(), doing: Doing::Waiting, bytes: None });
                    file.lock().map_err(what)?;
                }
                teller.still_wanted()?;
                // The previous holder may have removed the file. Then this is not the file that others see.
                if is_at(&file, &own) {
                    return Ok(file);
                }
            }
        });
        Ok(Self { file: file.await?, path, blob, size, part })
    }

    /// The name in progress reports.
    pub(crate) fn part(&self) -> &str {
        &self.part
    }

    /// The number of bytes of the complete download.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The file, positioned at its beginning for reading.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Downloads what is missing, in several attempts if necessary, and verifies the result.
    pub(crate) async fn fetch(&self, registry: &Registry, attempts: u32, tell: Tell<'_>) -> Result<()> {
        let mut continued = self.have()? > 0;
        loop {
            self.complete(registry, attempts, tell).await?;
            let found = self.digest(tell).await?;
            if found == self.blob {
                return Ok(());
            }
            self.file.set_len(0).map_err(|error| self.wrong(error))?;
            if !std::mem::take(&mut continued) {
                let expected = self.blob;
                return Err(unsound(format!("its digest does not match: expected {expected}, found {found}")));
            }
            // The old partial download may have been the wrong part.
        }
    }

    /// Downloads until all bytes are present.
    async fn complete(&self, registry: &Registry, attempts: u32, tell: Tell<'_>) -> Result<()> {
        let mut failures = 0;
        let mut best = self.have()?;
        loop {
            let outcome = self.more(registry, self.have()?, tell).await;
            let have = self.have()?;
            let why = match outcome {
                Ok(()) if have == self.size => return Ok(()),
                Err(error) if !may_pass(&error) => return Err(error),
                outcome => outcome.err(),
            };
            // A download that starts over each time makes no progress.
            failures = if have > best { 0 } else { failures + 1 };
            best = best.max(have);
            if failures >= attempts {
                return Err(why.unwrap_or_else(|| {
                    let message =
                        format!("the download was interrupted too often: {have} of {} bytes were received", self.size);
                    Error::new(ErrorCode::NotAvailable, message).advise("try again; downloaded parts are kept")
                }));
            }
            #[expect(clippy::disallowed_methods, reason = "a backoff between two attempts")]
            tokio::time::sleep(PAUSE * 2u32.saturating_pow(failures.min(6))).await;
        }
    }

    /// Requests the missing bytes, and writes what arrives.
    async fn more(&self, registry: &Registry, have: u64, tell: Tell<'_>) -> Result<()> {
        if have >= self.size {
            if have > self.size {
                self.file.set_len(0).map_err(|error| self.wrong(error))?;
            }
            return Ok(());
        }
        let mut answer = registry.blob(&self.blob, have).await?;
        let mut at = have;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or("");
                if range != format!("bytes {have}-{}/{}", self.size - 1, self.size) {
                    // These are not the requested bytes: start over.
                    return self.file.set_len(0).map_err(|error| self.wrong(error));
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return self.file.set_len(0).map_err(|error| self.wrong(error)),
            _ => {
                at = 0;
                self.file.set_len(0).map_err(|error| self.wrong(error))?;
                let said = answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
                if let Some(said) = said.filter(|said: &u64| *said != self.size) {
                    let message = format!("the registry announces {said} bytes: expected {}", self.size);
                    return Err(unsound(message));
                }
            }
        }
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at)).map_err(|error| self.wrong(error))?;
        let mut shown = Instant::now().checked_sub(TELL);
        while let Some(bytes) = answer.chunk().await.map_err(|error| registry.unreachable(error))? {
            at += bytes.len() as u64;
            if at > self.size {
                self.file.set_len(0).map_err(|error| self.wrong(error))?;
                return Err(unsound(format!("the registry sends more bytes than expected: expected {}", self.size)));
            }
            // This writes to the page cache, so it rarely blocks, and only briefly.
            file.write_all(&bytes).map_err(|error| self.wrong(error))?;
            if shown.is_none_or(|shown| shown.elapsed() >= TELL) {
                shown = Some(Instant::now());
                tell(self.progress(Doing::Downloading, at));
            }
        }
        tell(self.progress(Doing::Downloading, at));
        Ok(())
    }

    async fn digest(&self, tell: Tell<'_>) -> Result<Digest> {
        tell(self.progress(Doing::Verifying, self.size));
        let mut file = self.file.try_clone().map_err(|error| self.wrong(error))?;
        blocking(tell, move |_| {
            file.rewind()
                .and_then(|()| Hashing::new(file).finish())
                .map_err(|error| Error::io("read a download", error))
        })
        .await
    }

    fn progress(&self, doing: Doing, done: u64) -> Progress {
        Progress { part: self.part.clone(), doing, bytes: Some((done, self.size)) }
    }

    fn have(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|error| self.wrong(error))?.len())
    }

    fn wrong(&self, error: std::io::Error) -> Error {
        Error::io(format!("write {}", self.path.display()), error)
    }

    /// Whether nothing has been downloaded yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.have().is_ok_and(|have| have == 0)
    }

    /// Removes the file. Another waiting process creates a new one.
    pub(crate) fn discard(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let ids = |meta: std::io::Result<std::fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
    ids(file.metadata()).is_some_and(|own| ids(std::fs::symlink_metadata(path)) == Some(own))
}
