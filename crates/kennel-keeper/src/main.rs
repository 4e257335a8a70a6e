//! The keeper program: process 1 of a container, or an ordinary process for `local`.

mod dial;

use kennel_keeper::sandbox_dir::{self, SandboxDir};
use kennel_keeper::{StartError, firewall, keep, sys};
use kennel_proto::KeeperConfig;
use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::process::ExitCode;

const USAGE: &str = "usage: kennel-keeper serve --socket PATH --config HEX
       kennel-keeper serve --dir DIR (instructions on standard input)
       kennel-keeper dial --socket PATH (in the sandbox of the keeper that listens there)
       kennel-keeper --version";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this program prints its version and its errors")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let prepared = match words[..] {
        ["--version"] => {
            println!("kennel-keeper {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        ["serve", "--socket", path, "--config", hex] => {
            parse_hex(hex).and_then(|bytes| config(&bytes)).and_then(|config| {
                if let Some(file) = &config.firewall {
                    firewall::put_up(file)?;
                }
                Ok((bind(path)?, config))
            })
        }
        ["serve", "--dir", dir] => return in_directory(dir),
        ["dial", "--socket", path] => return dial::dial(path),
        _ => Err(USAGE.into()),
    };
    match prepared {
        Ok((listener, config)) => ExitCode::from(keep(listener, config) as u8),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(125)
        }
    }
}

fn config(bytes: &[u8]) -> Result<KeeperConfig, StartError> {
    minicbor::decode(bytes).map_err(|error| format!("read the keeper's configuration: {error}").into())
}

/// Runs the keeper for a sandbox without an engine: an ordinary process that outlives its parent.
fn in_directory(dir: &str) -> ExitCode {
    let mut goes_on = false;
    let prepared = (|| {
        // Inherit nothing from the parent but the standard streams.
        sys::close_all_but(&[]);
        let mut config = config(&sandbox_dir::read_instructions()?)?;
        goes_on = config.host_fd.is_some();
        sandbox_dir::keep_host(&mut config)?;
        let sandbox_dir = SandboxDir::take(dir, &mut config)?;
        let _ = rustix::process::setsid();
        Ok((sandbox_dir, config))
    })();
    match prepared {
        Ok((sandbox_dir, mut config)) => {
            sandbox_dir::answer(Ok(()), goes_on);
            let SandboxDir { lock, listener, exit } = sandbox_dir;
            config.exit_fd = exit.map(IntoRawFd::into_raw_fd);
            let code = keep(listener, config);
            drop(lock);
            ExitCode::from(code as u8)
        }
        Err(error) => {
            let error: StartError = error;
            sandbox_dir::answer(Err(&error), goes_on);
            ExitCode::from(125)
        }
    }
}

/// Listens on a socket that everyone may connect to. Only the host user can access its directory.
fn bind(path: &str) -> Result<OwnedFd, StartError> {
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

fn parse_hex(text: &str) -> Result<Vec<u8>, StartError> {
    let digits: Vec<u8> = text
        .bytes()
        .map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()
        .ok_or("read the keeper's configuration: expected hexadecimal digits")?;
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
