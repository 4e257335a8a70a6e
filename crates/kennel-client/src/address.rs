//! Where a server is.

use kennel_types::{Error, ErrorCode};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server is: `http://HOST:PORT`, `https://HOST:PORT`, or `unix:PATH`. After `#sha256=` there may be the fingerprint of
/// the certificate of a server with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A TCP port.
    Http {
        /// The name or IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A TCP port with TLS.
    Https {
        /// The name or IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// The certificate of the server. Without it, the certificate must be one that this machine trusts.
        pin: Option<Fingerprint>,
    },
    /// A unix socket on this machine.
    Unix(PathBuf),
}

/// The SHA-256 hash of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub(crate) [u8; 32]);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256=")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    /// Parses `sha256=` and 64 hexadecimal digits, which may have colons between them.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let message = format!("invalid fingerprint {text:?}: expected sha256= and 64 hexadecimal digits");
            Error::new(ErrorCode::InvalidConfig, message)
        };
        let digits: Vec<u8> = text
            .strip_prefix("sha256=")
            .ok_or_else(invalid)?
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).map(|digit| digit as u8).ok_or_else(invalid))
            .collect::<Result<_, _>>()?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)).collect();
        if digits.len() != 64 {
            return Err(invalid());
        }
        bytes.try_into().map(Self).map_err(|_| invalid())
    }
}

impl ServerAddress {
    /// Whether the server is on this machine, or behind a port that is forwarded from it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Http { host, .. } | Self::Https { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        }
    }

    /// The value of the header `Host`.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Http { host, port } | Self::Https { host, port, .. } if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            Self::Http { host, port } | Self::Https { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".into(),
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http { .. } => write!(f, "http://{}", self.host()),
            Self::Https { .. } => write!(f, "https://{}", self.host()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |why: &str| {
            let message = format!("invalid server address {text:?}: {why}");
            Error::new(ErrorCode::InvalidConfig, message)
                .advise("for example http://127.0.0.1:7070, or unix:/path/api.sock")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path));
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(invalid("expected an absolute path")) };
        }
        let (rest, has_tls) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(invalid("expected http://HOST:PORT, https://HOST:PORT or unix:PATH")),
        };
        let (rest, pin) = match rest.split_once('#') {
            Some((rest, pin)) if has_tls => (rest, Some(pin.parse()?)),
            _ => (rest, None),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) || rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("expected only a host and a port"));
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| invalid("the port is not a number"))?)
            }
            _ => (rest, if has_tls { 443 } else { 80 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        let host = host.to_owned();
        Ok(if has_tls { Self::Https { host, port, pin } } else { Self::Http { host, port } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let of = |text: &str| text.parse::<ServerAddress>().map(|address| (address.to_string(), address.is_local()));
        for (text, shown, local) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070", true),
            ("http://localhost:7070/", "http://localhost:7070", true),
            ("http://[::1]:7070", "http://[::1]:7070", true),
            ("http://box.example", "http://box.example:80", false),
            ("https://box.example", "https://box.example:443", false),
            ("https://[::1]:7443/", "https://[::1]:7443", true),
            ("unix:/run/kennel.sock", "unix:/run/kennel.sock", true),
            ("unix:///run/kennel.sock", "unix:/run/kennel.sock", true),
        ] {
            assert_eq!(of(text).unwrap(), (shown.to_owned(), local), "{text}");
        }
        for wrong in ["", "box", "http://", "http://a b:1", "http://h:x", "http://u@h:1", "http://h:1/v1", "unix:a"] {
            assert_eq!(of(wrong).unwrap_err().code(), ErrorCode::InvalidConfig, "{wrong}");
        }
        let pin = "0123456789abcdef".repeat(4);
        let pinned: ServerAddress = format!("https://h:1#sha256={pin}").parse().unwrap();
        let ServerAddress::Https { pin: Some(found), .. } = &pinned else { panic!("{pinned:?}") };
        assert_eq!(found.to_string(), format!("sha256={pin}"));
        for wrong in ["https://h:1#", "https://h:1#sha256=", "https://h:1#sha256=012", "http://h:1#sha256=00"] {
            assert_eq!(of(wrong).unwrap_err().code(), ErrorCode::InvalidConfig, "{wrong}");
        }
        assert!(format!("https://h:1#sha256={pin}0").parse::<ServerAddress>().is_err());
    }
}
