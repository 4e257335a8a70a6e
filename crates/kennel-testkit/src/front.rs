//! A TLS proxy on loopback for an engine's socket, which requires a client certificate. It makes an engine look like
//! one on another machine.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// A running proxy. It ends when this is dropped.
pub struct Front {
    port: u16,
    authority: String,
    identity: (String, String),
    // All tasks of the proxy run on it, and end when it is dropped.
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    /// Starts a proxy for the engine at this socket, on a free port.
    pub fn start(socket: impl Into<PathBuf>) -> Self {
        let socket = socket.into();
        let mut params = CertificateParams::new(Vec::new()).expect("an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("an authority signs itself");
        let signed = |name: &str, usage: ExtendedKeyUsagePurpose| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a certificate");
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().expect("a key");
            (params.signed_by(&key, &authority).expect("the authority signs"), key)
        };
        let (server, server_key) = signed("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        let (client, client_key) = signed("tester", ExtendedKeyUsagePurpose::ClientAuth);
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("the authority is one");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .expect("visitors can be looked at");
        let key = PrivateKeyDer::try_from(server_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("usual versions")
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![server.der().clone()], key)
            .expect("a certificate and its key");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime for the front");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("listen on loopback");
        let port = listener.local_addr().expect("a listener has an address").port();
        runtime.spawn(async move {
            while let Ok((visitor, _)) = listener.accept().await {
                let (acceptor, socket) = (acceptor.clone(), socket.clone());
                tokio::spawn(async move {
                    let _ = visitor.set_nodelay(true);
                    let mut visitor = acceptor.accept(visitor).await?;
                    let mut engine = UnixStream::connect(&socket).await?;
                    tokio::io::copy_bidirectional(&mut visitor, &mut engine).await
                });
            }
        });
        let identity = (client.pem(), client_key.serialize_pem());
        Self { port, authority: authority.pem(), identity, _runtime: runtime }
    }

    /// The port on `localhost`.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that signed the proxy's certificate, in PEM.
    pub fn authority(&self) -> &[u8] {
        self.authority.as_bytes()
    }

    /// A client certificate that the proxy accepts, and its key, in PEM.
    pub fn identity(&self) -> (&[u8], &[u8]) {
        (self.identity.0.as_bytes(), self.identity.1.as_bytes())
    }
}
