//! Sparse files, in both directions. Only their data is sent. A keeper without this feature sends and receives all
//! bytes.
//!
//! The keeper's description of a file is not trusted. A receiver writes no more data than was really sent; see
//! [`kennel_proto::sparse`].

use super::{Content, FileReader, Files, Upload, WriteOptions, ready_as};
use crate::{Error, Result};
use kennel_proto::sparse::{ALIGN, Decoder, Malformed, Piece, head};
use kennel_proto::{Request, caps};
use kennel_types::ErrorCode;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};

impl Files {
    /// Opens a file for reading, including its holes.
    pub async fn open_sparse(&self, path: impl AsRef<[u8]>) -> Result<SparseReader> {
        let (path, user) = (Self::path(path)?, self.user.clone());
        let request = Request::Read { path, user, offset: 0, limit: None, sparse: Some(true) };
        let reader = FileReader { stream: self.keeper.open(request)? };
        let (_, sparse) = ready_as(&reader.stream, true).await?;
        Ok(SparseReader { reader, decoder: sparse.then(Decoder::default), pieces: VecDeque::new() })
    }

    /// Writes a file from a host file, completely or not at all. Holes are not sent, and the file inside has the same
    /// holes. `tell` is called with the number of bytes sent. For a sparse file, the size at the beginning counts.
    pub async fn write_file(
        &self,
        path: impl AsRef<[u8]>,
        from: &File,
        options: WriteOptions,
        mut tell: impl FnMut(usize),
    ) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("read what is to be written", error);
        let meta = from.metadata().map_err(failed)?;
        let content = if meta.blocks() * 512 < meta.size() { Content::Sparse } else { Content::Whole };
        let (mut upload, sparse) = self.upload(path, options, content).await?;
        if sparse {
            send_segments(&mut upload, from, meta.size(), &mut tell).await?;
        } else {
            let mut buffer = vec![0; caps::DATA];
            loop {
                let count = (&*from).read(&mut buffer).map_err(failed)?;
                if count == 0 {
                    break;
                }
                upload.send(&buffer[..count]).await?;
                tell(count);
            }
        }
        upload.finish().await
    }
}

async fn send_segments(upload: &mut Upload, file: &File, mut size: u64, tell: &mut impl FnMut(usize)) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("read what is to be written", error);
    let mut buffer = vec![0; caps::DATA];
    let mut at = 0;
    while at < size {
        let (data, hole) = match next_data(file, at, size) {
            Err(Errno::NXIO) => break,
            found => found.map_err(|error| failed(error.into()))?,
        };
        let mut from = (data - data % ALIGN).max(at);
        let end = hole.next_multiple_of(ALIGN).min(size);
        while from < end {
            let most = (end - from).min(buffer.len() as u64) as usize;
            let count = read_at(file, &mut buffer[..most], from).map_err(failed)?;
            if count > 0 {
                upload.send(&head(from, count as u32)).await?;
                upload.send(&buffer[..count]).await?;
                tell(count);
            }
            from += count as u64;
            if count < most {
                // The file was truncated meanwhile.
                size = from;
                break;
            }
        }
        at = end;
    }
    upload.send(&head(size, 0)).await
}

/// Returns where the next data starts and ends. A filesystem without hole information counts as all data.
fn next_data(file: &File, at: u64, size: u64) -> Result<(u64, u64), Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok((data, rustix::fs::seek(file, SeekFrom::Hole(data))?)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((at, size)),
        Err(error) => Err(error),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read_at(&mut buffer[count..], at + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// A sparse file that is being read.
pub struct SparseReader {
    reader: FileReader,
    /// Set if the keeper sends segments.
    decoder: Option<Decoder>,
    pieces: VecDeque<Piece>,
}

impl SparseReader {
    /// Returns the next piece of the file, or `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            match (self.reader.chunk().await?, &mut self.decoder) {
                (Some(bytes), None) => return Ok(Some(Piece::Data(bytes))),
                (Some(bytes), Some(decoder)) => self.pieces.extend(decoder.feed(&bytes).map_err(malformed)?),
                (None, None) => return Ok(None),
                (None, Some(decoder)) => return decoder.finish().map(|_| None).map_err(malformed),
            }
        }
    }
}

fn malformed(why: Malformed) -> Error {
    Error::new(ErrorCode::Internal, format!("the keeper broke the protocol: a file with holes: {}", why.0))
}
