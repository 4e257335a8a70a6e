//! Connections to the server.

use crate::ServerAddress;
use kennel_types::{Error, ErrorCode, Result};
use rustls_pki_types::ServerName;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A connection of either kind.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// Connects to a server, with TLS if its address says so.
pub(crate) async fn connect(address: &ServerAddress, tls: Option<TlsConnector>) -> Result<Box<dyn Connection>> {
    let connecting = async {
        Ok::<Box<dyn Connection>, std::io::Error>(match address {
            ServerAddress::Http { host, port } | ServerAddress::Https { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match tls {
                    Some(tls) => {
                        let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                        Box::new(tls.connect(name, stream).await?)
                    }
                    None => Box::new(stream),
                }
            }
            ServerAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    };
    let failed = |why: String| {
        Error::new(ErrorCode::NotAvailable, format!("connect to the server at {address}: {why}"))
            .advise("start the server, or check its address")
    };
    match tokio::time::timeout(CONNECT_WITHIN, connecting).await {
        Ok(connected) => connected.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("no connection within {CONNECT_WITHIN:?}"))),
    }
}
