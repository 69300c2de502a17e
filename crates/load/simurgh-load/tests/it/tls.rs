//! TLS of the load generator's connections, against rustls' own server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use simurgh_load::scenario::Tls;
use simurgh_load::tls::{TlsConfig, fault, server_name};
use simurgh_reactor::{
    Closed, Config, ConnectOptions, Handler, HandshakeError, Io, Key, Next, ShardSet, Slow,
};

use crate::outside::{Secure, Server, secure_server};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
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

    fn server(&self, names: &[&str], year_of_end: i32) -> Arc<ServerConfig> {
        self.server_with(names, year_of_end, rustls::ALL_VERSIONS, false)
    }

    fn server_with(
        &self,
        names: &[&str],
        year_of_end: i32,
        versions: &[&'static rustls::SupportedProtocolVersion],
        wants_identity: bool,
    ) -> Arc<ServerConfig> {
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
        Arc::new(config)
    }

    fn trusted(&self) -> Tls {
        Tls { roots_pem: vec![self.pem.clone()], ..Tls::default() }
    }
}

/// What became of a connection of a client.
#[derive(Debug, Default)]
struct Outcome {
    is_secured: bool,
    refusal: Option<String>,
    data: Vec<u8>,
    end: Option<Closed>,
}

/// One connection; it is closed once it is secured, unless there is something to send.
struct Client {
    to: SocketAddr,
    tls: TlsConfig,
    host: String,
    sends: &'static [u8],
    outcome: Outcome,
    done: Sender<Outcome>,
}

impl Handler for Client {
    type Conn = ();
    type Mail = ();

    fn connected(&mut self, io: &mut Io<()>, key: Key) {
        self.tls.begin(io, key, &self.host).unwrap();
    }

    fn secured(&mut self, io: &mut Io<()>, key: Key) {
        self.outcome.is_secured = true;
        match self.sends {
            [] => io.close(key),
            bytes => io.send(key, bytes),
        }
    }

    fn insecure(&mut self, _: &mut Io<()>, _: Key, why: &HandshakeError) {
        self.outcome.refusal = Some(self.tls.why_not(why));
    }

    fn readable(&mut self, _: &mut Io<()>, _: Key, data: &mut [u8]) {
        self.outcome.data.extend_from_slice(data);
    }

    fn closed(&mut self, io: &mut Io<()>, _: Key, (): (), why: Closed) {
        self.outcome.end = Some(why);
        self.done.send(std::mem::take(&mut self.outcome)).unwrap();
        io.stop();
    }

    fn mail(&mut self, io: &mut Io<()>, (): ()) {
        io.connect(self.to, &ConnectOptions::default(), ()).unwrap();
    }

