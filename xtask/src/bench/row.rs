//! A row of the table: what was measured, what it is compared with, and whether a promise about it holds.

use super::sample::Samples;
use anyhow::Result;
use serde::Serialize;
use std::fmt;

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    what: String,
    ours: Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Baseline>,
    /// Kennel's value divided by the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// The promise as text; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
struct Baseline {
    name: String,
    figure: Figure,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Figure {
    Time { p50_ms: f64, mean_ms: f64, p95_ms: f64, samples: usize },
    Size { bytes: u64 },
    Count { count: u64 },
}

impl From<&Samples> for Figure {
    fn from(samples: &Samples) -> Self {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        Self::Time {
            p50_ms: round(samples.p50()),
            mean_ms: round(samples.mean()),
            p95_ms: round(samples.p95()),
            samples: samples.count(),
        }
    }
}

impl Figure {
    /// Returns the value that a promise is checked against.
    fn value(&self) -> f64 {
        match self {
            Self::Time { p50_ms, .. } => *p50_ms,
            Self::Size { bytes } => *bytes as f64,
            Self::Count { count } => *count as f64,
        }
    }
}

impl Row {
    /// Creates a row with Kennel's times and those of another program.
    pub(super) fn times(what: &str, ours: &Samples, baseline: &str, theirs: &Samples) -> Self {
        let baseline = Baseline { name: baseline.to_owned(), figure: theirs.into() };
        let ours = Figure::from(ours);
        let ratio = Some(ours.value() / baseline.figure.value());
        Self { what: what.to_owned(), ours, baseline: Some(baseline), ratio, target: None, kept: None }
    }

    /// Creates a row that compares the slow ones of some samples with their median.
    pub(super) fn spread(what: &str, samples: &Samples) -> Self {
        let baseline = Baseline { name: "p50".to_owned(), figure: samples.into() };
        let ratio = Some(samples.p95() / samples.p50());
        Self { baseline: Some(baseline), ratio, ..Self::alone(what, samples.into()) }
    }

    /// Creates a row with a number of bytes.
    pub(super) fn size(what: &str, bytes: u64) -> Self {
        Self::alone(what, Figure::Size { bytes })
    }

    /// Creates a row with a number of events.
    pub(super) fn count(what: &str, count: u64) -> Self {
        Self::alone(what, Figure::Count { count })
    }

    fn alone(what: &str, ours: Figure) -> Self {
        Self { what: what.to_owned(), ours, baseline: None, ratio: None, target: None, kept: None }
    }

    /// Adds the promise of at most this multiple of the other's time.
    pub(super) fn at_most(self, times: f64) -> Self {
        let kept = self.ratio.is_some_and(|ratio| ratio <= times);
        self.promise(format!("at most {times:.1} x"), kept)
    }

    /// Adds the promise of at most the other's time divided by `parts`.
    pub(super) fn at_most_one_in(self, parts: f64) -> Self {
        let kept = self.ratio.is_some_and(|ratio| ratio <= 1.0 / parts);
        self.promise(format!("at most 1/{parts}"), kept)
    }

    /// Adds the promise of at most this many milliseconds more than the other's time.
    pub(super) fn at_most_more(self, milliseconds: f64) -> Self {
        let theirs = self.baseline.as_ref().map_or(0.0, |baseline| baseline.figure.value());
        let kept = self.ours.value() <= theirs + milliseconds;
        self.promise(format!("at most {milliseconds} ms more"), kept)
    }

    /// Adds the promise of at least the other's speed divided by `parts`.
    pub(super) fn at_least_one_in(self, parts: f64) -> Self {
        let kept = self.ratio.is_some_and(|ratio| ratio <= parts);
        self.promise(format!("at least 1/{parts} of its speed"), kept)
    }

    /// Adds the promise of at most this many bytes.
    pub(super) fn at_most_bytes(self, bytes: u64) -> Self {
        let kept = self.ours.value() <= bytes as f64;
        self.promise(format!("at most {}", Figure::Size { bytes }), kept)
    }

