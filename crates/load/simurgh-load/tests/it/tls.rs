//! TLS against rustls' own server, in memory.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore, ServerConfig, ServerConnection};
use simurgh_load::scenario::Tls;
use simurgh_load::tls::{TlsClient, TlsConfig, TlsError};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: rustls::pki_types::CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        // No two have the same name: the issuer is looked up by it.
        let serial = KeyPair::generate().unwrap().public_key_pem();
        params.distinguished_name.push(DnType::CommonName, serial);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Self { issuer: Issuer::new(params, key), pem, der }
    }

    fn sign(&self, names: &[&str], year_of_end: i32) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            });
        }
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year_of_end, 1, 1);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn server(&self, names: &[&str], year_of_end: i32) -> ServerConnection {
        self.server_with(names, year_of_end, rustls::ALL_VERSIONS, false)
    }

    fn server_with(
        &self,
        names: &[&str],
        year_of_end: i32,
        versions: &[&'static rustls::SupportedProtocolVersion],
        wants_identity: bool,
    ) -> ServerConnection {
        let (certificate, key) = self.sign(names, year_of_end);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).unwrap();
        let builder = if wants_identity {
            let mut roots = RootCertStore::empty();
            roots.add(self.der.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        ServerConnection::new(Arc::new(config)).unwrap()
    }

    fn client(&self, host: &str) -> TlsClient {
        self.client_with(host, None)
    }

    fn client_with(&self, host: &str, identity_pem: Option<String>) -> TlsClient {
        let roots_pem = vec![self.pem.clone()];
        let config = TlsConfig::new(&Tls { insecure: false, roots_pem, identity_pem }).unwrap();
        TlsClient::new(&config, host).unwrap()
    }
}

/// Both ends, and the bytes between them.
struct Pair {
    client: TlsClient,
    server: ServerConnection,
    sent: Vec<u8>,
    served: Vec<u8>,
    plain: Vec<u8>,
    /// The client gets its bytes in pieces of this size.
    piece: usize,
    server_error: Option<rustls::Error>,
}

impl Pair {
    fn new(client: TlsClient, server: ServerConnection, piece: usize) -> Self {
        let mut pair = Self {
            client,
            server,
            sent: vec![],
            served: vec![],
            plain: vec![],
            piece,
            server_error: None,
        };
        pair.client.start(&mut pair.sent).unwrap();
        pair
    }

    /// Carries bytes in both directions until there are none left.
    fn run(&mut self) -> Result<(), TlsError> {
        loop {
            let mut sent = std::mem::take(&mut self.sent);
            let mut left = sent.as_slice();
            while !left.is_empty() && self.server_error.is_none() {
                self.server.read_tls(&mut left).unwrap();
                self.server_error = self.server.process_new_packets().err();
                // At the end of the received data there is `WouldBlock`.
                let _ = self.server.reader().read_to_end(&mut self.served);
            }
            sent.clear();
            let mut cipher = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut cipher).unwrap();
            }
            if cipher.is_empty() && self.sent.is_empty() {
                return Ok(());
            }
            for piece in cipher.chunks_mut(self.piece) {
                self.client.receive(piece, &mut self.plain, &mut self.sent)?;
            }
        }
    }

    fn at_server(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.served)
    }
}

const PIECES: [usize; 4] = [1, 7, 1000, usize::MAX];

#[test]
fn tls_data_passes_both_ways_in_any_fragments() {
    let authority = Authority::new();
    let big: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    for version in rustls::ALL_VERSIONS {
        for piece in PIECES {
            let server = authority.server_with(&["a.test"], 2100, &[version], false);
            let mut pair = Pair::new(authority.client("a.test"), server, piece);
            assert!(!pair.client.progress().handshake_done);
            pair.run().unwrap();
            assert!(pair.client.progress().handshake_done);
            assert_eq!(pair.server.alpn_protocol(), Some(&b"http/1.1"[..]));
            pair.client.send(b"hello", &mut pair.sent).unwrap();
            pair.client.send(b"", &mut pair.sent).unwrap();
            pair.run().unwrap();
            assert_eq!(pair.at_server(), b"hello");
            pair.server.set_buffer_limit(None);
            pair.server.writer().write_all(&big).unwrap();
            pair.run().unwrap();
            assert_eq!(pair.plain, big);
        }
    }
}

