//! The values of settings that are more than a text or a number, each with its JSON form and its schema.

use kennel_types::{NetworkMode, Protocol, parse_cpus, parse_duration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A length of time. As JSON it is text with a unit: `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let (number, unit) = match millis {
            _ if millis == 0 || !millis.is_multiple_of(1000) => (millis, "ms"),
            _ if millis.is_multiple_of(3_600_000) => (millis / 3_600_000, "h"),
            _ if millis.is_multiple_of(60_000) => (millis / 60_000, "m"),
            _ => (millis / 1000, "s"),
        };
        write!(f, "{number}{unit}")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

/// A number of CPUs, held in thousandths of one. As JSON it is a number: `1.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(pub u32);

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        parse_cpus(&number.to_string()).map(Self).map_err(de::Error::custom)
    }
}

/// A host directory or file shown inside. Written `host:container[:ro]`, or as a map of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Absolute path outside.
    pub host: PathBuf,
    /// Absolute path inside.
    pub container: String,
    /// Whether the inside may only read it.
    #[serde(default)]
    pub readonly: bool,
}

/// A Unix socket of the host that programs inside can connect to. Written `host:container`, or as a map of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Absolute path outside.
    pub host: PathBuf,
    /// Absolute path inside.
    pub container: String,
}

/// A port inside that is reachable on this machine. Written `8080` (any free port outside) or `3000:8080`, optionally
/// with `/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Outside, on 127.0.0.1; any free one if not given.
    pub host: Option<u16>,
    /// Inside.
    pub container: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl std::str::FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kennel_types::Port { host, inside, protocol } = text.parse()?;
        Ok(Self { host, container: inside, protocol })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = self.host {
            write!(f, "{host}:")?;
        }
        write!(f, "{}", self.container)?;
        if self.protocol == Protocol::Tcp { Ok(()) } else { write!(f, "/{}", self.protocol) }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A network mode as a setting: `bridge`, or a map with `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Network(pub NetworkMode);

/// Gives a type its schema. `x-kind` is how the check knows it; the published schema leaves that out.
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

/// Stand-ins for types of other crates, named in `#[schemars(with)]`.
pub(crate) struct Size;
pub(crate) struct HostPath;
pub(crate) struct InnerPath;
pub(crate) struct Name;

schema_of! {
    Time = {"type": ["string", "number"], "x-kind": "time"};
    Cpus = {"type": ["number", "string"], "x-kind": "cpus"};
    Size = {"type": ["string", "integer"], "x-kind": "size"};
    HostPath = {"type": "string", "x-kind": "host-path"};
    InnerPath = {"type": "string", "pattern": "^/|\\$\\{", "x-kind": "inner-path"};
    Name = {"type": "string", "x-kind": "name"};
    Port = {"type": ["integer", "string"], "x-kind": "port"};
    Network = {
        "anyOf": [
            {"enum": ["bridge", "host", "none"]},
            {"type": "object", "additionalProperties": false, "properties": {"mode": {"enum": ["bridge", "host", "none"]}}},
        ],
        "x-kind": "network",
    };
    Socket = {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "additionalProperties": false,
                "required": ["host", "container"],
                "properties": {
                    "host": {"type": "string", "description": "Path of the socket outside; relative to this file."},
                    "container": {"type": "string", "description": "Absolute path inside."},
                },
            },
        ],
        "x-kind": "socket",
    };
    Volume = {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "additionalProperties": false,
                "required": ["host", "container"],
                "properties": {
                    "host": {"type": "string", "description": "Path outside; relative to this file."},
                    "container": {"type": "string", "description": "Absolute path inside."},
                    "readonly": {"type": "boolean", "description": "Whether the inside may only read it."},
                },
            },
        ],
        "x-kind": "volume",
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn displayed_times_can_be_parsed(millis in 1u64..300_000_000_000) {
            let time = Time(Duration::from_millis(millis));
            let read = parse_duration(&time.to_string()).unwrap();
            prop_assert!(read.abs_diff(time.0) < Duration::from_micros(100), "{time}");
        }

        #[test]
        fn serialized_cpus_can_be_parsed(thousandths in 10u32..=1_024_000) {
            let json = serde_json::to_value(Cpus(thousandths)).unwrap();
            prop_assert_eq!(serde_json::from_value::<Cpus>(json).unwrap(), Cpus(thousandths));
        }
    }
}
