//! Files inside a sandbox. The keeper resolves every path inside; this module opens no files of the host.

mod holes;

pub use holes::SparseReader;

use crate::keeper::{Arrival, KeeperStream};
use crate::{Error, Keeper, Result};
use kennel_proto::{Body, Channel, Entry, Features, Outcome, Reply, Request, Stat, WatchItem, caps};
use kennel_types::{DirEntry, ErrorCode, FileKind, FileStat, LimitReason, TreeEntry, WatchEvent, WatchKind};
use minicbor::bytes::ByteVec;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The maximum number of entries in a listing. A longer one is refused.
const ENTRIES: usize = 1_000_000;

/// Access to the files of a sandbox, as one of its users.
pub struct Files {
    keeper: Keeper,
    user: Option<String>,
}

/// Options for writing a file.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Permission bits. Defaults to those of the existing file, or 0644.
    pub mode: Option<u32>,
    /// Create missing parent directories.
    pub parents: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: None, parents: true }
    }
}

impl Files {
    pub(crate) fn new(keeper: Keeper, user: Option<String>) -> Self {
        Self { keeper, user }
    }

    fn path(path: impl AsRef<[u8]>) -> Result<ByteVec> {
        let path = path.as_ref();
        if path.is_empty() || path.len() >= caps::PATH || path.contains(&0) {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("a path must have 1 to {} bytes and no zero byte", caps::PATH - 1),
            ));
        }
        Ok(path.to_vec().into())
    }

    /// Opens a file for reading, starting at `offset`.
    pub async fn open(&self, path: impl AsRef<[u8]>, offset: u64, limit: Option<u64>) -> Result<FileReader> {
        let request = Request::Read { path: Self::path(path)?, user: self.user.clone(), offset, limit, sparse: None };
        let reader = FileReader { stream: self.keeper.open(request)? };
        ready(&reader.stream).await?;
        Ok(reader)
    }

    /// Reads a whole file, which must not be larger than `cap`.
    pub async fn read(&self, path: impl AsRef<[u8]>, cap: usize) -> Result<Vec<u8>> {
        let mut reader = self.open(path, 0, Some(cap as u64 + 1)).await?;
        let mut all = Vec::new();
        while let Some(bytes) = reader.chunk().await? {
            if all.len() + bytes.len() > cap {
                return Err(Error::limit(LimitReason::TooLarge, format!("the file is larger than {cap} bytes")));
            }
            if all.is_empty() { all = bytes } else { all.extend_from_slice(&bytes) }
        }
        Ok(all)
    }

    /// Writes a file, completely or not at all.
    pub async fn write(&self, path: impl AsRef<[u8]>, bytes: &[u8], options: WriteOptions) -> Result<()> {
        self.write_from(path, bytes, options).await
    }

    /// Writes a file from a reader, completely or not at all.
    pub async fn write_from(
        &self,
        path: impl AsRef<[u8]>,
        from: impl AsyncRead + Unpin,
        options: WriteOptions,
    ) -> Result<()> {
        let (upload, _) = self.upload(path, options, Content::Whole).await?;
        send_all(upload, from).await
    }

    /// Writes bytes to a file in place, starting at `offset`. The other bytes of the file stay. A missing file is
    /// created, and a gap before the offset is filled with zeros. If the write fails or is aborted, a part of the bytes
    /// may be written. Fails with `Unsupported` if the sandbox was started by an older Kennel.
    pub async fn write_at(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        from: impl AsyncRead + Unpin,
        options: WriteOptions,
    ) -> Result<()> {
        self.keeper.require(Features::WRITE_AT, "write at an offset").await?;
        let (upload, _) = self.upload(path, options, Content::At(offset)).await?;
        send_all(upload, from).await
    }

    /// Starts to write a file. Also returns whether its data must be sent as segments, if the content is sparse.
    async fn upload(&self, path: impl AsRef<[u8]>, options: WriteOptions, content: Content) -> Result<(Upload, bool)> {
        let sparse = matches!(content, Content::Sparse);
        let request = Request::Write {
            path: Self::path(path)?,
            user: self.user.clone(),
            mode: options.mode,
            parents: options.parents,
            sparse: sparse.then_some(true),
            offset: match content {
                Content::At(offset) => Some(offset),
                Content::Whole | Content::Sparse => None,
            },
        };
        let stream = Closing(self.keeper.open(request)?);
        let (window, sparse) = ready_as(&stream.0, sparse).await?;
        Ok((Upload { stream, window, sent: 0 }, sparse))
    }

    /// Returns the entries of a directory, sorted by name.
    pub async fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        let entry = |entry: Entry| DirEntry { name: entry.name.into(), stat: stat(entry.stat) };
        let mut entries = self.entries(path, None, ENTRIES, entry).await?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Returns the entries of a directory and of the directories below it, to a depth of 1 to 64 levels, sorted by path.
    /// Symlinks are not followed. More than 200,000 entries are an error. Fails with `Unsupported` if the sandbox was
    /// started by an older Kennel.
    pub async fn list_tree(&self, path: impl AsRef<[u8]>, depth: u32) -> Result<Vec<TreeEntry>> {
        if !(1..=caps::LIST_DEPTH).contains(&depth) {
            let message = format!("invalid depth {depth}: expected 1 to {}", caps::LIST_DEPTH);
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        self.keeper.require(Features::LIST_DEPTH, "list to a depth").await?;
        let entry =
            |entry: Entry| TreeEntry { path: entry.name.into(), stat: stat(entry.stat), unreadable: entry.unreadable };
        let mut entries = self.entries(path, Some(depth), caps::LISTED_ENTRIES, entry).await?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    async fn entries<T>(
        &self,
        path: impl AsRef<[u8]>,
        depth: Option<u32>,
        most: usize,
        convert: impl Fn(Entry) -> T,
    ) -> Result<Vec<T>> {
        let request = Request::List { path: Self::path(path)?, user: self.user.clone(), depth };
        let mut items = Items::new(self.keeper.open(request)?);
        ready(&items.stream.0).await?;
        let mut entries = Vec::new();
        while let Some(entry) = items.next::<Entry>().await? {
            if entries.len() == most {
                return Err(Error::limit(LimitReason::TooLarge, format!("more than {most} directory entries")));
            }
            entries.push(convert(entry));
        }
        Ok(entries)
    }

    /// Returns the metadata of a path. If `follow` is not set, that of the symlink itself.
    pub async fn stat(&self, path: impl AsRef<[u8]>, follow: bool) -> Result<FileStat> {
        let request = Request::Stat { path: Self::path(path)?, user: self.user.clone(), follow };
        match self.keeper.call(request).await? {
            Outcome::Stat(found) => Ok(stat(found)),
            _ => Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: no stat")),
        }
    }

    /// Creates a directory. With `parents` it also creates missing parents, and accepts an existing directory.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, parents: bool) -> Result<()> {
        let request = Request::Mkdir { path: Self::path(path)?, user: self.user.clone(), parents, mode: None };
        self.keeper.call(request).await.map(drop)
    }

    /// Creates a directory with exactly these permission bits. It must not exist yet, and its parent must exist.
    pub async fn make_dir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let (path, mode) = (Self::path(path)?, Some(mode));
        self.keeper.call(Request::Mkdir { path, user: self.user.clone(), parents: false, mode }).await.map(drop)
    }

    /// Creates a symlink with the text `target`, which is not resolved. With `replace` it replaces what is at the path,
    /// in one step; a directory is never replaced. Fails with `Unsupported` if the keeper cannot do this.
    pub async fn symlink(&self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>, replace: bool) -> Result<()> {
        let (path, target) = (Self::path(path)?, Self::path(target)?);
        self.keeper.require(Features::SYMLINK, "create symlinks").await?;
        self.keeper.call(Request::Symlink { path, user: self.user.clone(), target, replace }).await.map(drop)
    }

    /// Sets the permission bits of a file or directory. A file does not get set-user-id and set-group-id bits. If
    /// `follow` is not set, a symlink is refused. Fails with `Unsupported` if the keeper cannot do this.
    pub async fn chmod(&self, path: impl AsRef<[u8]>, mode: u32, follow: bool) -> Result<()> {
        let path = Self::path(path)?;
        self.keeper.require(Features::CHMOD, "set permissions").await?;
        self.keeper.call(Request::Chmod { path, user: self.user.clone(), mode, follow }).await.map(drop)
    }

    /// Returns what the keeper supports beyond the first keepers.
    pub async fn features(&self) -> Result<Features> {
        Ok(self.keeper.welcome().await?.features)
    }

    /// Moves a file or directory.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, replace: bool) -> Result<()> {
        let (from, to) = (Self::path(from)?, Self::path(to)?);
        self.keeper.call(Request::Move { from, to, user: self.user.clone(), replace }).await.map(drop)
    }

    /// Removes a file or symlink, or with `recursive` a directory and its content.
    pub async fn remove(&self, path: impl AsRef<[u8]>, recursive: bool) -> Result<()> {
        let request = Request::Remove { path: Self::path(path)?, user: self.user.clone(), recursive };
        self.keeper.call(request).await.map(drop)
    }

    /// Watches for changes at or below a path, from now on.
    pub async fn watch(&self, path: impl AsRef<[u8]>, recursive: bool) -> Result<FileWatch> {
        let request = Request::Watch { path: Self::path(path)?, user: self.user.clone(), recursive };
        let items = Items::new(self.keeper.open(request)?);
        ready(&items.stream.0).await?;
        Ok(FileWatch { items })
    }
}

