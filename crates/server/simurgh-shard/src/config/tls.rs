//! TLS: addresses, certificates, versions.

use std::net::SocketAddr;
use std::path::PathBuf;

/// TLS on listening addresses of its own. Part of [`Config`](super::Config).
///
/// A handshake costs about 100 µs of CPU, and an idle client with TLS 1.3 about 0.1 kB more memory
/// than one without TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsConfig {
    /// Where to listen with TLS, as [`Config::listen`](super::Config::listen).
    pub listen: Vec<SocketAddr>,
    /// The files of each certificate. The name that a client requests (SNI) selects one by the DNS
    /// names in the certificates, exact or wildcard; without a match, the first is used. Cost: a
    /// few kB each.
    pub certificates: Vec<CertificateFiles>,
    /// The oldest version that clients may use. Default: TLS 1.2.
    pub min_version: TlsVersion,
    /// The code that encrypts established TLS 1.3 connections. Default: [`RecordLayer::Rustls`].
    pub record_layer: RecordLayer,
}

impl TlsConfig {
    /// One address with one certificate: PEM files with the chain, leaf first, and its private key.
    pub fn new(listen: SocketAddr, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            listen: vec![listen],
            certificates: vec![CertificateFiles { chain: chain.into(), key: key.into() }],
            min_version: TlsVersion::default(),
            record_layer: RecordLayer::default(),
        }
    }
}

/// The PEM files of one certificate. The server reads them at the start and for a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The server's certificate, then those of its issuers.
    pub chain: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    #[default]
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

/// The code that encrypts and decrypts established connections with TLS 1.3. rustls does all
/// handshakes, and all of TLS 1.2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordLayer {
    /// rustls: 7.8 kB per idle client.
    #[default]
    Rustls,
    /// The server's own record layer over ring's ciphers: 0.14 kB per idle client. It is new, and
    /// has no external audit.
    Simurgh,
}
