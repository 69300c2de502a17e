//! TLS of the server: settings, certificates and their checks.
//!
//! ```no_run
//! use simurgh::{Endpoint, tls::TlsConfig};
//!
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let address = "0.0.0.0:443".parse()?;
//! Endpoint::builder().tls(TlsConfig::new(address, "fullchain.pem", "privkey.pem")).run()?;
//! # Ok(())
//! # }
//! ```
//!
//! SIGHUP and [`Endpoint::reload_certificates`](crate::Endpoint::reload_certificates) read the
//! files again.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, Ticketer, cipher_suite};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, SupportedCipherSuite, version};
pub use simurgh_shard::certificates::{CertificateProblem, CertificateProblems, Severity};
use simurgh_shard::certificates::{CertificateSet, Certificates};
use simurgh_shard::config::Config;
pub use simurgh_shard::config::{CertificateFiles, RecordLayer, TlsConfig, TlsVersion};

use crate::error::Error;

/// AES-128 first: it is the fastest here, and a record key takes 28 bytes less than with AES-256.
/// Of the latter's clients all know AES-128.
const CIPHER_SUITES: [SupportedCipherSuite; 9] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
];

/// Reads and checks the files of certificates as a start does, and returns what does not prevent
/// one.
///
/// # Errors
/// All problems, if at least one prevents a start.
pub fn check(files: &[CertificateFiles]) -> Result<Vec<CertificateProblem>, CertificateProblems> {
    CertificateSet::read(files, SystemTime::now()).map(|(_, problems)| problems)
}

/// The settings of rustls for all listeners. Each connection gets the certificates of its time.
fn server_config(
    tls: &TlsConfig,
    certificates: Arc<Certificates>,
) -> Result<ServerConfig, rustls::Error> {
    let provider =
        CryptoProvider { cipher_suites: CIPHER_SUITES.to_vec(), ..ring::default_provider() };
    let versions = match tls.min_version {
        TlsVersion::Tls12 => &[&version::TLS13, &version::TLS12][..],
        TlsVersion::Tls13 => &[&version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_protocol_versions(versions)?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ignore_client_order = true;
    // Tickets instead of sessions: the clients remember.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Ticketer::new()?;
    if tls.record_layer == RecordLayer::Simurgh {
        simurgh_tls::prepare_server(&mut config);
    }
    Ok(config)
}

/// The certificates, and the settings of rustls by listener, in the order of
/// [`Config::addresses`].
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) listeners: Vec<Option<Arc<ServerConfig>>>,
}

/// Reads the certificates, if the server has TLS.
pub(crate) fn prepare(config: &Config) -> Result<Prepared, Error> {
    let Some(tls) = &config.tls else { return Ok(Prepared::default()) };
    let certificates = Certificates::read(&tls.certificates).map_err(Error::Certificates)?;
    let certificates = Arc::new(certificates);
    let with_tls = server_config(tls, Arc::clone(&certificates));
    let with_tls = Arc::new(with_tls.map_err(|error| Error::Tls(error.to_string()))?);
    let plain = config.listen.iter().map(|_| None);
    let with_tls = tls.listen.iter().map(|_| Some(Arc::clone(&with_tls)));
    Ok(Prepared { certificates: Some(certificates), listeners: plain.chain(with_tls).collect() })
}

#[cfg(test)]
mod tests;