/// Waits until data may be sent or received. Returns how far the sender may be ahead.
pub(crate) async fn ready(stream: &KeeperStream) -> Result<u64> {
    ready_as(stream, false).await.map(|(window, _)| window)
}

/// Waits until data may be sent or received. Returns how far the sender may be ahead, and whether the data are segments
/// of a sparse file.
async fn ready_as(stream: &KeeperStream, sparse: bool) -> Result<(u64, bool)> {
    match stream.reply().await? {
        Reply::Ready { stdin_window } => Ok((stdin_window.min(caps::WINDOW), false)),
        Reply::ReadySparse { stdin_window } if sparse => Ok((stdin_window.min(caps::WINDOW), true)),
        _ => Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: not ready")),
    }
}

/// How the content of a file is sent.
#[derive(Clone, Copy)]
enum Content {
    /// The whole file.
    Whole,
    /// The whole file, as segments if the keeper can receive them.
    Sparse,
    /// A part of the file, starting at this offset.
    At(u64),
}

/// Sends everything that a reader returns, and waits for the result.
async fn send_all(mut upload: Upload, mut from: impl AsyncRead + Unpin) -> Result<()> {
    let mut buffer = vec![0; caps::DATA];
    loop {
        let room = upload.room().await?;
        let count =
            from.read(&mut buffer[..room]).await.map_err(|error| Error::io("read what is to be written", error))?;
        if count == 0 {
            break;
        }
        upload.send(&buffer[..count]).await?;
    }
    upload.finish().await
}

