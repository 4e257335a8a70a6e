//! Servers and clients for the inside of a sandbox. It is compiled separately, without any crate.
//!
//! `sockets HOW tcp:PORT|tcp6:PORT|at:ADDRESS|unix:PATH [NUMBER]`. Servers say `ready` on their output: `echo` sends everything back;
//! `count` reads to the end, and sends the number of bytes; `pour` sends NUMBER bytes, closes that direction, and prints how
//! many bytes come afterwards; `http` and `websocket` answer requests. Clients: `send` sends its input, closes that direction,
//! and prints what comes back; `crowd` opens NUMBER connections, and prints the number of each that is closed; `ask` sends
//! a datagram until an answer comes, and prints it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// A connection of either family. Both have the same calls, so one type is enough.
struct Connection(UnixStream);

impl Connection {
    fn to(place: &str) -> io::Result<Self> {
        let fd: OwnedFd = match place.split_once(':').expect("a family and a place") {
            ("tcp", port) => TcpStream::connect(format!("127.0.0.1:{port}"))?.into(),
            ("tcp6", port) => TcpStream::connect(format!("[::1]:{port}"))?.into(),
            ("at", address) => TcpStream::connect(address)?.into(),
            (_, path) => UnixStream::connect(path)?.into(),
        };
        Ok(Self(fd.into()))
    }

    fn close_writing(&self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

fn serve(place: &str, answer: impl Fn(Connection) -> io::Result<()> + Clone + Send + 'static) -> io::Result<()> {
    let next: Box<dyn Fn() -> io::Result<OwnedFd>> = match place.split_once(':').expect("a family and a place") {
        ("tcp", port) => {
            let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
            Box::new(move || Ok(listener.accept()?.0.into()))
        }
        ("tcp6", port) => {
            let listener = TcpListener::bind(format!("[::1]:{port}"))?;
            Box::new(move || Ok(listener.accept()?.0.into()))
        }
        (_, path) => {
            let listener = UnixListener::bind(path)?;
            Box::new(move || Ok(listener.accept()?.0.into()))
        }
    };
    say("ready");
    loop {
        let connection = Connection(UnixStream::from(next()?));
        let answer = answer.clone();
        std::thread::spawn(move || answer(connection));
    }
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Reads to the end, and returns how many bytes came, and whether the end was a proper one.
fn drain(connection: &mut Connection) -> (u64, &'static str) {
    let mut buffer = vec![0; 256 * 1024];
    let mut total = 0;
    loop {
        match connection.0.read(&mut buffer) {
            Ok(0) => return (total, "end"),
            Ok(count) => total += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return (total, "reset"),
        }
    }
}

fn echo(mut connection: Connection) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match connection.0.read(&mut buffer)? {
            0 => return Ok(connection.close_writing()),
            count => connection.0.write_all(&buffer[..count])?,
        }
    }
}

fn count(mut connection: Connection) -> io::Result<()> {
    let (total, end) = drain(&mut connection);
    say(&format!("{total} {end}"));
    writeln!(connection.0, "{total}")
}

fn pour(mut connection: Connection, number: u64) -> io::Result<()> {
    let bytes = vec![b'x'; 256 * 1024];
    let mut left = number;
    while left > 0 {
        let piece = left.min(bytes.len() as u64) as usize;
        connection.0.write_all(&bytes[..piece])?;
        left -= piece as u64;
    }
    connection.close_writing();
    let (total, end) = drain(&mut connection);
    say(&format!("{total} {end}"));
    Ok(())
}

/// Reads the head of a request.
fn head(connection: &mut Connection) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        connection.0.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn http(mut connection: Connection) -> io::Result<()> {
    let head = head(&mut connection)?;
    let line = head.lines().next().unwrap_or_default();
    write!(connection.0, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{line}", line.len())
}

/// Answers the handshake, and sends every short text or binary message back.
fn websocket(mut connection: Connection) -> io::Result<()> {
    let head = head(&mut connection)?;
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim().to_owned())
    });
    let accept = base64(&sha1(format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.unwrap_or_default()).as_bytes()));
    write!(
        connection.0,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    )?;
    loop {
        let mut start = [0; 2];
        connection.0.read_exact(&mut start)?;
        let mut length = usize::from(start[1] & 0x7f);
        if length == 126 {
            let mut long = [0; 2];
            connection.0.read_exact(&mut long)?;
            length = usize::from(u16::from_be_bytes(long));
        }
        let mut mask = [0; 4];
        connection.0.read_exact(&mut mask)?;
        let mut bytes = vec![0; length];
        connection.0.read_exact(&mut bytes)?;
        bytes.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        let mut frame = vec![start[0]];
        if length < 126 {
            frame.push(length as u8);
        } else {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        frame.extend(bytes);
        connection.0.write_all(&frame)?;
        if start[0] & 0xf == 8 {
            return Ok(());
        }
    }
}

fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks(64) {
        let mut words = [0_u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks(4)) {
            *word = u32::from_be_bytes(bytes.try_into().unwrap());
        }
        for at in 16..80 {
            words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, word) in words.iter().enumerate() {
            let (f, k) = match at / 20 {
                0 => ((b & c) | (!b & d), 0x5a82_7999),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6_u32),
            };
            let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (sum, word) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(word);
        }
    }
    let mut hash = [0; 20];
    for (bytes, word) in hash.chunks_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * at) & 63) as usize] as char;
            text.push(if at <= three.len() { letter } else { '=' });
        }
    }
    text
}

fn send(place: &str) -> io::Result<()> {
    let mut connection = Connection::to(place)?;
    let mut writer = Connection(connection.0.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut writer.0);
        writer.close_writing();
    });
    io::copy(&mut connection.0, &mut io::stdout())?;
    Ok(())
}

fn crowd(place: &str, number: u64) -> io::Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut open = Vec::new();
    for at in 0..number {
        let connection = Connection::to(place)?;
        let mut reader = connection.0.try_clone()?;
        open.push(connection);
        let tell = tell.clone();
        std::thread::spawn(move || {
            let _ = reader.read(&mut [0]);
            let _ = tell.send(at);
        });
    }
    loop {
        say(&told.recv().expect("a closed connection").to_string());
    }
}

fn ask(port: &str) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(format!("127.0.0.1:{port}"))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    // A datagram that is too long must not arrive.
    socket.send(&[b'x'; 5000])?;
    let mut buffer = [0; 8192];
    loop {
        socket.send(b"question")?;
        if let Ok(count) = socket.recv(&mut buffer) {
            say(&String::from_utf8_lossy(&buffer[..count]));
            return Ok(());
        }
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["echo", place] => serve(place, echo),
        ["count", place] => serve(place, count),
        ["pour", place, number] => {
            let number = number.parse().expect("a number");
            serve(place, move |connection| pour(connection, number))
        }
        ["http", place] => serve(place, http),
        ["websocket", place] => serve(place, websocket),
        ["send", place] => send(place),
        ["crowd", place, number] => crowd(place, number.parse().expect("a number")),
        ["ask", port] => ask(port),
        _ => Err(io::Error::other("see the first lines of this program")),
    }
}