#[test]
fn both_ends_can_close_tls() {
    let authority = Authority::new();
    let mut pair = Pair::new(authority.client("a.test"), authority.server(&["a.test"], 2100), 9);
    pair.run().unwrap();
    pair.client.close(&mut pair.sent);
    pair.client.close(&mut pair.sent);
    let mut none = Vec::new();
    assert_eq!(pair.client.send(b"late", &mut none), Err(TlsError::NotOpen));
    assert!(none.is_empty());
    let mut left = pair.sent.as_slice();
    pair.server.read_tls(&mut left).unwrap();
    assert!(pair.server.process_new_packets().unwrap().peer_has_closed());

    let mut pair = Pair::new(authority.client("a.test"), authority.server(&["a.test"], 2100), 9);
    pair.run().unwrap();
    pair.server.send_close_notify();
    pair.run().unwrap();
    assert!(pair.client.progress().closed);
    // Later bytes are ignored.
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    pair.client.receive(&mut [23, 3, 3, 0, 1, 0], &mut plain, &mut out).unwrap();
    assert!(plain.is_empty() && out.is_empty());
}

#[test]
fn no_data_is_sent_before_the_tls_handshake() {
    let mut client = Authority::new().client("a.test");
    let mut out = Vec::new();
    assert_eq!(client.send(b"early", &mut out), Err(TlsError::NotOpen));
    client.start(&mut out).unwrap();
    let hello = out.len();
    assert!(hello > 100 && out.starts_with(&[22, 3, 1]), "a ClientHello");
    assert_eq!(client.send(b"early", &mut out), Err(TlsError::NotOpen));
    assert_eq!(out.len(), hello);
}

fn refusal(client: TlsClient, server: ServerConnection) -> (TlsError, Option<rustls::Error>) {
    let mut pair = Pair::new(client, server, usize::MAX);
    let error = pair.run().unwrap_err();
    assert!(!pair.client.progress().handshake_done);
    // The alert is still sent.
    let _ = pair.run();
    (error, pair.server_error)
}

type Judge<'a> = &'a dyn Fn(&CertificateError) -> bool;

#[test]
fn certificates_with_wrong_name_date_or_issuer_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let is_name = |error: &CertificateError| {
        matches!(
            error,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    };
    let is_time = |error: &CertificateError| {
        matches!(error, CertificateError::Expired | CertificateError::ExpiredContext { .. })
    };
    let is_issuer = |error: &CertificateError| matches!(error, CertificateError::UnknownIssuer);
    let table: [(_, _, _, Judge<'_>, &str); 4] = [
        ("b.test", authority.server(&["a.test"], 2100), &authority, &is_name, "not valid for name"),
        ("127.0.0.1", authority.server(&["a.test"], 2100), &authority, &is_name, "not valid for"),
        ("a.test", authority.server(&["a.test"], 2001), &authority, &is_time, "expired"),
        ("a.test", other.server(&["a.test"], 2100), &authority, &is_issuer, "UnknownIssuer"),
    ];
    for (host, server, trusted, is_it, word) in table {
        let (error, at_server) = refusal(trusted.client(host), server);
        assert!(matches!(&error, TlsError::Certificate(error, _) if is_it(error)), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(matches!(at_server, Some(rustls::Error::AlertReceived(_))), "{at_server:?}");
    }
}

/// Advice names what helps against this error and was not done yet.
#[test]
fn certificate_advice_leaves_out_steps_already_taken() {
    let (authority, other) = (Authority::new(), Authority::new());
    let web = TlsConfig::new(&Tls::default()).unwrap();
    let web = || TlsClient::new(&web, "a.test").unwrap();
    let good = || authority.server(&["a.test"], 2100);
    let expired = || authority.server(&["a.test"], 2001);
    for (client, server, has, has_not) in [
        (web(), good(), "name its root in [tls] roots", "none of the given"),
        (other.client("a.test"), good(), "none of the given roots has signed it", "[tls]"),
        (authority.client("a.test"), expired(), "renew it", "root"),
        (authority.client("b.test"), good(), "--map NAME=ADDR", "root"),
    ] {
        let (error, _) = refusal(client, server);
        let text = error.to_string();
        assert!(text.contains(has) && !text.contains(has_not), "{text}");
        assert!(text.contains("--insecure"), "{text}");
    }
}

/// As `openssl req -x509` makes it: with the marks of an authority.
#[test]
fn self_signed_certificate_is_accepted_as_a_root() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let server = || {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).unwrap();
        let builder = builder.with_no_client_auth();
        let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        ServerConnection::new(Arc::new(config)).unwrap()
    };
    let client = |host: &str, pem: String| {
        let config = TlsConfig::new(&Tls { roots_pem: vec![pem], ..Tls::default() }).unwrap();
        TlsClient::new(&config, host).unwrap()
    };
    Pair::new(client("a.test", certificate.pem()), server(), 100).run().unwrap();
    let (error, _) = refusal(client("b.test", certificate.pem()), server());
    assert!(error.to_string().contains("not valid for name"), "{error}");
    let (error, _) = refusal(client("a.test", Authority::new().pem), server());
    assert!(matches!(error, TlsError::Certificate(..)), "{error}");
    assert!(error.to_string().contains("or self-signed (none of the given roots"), "{error}");
}

