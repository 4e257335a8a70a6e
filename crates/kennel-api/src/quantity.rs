//! Sizes, durations and CPU counts in requests: text with a unit, or a number.

use kennel_types::{ByteSize, parse_cpus, parse_duration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::time::Duration;

/// A number of bytes: an integer, or text with a unit, for example `512m` or `4G`. Units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// A duration: an integer of milliseconds, or text with a unit, for example `250ms`, `30s`, `5m` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub u64);

/// A number of CPUs, in thousandths. In JSON it is a number or text: `1.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus(pub u32);

/// The longest duration that a request may contain: ten years.
const LONGEST: u64 = 10 * 365 * 24 * 3_600_000;

impl Millis {
    /// The duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// A number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Integer(u64),
    Float(f64),
    Text(String),
}

fn raw<'de, D: Deserializer<'de>>(deserializer: D, expected: &str) -> Result<Raw, D::Error> {
    Raw::deserialize(deserializer).map_err(|_| de::Error::custom(format!("expected {expected}")))
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a size: an integer of bytes, or text such as \"512m\" or \"4G\"";
        match raw(deserializer, EXPECTED)? {
            Raw::Integer(bytes) => bytes.to_string().parse().map(|ByteSize(bytes)| Self(bytes)),
            Raw::Text(text) => text.parse().map(|ByteSize(bytes)| Self(bytes)),
            Raw::Float(_) => return Err(de::Error::custom(format!("expected {EXPECTED}"))),
        }
        .map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a duration: an integer of milliseconds, or text with a unit such as \"30s\"";
        let wrong = || de::Error::custom(format!("expected {EXPECTED}"));
        match raw(deserializer, EXPECTED)? {
            Raw::Integer(millis) if millis <= LONGEST => Ok(Self(millis)),
            // A text without a unit would be seconds on the command line, and milliseconds here.
            Raw::Text(text) if text.ends_with(|c: char| c.is_ascii_alphabetic()) => {
                let duration = parse_duration(&text).map_err(de::Error::custom)?;
                Ok(Self(duration.as_millis().try_into().unwrap_or(LONGEST)))
            }
            _ => Err(wrong()),
        }
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match raw(deserializer, "a number of CPUs, such as 0.5 or 2")? {
            Raw::Integer(number) => number.to_string(),
            Raw::Float(number) => number.to_string(),
            Raw::Text(text) => text,
        };
        parse_cpus(&text).map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

macro_rules! schema_of {
    ($($type:ident = $schema:tt;)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

// The patterns accept exactly what the parsers in `kennel-types` accept, but for the caps on the values.
schema_of! {
    Bytes = {"oneOf": [
        {"type": "integer", "minimum": 1, "maximum": 8_999_999_999_999_999u64},
        {"type": "string", "pattern": "^[1-9][0-9]{0,2}(\\.[0-9]{1,3})?([kKmMgG]([iI]?[bB])?)?$"},
    ]};
    Millis = {"oneOf": [
        {"type": "integer", "minimum": 0, "maximum": 315_360_000_000u64},
        {"type": "string", "pattern": "^[1-9][0-9]{0,3}(\\.[0-9]{1,3})?(ms|s|m|h)$"},
    ]};
    Cpus = {"oneOf": [
        {"type": "number", "minimum": 0.01, "maximum": 1024},
        {"type": "string", "pattern": "^[1-9][0-9]{0,2}(\\.[0-9]{1,3})?$"},
    ]};
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_and_durations_are_integers_or_text() {
        let bytes = |value| serde_json::from_value::<Bytes>(value).map(|bytes| bytes.0);
        assert_eq!(bytes(json!("512m")).unwrap(), 512 << 20);
        assert_eq!(bytes(json!(1024)).unwrap(), 1024);
        for wrong in [json!(0), json!(-1), json!(1.5), json!("much"), json!(true), json!(null)] {
            assert!(bytes(wrong.clone()).is_err(), "{wrong}");
        }
        let millis = |value| serde_json::from_value::<Millis>(value).map(|millis| millis.0);
        assert_eq!(millis(json!("1.5s")).unwrap(), 1500);
        assert_eq!(millis(json!(250)).unwrap(), 250);
        for wrong in [json!("7"), json!(-1), json!(0.5), json!(u64::MAX), json!("5 weeks"), json!([])] {
            assert!(millis(wrong.clone()).is_err(), "{wrong}");
        }
        let cpus = |value| serde_json::from_value::<Cpus>(value).map(|cpus| cpus.0);
        assert_eq!(cpus(json!(1.5)).unwrap(), 1500);
        assert_eq!(cpus(json!("0.5")).unwrap(), 500);
        assert!(cpus(json!(0)).is_err());
    }
}
