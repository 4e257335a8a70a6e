//! Shows what an agent reports: as text that people can read, or as JSON lines. Text of the agent is escaped.

use crate::output::Stream;
use kennel_acp::{Decision, Permission};
use kennel_core::{Error, Result, printable, printable_json};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lines of a tool's output, and of a change, that are shown.
const LINES: usize = 20;

/// Shows what an agent reports.
pub(super) struct Printer {
    json: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the last line is not complete.
    in_line: bool,
    /// The tool calls whose title was printed, by their id.
    announced: BTreeSet<String>,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json, state: Mutex::default() }
    }

    /// Shows a report of the agent.
    pub(super) async fn update(&self, update: Value) -> Result<()> {
        if self.json {
            return write(json_line(&json!({ "type": "update", "update": update }))).await;
        }
        let text = self.text(&update);
        self.print(&text).await
    }

    /// Shows a decision.
    pub(super) async fn permission(&self, permission: &Permission, decision: Decision) -> Result<()> {
        let Permission { title, kind } = permission;
        if self.json {
            let object = json!({ "type": "permission", "title": title, "kind": kind, "decision": decision });
            return write(json_line(&object)).await;
        }
        let word = if decision == Decision::Allow { "allowed" } else { "denied" };
        self.end_line().await?;
        self.print(&format!("  {word}: {} ({})\n", printable(title), printable(kind))).await
    }

    /// Begins a new line, unless there is one.
    pub(super) async fn end_line(&self) -> Result<()> {
        if self.json || !std::mem::take(&mut self.state().in_line) { Ok(()) } else { write("\n".to_owned()).await }
    }

    /// Completes the last line.
    pub(super) async fn finish(&self) -> Result<()> {
        self.end_line().await
    }

    async fn print(&self, text: &str) -> Result<()> {
        if text.is_empty() { Ok(()) } else { write(text.to_owned()).await }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is printed for a report. Reports that are of no interest to a person give nothing.
    fn text(&self, update: &Value) -> String {
        let mut state = self.state();
        let word = |key: &str| update[key].as_str().unwrap_or_default();
        match word("sessionUpdate") {
            "agent_message_chunk" => {
                let text = escaped(update["content"]["text"].as_str().unwrap_or_default());
                if !text.is_empty() {
                    state.in_line = !text.ends_with('\n');
                }
                text
            }
            "plan" => {
                let mut text = state.new_line();
                text.push_str("plan:\n");
                for entry in update["entries"].as_array().into_iter().flatten() {
                    let mark = match entry["status"].as_str() {
                        Some("completed") => "x",
                        Some("in_progress") => ">",
                        _ => " ",
                    };
                    let what = printable(entry["content"].as_str().unwrap_or_default());
                    let _ = writeln!(text, "  [{mark}] {what}"); // a String takes everything
                }
                text
            }
            "tool_call" | "tool_call_update" => {
                let mut text = state.new_line();
                let (id, title) = (word("toolCallId").to_owned(), word("title"));
                if !title.is_empty() && state.announced.insert(id) {
                    let _ = writeln!(text, "* {}", printable(title));
                }
                let status = word("status");
                if matches!(status, "completed" | "failed") {
                    if status == "failed" {
                        text.push_str("  failed\n");
                    }
                    for content in update["content"].as_array().into_iter().flatten() {
                        push_content(&mut text, content);
                    }
                }
                text
            }
            _ => String::new(),
        }
    }
}

impl State {
    /// Returns what completes the last line.
    fn new_line(&mut self) -> String {
        if std::mem::take(&mut self.in_line) { "\n".to_owned() } else { String::new() }
    }
}

/// Adds the output or the change of a tool call.
fn push_content(text: &mut String, content: &Value) {
    match content["type"].as_str() {
        Some("content") => push_lines(text, "  | ", content["content"]["text"].as_str().unwrap_or_default().lines()),
        Some("diff") => {
            let _ = writeln!(text, "  {}", printable(content["path"].as_str().unwrap_or_default()));
            let lines = |key: &str| content[key].as_str().unwrap_or_default().lines().collect::<Vec<_>>();
            let (old, new) = (lines("oldText"), lines("newText"));
            let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
            let (old, new) = (&old[same..], &new[same..]);
            let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
            push_lines(text, "  - ", old[..old.len() - end].iter().copied());
            push_lines(text, "  + ", new[..new.len() - end].iter().copied());
        }
        _ => {}
    }
}

/// Adds the first lines of a text.
fn push_lines<'a>(text: &mut String, mark: &str, lines: impl Iterator<Item = &'a str>) {
    let mut left = 0;
    for (number, line) in lines.enumerate() {
        if number < LINES {
            let _ = writeln!(text, "{mark}{}", printable(line));
        } else {
            left += 1;
        }
    }
    if left > 0 {
        let _ = writeln!(text, "{mark}… {left} more lines");
    }
}

/// Escapes text of several lines.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        for (number, part) in line.split('\t').enumerate() {
            if number > 0 {
                out.push('\t');
            }
            out.push_str(&kennel_types::printable_within(part, usize::MAX));
        }
    }
    out
}

fn json_line(value: &Value) -> String {
    format!("{}\n", printable_json(&value.to_string()))
}

async fn write(text: String) -> Result<()> {
    Stream::Stdout.write(text.into_bytes()).await.map_err(|error| match error {
        Errno::PIPE => Error::new(kennel_types::ErrorCode::Aborted, "nobody reads the output").exit_code(141),
        error => Error::io("write to standard output", error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_readable() {
        let printer = Printer::new(false);
        let text = |update: Value| printer.text(&update);
        let chunk =
            |text: &str| json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        assert_eq!(text(chunk("Let me\tsee\u{1b}[31m")), "Let me\tsee\\u{1b}[31m");
        let plan = json!({ "sessionUpdate": "plan", "entries": [
            { "content": "look", "status": "completed" }, { "content": "fix", "status": "in_progress" }, { "content": "test" },
        ] });
        assert_eq!(text(plan), "\nplan:\n  [x] look\n  [>] fix\n  [ ] test\n");
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "Edit\nx", "status": "pending" });
        assert_eq!(text(call.clone()), "* Edit\\nx\n");
        assert_eq!(text(call), "", "some agents announce a call twice");
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed", "content": [
            { "type": "diff", "path": "/w/x", "oldText": "one\ntwo\nthree\n", "newText": "one\n2\nthree\n" },
            { "type": "content", "content": { "type": "text", "text": "ok\n" } },
        ] });
        assert_eq!(text(done), "  /w/x\n  - two\n  + 2\n  | ok\n");
        let failed =
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "b", "title": "Run", "status": "failed" });
        assert_eq!(text(failed), "* Run\n  failed\n");
        assert_eq!(text(json!({ "sessionUpdate": "usage_update" })), "");
        let long: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let mut shown = String::new();
        push_lines(&mut shown, "| ", long.iter().map(String::as_str));
        assert!(shown.ends_with("| 19\n| … 10 more lines\n"), "{shown}");
    }
}
