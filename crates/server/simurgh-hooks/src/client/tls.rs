//! TLS to applications: rustls with ring, TLS 1.2 and 1.3.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::config::TlsConfig;

/// The connector for these certificates, or the mistake in them.
pub(super) fn connector(config: &TlsConfig) -> Result<TlsConnector, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(config.ca.as_deref())?);
    let client = match (&config.cert, &config.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| format!("tls_key: no private key in PEM: {error}"))?;
            builder
                .with_client_auth_cert(certificates("tls_cert", cert)?, key)
                .map_err(|error| format!("tls_cert and tls_key: {error}"))?
        }
        (Some(_), None) => return Err("tls_cert needs tls_key".to_owned()),
        (None, Some(_)) => return Err("tls_key needs tls_cert".to_owned()),
    };
    Ok(TlsConnector::from(Arc::new(client)))
}

fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(ca) => {
            for certificate in certificates("tls_ca", ca)? {
                roots.add(certificate).map_err(|error| format!("tls_ca: {error}"))?;
            }
        }
    }
    Ok(roots)
}

fn certificates(key: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("{key}: no certificates in PEM: {error}"))?;
    if found.is_empty() {
        return Err(format!("{key}: no certificate found"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(config: &TlsConfig) -> String {
        connector(config).err().unwrap_or_default()
    }

    #[test]
    fn default_certificates_are_usable() {
        assert_eq!(mistake(&TlsConfig::default()), "");
    }

    #[test]
    fn wrong_certificates_are_named() {
        let ca = TlsConfig { ca: Some(b"nothing".to_vec()), ..TlsConfig::default() };
        assert_eq!(mistake(&ca), "tls_ca: no certificate found");
        let alone = TlsConfig { cert: Some(Vec::new()), ..TlsConfig::default() };
        assert_eq!(mistake(&alone), "tls_cert needs tls_key");
    }
}
