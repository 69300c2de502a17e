//! Configurations of rustls with a certificate of their own.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::ring::{self, Ticketer};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use simurgh_tls::{prepare_client, prepare_server, rustls};

pub(crate) const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
];

pub(crate) type Versions = &'static [&'static SupportedProtocolVersion];

pub(crate) const TLS13: Versions = &[&rustls::version::TLS13];
pub(crate) const TLS12: Versions = &[&rustls::version::TLS12];

pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

pub(crate) struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Certificate {
    /// For `localhost`, by an issuer of this name.
    pub(crate) fn new(issuer: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, issuer);
        let certificate = params.self_signed(&key).unwrap();
        Self { chain: vec![certificate.der().clone()], key: key.serialize_der() }
    }

    /// A server that is not prepared, with tickets.
    pub(crate) fn server(&self, versions: Versions) -> ServerConfig {
        let key = PrivateKeyDer::Pkcs8(self.key.clone().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), key)
            .unwrap();
        config.ticketer = Ticketer::new().unwrap();
        config
    }

    /// A client that trusts this certificate, and offers one suite of TLS 1.3 or all.
    pub(crate) fn client(&self, versions: Versions, suite: Option<CipherSuite>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.chain[0].clone()).unwrap();
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|offered| suite.is_none_or(|suite| suite == offered.suite()));
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

/// Both sides.
#[derive(Clone)]
pub(crate) struct Configs {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl Configs {
    /// TLS 1.3 with one suite, both prepared.
    pub(crate) fn of(suite: CipherSuite) -> Self {
        let certificate = Certificate::new("issuer");
        let mut server = certificate.server(TLS13);
        let mut client = certificate.client(TLS13, Some(suite));
        prepare_server(&mut server);
        prepare_client(&mut client);
        Self { server: Arc::new(server), client: Arc::new(client) }
    }

    pub(crate) fn tls12() -> Self {
        let certificate = Certificate::new("issuer");
        let mut server = certificate.server(TLS12);
        prepare_server(&mut server);
        let client = certificate.client(TLS12, None);
        Self { server: Arc::new(server), client: Arc::new(client) }
    }
}
