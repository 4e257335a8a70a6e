//! What the engine tells as it goes: a container's log, and what happens to containers.

use crate::labels;
use bollard::container::LogOutput;
use bollard::models::EventMessage;
use bollard::query_parameters::{EventsOptionsBuilder, LogsOptionsBuilder};
use futures_util::{Stream, StreamExt};
use kennel_core::{LogChunk, LogOptions, printable};
use kennel_proto::Channel;
use kennel_types::{Event, EventKind};
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

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

/// What happens to this installation's containers from now on, whenever the stream is first read.
pub(crate) fn events(
    api: &bollard::Docker,
    installation: &str,
) -> impl Stream<Item = EngineResult<Event>> + Send + use<> {
    let label = format!("{}={installation}", labels::INSTALLATION);
    let kinds = ["create", "start", "die", "destroy"].map(ToOwned::to_owned).to_vec();
    let filters = HashMap::from([("type", vec!["container".into()]), ("label", vec![label]), ("event", kinds)]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
    let query = EventsOptionsBuilder::default().since(&since).filters(&filters).build();
    let installation = installation.to_owned();
    api.events(Some(query)).filter_map(move |message| {
        std::future::ready(match message {
            Ok(message) => event(message, &installation).map(Ok),
            Err(error) => Some(Err(error)),
        })
    })
}

fn event(message: EventMessage, installation: &str) -> Option<Event> {
    let kind = match message.action?.as_str() {
        "create" => EventKind::Created,
        "start" => EventKind::Started,
        "die" => EventKind::Stopped,
        "destroy" => EventKind::Removed,
        _ => return None,
    };
    let sandbox = labels::sandbox_of(&message.actor?.attributes?, installation)?;
    Some(Event { sandbox, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_our_containers_are_read_and_others_left() {
        let read = |action: &str, installation: &str| {
            let message = serde_json::json!({
                "Type": "container", "Action": action, "time": 1,
                "Actor": {"ID": "0123", "Attributes": {"kennel.id": "abc", "kennel.installation": installation}},
            });
            event(serde_json::from_value(message).unwrap(), "here").map(|event| event.kind)
        };
        assert_eq!(read("create", "here"), Some(EventKind::Created));
        assert_eq!(read("start", "here"), Some(EventKind::Started));
        assert_eq!(read("die", "here"), Some(EventKind::Stopped));
        assert_eq!(read("destroy", "here"), Some(EventKind::Removed));
        assert_eq!(read("exec_start: sh", "here"), None);
        assert_eq!(read("die", "there"), None);
    }
}