    fn turn_end(&mut self, _: &mut Io<()>) -> Next {
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

fn connect(server: &Server, host: &str, tls: &Tls, sends: &'static [u8]) -> Outcome {
    let (done, outcome) = channel();
    let (to, tls, host) = (server.addr, TlsConfig::new(tls).unwrap(), host.to_owned());
    let client = Client { to, tls, host, sends, outcome: Outcome::default(), done };
    let mut set = ShardSet::prepare(1, 1 << 20).unwrap();
    let shard = set.spawn("client", Config::default(), move |_| client).unwrap();
    set.mailboxes()[0].post_anyway(());
    let outcome = outcome.recv_timeout(Duration::from_secs(30)).unwrap();
    shard.join().unwrap();
    outcome
}

/// Connects to a server that tells how its handshake, and its first read, ended.
fn meet(config: Arc<ServerConfig>, host: &str, tls: &Tls) -> (Outcome, io::Result<usize>) {
    let (tell, told) = channel();
    let server = secure_server(config, move |mut stream: Secure| {
        tell.send(stream.read(&mut [0; 16])).unwrap();
    });
    let outcome = connect(&server, host, tls, b"");
    (outcome, told.recv_timeout(Duration::from_secs(30)).unwrap())
}

#[track_caller]
fn refusal(config: Arc<ServerConfig>, host: &str, tls: &Tls) -> (String, io::Error) {
    let (outcome, at_server) = meet(config, host, tls);
    assert!(!outcome.is_secured, "{outcome:?}");
    (outcome.refusal.unwrap(), at_server.unwrap_err())
}

/// Writes no more than so many bytes at a time.
struct Pieces(TcpStream, usize);

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(self.1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn tls_data_passes_both_ways_in_any_fragments() {
    let authority = Authority::new();
    let big: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    for version in rustls::ALL_VERSIONS {
        for piece in [1, 7, 1000, usize::MAX] {
            let config = authority.server_with(&["a.test"], 2100, &[version], false);
            let answer = big.clone();
            let server = Server::new(move |peer| {
                let pieces = Pieces(peer.stream.try_clone().unwrap(), piece);
                let connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, pieces);
                let mut hello = [0; 5];
                stream.read_exact(&mut hello).unwrap();
                assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
                stream.write_all(&answer).unwrap();
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                assert_eq!((&hello, stream.read(&mut [0]).unwrap()), (b"hello", 0));
            });
            let outcome = connect(&server, "a.test", &authority.trusted(), b"hello");
            assert!(outcome.data == big, "{version:?}, {piece}");
            assert_eq!(outcome.end, Some(Closed::PeerEof));
        }
    }
}

#[test]
fn client_announces_its_end() {
    let authority = Authority::new();
    for version in rustls::ALL_VERSIONS {
        let config = authority.server_with(&["a.test"], 2100, &[version], false);
        let (outcome, at_server) = meet(config, "a.test", &authority.trusted());
        assert_eq!((outcome.end, at_server.unwrap()), (Some(Closed::Local), 0));
    }
}

#[test]
fn certificates_with_wrong_name_date_or_issuer_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (host, config, word) in [
        ("b.test", authority.server(&["a.test"], 2100), "not valid for name"),
        ("127.0.0.1", authority.server(&["a.test"], 2100), "not valid for"),
        ("a.test", authority.server(&["a.test"], 2001), "expired"),
        ("a.test", other.server(&["a.test"], 2100), "UnknownIssuer"),
    ] {
        let (error, at_server) = refusal(config, host, &authority.trusted());
        assert!(error.starts_with("TLS: the server's certificate is not accepted: "), "{error}");
        assert!(error.contains(word), "{error}");
        assert!(at_server.to_string().contains("received fatal alert"), "{at_server}");
    }
}

/// Advice names what helps against this error and was not done yet.
#[test]
fn certificate_advice_leaves_out_steps_already_taken() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = || authority.server(&["a.test"], 2100);
    let expired = || authority.server(&["a.test"], 2001);
    let (web, trusted) = (Tls::default(), authority.trusted());
    for (tls, host, config, has, has_not) in [
        (&web, "a.test", good(), "name its root in [tls] roots", "none of the given"),
        (&other.trusted(), "a.test", good(), "none of the given roots has signed it", "[tls]"),
        (&trusted, "a.test", expired(), "renew it", "root"),
        (&trusted, "b.test", good(), "--map NAME=ADDR", "root"),
    ] {
        let (text, _) = refusal(config, host, tls);
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
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).unwrap();
    let builder = builder.with_no_client_auth();
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let config = Arc::new(config);
    let itself = Tls { roots_pem: vec![certificate.pem()], ..Tls::default() };
    assert!(meet(config.clone(), "a.test", &itself).0.is_secured);
    let (error, _) = refusal(config.clone(), "b.test", &itself);
    assert!(error.contains("not valid for name"), "{error}");
    let (error, _) = refusal(config, "a.test", &Authority::new().trusted());
    assert!(error.contains("or self-signed (none of the given roots"), "{error}");
}

