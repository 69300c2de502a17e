//! A TLS client without I/O: it converts ciphertext to plaintext and back.
//!
//! Built on rustls' unbuffered connections, because a buffered one keeps 4 KiB and more for each
//! connection that ever received something. An idle connection keeps only its keys, its state and
//! the server's certificates: 3.6 kB (TLS 1.2) to 4 kB (1.3) with one small certificate, as
//! `tests/tls_memory.rs` measures it.
//!
//! Mozilla's roots are compiled in: a run needs nothing from the host, and all hosts of a run
//! agree. Sessions are never resumed, as every user represents a separate client. Only rustls reads
//! the clock, to check the validity of certificates.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{UnbufferedClientConnection, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct};
use rustls::{RootCertStore, SignatureScheme};

use crate::Tls;

/// Bytes of one record: 16 KiB, its head, and what encryption adds (RFC 8446 §5.2).
const RECORD_BYTES_MAX: usize = (16 << 10) + 5 + 256;

/// The TLS settings that all connections of a run share. Made once, and cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    config: Arc<ClientConfig>,
    trust: Trust,
}

/// The settings for certificates that the user has given: advice does not repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing: Mozilla's roots.
    WebRoots,
    /// Named further roots.
    NamedRoots,
    /// Accepts any certificate.
    Any,
}

impl TlsConfig {
    /// From the settings of a scenario. An error is a message for people that names the PEM text.
    pub fn new(tls: &Tls) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
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
        config.resumption = rustls::client::Resumption::disabled();
        let trust = match (tls.insecure, tls.roots_pem.is_empty()) {
            (true, _) => Trust::Any,
            (false, false) => Trust::NamedRoots,
            (false, true) => Trust::WebRoots,
        };
        Ok(Self { config: Arc::new(config), trust })
    }
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
    ) -> Result<ServerCertVerified, rustls::Error> {
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
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_root.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_root.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_root.supported_verify_schemes()
    }
}

/// Why a TLS connection has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TlsError {
    /// The server's certificate is not accepted.
    #[error("TLS: the server's certificate is not accepted: {}", certificate_words(.0, *.1))]
    Certificate(CertificateError, Trust),
    /// The server ended the connection with this alert.
    #[error("TLS: the server sent the alert {0:?}")]
    Alert(AlertDescription),
    /// The server does not speak TLS, or violates it.
    #[error("TLS: {0}")]
    Protocol(rustls::Error),
    /// Something was sent before the handshake was done or after the close: a fault of ours.
    #[error("TLS: the connection is not open for data")]
    NotOpen,
}

/// The text of rustls, without its introduction, and what to do.
fn certificate_words(error: &CertificateError, trust: Trust) -> String {
    let text = rustls::Error::InvalidCertificate(error.clone()).to_string();
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

impl TlsError {
    fn new(error: rustls::Error, trust: Trust) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::Certificate(error, trust),
            rustls::Error::AlertReceived(alert) => Self::Alert(alert),
            error => Self::Protocol(error),
        }
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Data can be sent, from now on until the end.
    pub handshake_done: bool,
    /// The server has announced that it sends nothing more. A connection that ends without this may
    /// have been cut, which only matters where the end of a message is not known otherwise.
    pub closed: bool,
}

/// One connection.
///
/// [`TlsClient::start`] writes the first bytes; bytes that arrive go to [`TlsClient::receive`],
/// which answers handshake messages itself.
pub struct TlsClient {
    // Boxed, so that a record with an optional connection stays small.
    connection: Box<UnbufferedClientConnection>,
    trust: Trust,
    /// A record that has arrived in part.
    partial: Vec<u8>,
    progress: Progress,
    /// Our close has been sent: nothing more is sent.
    is_closed: bool,
    /// The error. It is kept: after an error rustls must not be called.
    failed: Option<Box<TlsError>>,
}

