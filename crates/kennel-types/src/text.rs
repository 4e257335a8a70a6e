//! Escapes text from a sandbox so that it is safe to show. Everything that reaches a terminal goes through this module.

use std::fmt::Write;

/// Returns the text as one line of bounded length. Characters that could control a terminal, start a new line or
/// reorder the surrounding text are escaped.
pub fn printable(text: &str) -> String {
    printable_within(text, 1000)
}

/// Returns the text as one line of about `longest` bytes at most, escaped like [`printable`] text.
pub fn printable_within(text: &str, longest: usize) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if out.len() > longest {
            out.push('…');
            break;
        }
        if is_unsafe(character) { out.extend(character.escape_default()) } else { out.push(character) }
    }
    out
}

/// Returns a file name as [`printable`] text. Bytes that are not valid UTF-8 are replaced.
pub fn printable_path(path: impl AsRef<std::path::Path>) -> String {
    printable(&path.as_ref().to_string_lossy())
}

/// Escapes all characters in JSON that a terminal would interpret. The JSON still parses to the same value: such a
/// character can only be part of a string, where `\uXXXX` means the same.
pub fn printable_json(json: &str) -> String {
    escape_beyond_ascii(json, |out, character| write!(out, "\\u{:04x}", u32::from(character)))
}

/// Escapes non-ASCII characters that a terminal would interpret, in text that Kennel formatted itself with lines and
/// colours. This is a last line of defence: text from outside must be [`printable`] before it is formatted.
pub fn printable_layout(text: &str) -> String {
    escape_beyond_ascii(text, |out, character| write!(out, "{}", character.escape_default()))
}

fn escape_beyond_ascii(text: &str, escape: impl Fn(&mut String, char) -> std::fmt::Result) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character >= '\u{7f}' && is_unsafe(character) {
            escape(&mut out, character).expect("writing to a String cannot fail");
        } else {
            out.push(character);
        }
    }
    out
}

/// Control characters (C0, delete, C1), line separators, and characters that change the text direction.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each range, and the ends of those.
    const UNSAFE: &str =
        "\u{7f}\u{80}\u{85}\u{9b}\u{9f}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";

    #[test]
    fn escape_sequences_are_made_printable() {
        assert_eq!(printable("a\x1b[31mb\n\u{202e}c é"), "a\\u{1b}[31mb\\n\\u{202e}c é");
        assert!(printable(UNSAFE).is_ascii() && printable_layout(UNSAFE).is_ascii());
        assert!(printable(&"x".repeat(5000)).len() < 1100);
        assert_eq!(printable_layout("\x1b[1mbold\x1b[0m\n\u{9b}31m é"), "\x1b[1mbold\x1b[0m\n\\u{9b}31m é");
        assert_eq!(printable_path("a\ntry: this"), "a\\ntry: this");
    }

    #[test]
    fn printable_json_keeps_its_meaning() {
        let value = serde_json::json!({ UNSAFE: [UNSAFE, "\\", "é \u{1f600}", "a\x1b\n\"", 1.5, null] });
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let safe = printable_json(&json);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
            assert!(!safe.chars().any(|character| character != '\n' && is_unsafe(character)), "{safe}");
            assert!(safe.contains("\\u009b") && safe.contains("\\u202e") && safe.contains("é \u{1f600}"));
        }
    }
}
