//! The certificate of a server, from files or made by the server itself.
//!
//! A certificate that the server has made is signed by nobody that clients know. They recognize it by its fingerprint, so it
//! is kept, and is the same after a restart.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, crypto};

/// A certificate with its private key.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads a certificate and its private key from PEM files. The certificate may be followed by those that signed it.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let invalid = |path: &Path, error: &dyn std::fmt::Display| {
            Error::new(ErrorCode::InvalidConfig, format!("read {}: {error}", path.display()))
        };
        let read = |path: &Path| std::fs::read(path).map_err(|error| invalid(path, &error));
        let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
        let chain = chain.map_err(|error| invalid(certificate, &error))?;
        if chain.is_empty() {
            return Err(invalid(certificate, &"the file has no certificate; expected PEM"));
        }
        let key_bytes = read(key)?;
        let secret = PrivateKeyDer::from_pem_slice(&key_bytes).map_err(|error| invalid(key, &error))?;
        let certificate = Self { chain, key: secret };
        certificate.acceptor()?;
        Ok(certificate)
    }

    /// Returns the certificate in this directory that an earlier server has made, or makes one for these names. Only the
    /// user can read the key.
    pub fn self_signed(dir: &Path, names: &[String]) -> Result<Self> {
        let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
        if certificate.exists() && key.exists() {
            return Self::read(&certificate, &key);
        }
        let names: Vec<String> = names.iter().cloned().chain(["localhost".into()]).collect();
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("make a certificate: {error}")))?;
        let failed = |error| Error::io(format!("write a certificate to {}", dir.display()), error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        // The certificate is last: without it, a key that is left is replaced.
        write(&key, 0o600, &made.signing_key.serialize_pem()).map_err(failed)?;
        write(&certificate, 0o644, &made.cert.pem()).map_err(failed)?;
        Self::read(&certificate, &key)
    }

    /// The SHA-256 hash of the certificate in hexadecimal digits, by which clients can recognize it.
    pub fn fingerprint(&self) -> String {
        let first = self.chain.first().map_or(&[][..], |certificate| certificate.as_ref());
        Sha256::digest(first).iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// What makes TLS connections of TCP connections.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        let invalid = |error: tokio_rustls::rustls::Error| {
            Error::new(ErrorCode::InvalidConfig, format!("use the certificate and its key: {error}"))
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(invalid)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Writes a file completely or not at all.
fn write(path: &Path, mode: u32, text: &str) -> std::io::Result<()> {
    let partial: PathBuf = path.with_extension("partial");
    let _ = std::fs::remove_file(&partial);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_made_certificate_is_kept_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("tls");
        let made = Certificate::self_signed(&dir, &["box.example".into(), "10.0.0.5".into()]).unwrap();
        let again = Certificate::self_signed(&dir, &[]).unwrap();
        assert_eq!(made.fingerprint(), again.fingerprint());
        assert_eq!(made.fingerprint().len(), 64);
        assert_eq!(std::fs::metadata(dir.join("key.pem")).unwrap().permissions().mode() & 0o777, 0o600);
        // As if it had been killed between the two files.
        std::fs::remove_file(dir.join("certificate.pem")).unwrap();
        assert_ne!(Certificate::self_signed(&dir, &[]).unwrap().fingerprint(), made.fingerprint());
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        Certificate::self_signed(&one, &[]).unwrap();
        Certificate::self_signed(&two, &[]).unwrap();
        let (certificate, key) = (one.join("certificate.pem"), two.join("key.pem"));
        for (certificate, key) in [(&certificate, &key), (&key, &key), (&certificate, &certificate)] {
            let error = Certificate::read(certificate, key).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        }
    }
}