    /// Adds the promise of at most this many events.
    pub(super) fn at_most_count(self, count: u64) -> Self {
        let kept = self.ours.value() <= count as f64;
        self.promise(format!("at most {count}"), kept)
    }

    fn promise(self, target: String, kept: bool) -> Self {
        Self { target: Some(target), kept: Some(kept), ..self }
    }

    /// Whether the row has a promise that does not hold.
    pub(super) fn is_broken(&self) -> bool {
        self.kept == Some(false)
    }

    fn cells(&self) -> [String; 7] {
        let baseline = self.baseline.as_ref();
        [
            self.what.clone(),
            self.ours.to_string(),
            baseline.map_or_else(String::new, |baseline| baseline.name.clone()),
            baseline.map_or_else(String::new, |baseline| baseline.figure.to_string()),
            self.ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
            self.target.clone().unwrap_or_default(),
            self.kept.map_or("", |kept| if kept { "yes" } else { "NO" }).to_owned(),
        ]
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [what, ours, name, theirs, _, target, _] = self.cells();
        write!(f, "{what}: {ours}")?;
        if !name.is_empty() {
            write!(f, ", compared with {name}: {theirs}")?;
        }
        if target.is_empty() { Ok(()) } else { write!(f, "; promised: {target}") }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time { p50_ms, mean_ms, p95_ms, .. } => write!(f, "{p50_ms:.2} ms ({mean_ms:.2}, {p95_ms:.2})"),
            Self::Count { count } => write!(f, "{count}"),
            Self::Size { bytes } if *bytes < 1_000_000 => write!(f, "{:.0} kB", *bytes as f64 / 1e3),
            Self::Size { bytes } => write!(f, "{:.2} MB", *bytes as f64 / 1e6),
        }
    }
}

/// Prints the rows as one JSON object.
pub(super) fn print_json(rows: &[Row]) -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = load();
    let object = serde_json::json!({ "machine": { "kernel": release, "cpus": cpus, "load": load }, "rows": rows });
    println!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

/// Prints the rows as a Markdown table.
pub(super) fn print_table(rows: &[Row]) {
    let heading =
        ["what", "ours: p50 (mean, p95)", "compared with", "theirs: p50 (mean, p95)", "ratio", "promise", "kept"];
    let mut lines = vec![heading.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let rule = widths.map(|width| "-".repeat(width));
    lines.insert(1, rule);
    for line in lines {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("| {} |", cells.join(" | "));
    }
    println!("\nload of the machine: {:.1}", load());
}

/// Returns the load average of the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_compared_with_results() {
        assert!(!Row::size("x", 5).is_broken());
        assert!(!Row::size("x", 5).at_most_bytes(5).is_broken());
        assert!(Row::size("x", 6).at_most_bytes(5).is_broken());
        let compared = |ours, theirs| Row {
            ratio: Some(ours / theirs),
            ours: Figure::Time { p50_ms: ours, mean_ms: ours, p95_ms: ours, samples: 1 },
            baseline: Some(Baseline {
                name: String::new(),
                figure: Figure::Time { p50_ms: theirs, mean_ms: theirs, p95_ms: theirs, samples: 1 },
            }),
            ..Row::size("x", 0)
        };
        assert!(!compared(3.0, 3.0).at_most(1.0).is_broken());
        assert!(compared(3.1, 3.0).at_most(1.0).is_broken());
        assert!(!compared(3.0, 90.0).at_most_one_in(30.0).is_broken());
        assert!(compared(3.1, 90.0).at_most_one_in(30.0).is_broken());
        assert!(!compared(1.9, 1.0).at_most_more(1.0).is_broken());
        assert!(compared(2.1, 1.0).at_most_more(1.0).is_broken());
        assert!(!compared(3.0, 1.0).at_least_one_in(3.0).is_broken());
        assert!(compared(3.1, 1.0).at_least_one_in(3.0).is_broken());
    }
}
