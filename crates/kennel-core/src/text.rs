//! Text from inside a sandbox, made safe to show.

/// The text with control characters escaped and its length bounded, so that it cannot drive a terminal.
pub fn printable(text: &str) -> String {
    const LONGEST: usize = 1000;
    let mut out = String::new();
    for character in text.chars() {
        if out.len() > LONGEST {
            out.push('…');
            break;
        }
        if character.is_control() || is_bidi(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// Characters that reorder the text around them.
fn is_bidi(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn no_escape_survives() {
        assert_eq!(printable("a\x1b[31mb\n\u{202e}c é"), "a\\u{1b}[31mb\\n\\u{202e}c é");
        assert!(printable(&"x".repeat(5000)).len() < 1100);
    }
}
