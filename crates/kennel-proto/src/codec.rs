//! Encodes and decodes frames. The decoder accepts bytes in arbitrary pieces and returns complete frames.

use crate::caps;
use crate::message::{Body, Channel, Frame};
use minicbor::{Decode, Encode};

/// Bytes of a frame header: payload length (24 bits), kind (8 bits), stream (32 bits), little endian.
pub const HEADER: usize = 8;
/// Bytes before the data in a data frame: the offset.
const OFFSET: usize = 8;

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const OPEN: u8 = 3;
    pub(super) const REPLY: u8 = 4;
    pub(super) const FAIL: u8 = 5;
    pub(super) const EXIT: u8 = 6;
    pub(super) const SIGNAL: u8 = 7;
    pub(super) const RESIZE: u8 = 8;
    pub(super) const CLOSE: u8 = 9;
    pub(super) const PING: u8 = 10;
    pub(super) const PONG: u8 = 11;
    /// The kind of a data frame, plus the number of the channel.
    pub(super) const DATA: u8 = 16;
    pub(super) const EOF: u8 = 20;
    pub(super) const CONSUMED: u8 = 24;
}

/// Bytes that are not a valid frame. The connection cannot be used any longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// An unknown kind.
    Kind(u8),
    /// A payload that is longer than its kind allows.
    TooLong {
        /// The kind.
        kind: u8,
        /// The length in the header.
        length: usize,
    },
    /// A payload that does not match its kind.
    Malformed(u8),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "frame of unknown kind {kind}"),
            Self::TooLong { kind, length } => write!(f, "frame of kind {kind} claims {length} bytes"),
            Self::Malformed(kind) => write!(f, "malformed frame of kind {kind}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Appends a frame to `out`. The payload must be within its cap; use [`try_encode`] if a caller decides its length.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let fits = try_encode(frame, out);
    debug_assert!(fits.is_ok(), "{fits:?}");
}

/// Appends a frame to `out`. If the payload exceeds its cap, `out` is unchanged and an error is returned.
pub fn try_encode(frame: &Frame, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let kind = match &frame.body {
        Body::Hello(message) => cbor(kind::HELLO, message, out),
        Body::Welcome(message) => cbor(kind::WELCOME, message, out),
        Body::Open(message) => cbor(kind::OPEN, &**message, out),
        Body::Reply(message) => cbor(kind::REPLY, message, out),
        Body::Fail(message) => cbor(kind::FAIL, message, out),
        Body::Exit(message) => cbor(kind::EXIT, message, out),
        Body::Resize(message) => cbor(kind::RESIZE, message, out),
        Body::Data { channel, offset, bytes } => {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(bytes);
            kind::DATA + *channel as u8
        }
        Body::Eof(channel) => kind::EOF + *channel as u8,
        Body::Consumed { channel, offset } => {
            out.extend_from_slice(&offset.to_le_bytes());
            kind::CONSUMED + *channel as u8
        }
        Body::Signal(signal) => {
            out.extend_from_slice(&signal.to_le_bytes());
            kind::SIGNAL
        }
        Body::Close => kind::CLOSE,
        Body::Ping => kind::PING,
        Body::Pong => kind::PONG,
    };
    let length = out.len() - start - HEADER;
    if length > cap(kind).unwrap_or(0) {
        out.truncate(start);
        return Err(DecodeError::TooLong { kind, length });
    }
    out[start..start + HEADER].copy_from_slice(&header(kind, frame.stream, length));
    Ok(())
}

/// Returns the header and offset of a data frame. The caller writes the data itself, which saves a copy.
pub fn encode_data_header(stream: u32, channel: Channel, offset: u64, length: usize) -> [u8; HEADER + OFFSET] {
    let mut out = [0; HEADER + OFFSET];
    out[..HEADER].copy_from_slice(&header(kind::DATA + channel as u8, stream, OFFSET + length));
    out[HEADER..].copy_from_slice(&offset.to_le_bytes());
    out
}

fn header(kind: u8, stream: u32, length: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..4].copy_from_slice(&(length as u32 | u32::from(kind) << 24).to_le_bytes());
    out[4..].copy_from_slice(&stream.to_le_bytes());
    out
}

fn cbor<T: Encode<()>>(kind: u8, message: &T, out: &mut Vec<u8>) -> u8 {
    minicbor::encode(message, out).expect("writing to a Vec cannot fail");
    kind
}