impl TlsClient {
    /// A connection that has not begun. `host` is the name or address that the server's certificate
    /// must be for. An error, for people, says that it is neither.
    pub fn new(config: &TlsConfig, host: &str) -> Result<Self, String> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare)
            .map_err(|_| format!("'{host}' is not a host name or address that TLS can check"))?;
        let connection = UnbufferedClientConnection::new(config.config.clone(), name.to_owned())
            .map_err(|error| format!("TLS: {error}"))?;
        Ok(Self {
            connection: Box::new(connection),
            trust: config.trust,
            partial: Vec::new(),
            progress: Progress::default(),
            is_closed: false,
            failed: None,
        })
    }

    /// A connection whose first bytes of the handshake are appended to `out`. Fails as
    /// [`TlsClient::new`] and [`TlsClient::start`] do.
    pub fn begin(config: &TlsConfig, host: &str, out: &mut Vec<u8>) -> Result<Self, String> {
        let mut tls = Self::new(config, host)?;
        tls.start(out).map_err(|error| error.to_string())?;
        Ok(tls)
    }

    /// Appends the first bytes of the handshake to `out`.
    pub fn start(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.receive(&mut [], &mut Vec::new(), out).map(|_| ())
    }

    /// Decrypts ciphertext (all of it; in place) to `plain`, and appends answers to `out`.
    ///
    /// # Errors
    /// See [`TlsError`]. `out` may then hold an alert that should still be sent, and `plain` is
    /// valid. Each further call returns the same error.
    pub fn receive(
        &mut self,
        cipher: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, TlsError> {
        if let Some(error) = &self.failed {
            return Err(TlsError::clone(error));
        }
        let worked = if self.partial.is_empty() {
            let used = self.work(cipher, plain, out);
            used.map(|used| self.partial.extend_from_slice(cipher.get(used..).unwrap_or_default()))
        } else {
            let mut joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(cipher);
            let used = self.work(&mut joined, plain, out);
            used.map(|used| {
                // Copied to a buffer of its size: the joined buffer, grown by doubling, is not
                // kept.
                self.partial.extend_from_slice(joined.get(used..).unwrap_or_default());
            })
        };
        match worked {
            Ok(()) => Ok(self.progress),
            Err(error) => {
                self.failed = Some(Box::new(error.clone()));
                Err(error)
            }
        }
    }

    /// Encrypts `plain` and appends it to `out`. Fails with [`TlsError::NotOpen`] before the
    /// handshake is done or after [`TlsClient::close`].
    pub fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        if !self.is_open() {
            return Err(TlsError::NotOpen);
        }
        if plain.is_empty() {
            return Ok(());
        }
        let status = self.connection.process_tls_records(&mut []);
        let state = status.state.map_err(|error| TlsError::new(error, self.trust))?;
        let ConnectionState::WriteTraffic(mut traffic) = state else {
            return Err(TlsError::NotOpen);
        };
        // Each record of at most 16 KiB grows by a header, a type and a tag: 22 or 29 bytes. The
        // rest is for an update of the keys before them.
        let room = plain.len() + (plain.len() / 16_384 + 1) * 32 + 256;
        append(out, room, |buffer| traffic.encrypt(plain, buffer))
    }

    /// Appends our close; the peer's may still come. Does nothing without an open connection.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if !self.is_open() {
            return;
        }
        self.is_closed = true;
        let status = self.connection.process_tls_records(&mut []);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state {
            // The only possible error is too little room, and room is made.
            let _ = append(out, 64, |buffer| traffic.queue_close_notify(buffer));
        }
    }

    /// The state of the connection.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    fn is_open(&self) -> bool {
        self.progress.handshake_done && !self.is_closed && self.failed.is_none()
    }

    /// Processes all whole records in `cipher`; returns how many bytes were used.
    fn work(
        &mut self,
        cipher: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<usize, TlsError> {
        let mut used = 0;
        loop {
            let rest = cipher.get_mut(used..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.connection.process_tls_records(rest);
            used += discard;
            match state {
                Err(error) => {
                    self.flush(plain, out);
                    return Err(TlsError::new(error, self.trust));
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, RECORD_BYTES_MAX, |buffer| data.encode(buffer))?;
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(|error| TlsError::new(error, self.trust))?;
                        used += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::PeerClosed) => self.progress.closed = true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.progress.handshake_done = true;
                    return Ok(self.used(used, cipher));
                }
                // `BlockedHandshake`, `Closed`, and states that a client does not reach.
                Ok(_) => return Ok(self.used(used, cipher)),
            }
        }
    }

    /// After the server's close, further bytes are dropped.
    fn used(&self, used: usize, cipher: &[u8]) -> usize {
        if self.progress.closed { cipher.len() } else { used }
    }

    /// Takes the data and the alert that rustls still has after an error.
    ///
    /// Makes no further call: it would look at the bytes again, and panic after an error.
    fn flush(&mut self, plain: &mut Vec<u8>, out: &mut Vec<u8>) {
        while self.connection.wants_write() {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if append(out, RECORD_BYTES_MAX, |buffer| data.encode(buffer)).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }
}

/// Lets `write` append to `out`, with room for all that it may write.
fn append<E>(
    out: &mut Vec<u8>,
    room: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<(), TlsError> {
    let start = out.len();
    out.resize(start + room, 0);
    let written = write(out.get_mut(start..).unwrap_or_default());
    out.truncate(start + written.as_ref().map_or(0, |written| *written));
    written.map(drop).map_err(|_| TlsError::NotOpen)
}
