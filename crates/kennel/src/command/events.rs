//! `kennel events`.

use crate::output::{print, print_json_line};
use crate::providers::Providers;
use crate::report;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use kennel_core::{Error, Result};
use kennel_types::{EventKind, SandboxId};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  kennel events
  kennel events --json | jq -r 'select(.event == \"stopped\").sandboxId'";

/// Show events of sandboxes as they happen
///
/// Prints one line per event until interrupted. `missed` means that earlier events were lost: list the sandboxes again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    time_ms: u64,
    provider: &'a str,
    sandbox_id: &'a SandboxId,
    event: EventKind,
}

impl Events {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        self.show(providers).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn show(&self, providers: &Providers) -> Result<u8> {
        let mut streams = Vec::new();
        for provider in providers.all_that_answer().await? {
            let name = provider.name();
            streams.push(provider.watch().await?.map(move |event| event.map(|event| (name, event))));
        }
        let mut events = select_all(streams);
        while let Some(event) = events.next().await {
            let (provider, event) = event?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let line =
                Line { time_ms: now.as_millis() as u64, provider, sandbox_id: &event.sandbox, event: event.kind };
            let text =
                serde_json::to_value(&line).map_err(|error| Error::io("write JSON", std::io::Error::other(error)))?;
            let printed = if self.json {
                print_json_line(&text)
            } else {
                let kind = text["event"].as_str().unwrap_or_default().to_owned();
                print(&format!("{}  {:<8} {provider:<8} {}", clock(now.as_secs()), kind, event.sandbox))
            };
            if printed != 0 {
                return Ok(printed);
            }
        }
        Err(Error::new(kennel_types::ErrorCode::NotAvailable, "no provider reports events any more"))
    }
}

/// The time of day, in UTC: what people compare lines by.
fn clock(seconds: u64) -> String {
    let day = seconds % 86400;
    format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_time_of_day() {
        assert_eq!(super::clock(86400 * 3 + 3600 * 23 + 59 * 60 + 7), "23:59:07");
    }
}