/// Returns the longest payload of a kind, or `None` for an unknown kind.
fn cap(kind: u8) -> Option<usize> {
    Some(match kind {
        kind::HELLO | kind::WELCOME => 4096,
        kind::OPEN | kind::REPLY => caps::CONTROL,
        kind::FAIL => 16 * 1024,
        kind::EXIT | kind::RESIZE => 64,
        kind::SIGNAL => 4,
        kind::CLOSE | kind::PING | kind::PONG => 0,
        _ if data_channel(kind, kind::DATA).is_some() => OFFSET + caps::DATA,
        _ if data_channel(kind, kind::EOF).is_some() => 0,
        _ if data_channel(kind, kind::CONSUMED).is_some() => OFFSET,
        _ => return None,
    })
}

fn data_channel(kind: u8, base: u8) -> Option<Channel> {
    match kind.checked_sub(base)? {
        0 => Some(Channel::Stdin),
        1 => Some(Channel::Stdout),
        2 => Some(Channel::Stderr),
        _ => None,
    }
}

/// Collects bytes and returns complete frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Everything before this position has been decoded.
    start: usize,
}

impl Decoder {
    /// Creates a decoder for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes. Add no more than a few frames between calls of [`Self::next_frame`].
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // A large control message is rare, so do not keep its memory for the life of the connection.
            if self.buffer.capacity() > 4 * caps::DATA {
                self.buffer = Vec::new();
            }
        } else if self.start > caps::DATA {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, if it is complete.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let pending = &self.buffer[self.start..];
        let Some((head, rest)) = pending.split_at_checked(HEADER) else { return Ok(None) };
        let word = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let stream = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let (length, kind) = ((word & 0x00ff_ffff) as usize, (word >> 24) as u8);
        let cap = cap(kind).ok_or(DecodeError::Kind(kind))?;
        if length > cap {
            return Err(DecodeError::TooLong { kind, length });
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let body = body(kind, payload).ok_or(DecodeError::Malformed(kind))?;
        self.start += HEADER + length;
        Ok(Some(Frame { stream, body }))
    }

    /// The number of bytes that are not part of a complete frame yet.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }
}

fn body(kind: u8, payload: &[u8]) -> Option<Body> {
    Some(match kind {
        kind::HELLO => Body::Hello(exact(payload)?),
        kind::WELCOME => Body::Welcome(exact(payload)?),
        kind::OPEN => Body::Open(Box::new(exact(payload)?)),
        kind::REPLY => Body::Reply(exact(payload)?),
        kind::FAIL => Body::Fail(exact(payload)?),
        kind::EXIT => Body::Exit(exact(payload)?),
        kind::RESIZE => Body::Resize(exact(payload)?),
        kind::SIGNAL => Body::Signal(i32::from_le_bytes(payload.try_into().ok()?)),
        kind::CLOSE => Body::Close,
        kind::PING => Body::Ping,
        kind::PONG => Body::Pong,
        _ => {
            if let Some(channel) = data_channel(kind, kind::DATA) {
                let (offset, bytes) = payload.split_at_checked(OFFSET)?;
                let offset = u64::from_le_bytes(offset.try_into().ok()?);
                // The offset of the end of the data must not overflow.
                offset.checked_add(bytes.len() as u64)?;
                Body::Data { channel, offset, bytes: bytes.to_vec() }
            } else if let Some(channel) = data_channel(kind, kind::EOF) {
                Body::Eof(channel)
            } else {
                let channel = data_channel(kind, kind::CONSUMED)?;
                Body::Consumed { channel, offset: u64::from_le_bytes(payload.try_into().ok()?) }
            }
        }
    })
}

