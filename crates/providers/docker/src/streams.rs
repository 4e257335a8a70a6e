//! A container's log, as the engine keeps it.

use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptionsBuilder;
use futures_util::{Stream, StreamExt};
use kennel_core::{LogChunk, LogOptions, printable};
use kennel_proto::Channel;

type EngineResult<T> = Result<T, bollard::errors::Error>;

/// The log of a container. No container of ours has a terminal, so the engine keeps its two streams apart.
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

/// The last lines of a container's log, safe to show; empty if there are none or they cannot be read.
pub(crate) async fn last_lines(api: &bollard::Docker, container: &str, lines: usize) -> String {
    /// Lines may be as long as the inside likes.
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
