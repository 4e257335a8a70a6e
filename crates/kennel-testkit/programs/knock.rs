//! A program for the inside of a sandbox: `knock PATH` sends its input to a unix socket and prints what comes back;
//! `knock listen PATH` answers there with garbage. Compiled for the test image by itself, without any crate.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", path] => {
            for stream in UnixListener::bind(path)?.incoming() {
                // Whoever hangs up first is none of its business.
                let _ = stream?.write_all(&[0xff; 4096]);
            }
            Ok(())
        }
        [path] => {
            let mut input = Vec::new();
            std::io::stdin().read_to_end(&mut input)?;
            let mut stream = UnixStream::connect(path)?;
            // The keeper may hang up at once: that is an answer too.
            let _ = stream.write_all(&input);
            let mut output = Vec::new();
            let _ = stream.read_to_end(&mut output);
            std::io::stdout().write_all(&output)
        }
        _ => Err(std::io::Error::other("use: knock PATH, or knock listen PATH")),
    }
}
