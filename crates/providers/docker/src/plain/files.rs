//! Copies whole files into and out of a container, through the engine's archive API. The engine reads and writes as
//! root.

use super::{Answer, Link, StandIn, fail, refused};
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use futures_util::{Stream, StreamExt};
use hyper::body::Bytes;
use kennel_proto::{Body, Channel, Failure, FailureKind, FileKind, Limit, Outcome, Reply, Stat, caps};
use std::pin::Pin;

/// Bytes in the largest file that can be written. An archive begins with the file's size, so the whole file must be
/// buffered.
const LARGEST: usize = 64 << 20;
/// Bytes in a block of an archive.
const BLOCK: u64 = 512;

/// An archive that is being received.
struct Archive {
    parts: Pin<Box<dyn Stream<Item = Result<Bytes, bollard::errors::Error>> + Send>>,
    left: Bytes,
}

impl StandIn {
    /// Sends the content of a file.
    pub(super) async fn read(&self, path: &[u8], offset: u64, limit: Option<u64>, link: &mut Link) -> Answer {
        let path = self.path(path)?;
        let (stat, mut archive) = self.fetch(&path).await?;
        if stat.kind != FileKind::File {
            return Err(fail(FailureKind::Refused, format!("{path} is no regular file")));
        }
        let begin = offset.min(stat.size);
        let mut left = limit.unwrap_or(u64::MAX).min(stat.size - begin);
        self.skip(&mut archive, begin).await?;
        link.send(Body::Reply(Reply::Ready { stdin_window: 0 })).await;
        let (mut sent, mut consumed) = (0, 0);
        while left > 0 {
            let room = caps::WINDOW - (sent - consumed);
            if room == 0 {
                match link.inbox.recv().await {
                    Some(Body::Consumed { channel: Channel::Stdout, offset }) => consumed = offset.min(sent),
                    _ => return Ok(()),
                }
                continue;
            }
            let bytes = self.take(&mut archive, left.min(room).min(caps::DATA as u64)).await?;
            let (offset, length) = (sent, bytes.len() as u64);
            (sent, left) = (sent + length, left - length);
            link.send(Body::Data { channel: Channel::Stdout, offset, bytes: bytes.into() }).await;
        }
        link.send(Body::Reply(Reply::Done(Outcome::Nothing))).await;
        Ok(())
    }

    /// Writes received data to a file.
    pub(super) async fn write(&self, path: &[u8], mode: Option<u32>, parents: bool, link: &mut Link) -> Answer {
        let path = self.path(path)?;
        let old = self.there(&path).await?;
        if old.as_ref().is_some_and(|old| old.kind != FileKind::File) {
            return Err(fail(FailureKind::Refused, format!("{path} is no regular file")));
        }
        self.check_parent(&path, parents).await?;
        link.send(Body::Reply(Reply::Ready { stdin_window: caps::WINDOW })).await;
        let mut bytes = Vec::new();
        loop {
            match link.inbox.recv().await {
                Some(Body::Data { channel: Channel::Stdin, bytes: more, .. }) => bytes.extend(more),
                Some(Body::Eof(Channel::Stdin)) => break,
                _ => return Ok(()),
            }
            if bytes.len() > LARGEST {
                let most = LARGEST >> 20;
                return Err(Failure::limit(
                    Limit::Size,
                    format!("write {path}: the file is larger than {most} MiB, the most there can be without a keeper"),
                ));
            }
            link.send(Body::Consumed { channel: Channel::Stdin, offset: bytes.len() as u64 }).await;
        }
        // Never set-user-id or set-group-id, as with a keeper.
        let mode = mode.or(old.as_ref().map(|old| old.mode)).unwrap_or(0o644) & 0o1777;
        let owner = old.map_or((0, 0), |old| (old.uid, old.gid));
        self.put(&path, tar::EntryType::Regular, mode, owner, &bytes).await?;
        link.send(Body::Reply(Reply::Done(Outcome::Nothing))).await;
        Ok(())
    }

    /// Returns the metadata of a path.
    pub(super) async fn stat(&self, path: &[u8], follow: bool) -> Answer<Stat> {
        let (stat, _) = self.fetch(&self.path(path)?).await?;
        if follow && stat.kind == FileKind::Symlink {
            return Err(refused("following links"));
        }
        Ok(stat)
    }

    /// Creates a directory.
    pub(super) async fn mkdir(&self, path: &[u8], parents: bool, mode: Option<u32>) -> Answer {
        let path = self.path(path)?;
        match self.there(&path).await? {
            Some(old) if old.kind == FileKind::Directory && parents => return Ok(()),
            Some(_) => return Err(fail(FailureKind::Exists, format!("{path} is there already"))),
            None => self.check_parent(&path, parents).await?,
        }
        self.put(&path, tar::EntryType::Directory, mode.unwrap_or(0o755), (0, 0), &[]).await
    }

