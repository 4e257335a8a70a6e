//! Binary messages: a piece of one channel, with its offset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes before the payload: the channel and the offset.
pub const HEADER: usize = 9;
/// The longest payload.
pub const PAYLOAD: usize = 64 * 1024;

/// A stream of bytes of a command. In binary messages it is one byte, in JSON its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamChannel {
    /// Standard input, from the client: 0.
    Stdin,
    /// Standard output, or the terminal: 1.
    Stdout,
    /// Standard error: 2.
    Stderr,
}

impl StreamChannel {
    /// The byte in a binary message.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The channel of a byte in a binary message.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Stdin),
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// A binary message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The channel.
    pub channel: StreamChannel,
    /// The number of bytes of this channel before the payload.
    pub offset: u64,
    /// The bytes.
    pub payload: &'a [u8],
}

/// A binary message that is not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It is shorter than the header.
    TooShort(usize),
    /// Its payload is longer than [`PAYLOAD`].
    TooLong(usize),
    /// It has no payload.
    Empty,
    /// No channel has this byte.
    Channel(u8),
    /// The payload would end after the greatest offset.
    Offset(u64),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooShort(length) => write!(f, "a binary message of {length} bytes: expected at least {HEADER}"),
            Self::TooLong(length) => write!(f, "a payload of {length} bytes: expected at most {PAYLOAD}"),
            Self::Empty => write!(f, "a binary message without a payload"),
            Self::Channel(byte) => write!(f, "channel {byte} does not exist: expected 0, 1 or 2"),
            Self::Offset(offset) => write!(f, "offset {offset} is too large"),
        }
    }
}

impl std::error::Error for FrameError {}

impl<'a> Frame<'a> {
    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.payload.len() as u64)
    }

    /// Encodes the message. The payload must not be longer than [`PAYLOAD`]; the receiver refuses it otherwise.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.push(self.channel.byte());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        bytes.extend_from_slice(self.payload);
        bytes
    }

    /// Decodes a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(FrameError::TooShort(bytes.len()));
        };
        let [channel, offset @ ..] = *header;
        let channel = StreamChannel::from_byte(channel).ok_or(FrameError::Channel(channel))?;
        let offset = u64::from_be_bytes(offset);
        if payload.is_empty() {
            return Err(FrameError::Empty);
        }
        if payload.len() > PAYLOAD {
            return Err(FrameError::TooLong(payload.len()));
        }
        if offset.checked_add(payload.len() as u64).is_none() {
            return Err(FrameError::Offset(offset));
        }
        Ok(Self { channel, offset, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn channel() -> impl Strategy<Value = StreamChannel> {
        prop_oneof![Just(StreamChannel::Stdin), Just(StreamChannel::Stdout), Just(StreamChannel::Stderr)]
    }

    proptest! {
        #[test]
        fn a_frame_is_decoded_as_it_was_encoded(
            channel in channel(),
            offset in 0..u64::MAX - PAYLOAD as u64,
            payload in prop::collection::vec(any::<u8>(), 1..2000),
        ) {
            let frame = Frame { channel, offset, payload: &payload };
            let encoded = frame.encode();
            prop_assert_eq!(Frame::decode(&encoded), Ok(frame));
            prop_assert_eq!(frame.end(), offset + payload.len() as u64);
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let frame = Frame { channel: StreamChannel::Stderr, offset: 0x0102, payload: b"hi" };
        assert_eq!(frame.encode(), [2, 0, 0, 0, 0, 0, 0, 1, 2, b'h', b'i']);
    }

    #[test]
    fn malformed_frames_are_refused_by_name() {
        let of = |length: usize| [&[1; 1][..], &[0; 8], &vec![7; length]].concat();
        assert_eq!(Frame::decode(&of(PAYLOAD)).unwrap().payload.len(), PAYLOAD);
        assert_eq!(Frame::decode(&of(PAYLOAD + 1)), Err(FrameError::TooLong(PAYLOAD + 1)));
        assert_eq!(Frame::decode(&of(0)), Err(FrameError::Empty));
        assert_eq!(Frame::decode(&[1; 8]), Err(FrameError::TooShort(8)));
        assert_eq!(Frame::decode(&[3; 20]), Err(FrameError::Channel(3)));
        let last = [&[0; 1][..], &[255; 8], &[7; 1]].concat();
        assert_eq!(Frame::decode(&last), Err(FrameError::Offset(u64::MAX)));
    }
}
