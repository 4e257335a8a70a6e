//! Records of the main process's log. Each has a twelve-byte header (milliseconds since 1970, stream, length) and data.
//!
//! The keeper writes them to two files in turn. A reader orders the files by their first record. A record that a crash
//! cut off is always the last one, and is ignored.

use crate::Channel;

/// Bytes of a record header.
pub const HEADER: usize = 12;
/// Bytes in the longest record.
pub const RECORD: usize = 64 * 1024;

/// The prefix of messages that the keeper itself writes to the log if there is no main process.
pub const NOTE: &str = "kennel: ";

/// One piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The time in milliseconds since 1970.
    pub at_ms: u64,
    /// `Stdout` or `Stderr`.
    pub channel: Channel,
    /// The output.
    pub bytes: Vec<u8>,
}

/// Appends a record to `out`.
pub fn encode(at_ms: u64, channel: Channel, bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= RECORD);
    out.extend_from_slice(&at_ms.to_le_bytes());
    let word = bytes.len() as u32 | u32::from(channel as u8) << 24;
    out.extend_from_slice(&word.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Decodes the record at the start of `bytes`. Returns it with its length in bytes, or `None` if it is incomplete or
/// invalid.
pub fn decode(bytes: &[u8]) -> Option<(LogRecord, usize)> {
    let (head, rest) = bytes.split_at_checked(HEADER)?;
    let at_ms = u64::from_le_bytes(head[..8].try_into().ok()?);
    let word = u32::from_le_bytes(head[8..].try_into().ok()?);
    let channel = match word >> 24 {
        1 => Channel::Stdout,
        2 => Channel::Stderr,
        _ => return None,
    };
    let length = (word & 0x00ff_ffff) as usize;
    if length > RECORD {
        return None;
    }
    Some((LogRecord { at_ms, channel, bytes: rest.get(..length)?.to_vec() }, HEADER + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_records_decode_to_the_same(at_ms: u64, bytes in proptest::collection::vec(any::<u8>(), 0..300), rest in proptest::collection::vec(any::<u8>(), 0..30)) {
            let mut out = Vec::new();
            encode(at_ms, Channel::Stderr, &bytes, &mut out);
            let length = out.len();
            prop_assert_eq!(decode(&out[..length - 1]), None);
            out.extend(rest);
            prop_assert_eq!(decode(&out), Some((LogRecord { at_ms, channel: Channel::Stderr, bytes }, length)));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
