//! The keeper as a program: process 1 of a sandbox that an engine makes, or an ordinary process for `local`.

use kennel_keeper::{keep, sys};
use kennel_proto::KeeperConfig;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::Read;
use std::process::ExitCode;

const USAGE: &str = "usage: kennel-keeper serve --socket PATH --config HEX
       kennel-keeper serve --listen-fd N --config-fd N
       kennel-keeper --version";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let prepared = match words[..] {
        ["--version"] => {
            println!("kennel-keeper {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        ["serve", "--socket", path, "--config", hex] => {
            parse_hex(hex).and_then(|bytes| config(&bytes)).and_then(|config| Ok((bind(path)?, config)))
        }
        ["serve", "--listen-fd", listener, "--config-fd", config] => inherited(listener, config),
        _ => Err(USAGE.to_owned()),
    };
    match prepared {
        Ok((listener, config)) => ExitCode::from(keep(listener, config) as u8),
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(125)
        }
    }
}

fn config(bytes: &[u8]) -> Result<KeeperConfig, String> {
    minicbor::decode(bytes).map_err(|error| format!("read the keeper's settings: {error}"))
}

fn inherited(listener: &str, settings: &str) -> Result<(OwnedFd, KeeperConfig), String> {
    let take = |number: &str| {
        let fd = number.parse().ok().and_then(sys::inherited);
        fd.ok_or_else(|| format!("descriptor {number} was not inherited"))
    };
    let (listener, settings) = (take(listener)?, take(settings)?);
    let mut bytes = Vec::new();
    std::fs::File::from(settings)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("read the keeper's settings: {error}"))?;
    Ok((listener, config(&bytes)?))
}

/// Listens at a path that anyone may connect to: the directory it is in is the host user's alone.
fn bind(path: &str) -> Result<OwnedFd, String> {
    let failed = |error: rustix::io::Errno| format!("listen at {path}: {error}");
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let _ = rustix::fs::unlink(path);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o666)).map_err(failed)?;
    rustix::net::listen(&socket, 128).map_err(failed)?;
    Ok(socket)
}

fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .bytes()
        .map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()
        .ok_or("the keeper's settings are not in hex")?;
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