#[test]
fn certificates_are_checked_for_ip_addresses_too() {
    let authority = Authority::new();
    for host in ["127.0.0.1", "::1", "[::1]"] {
        let server = authority.server(&["127.0.0.1", "::1"], 2100);
        Pair::new(authority.client(host), server, 100).run().unwrap();
    }
    let config = TlsConfig::new(&Tls::default()).unwrap();
    let refused = TlsClient::new(&config, "no name").err();
    assert!(refused.is_some_and(|error| error.contains("'no name'")));
    assert!(TlsClient::new(&config, "").is_err());
}

#[test]
fn insecure_accepts_any_certificate_with_a_valid_signature() {
    let config = TlsConfig::new(&Tls { insecure: true, ..Tls::default() }).unwrap();
    let authority = Authority::new();
    for version in rustls::ALL_VERSIONS {
        let server = authority.server_with(&["a.test"], 2001, &[version], false);
        let mut pair = Pair::new(TlsClient::new(&config, "b.test").unwrap(), server, 50);
        pair.run().unwrap();
        assert!(pair.client.progress().handshake_done);
    }
    // One flipped bit of the server's signature: 1.2 sends it in the clear.
    let server = authority.server_with(&["a.test"], 2100, &[&rustls::version::TLS12], false);
    let mut pair = Pair::new(TlsClient::new(&config, "b.test").unwrap(), server, usize::MAX);
    pair.server.read_tls(&mut pair.sent.as_slice()).unwrap();
    pair.server.process_new_packets().unwrap();
    let mut cipher = Vec::new();
    while pair.server.wants_write() {
        pair.server.write_tls(&mut cipher).unwrap();
    }
    // The signature ends before the last record, ServerHelloDone, of nine bytes.
    let at = cipher.len() - 9 - 1;
    cipher[at] ^= 1;
    let error = pair.client.receive(&mut cipher, &mut pair.plain, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, TlsError::Certificate(CertificateError::BadSignature, _)), "{error:?}");
    assert!(!error.to_string().contains("insecure"), "{error}");
}

#[test]
fn client_certificate_is_sent_on_request() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["client.test"], 2100);
    let identity = certificate.pem() + &key.serialize_pem();
    let server = || authority.server_with(&["a.test"], 2100, rustls::ALL_VERSIONS, true);
    let mut pair = Pair::new(authority.client_with("a.test", Some(identity)), server(), 100);
    pair.run().unwrap();
    assert!(pair.server.peer_certificates().is_some());
    // Without it the client thinks it is done (1.3), then gets the alert.
    let mut pair = Pair::new(authority.client("a.test"), server(), 100);
    let error = pair.run().unwrap_err();
    assert_eq!(error, TlsError::Alert(rustls::AlertDescription::CertificateRequired));
}

#[test]
fn invalid_pem_is_reported() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["a"], 2100);
    let stranger = KeyPair::generate().unwrap().serialize_pem();
    let table = [
        (vec!["nonsense".to_owned()], None, "a root holds no certificate"),
        (vec![key.serialize_pem()], None, "a root holds no certificate"),
        (vec![], Some(certificate.pem()), "identity has no usable key"),
        (vec![], Some(key.serialize_pem()), "identity holds no certificate"),
        (vec![], Some(certificate.pem() + &stranger), "do not match"),
    ];
    for (roots_pem, identity_pem, word) in table {
        let error = TlsConfig::new(&Tls { insecure: false, roots_pem, identity_pem }).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn garbage_instead_of_tls_is_a_lasting_error() {
    let authority = Authority::new();
    for garbage in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 100], &[0xff; 20_000], b"SSH-2.0-x\r\n"]
    {
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let mut client = authority.client("a.test");
        client.start(&mut out).unwrap();
        let error = client.receive(&mut garbage.to_vec(), &mut plain, &mut out).unwrap_err();
        assert!(matches!(error, TlsError::Protocol(_)), "{error:?}");
        assert!(plain.is_empty());
        // The error stays.
        assert!(client.receive(&mut garbage.to_vec(), &mut plain, &mut out).is_err());
        assert!(client.send(b"x", &mut out).is_err());
    }
}
