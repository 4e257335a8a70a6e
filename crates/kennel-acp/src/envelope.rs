//! The envelope of a JSON-RPC message: its id and its method. Nothing else of a message is parsed.
//!
//! The client must see the same message as the relay, or an agent could smuggle a request for a file past it. So a message
//! is refused if another parser could read it differently: two keys `method`, a key `Method` (some parsers ignore case), an
//! array of messages, or a carriage return (some readers end a line there).

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The maximum length of an id, in bytes.
const ID: usize = 4096;

/// The envelope of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The id, as JSON text. It may be a number or a string.
    pub(crate) id: Option<String>,
    /// The method, if the message is a request or a notification.
    pub(crate) method: Option<String>,
}

impl Envelope {
    /// Reads the envelope of a line. Fails with the reason if the line is not one message.
    pub(crate) fn read(line: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let mut envelope = Self::default();
        envelope.fill(text).map_err(|error| error.to_string())?;
        // Within a string, a carriage return is not JSON. So this one is between two values.
        if text.contains('\r') {
            return Err("it contains a carriage return".to_owned());
        }
        Ok(envelope)
    }

    /// Reads what can be found in the beginning of a line.
    pub(crate) fn begins(line: &[u8]) -> Self {
        let mut envelope = Self::default();
        // It fails at the end of what is there, with what it has found so far.
        let _ = envelope.fill(&String::from_utf8_lossy(line));
        envelope
    }

    fn fill(&mut self, text: &str) -> serde_json::Result<()> {
        let mut json = serde_json::Deserializer::from_str(text);
        Filling(self).deserialize(&mut json)?;
        json.end()
    }
}

/// Fills an envelope from a JSON object.
struct Filling<'a>(&'a mut Envelope);

impl<'de> DeserializeSeed<'de> for Filling<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Filling<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "id" if self.0.id.is_none() => {
                    let id = map.next_value::<&RawValue>()?.get();
                    if id.len() > ID
                        || !id.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
                    {
                        // A response to a message whose id could not be read has the id null.
                        if id != "null" {
                            return Err(A::Error::custom("the id is neither a number nor a string, or too long"));
                        }
                    }
                    self.0.id = Some(id.to_owned());
                }
                "method" if self.0.method.is_none() => self.0.method = Some(map.next_value()?),
                other if other.eq_ignore_ascii_case("id") || other.eq_ignore_ascii_case("method") => {
                    return Err(A::Error::custom(format!("the key {other:?} is ambiguous")));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Option<String>, Option<String>), String> {
        Envelope::read(text.as_bytes()).map(|envelope| (envelope.id, envelope.method))
    }

    #[test]
    fn ids_and_methods_are_found() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("{\"id\":1,\"method\":\"a/b\",\"params\":{\"id\":2}}\n"), Ok((some("1"), some("a/b"))));
        assert_eq!(read("{\"params\":[{\"method\":\"x\"}],\"method\":\"a\"}"), Ok((None, some("a"))));
        assert_eq!(read("{\"result\":null,\"id\":\"u-\\u0031\"}\r\n"), Ok((some("\"u-\\u0031\""), None)));
        assert_eq!(read("{\"\\u006dethod\":\"\\u0066s/x\"}"), Ok((None, some("fs/x"))));
        assert_eq!(read("{\"id\":null,\"error\":{}}"), Ok((some("null"), None)));
    }

    #[test]
    fn ambiguous_messages_are_refused() {
        for text in [
            "",
            "hello",
            "1",
            "[{\"method\":\"fs/read_text_file\",\"id\":1}]",
            "{\"method\":\"a\",\"method\":\"fs/read_text_file\"}",
            "{\"method\":\"a\",\"\\u006dethod\":\"fs/read_text_file\"}",
            "{\"method\":\"a\",\"Method\":\"fs/read_text_file\"}",
            "{\"METHOD\":\"fs/read_text_file\"}",
            "{\"id\":1,\"ID\":2}",
            "{\"id\":1,\"id\":1}",
            "{\"id\":[1]}",
            "{\"id\":true}",
            "{\"method\":1}",
            "{\"x\":\r{\"id\":1,\"method\":\"fs/read_text_file\"}\r}",
            "{\"method\":\"a\"} {\"method\":\"b\"}",
            "{\"method\":\"a\"}\r{\"method\":\"b\"}",
            "{\"x\":\"a\rb\"}",
            "{\"x\":1",
        ] {
            assert!(read(text).is_err(), "{text:?}: {:?}", read(text));
        }
        assert!(Envelope::read(b"{\"x\":\"\xff\"}").is_err());
        assert!(read(&format!("{{\"id\":\"{}\"}}", "x".repeat(ID))).is_err());
    }

    #[test]
    fn deep_messages_need_no_stack() {
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(read(&deep), Ok((None, None)));
    }
}
