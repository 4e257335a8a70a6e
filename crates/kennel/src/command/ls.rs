//! `kennel ls`.

use crate::output::{print, print_json, table};
use crate::report;
use crate::sandboxes::report_silent;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use kennel_client::Client;
use kennel_core::{Error, Result, printable};
use kennel_engine::{Engine, Filter};
use kennel_types::{ErrorCode, SandboxInfo, Status};
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  kennel ls
  kennel ls --all
  kennel ls --all --filter status=stopped --filter label=team=a
  kennel ls --watch
  kennel ls --format name,status         only these columns, separated by tabs, no header
  kennel ls --json | jq '.[].id'
  kennel rm $(kennel ls --all -q)";

/// List sandboxes
///
/// Lists the running sandboxes of all providers. Reports on standard error which providers cannot be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Also list sandboxes that are not running
    #[arg(short, long)]
    all: bool,
    /// Print only ids
    #[arg(short = 'q', long = "ids", conflicts_with = "json")]
    ids: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Print only these columns, separated by tabs
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with_all = ["json", "ids"])]
    format: Vec<Column>,
    /// List only sandboxes that match: status, provider, name, image, or label=KEY[=VALUE]
    #[arg(short, long = "filter", value_name = "KEY=VALUE")]
    filters: Vec<Filter>,
    /// Update the table whenever something changes
    #[arg(short, long, conflicts_with_all = ["ids", "json", "format"])]
    watch: bool,
}

/// A column of the table of sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Column {
    Id,
    Name,
    Provider,
    Status,
    ExitCode,
    Created,
    Image,
    Network,
    Ports,
    Workspace,
}

impl Column {
    /// Returns the text in this column for a sandbox. It may be empty.
    fn cell(self, sandbox: &SandboxInfo) -> String {
        match self {
            Self::Id => sandbox.id.to_string(),
            Self::Name => printable(&sandbox.name),
            Self::Provider => printable(&sandbox.provider),
            Self::Status => sandbox.status.to_string(),
            Self::ExitCode => sandbox.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            Self::Created => (sandbox.created_ms / 1000).to_string(),
            Self::Image => sandbox.image.as_deref().map(printable).unwrap_or_default(),
            Self::Network => sandbox.network.to_string(),
            Self::Ports => sandbox.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            Self::Workspace => {
                sandbox.workspace.as_ref().map(|dir| printable(&dir.to_string_lossy())).unwrap_or_default()
            }
        }
    }
}

impl Ls {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let shown = if self.watch { self.watch(engine).await } else { self.once(engine).await };
        shown.unwrap_or_else(|error| report::failed(&error))
    }

    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        self.once_at(client).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn once_at(&self, client: &Client) -> Result<u8> {
        if self.watch {
            return Err(Error::new(ErrorCode::Unsupported, "--watch does not work through a server"));
        }
        let page = client.sandboxes().await?;
        for silent in &page.silent {
            report::warning(&format!("cannot list the sandboxes of {}: {}", silent.provider, silent.message));
        }
        Ok(self.show(page.items.iter().map(crate::remote::info).collect::<Result<_>>()?))
    }

    async fn once(&self, engine: &Engine) -> Result<u8> {
        let listing = engine.list().await?;
        report_silent(&listing.silent);
        Ok(self.show(listing.found))
    }

    /// Prints the table again after each event. On a terminal, it replaces the previous table.
    async fn watch(&self, engine: &Engine) -> Result<u8> {
        const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";
        // Subscribe before listing, so that no event in between is missed.
        let mut streams = Vec::new();
        for provider in crate::sandboxes::responding(engine).await? {
            streams.push(provider.watch().await?);
        }
        let mut events = select_all(streams);
        loop {
            let found = engine.list().await?.found;
            if std::io::stdout().is_terminal() {
                print(HOME_AND_CLEAR.trim_end());
            }
            let printed = self.show(found);
            if printed != 0 {
                return Ok(printed);
            }
            match events.next().await {
                Some(event) => drop(event?),
                None => return Err(Error::new(ErrorCode::NotAvailable, "no provider reports events any more")),
            }
        }
    }

    fn show(&self, mut found: Vec<SandboxInfo>) -> u8 {
        let asked_for = self.filters.iter().any(|filter| matches!(filter, Filter::Status(_)));
        found.retain(|sandbox| self.all || asked_for || sandbox.status.is_up());
        found.retain(|sandbox| self.filters.iter().all(|filter| filter.fits(sandbox)));
        found.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then_with(|| a.id.cmp(&b.id)));
        if self.json {
            print_json(&found)
        } else if !self.format.is_empty() {
            let line = |sandbox: &SandboxInfo| {
                let cells: Vec<String> = self.format.iter().map(|column| column.cell(sandbox)).collect();
                cells.join("\t") + "\n"
            };
            let text: String = found.iter().map(line).collect();
            if text.is_empty() { 0 } else { print(&text) }
        } else if self.ids {
            let ids: Vec<&str> = found.iter().map(|sandbox| sandbox.id.as_str()).collect();
            if ids.is_empty() { 0 } else { print(&ids.join("\n")) }
        } else {
            print(&sandboxes_table(&found))
        }
    }
}

fn sandboxes_table(found: &[SandboxInfo]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let row = |sandbox: &SandboxInfo| {
        let status = match (sandbox.status, sandbox.exit_code) {
            (Status::Stopped, Some(code)) => format!("stopped ({code})"),
            (status, _) => status.to_string(),
        };
        [
            sandbox.id.to_string(),
            if sandbox.name == sandbox.id.as_str() { "-".to_owned() } else { printable(&sandbox.name) },
            printable(&sandbox.provider),
            status,
            ago(now.saturating_sub(Duration::from_millis(sandbox.created_ms))),
            sandbox.image.as_deref().map_or("-".to_owned(), printable),
        ]
    };
    table(["ID", "NAME", "PROVIDER", "STATUS", "CREATED", "IMAGE"], found.iter().map(row))
}

/// Returns how long ago something was, as text.
pub(super) fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_displayed_in_words() {
        assert_eq!(ago(Duration::from_secs(1)), "1 second ago");
        assert_eq!(ago(Duration::from_secs(119)), "1 minute ago");
        assert_eq!(ago(Duration::from_hours(2)), "2 hours ago");
        assert_eq!(ago(Duration::from_secs(200_000)), "2 days ago");
    }
}