/// A file that is being written.
struct Upload {
    stream: Closing,
    window: u64,
    sent: u64,
}

impl Upload {
    /// Waits until data may be sent, and returns how much.
    async fn room(&self) -> Result<usize> {
        Ok(self.stream.0.room(self.sent, self.window).await?.min(caps::DATA as u64) as usize)
    }

    async fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.room().await?.min(bytes.len()));
            self.stream.0.send_data(Channel::Stdin, self.sent, now);
            self.sent += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Ends the file and waits for the result.
    async fn finish(mut self) -> Result<()> {
        self.stream.0.send(Body::Eof(Channel::Stdin));
        self.stream.0.done().await.map(drop)
    }
}

fn stat(stat: Stat) -> FileStat {
    FileStat {
        kind: match stat.kind {
            kennel_proto::FileKind::File => FileKind::File,
            kennel_proto::FileKind::Directory => FileKind::Directory,
            kennel_proto::FileKind::Symlink => FileKind::Symlink,
            kennel_proto::FileKind::Other => FileKind::Other,
        },
        size: stat.size,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        modified_ms: stat.modified_ms,
        target: stat.target.map(Into::into),
    }
}

/// Closes the stream when dropped.
struct Closing(KeeperStream);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A file that is being read.
pub struct FileReader {
    stream: KeeperStream,
}

impl FileReader {
    /// Returns the next bytes, or `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        match self.stream.next().await? {
            Arrival::Bytes(_, bytes) => Ok(Some(bytes)),
            Arrival::Done(_) => Ok(None),
            Arrival::Exit(_) => {
                Err(Error::new(ErrorCode::Internal, "the keeper broke the protocol: a file has no exit"))
            }
        }
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.stream.close();
    }
}

/// Decodes length-prefixed messages from a stream.
pub(crate) struct Items {
    stream: Closing,
    buffer: Vec<u8>,
}

impl Items {
    pub(crate) fn new(stream: KeeperStream) -> Self {
        Self { stream: Closing(stream), buffer: Vec::new() }
    }

    pub(crate) async fn next<T: for<'b> minicbor::Decode<'b, ()>>(&mut self) -> Result<Option<T>> {
        const LONGEST: usize = 2 * caps::PATH + 256;
        let malformed = || Error::new(ErrorCode::Internal, "the keeper broke the protocol: a malformed item");
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > LONGEST {
                    return Err(malformed());
                }
                if let Some(bytes) = rest.get(..length) {
                    let item = minicbor::decode(bytes).map_err(|_| malformed())?;
                    self.buffer.drain(..4 + length);
                    return Ok(Some(item));
                }
            }
            match self.stream.0.next().await? {
                Arrival::Bytes(_, bytes) => self.buffer.extend_from_slice(&bytes),
                Arrival::Done(_) if self.buffer.is_empty() => return Ok(None),
                _ => return Err(malformed()),
            }
        }
    }
}

/// A stream of file changes.
pub struct FileWatch {
    items: Items,
}

impl FileWatch {
    /// Returns the next change, or `None` when the watched path is gone.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>> {
        let Some(item) = self.items.next::<WatchItem>().await? else { return Ok(None) };
        let kind = match item.kind {
            kennel_proto::WatchKind::Created => WatchKind::Created,
            kennel_proto::WatchKind::Modified => WatchKind::Modified,
            kennel_proto::WatchKind::Removed => WatchKind::Removed,
            kennel_proto::WatchKind::Missed => WatchKind::Missed,
        };
        Ok(Some(WatchEvent { kind, path: item.path.into() }))
    }
}
