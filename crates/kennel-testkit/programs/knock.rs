//! A program for the inside of a sandbox. `knock PATH` sends its input to a Unix socket and prints what comes back.
//! `knock listen PATH` listens there and replies with garbage. It is compiled separately for the test image, without
//! any crate.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", path] => {
            for stream in UnixListener::bind(path)?.incoming() {
                // Either side may close the connection first.
                let _ = stream?.write_all(&[0xff; 4096]);
            }
            Ok(())
        }
        [path] => {
            let mut input = Vec::new();
            std::io::stdin().read_to_end(&mut input)?;
            let mut stream = UnixStream::connect(path)?;
            // The keeper may close the connection at once, which is also a result.
            let _ = stream.write_all(&input);
            let mut output = Vec::new();
            let _ = stream.read_to_end(&mut output);
            std::io::stdout().write_all(&output)
        }
        _ => Err(std::io::Error::other("use: knock PATH, or knock listen PATH")),
    }
}