#[test]
fn certificates_are_checked_for_ip_addresses_too() {
    let authority = Authority::new();
    for host in ["127.0.0.1", "::1", "[::1]"] {
        let config = authority.server(&["127.0.0.1", "::1"], 2100);
        assert!(meet(config, host, &authority.trusted()).0.is_secured, "{host}");
    }
    assert!(server_name("no name").is_err_and(|error| error.contains("'no name'")));
    assert!(server_name("").is_err());
}

#[test]
fn insecure_accepts_any_certificate_with_a_valid_signature() {
    let any = Tls { insecure: true, ..Tls::default() };
    let authority = Authority::new();
    for version in rustls::ALL_VERSIONS {
        let config = authority.server_with(&["a.test"], 2001, &[version], false);
        assert!(meet(config, "b.test", &any).0.is_secured);
    }
    // One flipped bit of the server's signature: 1.2 sends it in the clear.
    let config = authority.server_with(&["a.test"], 2100, &[&rustls::version::TLS12], false);
    let server = Server::new(move |mut peer| {
        let mut connection = ServerConnection::new(config.clone()).unwrap();
        while !connection.wants_write() {
            connection.read_tls(&mut &*peer.stream).unwrap();
            connection.process_new_packets().unwrap();
        }
        let mut cipher = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut cipher).unwrap();
        }
        // The signature ends before the last record, ServerHelloDone, of nine bytes.
        let at = cipher.len() - 9 - 1;
        cipher[at] ^= 1;
        peer.send(cipher);
        peer.drain();
    });
    let error = connect(&server, "b.test", &any, b"").refusal.unwrap();
    assert!(error.contains("BadSignature") && !error.contains("insecure"), "{error}");
}

#[test]
fn client_certificate_is_sent_on_request() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["client.test"], 2100);
    let identity_pem = Some(certificate.pem() + &key.serialize_pem());
    let config = authority.server_with(&["a.test"], 2100, rustls::ALL_VERSIONS, true);
    let identified = Tls { identity_pem, ..authority.trusted() };
    let (outcome, at_server) = meet(config.clone(), "a.test", &identified);
    assert_eq!((outcome.is_secured, at_server.unwrap()), (true, 0));
    // Without it the client thinks it is done (1.3), then gets the alert.
    let server = secure_server(config, |mut stream| assert!(stream.read(&mut [0]).is_err()));
    let outcome = connect(&server, "a.test", &authority.trusted(), b"hello");
    assert!(outcome.is_secured);
    let text = fault(outcome.end.unwrap());
    assert_eq!(text.as_deref(), Some("TLS: the server sent the alert CertificateRequired"));
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

/// The server gets the first message of the handshake, and nothing after its garbage but an alert.
#[test]
fn garbage_instead_of_tls_is_an_error_and_not_answered() {
    for (garbage, word) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not speak TLS"),
        (&[0; 100], "does not speak TLS"),
        (&[0xff; 20_000], "does not speak TLS"),
        (b"SSH-2.0-x\r\n", "does not speak TLS"),
        (&[22, 3, 3, 0, 4, 99, 0, 0, 0], "TLS: received "),
    ] {
        let (tell, told) = channel();
        let server = Server::new(move |mut peer| {
            let mut hello = vec![0; 4096];
            let bytes = (&*peer.stream).read(&mut hello).unwrap();
            assert!(hello.starts_with(&[22, 3, 1]) && bytes > 100, "a ClientHello");
            peer.send(garbage);
            let mut answer = Vec::new();
            // It may have been reset.
            let _ = (&*peer.stream).read_to_end(&mut answer);
            tell.send(answer).unwrap();
        });
        let outcome = connect(&server, "a.test", &Tls::default(), b"hello");
        let error = outcome.refusal.unwrap();
        assert!(error.contains(word) && !outcome.is_secured, "{error}");
        let answer = told.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(matches!(&answer[..], [] | [21, ..]), "{answer:?}");
    }
}
