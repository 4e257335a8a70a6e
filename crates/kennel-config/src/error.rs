//! What is wrong with a file or a value, said so that a person can put it right.

use crate::{KeyPath, Location};
use kennel_types::ErrorCode;
use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Where.
    pub at: Location,
    /// Which setting; empty if it is about the whole file.
    pub key: KeyPath,
    /// What.
    pub what: What,
}

/// What is wrong. Texts in it are as they were found; `Display` makes them printable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// A key that means nothing here.
    #[error("unknown key{}", nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    UnknownKey {
        /// The nearest one that does.
        nearest: Option<KeyPath>,
    },
    /// One setting given twice in one file, perhaps under two names.
    #[error("given twice, first on line {line}")]
    Twice {
        /// Line of the first.
        line: u32,
    },
    /// A value of the wrong kind or out of range.
    #[error("expected {}, found {}", printable(expected), printable(found))]
    Value {
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A variable in a value that is not set.
    #[error(
        "the environment variable {} is not set; set it, or write ${{{}:-default}}",
        printable(name),
        printable(name)
    )]
    Unset {
        /// Its name.
        name: String,
    },
    /// The text is not of its format, or past a limit.
    #[error("{}", printable(.0))]
    Syntax(String),
    /// The file cannot be read or written.
    #[error("cannot {doing}: {}", printable(why))]
    File {
        /// What was attempted, as a verb.
        doing: &'static str,
        /// What the system says.
        why: String,
    },
    /// Two files that would both be the project's or the user's.
    #[error("{} is there too; keep one of them", printable(other))]
    TwoFiles {
        /// The other one.
        other: String,
    },
    /// An edit that cannot be made by a program.
    #[error("{}", printable(.0))]
    Refused(String),
}

/// Everything that is wrong: all of it, not only the first.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        debug_assert!(!problems.is_empty(), "an error says what is wrong");
        Self { problems }
    }

    /// `Ok` with the value if nothing is wrong.
    pub(crate) fn unless_empty<T>(value: T, problems: Vec<Problem>) -> Result<T, Self> {
        if problems.is_empty() { Ok(value) } else { Err(Self::new(problems)) }
    }

    /// What is wrong, in the order it was found.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The code everyone uses for this.
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

/// Text from outside, safe on a terminal: control characters and those that turn the direction of writing are
/// escaped, and what is long is cut.
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
    fn nothing_from_outside_reaches_the_terminal_raw() {
        assert_eq!(printable("a\x1b[31m\u{202e}b\n"), "a\\u{1b}[31m\\u{202e}b\\n");
        assert!(printable(&"x".repeat(5000)).chars().count() <= 301);
    }
}
