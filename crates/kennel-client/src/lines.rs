//! Responses that go on while something happens, as lines of JSON.

use crate::Client;
use crate::client::{empty, query};
use crate::error::{self, Received};
use crate::operations::of_sandbox;
use base64::Engine as _;
use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::Incoming;
use kennel_api::stream::{LogLine, StreamChannel};
use kennel_types::{Error, ErrorCode, Result};
use serde::de::DeserializeOwned;

/// The longest line.
const LONGEST: usize = 16 << 20;

/// The log of a sandbox's main process.
pub struct Lines(JsonLines);

/// A response of lines.
pub(crate) struct JsonLines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Client {
    /// Returns the log of a sandbox's main process: the last lines, or everything that is stored. With `follow`, it continues
    /// until the sandbox ends.
    pub async fn logs(&self, sandbox: &str, tail: Option<usize>, follow: bool) -> Result<Lines> {
        let parameters = [("tail", tail.map(|lines| lines.to_string())), ("follow", Some(follow.to_string()))];
        let path = of_sandbox(sandbox, &format!("/logs/follow{}", query(&parameters)));
        let body = self.send(Method::GET, &path, empty(), false).await?.into_body();
        Ok(Lines(JsonLines::new(body)))
    }
}

impl Lines {
    /// Returns the next piece of the log, or `None` at its end.
    pub async fn next(&mut self) -> Result<Option<(StreamChannel, Vec<u8>)>> {
        let Some(line) = self.0.next::<LogLine<Received>>().await? else {
            return Err(Error::new(ErrorCode::Aborted, "the log ended early: the connection broke"));
        };
        match line {
            LogLine::Output { channel, text: Some(text), .. } => Ok(Some((channel, text.into_bytes()))),
            LogLine::Output { channel, base64, .. } => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(base64.unwrap_or_default());
                let bytes = bytes.map_err(|error| Error::new(ErrorCode::Internal, format!("read the log: {error}")))?;
                Ok(Some((channel, bytes)))
            }
            LogLine::End => Ok(None),
            LogLine::Error { error } => Err(error.into_error()),
        }
    }
}

impl JsonLines {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, rest: Vec::new() }
    }

    /// Reads the next line, or `None` if the connection is closed.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        self.line().await?.map(|line| error::json(&line)).transpose()
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.rest.drain(..=end).collect()));
            }
            if self.rest.len() > LONGEST {
                return Err(Error::new(ErrorCode::Internal, "a line of the server is too long"));
            }
            match self.body.frame().await {
                Some(frame) => {
                    let frame = frame.map_err(|error| error::broken("read the response of the server", error))?;
                    self.rest.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
                }
                None => return Ok(None),
            }
        }
    }
}
