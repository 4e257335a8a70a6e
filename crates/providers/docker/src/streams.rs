//! Streamed replies of the engine: the log of a container, and lines of progress.

use crate::engine::Engine;
use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptionsBuilder;
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use kennel_core::{Error, LogChunk, LogOptions, Result, printable};
use kennel_proto::Channel;
use kennel_types::ErrorCode;

/// Bytes in the longest line of the engine.
const LINE: usize = 1024 * 1024;

type EngineResult<T> = Result<T, bollard::errors::Error>;

/// Handles the lines of a reply as they arrive, while `what` is done.
pub(crate) async fn each_line(
    engine: &Engine,
    what: &str,
    answer: hyper::Response<hyper::body::Incoming>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut body = answer.into_body();
    let mut said = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| engine.error(what, error.into()))?;
        said.extend(frame.into_data().unwrap_or_default());
        while let Some(end) = said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = said.drain(..=end).collect();
            take(&line)?;
        }
        if said.len() > LINE {
            return Err(Error::new(ErrorCode::Internal, format!("{what}: the engine sent a line that is too long")));
        }
    }
    take(&said)
}

/// The log of a container. No container of Kennel has a terminal, so the engine keeps its two streams apart.
pub(crate) fn log(
    api: &bollard::Docker,
    container: &str,
    options: LogOptions,
) -> impl Stream<Item = EngineResult<LogChunk>> + Send + use<> {
    let tail = options.tail.map_or_else(|| "all".to_owned(), |lines| lines.to_string());
    let query = LogsOptionsBuilder::default().stdout(true).stderr(true).follow(options.follow).tail(&tail).build();
    api.logs(container, Some(query)).map(|output| output.map(chunk))
}

fn chunk(output: LogOutput) -> LogChunk {
    let channel = if matches!(output, LogOutput::StdErr { .. }) { Channel::Stderr } else { Channel::Stdout };
    LogChunk { channel, bytes: output.into_bytes().into() }
}

/// The last lines of a container's log, escaped; empty if there are none or they cannot be read.
pub(crate) async fn last_lines(api: &bollard::Docker, container: &str, lines: usize) -> String {
    /// Lines may have any length.
    const CAP: usize = 256 * 1024;
    let mut bytes = Vec::new();
    let mut chunks = std::pin::pin!(log(api, container, LogOptions { tail: Some(lines), follow: false }));
    while let Some(Ok(chunk)) = chunks.next().await {
        bytes.extend(chunk.bytes);
        if bytes.len() > CAP {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}
