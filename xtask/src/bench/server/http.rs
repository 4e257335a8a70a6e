//! The least of HTTP and WebSocket that a client needs to load the server. A client library would be measured too.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection that is used for one request after another.
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    pub(super) fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request, and reads the whole response, which must have this status.
    pub(super) fn call(&mut self, method: &str, path: &str, body: &str, status: u16) -> Result<()> {
        let length = body.len();
        let head = "host: localhost\r\ncontent-type: application/json\r\n";
        let request = format!("{method} {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (found, length) = self.head()?;
        let mut response = vec![0; length];
        self.stream.read_exact(&mut response)?;
        if found != status {
            bail!("{method} {path} returned {found}: {}", String::from_utf8_lossy(&response));
        }
        Ok(())
    }

    /// Reads the header of a response. Returns its status and the length of the body.
    fn head(&mut self) -> Result<(u16, usize)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).context("the server closed the connection")?.parse()?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { return Ok((status, length)) };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
    }
}

/// A terminal over a WebSocket, in which `cat` runs.
pub(super) struct Terminal {
    connection: Connection,
    sent: u64,
}

impl Terminal {
    pub(super) fn open(socket: &Path, sandbox: &str) -> Result<Self> {
        let mut connection = Connection::open(socket)?;
        let head = "host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                    sec-websocket-key: a2VubmVsIGJlbmNobWFyaw==\r\nsec-websocket-protocol: kennel.v1\r\n";
        let request = format!("GET /v1/sandboxes/{sandbox}/stream HTTP/1.1\r\n{head}\r\n");
        connection.stream.get_mut().write_all(request.as_bytes())?;
        let (status, _) = connection.head()?;
        if status != 101 {
            bail!("a WebSocket was refused with status {status}");
        }
        let mut terminal = Self { connection, sent: 0 };
        let start = json!({"type": "start", "argv": ["cat"], "tty": {"rows": 24, "cols": 80}, "endOnClose": true});
        terminal.send(TEXT, start.to_string().as_bytes())?;
        let said = terminal.receive()?;
        if !String::from_utf8_lossy(&said).contains("\"started\"") {
            bail!("a terminal was not started: {}", String::from_utf8_lossy(&said));
        }
        Ok(terminal)
    }

    /// Sends a line, and waits until the terminal has printed it.
    pub(super) fn echo(&mut self, line: &str) -> Result<()> {
        let mut frame = vec![0];
        frame.extend(self.sent.to_be_bytes());
        frame.extend(line.bytes().chain([b'\n']));
        self.sent += line.len() as u64 + 1;
        self.send(BINARY, &frame)?;
        loop {
            let received = self.receive()?;
            let text = String::from_utf8_lossy(&received);
            if text.contains(line) {
                return Ok(());
            }
            if text.contains("\"error\"") || text.contains("\"exit\"") {
                bail!("a terminal ended: {text}");
            }
        }
    }

    /// Sends a message. The mask, which clients must send, is zero.
    fn send(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let length = u16::try_from(payload.len())?;
        let mut frame = vec![0x80 | kind];
        match u8::try_from(length) {
            Ok(short) if short < 126 => frame.push(0x80 | short),
            _ => {
                frame.push(0x80 | 0x7e);
                frame.extend(length.to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(payload);
        Ok(self.connection.stream.get_mut().write_all(&frame)?)
    }

    /// Receives a message.
    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut head = [0; 2];
        self.connection.stream.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.connection.stream.read_exact(&mut length)?;
                usize::from(u16::from_be_bytes(length))
            }
            length if length < 126 => usize::from(length),
            _ => bail!("a message of the server is too long"),
        };
        let mut payload = vec![0; length];
        self.connection.stream.read_exact(&mut payload)?;
        Ok(payload)
    }
}

const TEXT: u8 = 1;
const BINARY: u8 = 2;
