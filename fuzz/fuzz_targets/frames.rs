//! Decodes arbitrary bytes in arbitrary chunks: the result is a frame or an error, never a panic, and never memory
//! above the caps.
//!
//! The first byte determines the chunks. A decoded frame, encoded again, must decode to the same frame.
#![no_main]

use kennel_proto::{Decoder, HEADER, caps, try_encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else { return };
    let mut decoder = Decoder::new();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        decoder.feed(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    let mut again = Vec::new();
                    try_encode(&frame, &mut again).expect("what was within the caps is within them again");
                    let mut second = Decoder::new();
                    second.feed(&again);
                    assert_eq!(second.next_frame().as_ref(), Ok(&Some(frame)));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(decoder.pending() <= HEADER + caps::CONTROL + piece.len());
    }
});
