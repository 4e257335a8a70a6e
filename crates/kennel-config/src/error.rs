//! Errors in a file or a value, described so that a person can fix them.

use crate::{KeyPath, Location};
use kennel_types::ErrorCode;
use std::fmt;

/// One problem, with its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The location.
    pub at: Location,
    /// The key of the setting; empty if the problem concerns the whole file.
    pub key: KeyPath,
    /// The kind of problem.
    pub what: What,
}

/// The kinds of problems. The texts are unescaped; `Display` escapes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// An unknown key.
    #[error("unknown key{}", nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    UnknownKey {
        /// The most similar known key.
        nearest: Option<KeyPath>,
    },
    /// A setting that occurs twice in one file, perhaps under two names.
    #[error("given twice, first on line {line}")]
    Twice {
        /// The line of the first occurrence.
        line: u32,
    },
    /// A value of the wrong type or out of range.
    #[error("expected {}, found {}", printable(expected), printable(found))]
    Value {
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// An environment variable that a value uses is not set.
    #[error(
        "the environment variable {} is not set; set it, or write ${{{}:-default}}",
        printable(name),
        printable(name)
    )]
    Unset {
        /// The name of the variable.
        name: String,
    },
    /// The text has a syntax error or exceeds a limit.
    #[error("{}", printable(.0))]
    Syntax(String),
    /// The file cannot be read or written.
    #[error("cannot {doing}: {}", printable(why))]
    File {
        /// What was attempted, as a verb.
        doing: &'static str,
        /// The message of the operating system.
        why: String,
    },
    /// Two files exist that could both be the project's or the user's.
    #[error("{} is there too; keep one of them", printable(other))]
    TwoFiles {
        /// The other file.
        other: String,
    },
    /// An edit that Kennel cannot make automatically.
    #[error("{}", printable(.0))]
    Refused(String),
}

/// All problems that were found, not only the first.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        debug_assert!(!problems.is_empty(), "an error says what is wrong");
        Self { problems }
    }

    /// Returns the value if there are no problems, and an error otherwise.
    pub(crate) fn unless_empty<T>(value: T, problems: Vec<Problem>) -> Result<T, Self> {
        if problems.is_empty() { Ok(value) } else { Err(Self::new(problems)) }
    }

    /// The problems, in the order in which they were found.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The error code, which is always `invalid_config`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidConfig
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::new(vec![problem])
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        if !self.key.segments().is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        self.what.fmt(f)
    }
}

/// Makes text from outside safe to print: control characters and characters that change the text direction are escaped,
/// and long text is cut.
pub(crate) fn printable(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut out = String::new();
    for (count, char) in text.chars().enumerate() {
        if count == LONGEST {
            out.push('…');
            break;
        }
        let turns = matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if char.is_control() || turns { out.extend(char.escape_default()) } else { out.push(char) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_messages() {
        assert_eq!(printable("a\x1b[31m\u{202e}b\n"), "a\\u{1b}[31m\\u{202e}b\\n");
        assert!(printable(&"x".repeat(5000)).chars().count() <= 301);
    }
}
