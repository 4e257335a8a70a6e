//! Changes one value in the text of a JSON object, and leaves all other bytes as they are.

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::ops::Range;

/// Sets the value at a path of keys. Objects that are missing, or null, are created. Returns `None` if the text is not an
/// object, or something else is in the way.
pub(crate) fn set(text: &str, path: &[&str], value: &str) -> Option<String> {
    let (key, rest) = path.split_first()?;
    let object = Members::of(text)?;
    let nested =
        |rest: &[&str]| rest.iter().rev().fold(value.to_owned(), |value, key| format!("{{\"{key}\":{value}}}"));
    let Some(range) = object.value(key) else {
        let brace = text.find('{')? + 1;
        let comma = if object.0.is_empty() { "" } else { "," };
        return Some(format!("{}\"{key}\":{}{comma}{}", &text[..brace], nested(rest), &text[brace..]));
    };
    let before = &text[range.clone()];
    let after = if rest.is_empty() || before == "null" { nested(rest) } else { set(before, rest, value)? };
    Some(format!("{}{after}{}", &text[..range.start], &text[range.end..]))
}

/// Returns the text of the value at a path of keys.
pub(crate) fn get<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(text, |text, key| Some(&text[Members::of(text)?.value(key)?]))
}

/// Returns where the value of a key of an object is in its text.
pub(crate) fn value_range(text: &str, key: &str) -> Option<Range<usize>> {
    Members::of(text)?.value(key)
}

/// Returns where the elements of an array are in its text.
pub(crate) fn elements(text: &str) -> Option<Vec<Range<usize>>> {
    let found: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    let range = |value: &RawValue| {
        let at = value.get().as_ptr() as usize - text.as_ptr() as usize;
        at..at + value.get().len()
    };
    Some(found.into_iter().map(range).collect())
}

/// The keys of an object, and where their values are in its text.
struct Members(Vec<(String, Range<usize>)>);

impl Members {
    fn of(text: &str) -> Option<Self> {
        let mut json = serde_json::Deserializer::from_str(text);
        let found = json.deserialize_map(Members(Vec::new())).ok()?;
        json.end().ok()?;
        let start = text.as_ptr() as usize;
        let range = |value: &RawValue| {
            let at = value.get().as_ptr() as usize - start;
            at..at + value.get().len()
        };
        Some(Self(found.into_iter().map(|(key, value)| (key, range(value))).collect()))
    }

    /// Returns where the value of a key is. If the key is there twice, that is the last one, as in most parsers.
    fn value(&self, key: &str) -> Option<Range<usize>> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, range)| range.clone())
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(entry) = map.next_entry::<String, &'de RawValue>()? {
            found.push(entry);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_value_changes() {
        let set = |text: &str| set(text, &["params", "caps", "fs"], "true");
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(
            set(" { \"id\" : 1.50, \"params\" : {\"z\":[ ],\"caps\": {\"fs\" : { \"a\":1 } , \"b\":2}} } \n"),
            is(" { \"id\" : 1.50, \"params\" : {\"z\":[ ],\"caps\": {\"fs\" : true , \"b\":2}} } \n")
        );
        assert_eq!(set("{\"params\":{}}"), is("{\"params\":{\"caps\":{\"fs\":true}}}"));
        assert_eq!(set("{\"params\":{\"caps\":null,\"x\":1}}"), is("{\"params\":{\"caps\":{\"fs\":true},\"x\":1}}"));
        assert_eq!(set("{\"id\":0}"), is("{\"params\":{\"caps\":{\"fs\":true}},\"id\":0}"));
        assert_eq!(set("{\"params\":[1]}"), None);
        assert_eq!(set("[]"), None);
    }

    #[test]
    fn values_are_found_by_their_path() {
        let text = "{\"a\": {\"b\": [1, 2] }, \"a2\": 3}";
        assert_eq!(get(text, &["a", "b"]), Some("[1, 2]"));
        assert_eq!((get(text, &["a", "c"]), get(text, &["a2", "b"])), (None, None));
    }
}