/// Decodes a message that must fill the whole payload.
fn exact<'b, T: Decode<'b, ()>>(payload: &'b [u8]) -> Option<T> {
    let mut decoder = minicbor::Decoder::new(payload);
    let message = decoder.decode().ok()?;
    (decoder.position() == payload.len()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::*;
    use crate::{ListenAddress, Target};
    use proptest::prelude::*;

    fn round_trip(frame: &Frame) {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes);
        let mut decoder = Decoder::new();
        // In the smallest pieces there are.
        for byte in &bytes[..bytes.len() - 1] {
            decoder.feed(&[*byte]);
            assert_eq!(decoder.next_frame(), Ok(None));
        }
        decoder.feed(&bytes[bytes.len() - 1..]);
        assert_eq!(decoder.next_frame().as_ref(), Ok(&Some(frame.clone())));
        assert_eq!(decoder.pending(), 0);
    }

    #[test]
    fn encoded_frames_decode_to_the_same() {
        let spawn = Spawn {
            command: SpawnCommand::Argv(vec![b"ls".to_vec().into(), vec![0xff, 0xfe].into()]),
            env: vec![(b"A".to_vec().into(), b"b=c".to_vec().into())],
            cwd: Some(b"/tmp".to_vec().into()),
            user: Some("1000:1000".into()),
            stdin: true,
            tty: Some(Size { rows: 24, cols: 80 }),
            timeout_ms: Some(5),
            grace_ms: None,
            detached: false,
            last: false,
            stop_signal: Some(3),
            tag: Some("relay 7".into()),
            hold: true,
            linger_ms: Some(60_000),
        };
        let mut info = ProcessInfo {
            process: 3,
            tag: Some("relay 7".into()),
            started_ms: Some(1_700_000_000_000),
            exit: Some(ExitReport { signal: Some(9), ..ExitReport::default() }),
            stdout: Some(OutputOffsets { produced: 9, consumed: 4, kept: 5 }),
            stdin: Some(1),
            ..ProcessInfo::default()
        };
        info.set_argv([&b"sh"[..], b"-c"], 100);
        let bodies = [
            Body::Hello(Hello { generation: 1, token: Some(vec![1, 2].into()), owner: true }),
            Body::Welcome(Welcome { generation: 1, version: "x".into(), main: Some(7), features: Features::ALL }),
            Body::Open(Box::new(Request::Spawn(spawn))),
            Body::Open(Box::new(Request::Shutdown { grace_ms: 1 })),
            Body::Open(Box::new(Request::Symlink {
                path: b"/l".to_vec().into(),
                user: Some("7".into()),
                target: vec![b'.', 0xff].into(),
                replace: true,
            })),
            Body::Open(Box::new(Request::Chmod {
                path: b"/d".to_vec().into(),
                user: None,
                mode: 0o2755,
                follow: false,
            })),
            Body::Open(Box::new(Request::Connect { target: Target::Tcp { port: 65535 }, user: None })),
            Body::Open(Box::new(Request::Connect {
                target: Target::Unix { path: vec![b'/', 0xff].into() },
                user: Some("7".into()),
            })),
            Body::Open(Box::new(Request::Listen { address: ListenAddress::Tcp { port: 0 }, user: None })),
            Body::Open(Box::new(Request::Listen { address: ListenAddress::Udp { port: 53 }, user: None })),
            Body::Open(Box::new(Request::Listen {
                address: ListenAddress::Unix { path: b"/s".to_vec().into(), mode: 0o600 },
                user: Some("7".into()),
            })),
            Body::Open(Box::new(Request::Accept { connection: u64::MAX })),
            Body::Reply(Reply::Listening { port: 53, stdin_window: 3 }),
            Body::Open(Box::new(Request::Idle { reset: true })),
            Body::Open(Box::new(Request::Write {
                path: b"/f".to_vec().into(),
                user: None,
                mode: None,
                parents: false,
                sparse: None,
                offset: Some(7),
            })),
            Body::Open(Box::new(Request::List { path: b"/d".to_vec().into(), user: None, depth: Some(3) })),
            Body::Reply(Reply::Done(Outcome::Processes(vec![info]))),
            Body::Reply(Reply::Done(Outcome::Idle(IdleReport { in_use: false, idle_ms: 7 }))),
            Body::Reply(Reply::Ready { stdin_window: 3 }),
            Body::Fail(Failure::new(FailureKind::Refused, "no")),
            Body::Data { channel: Channel::Stderr, offset: 9, bytes: vec![1, 2, 3] },
            Body::Eof(Channel::Stdin),
            Body::Consumed { channel: Channel::Stdout, offset: u64::MAX },
            Body::Exit(ExitReport { code: Some(3), ..ExitReport::default() }),
            Body::Signal(-1),
            Body::Resize(Size { rows: 1, cols: 2 }),
            Body::Close,
            Body::Ping,
            Body::Pong,
        ];
        for (index, body) in bodies.into_iter().enumerate() {
            round_trip(&Frame { stream: index as u32, body });
        }
    }

    #[test]
    fn welcomes_with_and_without_features_are_understood() {
        /// The welcome of the first keepers, as the first hosts read it.
        #[derive(Debug, PartialEq, minicbor::Encode, minicbor::Decode)]
        struct First {
            #[n(0)]
            generation: u32,
            #[n(1)]
            version: String,
            #[n(2)]
            main: Option<u64>,
        }
        for main in [None, Some(7)] {
            let first = minicbor::to_vec(First { generation: 1, version: "x".into(), main }).unwrap();
            let read: Welcome = minicbor::decode(&first).unwrap();
            assert_eq!(read, Welcome { generation: 1, version: "x".into(), main, features: Features::default() });
            assert!(!read.features.contains(Features::SYMLINK) && !read.features.contains(Features::CHMOD));
            let now = minicbor::to_vec(Welcome { features: Features::ALL, ..read }).unwrap();
            assert_eq!(minicbor::decode::<First>(&now).unwrap(), First { generation: 1, version: "x".into(), main });
        }
        // A newer keeper has features that this host does not know.
        let newer: Features = minicbor::decode(&minicbor::to_vec(u64::MAX).unwrap()).unwrap();
        assert!(newer.contains(Features::ALL));
    }

    #[test]
    fn a_command_of_a_generation_1_host_is_understood() {
        /// The fields of the first hosts that have no default.
        #[derive(minicbor::Encode)]
        struct First {
            #[n(0)]
            command: SpawnCommand,
            #[n(1)]
            env: Vec<(minicbor::bytes::ByteVec, minicbor::bytes::ByteVec)>,
            #[n(4)]
            stdin: bool,
            #[n(8)]
            detached: bool,
            #[n(9)]
            last: bool,
        }
        let command = SpawnCommand::Argv(vec![b"ls".to_vec().into()]);
        let first = First { command, env: Vec::new(), stdin: false, detached: true, last: false };
        let read: Spawn = minicbor::decode(&minicbor::to_vec(first).unwrap()).unwrap();
        assert_eq!(read, Spawn::main(&["ls".into()]));
    }

    /// The list of commands fits into a message, however many there are and however long their fields are.
    #[test]
    fn the_longest_list_of_commands_fits() {
        let count = caps::PROCESSES + caps::ENDED;
        let longest = [0; 10_000];
        let mut info = ProcessInfo {
            process: u64::MAX,
            program: vec![0; 200].into(),
            tag: Some("t".repeat(caps::TAG)),
            started_ms: Some(u64::MAX),
            exit: Some(ExitReport { code: Some(-1000), signal: Some(1000), ..ExitReport::default() }),
            stdout: Some(OutputOffsets { produced: u64::MAX, consumed: u64::MAX, kept: u64::MAX }),
            stderr: Some(OutputOffsets { produced: u64::MAX, consumed: u64::MAX, kept: u64::MAX }),
            stdin: Some(u64::MAX),
            ..ProcessInfo::default()
        };
        let mut few = info.clone();
        info.set_argv([&longest[..]], ProcessInfo::longest_argv(count));
        assert!(info.argv_is_cut);
        let body = Body::Reply(Reply::Done(Outcome::Processes(vec![info; count])));
        assert_eq!(try_encode(&Frame { stream: 1, body }, &mut Vec::new()), Ok(()));

        few.set_argv([&b"ab"[..]; 10], 17);
        assert_eq!((few.argv.len(), few.argv_is_cut), (3, true), "{few:?}");
        few.argv = Vec::new();
        few.argv_is_cut = false;
        few.set_argv([&b"ab"[..]; 10], ProcessInfo::longest_argv(1));
        assert_eq!((few.argv.len(), few.argv_is_cut), (10, false));
    }

    #[test]
    fn a_claimed_length_allocates_no_memory() {
        for kind in 0..=255u8 {
            let mut decoder = Decoder::new();
            decoder.feed(&header(kind, 1, 0x00ff_ffff));
            assert!(decoder.next_frame().is_err(), "kind {kind}");
        }
    }

    #[test]
    fn data_headers_match_the_encoder() {
        let bytes = vec![5; 100];
        let mut whole = Vec::new();
        encode(
            &Frame { stream: 3, body: Body::Data { channel: Channel::Stdout, offset: 77, bytes: bytes.clone() } },
            &mut whole,
        );
        let mut parts = encode_data_header(3, Channel::Stdout, 77, bytes.len()).to_vec();
        parts.extend(bytes);
        assert_eq!(whole, parts);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..4096), cut in 1usize..64) {
            let mut decoder = Decoder::new();
            'feeding: for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                loop {
                    match decoder.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'feeding,
                    }
                }
            }
        }

        #[test]
        fn any_payload_of_a_known_kind_decodes_or_is_refused(kind in 1u8..28, payload in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut decoder = Decoder::new();
            decoder.feed(&header(kind, 1, payload.len()));
            decoder.feed(&payload);
            let _ = decoder.next_frame();
        }
    }
}
