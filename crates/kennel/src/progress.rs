//! Shows progress on standard error while an operation takes long. Shows nothing if standard error is not a terminal,
//! or with `--quiet`.

use crate::report::{self, is_watched};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kennel_core::{Provider, PullProgress, Result, printable};
use kennel_types::Pull;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long an operation takes before its progress is shown.
const LONG: Duration = Duration::from_secs(1);
/// How often the progress is updated.
const TICK: Duration = Duration::from_millis(100);

/// The layout of a line that says what is being done.
const LINE: &str = "{spinner} {msg} ({elapsed})";

/// The longest text that such a line shows. A line that wraps cannot be updated in place.
const LONGEST: usize = 60;

/// Waits for `work`, and shows `what` if it takes long.
pub(crate) async fn while_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    if is_watched() { Bars::new(what.to_owned()).wait(work).await } else { work.await }
}

struct Cleared<'a>(&'a ProgressBar);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Pulls an image, with a progress bar for each of its layers.
pub(crate) async fn pull(provider: &dyn Provider, image: &str, when: Pull) -> Result<()> {
    let bars = Bars::new(format!("pulling {image}"));
    provider.pull(image, when, &|progress| bars.show(progress)).await
}

/// The progress of an operation: bars for its parts, and a line with what it does. They are removed when this is dropped.
pub(crate) struct Bars {
    all: MultiProgress,
    parts: Mutex<HashMap<String, ProgressBar>>,
    line: ProgressBar,
    title: String,
    watched: bool,
}

impl Drop for Bars {
    fn drop(&mut self) {
        let _ = self.all.clear();
    }
}

impl Bars {
    pub(crate) fn new(title: String) -> Self {
        let all = MultiProgress::new();
        let line = ProgressBar::hidden().with_style(style(LINE)).with_message(printable(&title));
        Self { all, parts: Mutex::default(), line, title, watched: is_watched() }
    }

    /// Waits for `work`, and shows the title if it takes long.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        if !self.watched {
            return work.await;
        }
        tokio::pin!(work);
        if let Ok(done) = tokio::time::timeout(LONG, &mut work).await {
            return done;
        }
        let line = self.all.add(self.line.clone());
        line.enable_steady_tick(TICK);
        // The line is also removed if this future is dropped.
        let _cleared = Cleared(&line);
        work.await
    }

    /// Adds to the title what the operation does right now. The text may come from a sandbox.
    pub(crate) fn doing(&self, text: &str) {
        let text: String = printable(text).chars().take(LONGEST).collect();
        self.line.set_message(format!("{}: {text}", printable(&self.title)));
    }

    /// Shows the progress of an image in Kennel's own store.
    pub(crate) fn show_image(&self, kennel_image::Progress { part, doing, bytes }: kennel_image::Progress) {
        self.show(PullProgress { part, doing: doing.to_string(), bytes });
    }

    pub(crate) fn show(&self, PullProgress { part, doing, bytes }: PullProgress) {
        if !self.watched {
            return;
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.is_empty() {
            report::note(&self.title);
        }
        let bar = parts.entry(part).or_insert_with_key(|part| {
            let style = style("  {prefix:.bold} {bar:24} {bytes:>10} {msg}");
            self.all.add(ProgressBar::new(1).with_style(style).with_prefix(printable(part)))
        });
        if let Some((done, of)) = bytes {
            bar.set_length(of.max(1));
            bar.set_position(done);
        }
        bar.set_message(printable(&doing));
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
