//! Connections to an engine. To reach it in another way (such as the socket of a virtual machine), implement
//! [`Dialer`]; everything else stays the same.

use kennel_core::{ByteStream, Error, Result};
use kennel_types::ErrorCode;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Opens connections to an engine.
#[async_trait::async_trait]
pub trait Dialer: Send + Sync {
    /// Opens a new byte stream to the engine's API.
    async fn dial(&self) -> io::Result<Box<dyn ByteStream>>;

    /// The address for display: `/run/docker.sock`, `tcp://host:2376`.
    fn address(&self) -> String;

    /// The engine's socket in the filesystem of this machine, if it has one. It must never be visible in a sandbox.
    fn socket(&self) -> Option<&Path> {
        None
    }

    /// Whether the engine runs on this machine and sees its files. Then the keeper can be bind-mounted, and its socket
    /// can be reached directly. On another machine, the keeper is copied, and reached through the engine.
    fn is_here(&self) -> bool {
        self.socket().is_some()
    }
}

/// Connects to an engine on this machine through a unix socket.
pub struct UnixDialer {
    socket: PathBuf,
}

impl UnixDialer {
    /// Connects through this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }
}

#[async_trait::async_trait]
impl Dialer for UnixDialer {
    async fn dial(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(UnixStream::connect(&self.socket).await?))
    }

    fn address(&self) -> String {
        self.socket.display().to_string()
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }
}

/// Connects to an engine over TCP. It counts as an engine on another machine.
pub struct TcpDialer {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Certificates for TLS.
#[derive(Clone, Copy)]
pub struct Tls<'a> {
    /// Certificates of the authorities that sign the engine's certificate, in PEM.
    pub authorities: &'a [u8],
    /// The client's own certificate and its key, in PEM.
    pub identity: Option<(&'a [u8], &'a [u8])>,
}

impl TcpDialer {
    /// Connects to this port without encryption.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, tls: None }
    }

    /// Connects to this port with TLS. The server's certificate is verified.
    pub fn with_tls(host: impl Into<String>, port: u16, tls: Tls<'_>) -> Result<Self> {
        let host = host.into();
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(ErrorCode::InvalidConfig, format!("TLS to {host}: {what}: {error}"))
        };
        let certificates = |pem| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let mut roots = RootCertStore::empty();
        for authority in certificates(tls.authorities).map_err(|error| failed("read the CA certificates", &error))? {
            roots.add(authority).map_err(|error| failed("read the CA certificates", &error))?;
        }
        if roots.is_empty() {
            return Err(failed("read the CA certificates", &"there is no certificate"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("choose TLS versions", &error))?
            .with_root_certificates(roots);
        let config = match tls.identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain).map_err(|error| failed("read the client certificate", &error))?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| failed("read the client key", &error))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| failed("use the client certificate", &error))?
            }
        };
        let name = ServerName::try_from(host.clone()).map_err(|error| failed("read the server name", &error))?;
        Ok(Self { tls: Some((TlsConnector::from(Arc::new(config)), name)), host, port })
    }
}

#[async_trait::async_trait]
impl Dialer for TcpDialer {
    async fn dial(&self) -> io::Result<Box<dyn ByteStream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
        }
    }

    fn address(&self) -> String {
        // An IPv6 address contains colons itself.
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("tcp://{host}:{}", self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_displayed_in_the_usual_form() {
        assert_eq!(UnixDialer::new("/run/docker.sock").address(), "/run/docker.sock");
        assert_eq!(TcpDialer::new("build.example", 2375).address(), "tcp://build.example:2375");
        assert_eq!(TcpDialer::new("::1", 2375).address(), "tcp://[::1]:2375");
        assert!(UnixDialer::new("/run/docker.sock").is_here());
        assert!(!TcpDialer::new("localhost", 2375).is_here());
    }

    #[test]
    fn tls_without_a_certificate_authority_is_refused() {
        let refused = |authorities: &[u8]| {
            let error = TcpDialer::with_tls("h", 1, Tls { authorities, identity: None }).err().expect("refused");
            assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
            error.to_string()
        };
        assert!(refused(b"").contains("there is no certificate"));
        refused(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    }
}
