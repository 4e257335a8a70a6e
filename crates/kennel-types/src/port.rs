//! Ports of a sandbox that are published on the host.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err(format!("unknown protocol {text:?}: expected tcp or udp")),
        }
    }
}

/// A request to publish a port of the sandbox on the host, at 127.0.0.1 only.
///
/// Its text form is `[127.0.0.1:][HOST:]INSIDE[/tcp|/udp]`. Without a host port, a free one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The port on the host; any free port if not given.
    #[serde(default)]
    pub host: Option<u16>,
    /// The port inside the sandbox.
    pub inside: u16,
    /// The protocol.
    #[serde(default)]
    pub protocol: Protocol,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let number = part.parse::<u16>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| {
                format!("invalid port {part:?}: expected [127.0.0.1:][HOST:]INSIDE[/tcp|/udp], for example 3000:80")
            })
        };
        let (ports, protocol) = match text.split_once('/') {
            Some((ports, protocol)) => (ports, protocol.parse()?),
            None => (text, Protocol::Tcp),
        };
        let (address, ports) = match ports.rsplitn(3, ':').collect::<Vec<_>>()[..] {
            [inside, host, address] => (Some(address), (Some(host), inside)),
            [inside, host] if host.contains('.') => (Some(host), (None, inside)),
            [inside, host] => (None, (Some(host), inside)),
            _ => (None, (None, ports)),
        };
        if let Some(address) = address.filter(|address| *address != "127.0.0.1") {
            return Err(format!("invalid address {address:?}: a port can be published at 127.0.0.1 only"));
        }
        let (host, inside) = ports;
        let host = host.filter(|host| !host.is_empty()).map(number).transpose()?;
        Ok(Self { host, inside: number(inside)?, protocol })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = self.host {
            write!(f, "{host}:")?;
        }
        write!(f, "{}/{}", self.inside, self.protocol)
    }
}

/// A published port: the port inside, and its address on the host while the sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// The address on the host.
    pub address: SocketAddr,
    /// The port inside the sandbox.
    pub inside: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}/{}", self.address, self.inside, self.protocol)
    }
}

impl FromStr for Published {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("invalid published port {text:?}: expected ADDRESS->PORT/PROTOCOL");
        let (address, rest) = text.split_once("->").ok_or_else(bad)?;
        let (inside, protocol) = rest.split_once('/').ok_or_else(bad)?;
        Ok(Self {
            address: address.parse().map_err(|_| bad())?,
            inside: inside.parse().map_err(|_| bad())?,
            protocol: protocol.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_in_all_notations() {
        let port = |host, inside, protocol| Ok(Port { host, inside, protocol });
        for (text, read) in [
            ("80", port(None, 80, Protocol::Tcp)),
            ("3000:80", port(Some(3000), 80, Protocol::Tcp)),
            ("127.0.0.1:3000:80/tcp", port(Some(3000), 80, Protocol::Tcp)),
            ("127.0.0.1:80", port(None, 80, Protocol::Tcp)),
            ("127.0.0.1::53/udp", port(None, 53, Protocol::Udp)),
            ("5353:53/udp", port(Some(5353), 53, Protocol::Udp)),
        ] {
            assert_eq!(text.parse(), read, "{text}");
        }
        for bad in
            ["", "0", "0:80", "80:", "65536", "http", "0.0.0.0:3000:80", "[::1]:3000:80", "80/sctp", "1:2:3:4", "-1"]
        {
            assert!(bad.parse::<Port>().is_err(), "{bad}");
        }
        let elsewhere = "0.0.0.0:3000:80".parse::<Port>().unwrap_err();
        assert!(elsewhere.contains("127.0.0.1 only"), "{elsewhere}");
    }

    #[test]
    fn displayed_published_ports_can_be_parsed() {
        let text = "127.0.0.1:49153->80/udp";
        let read: Published = text.parse().unwrap();
        assert_eq!((read.address.port(), read.inside, read.protocol), (49153, 80, Protocol::Udp));
        assert_eq!(read.to_string(), text);
        assert!("127.0.0.1:49153".parse::<Published>().is_err());
    }
}
