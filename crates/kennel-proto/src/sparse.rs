//! The stream format for sparse files: only the data is sent, each piece with its offset.
//!
//! A segment consists of its offset (8 bytes), its length (4 bytes), both little-endian, and the data. The range
//! between two segments is a hole. A segment of length 0 ends the file, and its offset is the file's size. Segments are
//! in order. Each starts at a multiple of [`ALIGN`] and has a multiple of it as its length; only the last one may be
//! shorter. So a written file uses about as much disk space as was sent, whatever the sender claims.

use crate::caps;

/// Segments start at a multiple of this. All but the last have a multiple of it as their length.
pub const ALIGN: u64 = 4096;
/// Bytes in the header of a segment.
pub const HEAD: usize = 12;
/// The largest size of a file.
const LARGEST: u64 = i64::MAX as u64;

/// Returns the header of a data segment, or of the end of the file if `length` is 0.
pub fn head(start: u64, length: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&start.to_le_bytes());
    head[8..].copy_from_slice(&length.to_le_bytes());
    head
}

/// A piece of a file, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A hole of this many bytes.
    Hole(u64),
    /// Data.
    Data(Vec<u8>),
}

/// An invalid stream, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Decodes a stream of segments that arrives in arbitrary pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    head: Vec<u8>,
    /// Bytes of the current segment that have not arrived yet.
    left: u64,
    /// The offset of the next byte in the file.
    at: u64,
    over: bool,
}

impl Decoder {
    /// Adds received bytes and returns the pieces of the file they contain.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<Piece>, Malformed> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            if self.left > 0 {
                let take = self.left.min(bytes.len() as u64) as usize;
                pieces.push(Piece::Data(bytes[..take].to_vec()));
                self.left -= take as u64;
                self.at += take as u64;
                bytes = &bytes[take..];
                continue;
            }
            if self.over {
                return Err(Malformed("there is more behind its end"));
            }
            let take = (HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if let Ok(head) = <[u8; HEAD]>::try_from(self.head.as_slice()) {
                self.head.clear();
                pieces.extend(self.segment(head)?);
            }
        }
        Ok(pieces)
    }

    /// Ends the stream and returns the size of the file.
    pub fn finish(&self) -> Result<u64, Malformed> {
        if self.over { Ok(self.at) } else { Err(Malformed("it is cut off")) }
    }

    fn segment(&mut self, head: [u8; HEAD]) -> Result<Option<Piece>, Malformed> {
        let (mut start, mut length) = ([0; 8], [0; 4]);
        start.copy_from_slice(&head[..8]);
        length.copy_from_slice(&head[8..]);
        let (start, length) = (u64::from_le_bytes(start), u64::from(u32::from_le_bytes(length)));
        if start < self.at {
            return Err(Malformed("a segment starts before the end of the one before"));
        }
        if start > LARGEST || length > LARGEST - start {
            return Err(Malformed("no file is that large"));
        }
        if length > caps::SEGMENT {
            return Err(Malformed("a segment is too long"));
        }
        if !self.at.is_multiple_of(ALIGN) && (length > 0 || start > self.at) {
            return Err(Malformed("a segment before the last one is not aligned"));
        }
        if length > 0 && !start.is_multiple_of(ALIGN) {
            return Err(Malformed("the start of a segment is not aligned"));
        }
        let hole = start - self.at;
        (self.at, self.left, self.over) = (start, length, length == 0);
        Ok((hole > 0).then_some(Piece::Hole(hole)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(stream: &[u8], cut: usize) -> Result<(Vec<Piece>, u64), Malformed> {
        let mut decoder = Decoder::default();
        let mut pieces = Vec::new();
        for bytes in stream.chunks(cut) {
            pieces.extend(decoder.feed(bytes)?);
        }
        Ok((pieces, decoder.finish()?))
    }

    fn stream(segments: &[(u64, &[u8])], size: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for (start, data) in segments {
            out.extend(head(*start, data.len() as u32));
            out.extend_from_slice(data);
        }
        out.extend(head(size, 0));
        out
    }

    #[test]
    fn a_file_with_holes() {
        let block = [7; ALIGN as usize];
        let (pieces, size) =
            read(&stream(&[(1 << 40, &block), ((1 << 40) + ALIGN, b"end")], 3 + ALIGN + (1 << 40)), 4108).unwrap();
        assert_eq!(size, 3 + ALIGN + (1 << 40));
        assert_eq!(pieces[0], Piece::Hole(1 << 40));
        assert_eq!(pieces.last(), Some(&Piece::Data(b"end".to_vec())));
        assert_eq!(read(&stream(&[], 5), 1), Ok((vec![Piece::Hole(5)], 5)), "nothing but a hole");
        assert_eq!(read(&stream(&[], 0), 3), Ok((vec![], 0)));
    }

    #[test]
    fn malformed_segments_are_refused() {
        let block = [7; ALIGN as usize];
        for bad in [
            stream(&[(1, b"x")], 2),                            // not aligned
            stream(&[(0, b"x"), (ALIGN, b"y")], ALIGN + 1),     // a short one before the last
            stream(&[(0, b"x")], ALIGN),                        // a hole behind a short one
            stream(&[(ALIGN, &block), (0, &block)], ALIGN),     // backwards
            stream(&[(0, &block)], 1),                          // shorter than its data
            stream(&[], u64::MAX),                              // larger than any file
            head(0, u32::MAX).to_vec(),                         // a segment past its cap
            [stream(&[], 0), b"x".to_vec()].concat(),           // more behind its end
            stream(&[(0, &block)], ALIGN)[..HEAD + 5].to_vec(), // cut off
            Vec::new(),
        ] {
            assert!(read(&bad, 1000).is_err(), "{:?}", &bad[..bad.len().min(24)]);
        }
    }

    proptest! {
        /// For any bytes in any chunks: data never exceeds what was sent, and offsets only grow.
        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1usize..50) {
            let mut decoder = Decoder::default();
            let (mut data, mut at) = (0, 0u64);
            for part in bytes.chunks(cut) {
                let Ok(pieces) = decoder.feed(part) else { break };
                for piece in pieces {
                    match piece {
                        Piece::Hole(length) => at = at.checked_add(length).unwrap(),
                        Piece::Data(more) => { data += more.len(); at += more.len() as u64 }
                    }
                }
            }
            prop_assert!(data <= bytes.len() && at <= LARGEST);
        }
    }
}
