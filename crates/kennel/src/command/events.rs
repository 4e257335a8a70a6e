//! `kennel events`.

use crate::clock::time_of_day;
use crate::output::{print, print_json_line};
use crate::report;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use kennel_core::{Error, Result, printable};
use kennel_engine::Engine;
use kennel_types::Event;

const EXAMPLES: &str = "\
Examples:
  kennel events
  kennel events --json | jq -r 'select(.event == \"stopped\").sandboxId'";

/// Show events of sandboxes as they happen
///
/// Prints one line per event until interrupted: created, started, paused, resumed, renamed, stopped, removed. For
/// `stopped`, the line says why. `missed` means that earlier events were lost: list the sandboxes again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Events {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.show(engine).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn show(&self, engine: &Engine) -> Result<u8> {
        let mut streams = Vec::new();
        for provider in crate::sandboxes::responding(engine).await? {
            streams.push(provider.watch().await?);
        }
        let mut events = select_all(streams);
        while let Some(event) = events.next().await {
            let event = event?;
            let printed = if self.json { print_json_line(&event) } else { print(&line(&event)) };
            if printed != 0 {
                return Ok(printed);
            }
        }
        Err(Error::new(kennel_types::ErrorCode::NotAvailable, "no provider reports events any more"))
    }
}

/// Returns an event as a line of text.
fn line(event: &Event) -> String {
    let sandbox = event.sandbox.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut more = Vec::new();
    more.extend(event.name.as_ref().map(|name| format!("new name {}", printable(name))));
    more.extend(event.cause.map(|cause| cause.words().to_owned()));
    more.extend(event.exit_code.map(|code| format!("exit code {code}")));
    let more = if more.is_empty() { String::new() } else { format!("  ({})", more.join(", ")) };
    let time = time_of_day(event.time_ms / 1000);
    let line = format!("{time}  {:<8} {:<8} {sandbox}{more}", event.kind.name(), event.provider);
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::{EndCause, EventKind, SandboxId};

    #[test]
    fn a_line_says_what_happened_and_why() {
        let event = Event {
            time_ms: 1000,
            provider: "native".into(),
            sandbox: SandboxId::new("box").ok(),
            kind: EventKind::Stopped,
            name: None,
            cause: Some(EndCause::Exited),
            exit_code: Some(3),
        };
        assert_eq!(line(&event), "00:00:01  stopped  native   box  (its main process ended, exit code 3)");
        let renamed =
            Event { kind: EventKind::Renamed, name: Some("x".into()), cause: None, exit_code: None, ..event.clone() };
        assert_eq!(line(&renamed), "00:00:01  renamed  native   box  (new name x)");
        let missed = Event { kind: EventKind::Missed, sandbox: None, name: None, ..renamed };
        assert_eq!(line(&missed), "00:00:01  missed   native");
    }
}
