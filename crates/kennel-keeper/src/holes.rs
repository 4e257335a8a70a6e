//! Sparse files: only their data is read, sent and written. This runs in a worker.

use crate::files::{self, CHUNK, Done};
use crate::paths::{self, failure};
use crate::report::{Report, write_all};
use crate::worker::Pipes;
use kennel_proto::sparse::{ALIGN, Decoder, Piece, head};
use kennel_proto::{Failure, FailureKind, Outcome};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

/// Sends a file as segments if it has holes, otherwise as plain bytes.
pub(crate) fn read(path: &[u8], pipes: &Pipes) -> Done {
    let file = paths::open_file(path, OFlags::RDONLY)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failure(path, error))?;
    if stat.st_blocks * 512 >= stat.st_size {
        return files::read(path, 0, None, pipes);
    }
    Report::ReadySparse.send(&pipes.status);
    send(&file, stat.st_size as u64, &pipes.output).map_err(|error| failure(path, error))?;
    Ok(Outcome::Nothing)
}

/// Sends the data of a file of this size. Data that is appended meanwhile is not sent. If the file shrinks, it ends
/// there.
fn send(file: &OwnedFd, mut size: u64, output: &OwnedFd) -> Result<(), Errno> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let (data, hole) = match next_data(file, at, size) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let mut from = (data - data % ALIGN).max(at);
        let end = hole.next_multiple_of(ALIGN).min(size);
        while from < end {
            let most = (end - from).min(CHUNK as u64) as usize;
            let count = read_at(file, &mut buffer[..most], from)?;
            if count > 0 {
                let sent = write_all(output, &head(from, count as u32)) && write_all(output, &buffer[..count]);
                if !sent {
                    return Err(Errno::PIPE);
                }
            }
            from += count as u64;
            if count < most {
                size = from;
                break;
            }
        }
        at = end;
    }
    if write_all(output, &head(size, 0)) { Ok(()) } else { Err(Errno::PIPE) }
}

/// Returns where the next data starts and ends. A filesystem without hole information counts as all data.
fn next_data(file: &OwnedFd, at: u64, size: u64) -> Result<(u64, u64), Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok((data, rustix::fs::seek(file, SeekFrom::Hole(data))?)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((at, size)),
        Err(error) => Err(error),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &OwnedFd, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut count = 0;
    while count < buffer.len() {
        match rustix::io::pread(file, &mut buffer[count..], at + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Writes received segments to a new file.
pub(crate) fn receive(path: &[u8], input: &OwnedFd, file: &OwnedFd) -> Result<(), Failure> {
    let malformed = |why: kennel_proto::sparse::Malformed| Failure::new(FailureKind::Invalid, why.0);
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let count = match rustix::io::read(input, &mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(failure(path, error)),
        };
        for piece in decoder.feed(&buffer[..count]).map_err(malformed)? {
            match piece {
                Piece::Hole(length) => at += length,
                Piece::Data(bytes) => {
                    write_at(file, &bytes, at).map_err(|error| failure(path, error))?;
                    at += bytes.len() as u64;
                }
            }
        }
    }
    let size = decoder.finish().map_err(malformed)?;
    rustix::fs::ftruncate(file, size).map_err(|error| failure(path, error))
}

fn write_at(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
