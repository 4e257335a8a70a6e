//! `kennel ls`.

use crate::output::{print, print_json};
use crate::providers::{Providers, report_silent};
use crate::report;
use comfy_table::{Table, presets};
use kennel_core::printable;
use kennel_types::{SandboxInfo, Status};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  kennel ls
  kennel ls --all
  kennel ls --json | jq '.[].id'
  kennel rm $(kennel ls --all -q)";

/// List sandboxes
///
/// Those that run, of every provider. A provider that cannot be asked is named on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Also those that do not run
    #[arg(short, long)]
    all: bool,
    /// Ids only
    #[arg(short = 'q', long = "ids", conflicts_with = "json")]
    ids: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let listing = match providers.list().await {
            Ok(listing) => listing,
            Err(error) => return report::failed(&error),
        };
        report_silent(&listing.silent);
        let mut found = listing.found;
        found.retain(|sandbox| self.all || sandbox.status == Status::Running);
        found.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then_with(|| a.id.cmp(&b.id)));
        if self.json {
            print_json(&found)
        } else if self.ids {
            let ids: Vec<&str> = found.iter().map(|sandbox| sandbox.id.as_str()).collect();
            if ids.is_empty() { 0 } else { print(&ids.join("\n")) }
        } else {
            print(&table(&found))
        }
    }
}

fn table(found: &[SandboxInfo]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["ID", "NAME", "PROVIDER", "STATUS", "CREATED", "IMAGE"]);
    for sandbox in found {
        let status = match (sandbox.status, sandbox.exit_code) {
            (Status::Stopped, Some(code)) => format!("stopped ({code})"),
            (status, _) => status.to_string(),
        };
        table.add_row([
            sandbox.id.to_string(),
            if sandbox.name == sandbox.id.as_str() { "-".to_owned() } else { printable(&sandbox.name) },
            printable(&sandbox.provider),
            status,
            ago(now.saturating_sub(Duration::from_millis(sandbox.created_ms))),
            sandbox.image.as_deref().map_or("-".to_owned(), printable),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.trim_fmt()
}

/// A time for people.
fn ago(time: Duration) -> String {
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
    fn times_for_people() {
        assert_eq!(ago(Duration::from_secs(1)), "1 second ago");
        assert_eq!(ago(Duration::from_secs(119)), "1 minute ago");
        assert_eq!(ago(Duration::from_hours(2)), "2 hours ago");
        assert_eq!(ago(Duration::from_secs(200_000)), "2 days ago");
    }
}
