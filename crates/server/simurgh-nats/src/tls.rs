//! TLS of a link: rustls with ring, as in the whole project.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config::{Tls, of_file};

/// The parser's own error shows lines of the file.
const NO_KEY: &str = "no usable key: use an unencrypted private key in PEM, with line breaks";

/// The TLS settings of a link. The files are read at each call.
///
/// # Errors
/// A file cannot be read or is malformed; the error names it.
pub(crate) fn client(tls: &Tls) -> io::Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = builder.with_root_certificates(roots(tls.ca.as_deref())?);
    let config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates(&identity.certificate)?;
            let text = read(&identity.key)?;
            let key =
                PrivateKeyDer::from_pem_slice(&text).map_err(|_| wrong(&identity.key, NO_KEY))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong(&identity.certificate, &format!("{error}")))?
        }
    };
    Ok(Arc::new(config))
}

fn roots(ca: Option<&Path>) -> io::Result<RootCertStore> {
    let Some(path) = ca else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong(path, &format!("{error}")))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = read(path)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(wrong(path, "no certificate in it")),
        Err(_) => Err(wrong(path, "cannot read the PEM: check its line breaks")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| of_file(path, &error))
}

fn wrong(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Identity;

    #[test]
    fn no_error_about_a_pem_file_contains_the_key() {
        let key = tempfile::NamedTempFile::new().unwrap();
        fs::write(key.path(), "-----BEGIN PRIVATE KEY-----MIIEvQ-----END PRIVATE KEY-----")
            .unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).unwrap();
        let certificate = tempfile::NamedTempFile::new().unwrap();
        fs::write(certificate.path(), made.cert.pem()).unwrap();
        for file in [certificate.path(), key.path()] {
            let identity = Identity { certificate: file.into(), key: key.path().into() };
            let tls = Tls { identity: Some(identity), ..Tls::default() };
            let error = client(&tls).unwrap_err().to_string();
            assert!(error.contains("line breaks") && !error.contains("77"), "{error}");
        }
    }
}
