//! Connections with TLS: clients of rustls, and the shard's own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use simurgh_reactor::{Closed, Config, ConnectOptions, Key, Run};
use simurgh_tls::rustls::crypto::ring;
use simurgh_tls::rustls::pki_types::PrivateKeyDer;
use simurgh_tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion, version,
};

use crate::support::{Conn, Event, Server, read_to_end, write};

struct Certificate(rcgen::CertifiedKey<rcgen::KeyPair>);

impl Certificate {
    fn new() -> Self {
        Self(rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap())
    }

    fn server(&self, is_stock: bool) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(self.0.signing_key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.0.cert.der().clone()], key)
            .unwrap();
        if !is_stock {
            simurgh_tls::prepare_server(&mut config);
        }
        Arc::new(config)
    }

    fn client(&self, version: &'static SupportedProtocolVersion, suite: &str) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.cert.der().clone()).unwrap();
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|it| format!("{it:?}").contains(suite));
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

type Client = StreamOwned<ClientConnection, TcpStream>;

fn client(server: &Server, config: ClientConfig) -> Client {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, server.connect())
}

fn config(tls: Arc<ServerConfig>) -> Config {
    Config { tls: vec![Some(tls)], read_buffer_bytes: 1 << 12, ..Config::default() }
}

fn accepted(server: &Server) -> Key {
    match server.event() {
        Event::Accepted { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

fn secured(server: &Server) -> Key {
    let key = accepted(server);
    assert_eq!(server.event(), Event::Secured(key));
    key
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

/// Short and long, with each version, suite and record layer.
#[test]
fn data_is_echoed_over_each_version_and_suite() {
    let certificate = Certificate::new();
    for is_stock in [false, true] {
        let server = Server::start(1, true, &config(certificate.server(is_stock)));
        for (version, suite) in [
            (&version::TLS13, "TLS13_AES_128_GCM"),
            (&version::TLS13, "TLS13_CHACHA20"),
            (&version::TLS13, "TLS13_AES_256"),
            (&version::TLS12, "TLS_ECDHE_ECDSA_WITH_AES_128"),
        ] {
            let mut client = client(&server, certificate.client(version, suite));
            for bytes in [1, 100, 16_384, 16_385, 300_000] {
                let sent = pattern(bytes);
                let mut heard = vec![0; bytes];
                // In pieces, so that neither side's buffers have to hold all.
                for (sent, heard) in sent.chunks(50_000).zip(heard.chunks_mut(50_000)) {
                    client.write_all(sent).unwrap();
                    client.read_exact(heard).unwrap();
                }
                assert!(sent == heard, "{suite}, {bytes} bytes");
            }
            client.conn.send_close_notify();
            client.flush().unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "an orderly end");
        }
        let counts = server.shards[0].stats().read();
        assert_eq!((counts.tls_handshakes, counts.tls_12, counts.tls_failed), (4, 1, 0));
    }
}

#[test]
fn bytes_one_at_a_time_and_behind_the_handshake_are_heard() {
    let certificate = Certificate::new();
    let server = Server::start(1, false, &config(certificate.server(false)));
    let mut client = client(&server, certificate.client(&version::TLS13, ""));
    // The first data leaves in one write with the end of the handshake.
    client.conn.writer().write_all(b"early").unwrap();
    client.flush().unwrap();
    let key = secured(&server);
    assert_eq!(server.read(key), b"early");
    let mut record = Vec::new();
    client.conn.writer().write_all(b"slow").unwrap();
    client.conn.write_tls(&mut record).unwrap();
    for byte in record {
        write(&mut client.sock, &[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.read(key), b"slow");
}

/// What the socket does not take waits, partly as ciphertext, and shared frames stay shared.
#[test]
fn slow_reader_gets_all_frames_in_order() {
    let certificate = Certificate::new();
    for is_stock in [false, true] {
        let server = Server::start(1, false, &config(certificate.server(is_stock)));
        let mut client = client(&server, certificate.client(&version::TLS13, ""));
        client.write_all(b"hello").unwrap();
        let key = secured(&server);
        assert_eq!(server.read(key), b"hello");
        let (frame, count) = (pattern(70_001), 200);
        let expected = frame.repeat(count);
        let waits = server.ask(move |_, io| {
            let shared = io.share(frame);
            for at in 0..count {
                match at % 3 {
                    0 => io.send_shared(key, &shared),
                    1 => io.send_run_later(key, Run::of(&shared)),
                    _ => io.send(key, shared.as_bytes()),
                }
            }
            io.flush();
            io.queued(key)
        });
        assert!(waits > 1 << 20, "{waits}");
        let mut heard = vec![0; expected.len()];
        client.read_exact(&mut heard).unwrap();
        assert!(heard == expected);
        server.await_counts(|counts| counts.queued_bytes == 0 && counts.waiting_bytes == 0);
    }
}

#[test]
fn shard_connects_to_itself_with_tls() {
    let certificate = Certificate::new();
    let server = Server::start(1, false, &config(certificate.server(false)));
    let address = server.address;
    let mut tls = certificate.client(&version::TLS13, "");
    simurgh_tls::prepare_client(&mut tls);
    let tls = Arc::new(tls);
    let ours = server.ask(move |_, io| {
        let how = ConnectOptions::default();
        let key = io.connect(address, &how, Conn::default()).unwrap();
        io.begin_tls(key, &tls, "localhost".try_into().unwrap());
        io.send(key, b"sent before the handshake");
        key
    });
    let mut events = Vec::new();
    let theirs = loop {
        match server.event() {
            Event::Accepted { key, .. } => events.push(key),
            Event::Read(key, bytes) => {
                assert_eq!(bytes, b"sent before the handshake");
                break key;
            }
            Event::Connected(key) => assert_eq!(key, ours),
            Event::Secured(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(events, [theirs]);
    server.ask(move |_, io| io.send(theirs, b"answer"));
    let answer = loop {
        match server.event() {
            Event::Read(key, bytes) if key == ours => break bytes,
            Event::Secured(key) => assert_eq!(key, ours),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer, b"answer");
    server.ask(move |_, io| io.close(ours));
    let mut ends = [server.event(), server.event()];
    ends.sort_by_key(|it| matches!(it, Event::Closed(key, _) if *key == ours));
    assert_eq!(ends, [Event::Closed(theirs, Closed::PeerEof), Event::Closed(ours, Closed::Local)]);
}

#[test]
fn certificate_of_another_name_is_refused_with_a_reason() {
    let certificate = Certificate::new();
    let server = Server::start(1, false, &config(certificate.server(false)));
    let (address, tls) = (server.address, Arc::new(certificate.client(&version::TLS13, "")));
    let ours = server.ask(move |_, io| {
        let key = io.connect(address, &ConnectOptions::default(), Conn::default()).unwrap();
        io.begin_tls(key, &tls, "example.com".try_into().unwrap());
        key
    });
    let mut reasons = Vec::new();
    let mut closed = 0;
    while closed < 2 {
        match server.event() {
            Event::Insecure(key, why) => reasons.push((key == ours, why)),
            Event::Closed(..) => closed += 1,
            _ => {}
        }
    }
    let of = |is_ours: bool| reasons.iter().find(|it| it.0 == is_ours).map(|it| &*it.1).unwrap();
    assert!(of(true).contains("not valid for name"), "{reasons:?}");
    assert!(of(false).contains("does not accept our certificate"), "{reasons:?}");
}

#[test]
fn plain_http_on_the_tls_port_gets_a_readable_400() {
    let certificate = Certificate::new();
    let server = Server::start(1, false, &config(certificate.server(false)));
    let mut stream = server.connect();
    write(&mut stream, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let (answer, _) = read_to_end(&mut stream);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
    assert!(body.contains("https"), "{answer}");
}

/// The alert is read before the end, also by a peer that has sent more.
#[test]
fn forged_record_ends_with_an_alert_and_nothing_is_heard() {
    let certificate = Certificate::new();
    let server = Server::start(1, false, &config(certificate.server(false)));
    let mut client = client(&server, certificate.client(&version::TLS13, ""));
    client.write_all(b"hello").unwrap();
    let key = secured(&server);
    assert_eq!(server.read(key), b"hello");
    let mut record = Vec::new();
    client.conn.writer().write_all(b"forged").unwrap();
    client.conn.write_tls(&mut record).unwrap();
    let last = record.len() - 1;
    record[last] ^= 1;
    record.extend_from_slice(&pattern(40_000));
    write(&mut client.sock, &record);
    let error = client.read(&mut [0; 16]).unwrap_err();
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    assert!(matches!(server.event(), Event::Closed(it, Closed::Reset(_)) if it == key));
}

#[test]
fn plain_listener_beside_one_with_tls_stays_plain() {
    let certificate = Certificate::new();
    let tls = vec![None, Some(certificate.server(false))];
    let addresses = ["127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    let server = Server::listening(&addresses, 1, false, &Config { tls, ..Config::default() });
    let (mut plain, key) = server.connect_with_key();
    write(&mut plain, b"plain");
    assert_eq!(server.read(key), b"plain");
    assert!(!server.ask(move |_, io| io.is_secure(key)));
    plain.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof));
}

/// Thousands of handshakes at once do not hold up a connection that is established.
#[test]
fn established_connection_is_served_during_a_storm_of_handshakes() {
    let certificate = Certificate::new();
    let server = Server::start(1, true, &config(certificate.server(false)));
    let mut bystander = client(&server, certificate.client(&version::TLS13, ""));
    bystander.write_all(b"hello").unwrap();
    bystander.read_exact(&mut [0; 5]).unwrap();
    let mut storm: Vec<_> =
        (0..300).map(|_| client(&server, certificate.client(&version::TLS13, ""))).collect();
    for client in &mut storm {
        client.conn.write_tls(&mut client.sock).unwrap();
    }
    let before = server.shards[0].stats().read().tls_handshakes;
    bystander.write_all(b"hello").unwrap();
    bystander.read_exact(&mut [0; 5]).unwrap();
    let after = server.shards[0].stats().read().tls_handshakes;
    assert!(after - before < 300, "it came before the end of the storm");
    for client in &mut storm {
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    let counts = server.shards[0].stats().read();
    assert_eq!((counts.tls_handshakes, counts.tls_failed, counts.tls_refused), (301, 0, 0));
    drop(storm);
    server.await_counts(|counts| counts.open == 1);
}
