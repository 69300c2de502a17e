//! TLS of connections: the certificates that they trust, and error texts. The reactor encrypts.
//!
//! Mozilla's roots are compiled in: a run needs nothing from the host, and all hosts of a run
//! agree. Sessions are never resumed, as every user represents a separate client. Only rustls reads
//! the clock, to check the validity of certificates.

use std::io;
use std::sync::Arc;

use simurgh_reactor::{Closed, Io, Key};
use simurgh_tls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use simurgh_tls::rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use simurgh_tls::rustls::crypto::{CryptoProvider, ring};
use simurgh_tls::rustls::pki_types::pem::PemObject as _;
use simurgh_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use simurgh_tls::rustls::server::ParsedCertificate;
use simurgh_tls::rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, SupportedCipherSuite,
};
use simurgh_tls::{HandshakeError, prepare_client};

use crate::Tls;

/// The TLS settings that all connections of a run share. Made once, and cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    config: Arc<ClientConfig>,
    trust: Trust,
}

/// The settings for certificates that the user has given: advice does not repeat them.
#[derive(Clone, Copy, Debug)]
enum Trust {
    /// None: Mozilla's roots.
    WebRoots,
    /// Further roots.
    NamedRoots,
    /// Any certificate is accepted.
    Any,
}

impl TlsConfig {
    /// From the settings of a scenario. An error is a message for people that names the PEM text.
    pub fn new(tls: &Tls) -> Result<Self, String> {
        let mut provider = ring::default_provider();
        // Its keys are shortest, and all servers have it.
        let others = |suite: &SupportedCipherSuite| !format!("{suite:?}").contains("AES_128");
        provider.cipher_suites.sort_by_key(others);
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let verifier = Arc::new(Verifier::new(tls, provider)?);
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &tls.identity_pem {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let chain = certificates(pem, "the client's identity")?;
                // The parser's own error shows lines of the key.
                let no_key = "the client's identity has no usable key: use an unencrypted \
                    private key in PEM, with line breaks";
                let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| no_key)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    format!("the client's certificate and key do not match: {error}")
                })?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        prepare_client(&mut config);
        let trust = match (tls.insecure, tls.roots_pem.is_empty()) {
            (true, _) => Trust::Any,
            (false, false) => Trust::NamedRoots,
            (false, true) => Trust::WebRoots,
        };
        Ok(Self { config: Arc::new(config), trust })
    }

    /// Begins TLS on a connection. `host` is the name or address that the server's certificate must
    /// be for. An error is a message for people.
    pub fn begin<T>(&self, io: &mut Io<T>, key: Key, host: &str) -> Result<(), String> {
        let name = server_name(host)?;
        io.begin_tls(key, &self.config, name);
        Ok(())
    }

    /// Why a handshake failed, for people.
    pub fn why_not(&self, error: &HandshakeError) -> String {
        match error {
            HandshakeError::Refused(Error::InvalidCertificate(error)) => {
                let words = certificate_words(error, self.trust);
                format!("TLS: the server's certificate is not accepted: {words}")
            }
            HandshakeError::Refused(Error::AlertReceived(alert)) => alert_text(*alert),
            HandshakeError::Refused(error) => format!("TLS: {error}"),
            HandshakeError::NotTls => {
                "TLS: the server does not speak TLS: use http or ws, or another port".to_owned()
            }
            error => format!("TLS: {error}"),
        }
    }
}

/// The name or address that a certificate must be for. An error, for people, says that it is
/// neither.
pub fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(bare)
        .map_err(|_| format!("'{host}' is not a host name or address that TLS can check"))?;
    Ok(name.to_owned())
}

/// The fault of the server by which an established connection with TLS has ended, for people.
pub fn fault(why: Closed) -> Option<String> {
    match why {
        Closed::Alert(alert) => Some(alert_text(alert.into())),
        Closed::Reset(io::ErrorKind::InvalidData) => {
            Some("TLS: the server sent an invalid record".to_owned())
        }
        _ => None,
    }
}

fn alert_text(alert: AlertDescription) -> String {
    format!("TLS: the server sent the alert {alert:?}")
}

fn certificates(pem: &str, whose: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(format!("the PEM text of {whose} holds no certificate")),
        Err(_) => Err(format!("the PEM text of {whose} cannot be read: check its line breaks")),
    }
}

/// Accepts servers whose certificates have a known root, and those whose own certificate is named
/// as a root, as OpenSSL does: a server's self-signed certificate is rarely one of an authority.
/// A server must always prove that it has the key, even if any certificate is accepted.
#[derive(Debug)]
struct Verifier {
    by_root: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
    accepts_any: bool,
}

impl Verifier {
    fn new(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let mut named = Vec::new();
        for pem in tls.roots_pem.iter().filter(|_| !tls.insecure) {
            for certificate in certificates(pem, "a root")? {
                let added = roots.add(certificate.clone());
                added.map_err(|error| format!("a root is not a certificate: {error}"))?;
                named.push(certificate);
            }
        }
        let by_root = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let by_root = by_root.build().map_err(|error| format!("TLS: {error}"))?;
        Ok(Self { by_root, named, accepts_any: tls.insecure })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.accepts_any {
            return Ok(ServerCertVerified::assertion());
        }
        if self.named.contains(end_entity) {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let by_root = &self.by_root;
        by_root.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_root.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_root.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_root.supported_verify_schemes()
    }
}

/// The text of rustls, without its introduction, and what to do.
fn certificate_words(error: &CertificateError, trust: Trust) -> String {
    let text = Error::InvalidCertificate(error.clone()).to_string();
    let text = match text.trim_start_matches("invalid peer certificate: ") {
        it if it.contains("CaUsedAsEndEntity") => "it is an authority's own, or self-signed",
        // Nothing is done with such a certificate, not even if any is accepted.
        it if it.contains("UnsupportedCertVersion") => {
            return "it is of X.509 version 1: make one of version 3".to_owned();
        }
        it => it,
    };
    match advice(error, trust) {
        "" => text.to_owned(),
        advice => format!("{text} ({advice}, or accept any with insecure = true or --insecure)"),
    }
}

/// What helps, apart from accepting any certificate; empty if that would not help.
fn advice(error: &CertificateError, trust: Trust) -> &'static str {
    use CertificateError as E;
    match (error, trust) {
        // Any is accepted, but this one cannot be used, or the server has not its key.
        (E::BadEncoding | E::BadSignature, _) | (_, Trust::Any) => "",
        (E::Expired | E::ExpiredContext { .. }, _) => "renew it on the server",
        (E::NotValidYet | E::NotValidYetContext { .. }, _) => "check the clocks of both hosts",
        (E::NotValidForName | E::NotValidForNameContext { .. }, _) => {
            "put a name of the certificate in the URL, and the server's address in --map NAME=ADDR"
        }
        (_, Trust::WebRoots) => "name its root in [tls] roots or with --roots",
        (_, Trust::NamedRoots) => {
            "none of the given roots has signed it: add the right one, or the certificate \
             itself"
        }
    }
}
