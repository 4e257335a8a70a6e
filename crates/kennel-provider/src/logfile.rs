//! The log of the main process, where Kennel stores it itself: two files in turn. The keeper writes them through
//! inherited descriptors, and this module reads them. The files are outside the sandbox, but their content is not
//! trusted.

use futures_util::stream;
use kennel_core::{Error, LogChunk, LogOptions, LogStream, Result};
use kennel_proto::log::{LogRecord, decode};
use rustix::fs::inotify;
use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// The names of the two files.
pub const LOG_FILES: [&str; 2] = ["log.0", "log.1"];

/// Reads the log in `dir`. With `follow`, it continues until `ended` returns true.
pub fn follow_log(dir: PathBuf, options: LogOptions, ended: impl Fn() -> bool + Send + 'static) -> Result<LogStream> {
    let follower = if options.follow { Some(LogFollower::new(&dir)?) } else { None };
    let mut reader = Reader::new(dir);
    let mut ready: VecDeque<LogChunk> = reader.read()?.into();
    if let Some(lines) = options.tail {
        keep_last_lines(&mut ready, lines);
    }
    let state = (reader, ready, follower, ended);
    Ok(Box::pin(stream::try_unfold(state, async |(mut reader, mut ready, mut follower, ended)| {
        loop {
            if let Some(chunk) = ready.pop_front() {
                return Ok(Some((chunk, (reader, ready, follower, ended))));
            }
            let Some(changes) = &mut follower else { return Ok(None) };
            // Check this before reading: everything written before the end is then read.
            let over = ended();
            ready = reader.read()?.into();
            if ready.is_empty() {
                if over {
                    return Ok(None);
                }
                changes.changed().await?;
            }
        }
    })))
}

/// Removes all but the last lines. The lines of both streams are counted together, in the order they were printed.
pub fn keep_last_lines(chunks: &mut VecDeque<LogChunk>, lines: usize) {
    if lines == 0 {
        return chunks.clear();
    }
    let ends_open = chunks.back().is_some_and(|chunk| chunk.bytes.last() != Some(&b'\n'));
    // A line ends with its newline. The newline of the last line does not start another line.
    let mut left = lines + usize::from(!ends_open);
    for index in (0..chunks.len()).rev() {
        let bytes = &mut chunks[index].bytes;
        for at in (0..bytes.len()).rev() {
            if bytes[at] == b'\n' {
                left -= 1;
                if left == 0 {
                    bytes.drain(..=at);
                    chunks.drain(..index);
                    chunks.retain(|chunk| !chunk.bytes.is_empty());
                    return;
                }
            }
        }
    }
}

/// Reads both files, continuing from the last position.
struct Reader {
    dir: PathBuf,
    offsets: [u64; 2],
}

impl Reader {
    fn new(dir: PathBuf) -> Self {
        Self { dir, offsets: [0; 2] }
    }

    /// Returns new output, in the order it was printed.
    fn read(&mut self) -> Result<Vec<LogChunk>> {
        let mut records: Vec<LogRecord> = Vec::new();
        for (index, name) in LOG_FILES.iter().enumerate() {
            let path = self.dir.join(name);
            let what = || format!("read the log {}", path.display());
            let mut file = match std::fs::File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io(what(), error)),
            };
            let length = file.metadata().map_err(|error| Error::io(what(), error))?.len();
            if length < self.offsets[index] {
                self.offsets[index] = 0; // The file was truncated for its next turn.
            }
            file.seek(SeekFrom::Start(self.offsets[index])).map_err(|error| Error::io(what(), error))?;
            let mut bytes = Vec::new();
            file.take(64 << 20).read_to_end(&mut bytes).map_err(|error| Error::io(what(), error))?;
            let mut at = 0;
            while let Some((record, length)) = decode(&bytes[at..]) {
                records.push(record);
                at += length;
            }
            self.offsets[index] += at as u64;
        }
        records.sort_by_key(|record| record.at_ms);
        Ok(records.into_iter().map(|record| LogChunk { channel: record.channel, bytes: record.bytes }).collect())
    }
}

/// Notifies when something in the directory changes.
struct LogFollower {
    inotify: AsyncFd<OwnedFd>,
}

impl LogFollower {
    fn new(dir: &Path) -> Result<Self> {
        let what = || format!("watch {}", dir.display());
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(|error| Error::io(what(), error))?;
        let events = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&fd, dir, events).map_err(|error| Error::io(what(), error))?;
        #[allow(deprecated)] // the replacement needs `unsafe`; both require a descriptor that nobody else closes
        let inotify = AsyncFd::new(fd).map_err(|error| Error::io(what(), error))?;
        Ok(Self { inotify })
    }

    /// Waits for a change. It also returns once a second, because the end of a sandbox may change nothing in the
    /// directory.
    async fn changed(&mut self) -> Result<()> {
        let Ok(guard) = tokio::time::timeout(Duration::from_secs(1), self.inotify.readable()).await else {
            return Ok(());
        };
        let mut guard = guard.map_err(|error| Error::io("watch the log", error))?;
        let mut buffer = [0; 4096];
        while matches!(rustix::io::read(guard.get_inner(), &mut buffer), Ok(1..)) {}
        guard.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::TryStreamExt;
    use kennel_proto::{Channel, log::encode};

    async fn all(dir: &Path, tail: Option<usize>) -> String {
        let options = LogOptions { tail, follow: false };
        let chunks: Vec<LogChunk> = follow_log(dir.to_owned(), options, || true).unwrap().try_collect().await.unwrap();
        chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.bytes).into_owned()).collect()
    }

    #[tokio::test]
    async fn the_last_lines_come_from_both_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (mut older, mut newer) = (Vec::new(), Vec::new());
        encode(1, Channel::Stdout, b"one\ntwo\n", &mut older);
        encode(2, Channel::Stderr, b"three\n", &mut newer);
        encode(3, Channel::Stdout, b"four", &mut newer);
        newer.extend([1, 2, 3]); // cut off by a crash
        std::fs::write(dir.path().join("log.1"), older).unwrap();
        std::fs::write(dir.path().join("log.0"), newer).unwrap();
        assert_eq!(all(dir.path(), None).await, "one\ntwo\nthree\nfour");
        assert_eq!(all(dir.path(), Some(0)).await, "");
        assert_eq!(all(dir.path(), Some(1)).await, "four");
        assert_eq!(all(dir.path(), Some(3)).await, "two\nthree\nfour");
        assert_eq!(all(dir.path(), Some(9)).await, "one\ntwo\nthree\nfour");
    }
}
