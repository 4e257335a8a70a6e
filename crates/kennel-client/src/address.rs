//! Where a server is.

use kennel_types::{Error, ErrorCode};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server is: `http://HOST:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A TCP port.
    Http {
        /// The name or IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket on this machine.
    Unix(PathBuf),
}

impl ServerAddress {
    /// Whether the server is on this machine, or behind a port that is forwarded from it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Http { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        }
    }

    /// The value of the header `Host`.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Http { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Http { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".into(),
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http { .. } => write!(f, "http://{}", self.host()),
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
        if text.starts_with("https://") {
            let message = format!("connect to {text}: this client does not speak TLS yet");
            return Err(Error::new(ErrorCode::Unsupported, message)
                .advise("forward the port, for example with ssh -L, and use http://127.0.0.1:PORT"));
        }
        let rest = text.strip_prefix("http://").ok_or_else(|| invalid("expected http://HOST:PORT or unix:PATH"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) || rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("expected only a host and a port"));
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| invalid("the port is not a number"))?)
            }
            _ => (rest, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        Ok(Self::Http { host: host.to_owned(), port })
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
            ("unix:/run/kennel.sock", "unix:/run/kennel.sock", true),
            ("unix:///run/kennel.sock", "unix:/run/kennel.sock", true),
        ] {
            assert_eq!(of(text).unwrap(), (shown.to_owned(), local), "{text}");
        }
        for wrong in ["", "box", "http://", "http://a b:1", "http://h:x", "http://u@h:1", "http://h:1/v1", "unix:a"] {
            assert_eq!(of(wrong).unwrap_err().code(), ErrorCode::InvalidConfig, "{wrong}");
        }
        assert_eq!(of("https://h:1").unwrap_err().code(), ErrorCode::Unsupported);
    }
}
