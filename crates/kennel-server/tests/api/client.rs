//! A small HTTP client that sends exactly what a test says.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request.
pub(crate) struct Call {
    head: String,
    has_host: bool,
    body: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the request was HEAD, whose response has no body.
    is_for_head: bool,
}

impl Call {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { head: format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n"), has_host: false, body: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.has_host |= name == "host";
        self.head.extend([name, ": ", value, "\r\n"]);
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").bytes(body.to_string().as_bytes())
    }

    pub(crate) fn bytes(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    pub(crate) async fn send(mut self, to: SocketAddr) -> Reply {
        if !self.has_host {
            self = self.header("host", &to.to_string());
        }
        let mut stream = TcpStream::connect(to).await.unwrap();
        let head = format!("{}content-length: {}\r\n\r\n", self.head, self.body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may respond before it has read everything.
        let _ = stream.write_all(&self.body).await;
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        Reply { is_for_head: self.head.starts_with("HEAD "), ..Reply::parse(&received) }
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").expect("a response has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).unwrap()
            })
            .collect();
        let rest = &bytes[end + 4..];
        let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if is_chunked { unchunked(rest) } else { rest.to_vec() };
        Self { status, headers, body, is_for_head: false }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It must have succeeded with this status; returns the body.
    #[track_caller]
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// It must have failed with this status and a complete error; returns its code.
    #[track_caller]
    pub(crate) fn fails(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.is_for_head {
            assert_eq!(self.body, b"", "a response to HEAD has no body");
            return if status == 404 { "not_found".into() } else { "permission_denied".into() };
        }
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        assert!(error["retryable"].is_boolean() && error["recoverable"].is_boolean(), "{body}");
        assert_eq!(error["requestId"].as_str(), self.header("x-request-id"), "{body}");
        error["code"].as_str().unwrap().to_owned()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|part| part == b"\r\n").expect("a chunk has a size");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}
