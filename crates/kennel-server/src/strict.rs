//! Reads JSON as the schemas say. The derived readers of structs also accept an array with the fields in their order,
//! which no schema mentions: here it is refused, wherever it is.

use kennel_api::stream::{ClientMessage, StreamAttach, StreamStart};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::{Error, Value};

/// Reads a value. The error names the line and the column, unless it is about an array in place of an object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let value = serde_json::from_slice(bytes)?;
    check::<T>(serde_json::from_slice(bytes)?)?;
    Ok(value)
}

/// Reads a text message of a WebSocket.
pub(crate) fn message(text: &str) -> Result<ClientMessage, Error> {
    let message: ClientMessage = serde_json::from_str(text)?;
    let mut value: Value = serde_json::from_str(text)?;
    let Some(fields) = value.as_object_mut() else { return Err(Error::custom("expected a JSON object")) };
    fields.remove("type");
    match &message {
        ClientMessage::Start(_) => check::<StreamStart>(value)?,
        ClientMessage::Attach(_) => check::<StreamAttach>(value)?,
        // These have only numbers and names.
        _ => {}
    }
    Ok(message)
}

/// Refuses arrays in place of objects in the fields of a type.
fn check<T: DeserializeOwned>(value: Value) -> Result<(), Error> {
    T::deserialize(Strict(value)).map(drop)
}

/// A value whose arrays are only lists.
struct Strict(Value);

impl IntoDeserializer<'_, Error> for Strict {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => visitor.visit_seq(SeqDeserializer::new(list.into_iter().map(Strict))),
            Value::Object(map) => {
                let entries = map.into_iter().map(|(key, value)| (key, Strict(value)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
            value => value.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.0.is_array() {
            return Err(Error::custom("invalid type: array, expected a JSON object"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_api::{CreateSandbox, ExecRequest, RenameRequest};

    #[test]
    fn arrays_are_not_objects() {
        assert!(parse::<RenameRequest>(br#"{"name": "box"}"#).is_ok());
        assert!(parse::<RenameRequest>(br#"["box"]"#).is_err());
        let asked: CreateSandbox = parse(
            br#"{"mounts": [{"host": "/a", "target": "/b"}], "labels": {"a": "b"}, "memory": "64m", "cpus": 0.5,
                "network": "none", "command": ["true"], "name": null, "pids": 7}"#,
        )
        .unwrap();
        assert_eq!((asked.mounts.len(), asked.pids, asked.memory.unwrap().0), (1, Some(7), 64 << 20));
        assert!(parse::<CreateSandbox>(br#"{"mounts": [["/a", "/b", false]]}"#).is_err());
        assert!(parse::<ExecRequest>(br#"{"argv": ["a"], "env": []}"#).is_err());
        let error = parse::<RenameRequest>(b"{\"name\": 1}").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn messages_are_objects() {
        assert!(message(r#"{"type": "start", "argv": ["sh"], "tty": {"rows": 2, "cols": 3}}"#).is_ok());
        assert!(message(r#"{"type": "start", "argv": ["sh"], "tty": [2, 3]}"#).is_err());
        assert!(message(r#"["resize", 2, 3]"#).is_err());
        assert!(message(r#"{"type": "resize", "rows": 2, "cols": 3}"#).is_ok());
    }
}
