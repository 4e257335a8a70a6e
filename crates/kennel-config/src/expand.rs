//! Expands `${VAR}` in the texts of files.

use crate::{Environment, What};
use std::borrow::Cow;

/// Replaces `${VAR}`, `${VAR:-default}` (for a variable that is not set or empty) and `$$`. Any other `$` stays as it
/// is. The value of a variable is not expanded again.
pub(crate) fn expand<'a>(text: &'a str, environment: &Environment) -> Result<Cow<'a, str>, What> {
    if !text.contains('$') {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let wrong = || What::Value { expected: "${VAR} or ${VAR:-default}".to_owned(), found: format!("{text:?}") };
            let (inside, after) = after.split_once('}').ok_or_else(wrong)?;
            let (name, default) = match inside.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            if !is_variable(name) {
                return Err(wrong());
            }
            match (environment.get(name), default) {
                (Some(value), Some(_)) if !value.is_empty() => out.push_str(value),
                (Some(value), None) => out.push_str(value),
                (_, Some(default)) => out.push_str(default),
                (None, None) => return Err(What::Unset { name: name.to_owned() }),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    Ok(Cow::Owned(out))
}

fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn environment() -> Environment {
        [("A", "one"), ("EMPTY", ""), ("TRICK", "${A}")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn variables() {
        let read = |text| expand(text, &environment()).map(Cow::into_owned);
        assert_eq!(read("x${A}y${A}").as_deref(), Ok("xoneyone"));
        assert_eq!(read("${B:-two}${EMPTY:-three}[${EMPTY}]${B:-}").as_deref(), Ok("twothree[]"));
        assert_eq!(read("$${A} $$$$ $A 5$").as_deref(), Ok("${A} $$ $A 5$"));
        assert_eq!(read("${TRICK}").as_deref(), Ok("${A}"));
        assert_eq!(read("${B}"), Err(What::Unset { name: "B".to_owned() }));
        for bad in ["${", "${A", "${}", "${1}", "${A-b}", "${a b}"] {
            assert!(matches!(read(bad), Err(What::Value { .. })), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_unchanged_after_expansion(text in ".*") {
            let escaped = text.replace('$', "$$");
            prop_assert_eq!(expand(&escaped, &Environment::new()).unwrap(), text);
        }

        #[test]
        fn values_are_inserted_unchanged(before in "[^$]*", value in ".*", after in "[^$]*") {
            let environment = Environment::from([("V".to_owned(), value.clone())]);
            let text = format!("{before}${{V}}{after}");
            prop_assert_eq!(expand(&text, &environment).unwrap(), format!("{before}{value}{after}"));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[${}:A-]*") {
            let _ = expand(&text, &environment());
        }
    }
}
