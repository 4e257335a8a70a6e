//! Connections with TLS. The certificate of the server is one that this machine trusts, or one whose fingerprint the address
//! has.

use crate::Fingerprint;
use kennel_types::{Error, ErrorCode, Result};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Returns what makes connections with TLS.
pub(crate) fn connector(pin: Option<Fingerprint>) -> Result<TlsConnector> {
    let failed = |error: rustls::Error| Error::new(ErrorCode::Internal, format!("set up TLS: {error}"));
    let provider = Arc::new(crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(failed)?;
    let config = match pin {
        Some(pin) => config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { pin, provider }))
            .with_no_client_auth(),
        None => config.with_root_certificates(trusted()?).with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The authorities that this machine trusts.
fn trusted() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        let message = format!("connect with TLS: this machine has no certificates of authorities{why}");
        return Err(Error::new(ErrorCode::NotAvailable, message)
            .advise("install the package ca-certificates, or add the server's fingerprint to its address"));
    }
    Ok(roots)
}

/// Accepts one certificate, whoever has signed it, and whatever name is in it.
#[derive(Debug)]
struct Pinned {
    pin: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint(Sha256::digest(certificate).into());
        if found == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        let message =
            format!("the certificate of the server has the fingerprint {found}, which is not that of its address");
        Err(rustls::Error::General(message))
    }

    // The signatures show that the server has the key of the certificate.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