    /// Returns a path as text, which engines require.
    fn path(&self, path: &[u8]) -> Answer<String> {
        let text =
            str::from_utf8(path).map_err(|_| fail(FailureKind::Invalid, "the engine accepts only UTF-8 paths"))?;
        if text.split('/').any(|part| part == "..") || text.contains('\0') {
            return Err(fail(FailureKind::Invalid, format!("{text}: without a keeper a path has no ..")));
        }
        Ok(if text.starts_with('/') { text.to_owned() } else { format!("{}/{text}", self.workdir) })
    }

    async fn check_parent(&self, path: &str, parents: bool) -> Answer {
        let parent = path.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent);
        if parents || parent.is_empty() || self.there(parent).await?.is_some() {
            return Ok(());
        }
        Err(fail(FailureKind::NotFound, format!("{parent} is not there")))
    }

    async fn there(&self, path: &str) -> Answer<Option<Stat>> {
        match self.fetch(path).await {
            Ok((stat, _)) => Ok(Some(stat)),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the metadata of a path, and an archive positioned at its content.
    async fn fetch(&self, path: &str) -> Answer<(Stat, Archive)> {
        let query = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let api = self.engine.api().await.map_err(|error| fail(FailureKind::Other, error.to_string()))?.clone();
        let parts = Box::pin(api.download_from_container(&self.engine_id, Some(query)));
        let mut archive = Archive { parts, left: Bytes::new() };
        loop {
            let block = self.exactly(&mut archive, BLOCK).await?;
            let header = tar::Header::from_byte_slice(&block);
            let broken = |_| fail(FailureKind::Other, "the engine sent something else than an archive");
            let size = header.entry_size().map_err(broken)?;
            let kind = match header.entry_type() {
                // Extended headers of the following entry.
                tar::EntryType::XHeader
                | tar::EntryType::XGlobalHeader
                | tar::EntryType::GNULongName
                | tar::EntryType::GNULongLink => {
                    self.skip(&mut archive, size.next_multiple_of(BLOCK)).await?;
                    continue;
                }
                tar::EntryType::Regular | tar::EntryType::Continuous => FileKind::File,
                tar::EntryType::Directory => FileKind::Directory,
                tar::EntryType::Symlink => FileKind::Symlink,
                _ => FileKind::Other,
            };
            let number = |number: std::io::Result<u64>| number.ok().and_then(|number| number.try_into().ok());
            let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or_default();
            let stat = Stat {
                kind,
                size,
                mode: header.mode().map_err(broken)? & 0o7777,
                uid: number(header.uid()).unwrap_or_default(),
                gid: number(header.gid()).unwrap_or_default(),
                modified_ms: seconds.saturating_mul(1000),
                target: header.link_name_bytes().map(|name| name.into_owned().into()),
            };
            return Ok((stat, archive));
        }
    }

    async fn put(&self, path: &str, kind: tar::EntryType, mode: u32, owner: (u32, u32), bytes: &[u8]) -> Answer {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner.0.into());
        header.set_gid(owner.1.into());
        header.set_size(bytes.len() as u64);
        let packed =
            archive.append_data(&mut header, path.trim_matches('/'), bytes).and_then(|()| archive.into_inner());
        let packed = packed.map_err(|error| fail(FailureKind::Invalid, format!("{path}: {error}")))?;
        let query = UploadToContainerOptionsBuilder::default().path("/").build();
        let api = self.engine.api().await.map_err(|error| fail(FailureKind::Other, error.to_string()))?;
        let body = bollard::body_full(packed.into());
        let sent = api.upload_to_container(&self.engine_id, Some(query), body).await;
        sent.map_err(|error| self.failure(&format!("write {path}"), error))
    }

    /// Returns the next bytes, at least one and at most `most`.
    async fn take(&self, archive: &mut Archive, most: u64) -> Answer<Bytes> {
        while archive.left.is_empty() {
            archive.left = match archive.parts.next().await {
                Some(Ok(part)) => part,
                Some(Err(error)) => return Err(self.failure("read a file", error)),
                None => return Err(fail(FailureKind::Other, "the engine's archive ends too early")),
            };
        }
        let length = archive.left.len().min(most.try_into().unwrap_or(usize::MAX));
        Ok(archive.left.split_to(length))
    }

    async fn exactly(&self, archive: &mut Archive, length: u64) -> Answer<Vec<u8>> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length {
            bytes.extend(self.take(archive, length - bytes.len() as u64).await?);
        }
        Ok(bytes)
    }

    async fn skip(&self, archive: &mut Archive, mut length: u64) -> Answer {
        while length > 0 {
            length -= self.take(archive, length).await?.len() as u64;
        }
        Ok(())
    }
}
