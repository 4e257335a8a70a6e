//! `kennel stats`.

use crate::completion::sandboxes;
use crate::output::{print, print_json_line};
use crate::report;
use comfy_table::{Table, presets};
use kennel_core::{Result, Sandbox, printable};
use kennel_engine::Engine;
use kennel_types::{ErrorCode, SandboxId, Stats as Use, Status, format_bytes};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  kennel stats
  kennel stats --no-stream box
  kennel stats --json box | jq .memoryBytes";

/// The time between two measurements. CPU usage is the difference between two, so the first one does not show it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time between the two measurements of `--no-stream`.
const FIRST_LOOKS: Duration = Duration::from_millis(250);

/// Show the resource usage of sandboxes
///
/// Prints a table of all running sandboxes, or of the given ones, and updates it every second. With --json, prints one
/// object per sandbox and second, each on its own line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stats {
    /// Ids or names of sandboxes [default: all that are running]
    #[arg(value_name = "ID", add = sandboxes())]
    ids: Vec<String>,
    /// Print once and exit
    #[arg(long)]
    no_stream: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The resource usage of a sandbox at one moment.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    sandbox_id: SandboxId,
    name: String,
    provider: String,
    /// CPU usage in percent of one CPU; 200 means two CPUs.
    cpu_percent: f64,
    #[serde(flatten)]
    stats: Use,
}

/// A watched sandbox, with its last measurement.
struct Watched {
    sandbox: Sandbox,
    before: Option<(Instant, u64)>,
}

impl Stats {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.show(engine).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn show(&self, engine: &Engine) -> Result<u8> {
        let mut watched = Vec::new();
        for name in &self.ids {
            watched.push(Watched { sandbox: crate::sandboxes::find(engine, name).await?, before: None });
        }
        look(&mut watched, !self.ids.is_empty()).await?;
        let mut pause = FIRST_LOOKS;
        loop {
            if self.ids.is_empty() {
                follow(engine, &mut watched).await?;
                look(&mut watched, false).await?;
            }
            #[expect(clippy::disallowed_methods, reason = "usage is measured over an interval")]
            tokio::time::sleep(pause).await;
            let rows = look(&mut watched, !self.ids.is_empty()).await?;
            let printed = if self.json { print_rows(&rows) } else { print(&self.screen(&rows)) };
            if printed != 0 || self.no_stream {
                return Ok(printed);
            }
            pause = LOOK_EVERY;
        }
    }

    /// Returns the table as text. On a terminal, it replaces the previous table.
    fn screen(&self, rows: &[Row]) -> String {
        const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";
        let renewed = !self.no_stream && std::io::stdout().is_terminal();
        format!("{}{}", if renewed { HOME_AND_CLEAR } else { "" }, table(rows))
    }
}

/// Updates the watched sandboxes to those that run now, and keeps their earlier measurements.
async fn follow(engine: &Engine, watched: &mut Vec<Watched>) -> Result<()> {
    let running = engine.list().await?.found;
    let running = running.into_iter().filter(|info| info.status == Status::Running);
    let mut before = std::mem::take(watched);
    for info in running {
        match before.iter().position(|known| *known.sandbox.id() == info.id) {
            Some(at) => watched.push(before.swap_remove(at)),
            // The sandbox may have ended meanwhile.
            None => match crate::sandboxes::find(engine, info.id.as_str()).await {
                Ok(sandbox) => watched.push(Watched { sandbox, before: None }),
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(())
}

/// Measures each sandbox. One that has ended meanwhile is left out, unless the user named it.
async fn look(watched: &mut [Watched], named: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for Watched { sandbox, before } in watched {
        let stats = match sandbox.stats().await {
            Ok(stats) => stats,
            Err(error) if !named && matches!(error.code(), ErrorCode::Stopped | ErrorCode::NotFound) => continue,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let cpu_percent = before.map_or(0.0, |(then, micros)| {
            let used = Duration::from_micros(stats.cpu_micros.saturating_sub(micros));
            100.0 * used.as_secs_f64() / now.duration_since(then).as_secs_f64()
        });
        *before = Some((now, stats.cpu_micros));
        let info = sandbox.info();
        rows.push(Row {
            sandbox_id: info.id.clone(),
            name: info.name.clone(),
            provider: info.provider.clone(),
            cpu_percent: (cpu_percent * 10.0).round() / 10.0,
            stats,
        });
    }
    Ok(rows)
}

fn print_rows(rows: &[Row]) -> u8 {
    for row in rows {
        match print_json_line(row) {
            0 => {}
            failed => return failed,
        }
    }
    0
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["ID", "NAME", "CPU", "MEMORY", "LIMIT", "PROCESSES", "READ", "WRITTEN", "OOM"]);
    let bytes = |count: Option<u64>| count.map_or("-".to_owned(), format_bytes);
    for row in rows {
        let stats = &row.stats;
        table.add_row([
            row.sandbox_id.to_string(),
            if row.name == row.sandbox_id.as_str() { "-".to_owned() } else { printable(&row.name) },
            format!("{:.1} %", row.cpu_percent),
            format_bytes(stats.memory_bytes),
            bytes(stats.memory_limit_bytes),
            stats.pids.to_string(),
            bytes(stats.read_bytes),
            bytes(stats.written_bytes),
            stats.oom_kills.map_or("-".to_owned(), |count| count.to_string()),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.trim_fmt()
}
