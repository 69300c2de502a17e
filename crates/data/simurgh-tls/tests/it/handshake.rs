//! Handshakes with stock rustls: how they end, what is kept, and what is refused.

use std::sync::Arc;

use rustls::{AlertDescription, CipherSuite, Error, ProtocolVersion};
use simurgh_tls::{
    Established, Handshake, HandshakeError, Negotiated, Progress, prepare_client, prepare_server,
    rustls,
};

use crate::support::config::{Certificate, Configs, SUITES, TLS12, TLS13, name};
use crate::support::{Pair, Peer, SIDES, Side, established};

/// Gives our side all that the peer sends, and the peer our answers, until ours fails.
fn failure(
    mut ours: Handshake,
    mut peer: Peer,
    mut out: Vec<u8>,
) -> (HandshakeError, Peer, Vec<u8>) {
    for _ in 0..10 {
        // The peer may refuse, too.
        let _ = peer.receive(&std::mem::take(&mut out));
        if let Err(error) = ours.receive(&peer.output(), &mut out) {
            return (error, peer, out);
        }
    }
    panic!("the handshake does not fail");
}

#[test]
fn each_suite_has_its_keys() {
    for side in SIDES {
        for suite in SUITES {
            let configs = Configs::of(suite);
            let (ours, _) = established(side, &configs);
            match (suite, ours.established) {
                (CipherSuite::TLS13_AES_128_GCM_SHA256, Established::Aes128(_))
                | (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, Established::ChaCha20(_))
                | (CipherSuite::TLS13_AES_256_GCM_SHA384, Established::Aes256(_)) => {}
                (suite, other) => panic!("{suite:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn negotiated_facts_are_known_when_it_is_done() {
    let configs = Configs::of(SUITES[0]);
    // The second handshake uses a ticket of the first: rustls sent it before the secrets left.
    for is_resumed in [false, true] {
        let mut pair = Pair::new(Side::Server, &configs.server, &configs.client);
        let mut out = Vec::new();
        pair.ours.receive(&pair.peer.output(), &mut out).unwrap();
        pair.peer.receive(&std::mem::take(&mut out)).unwrap();
        assert_eq!(pair.ours.receive(&pair.peer.output(), &mut out).unwrap(), Progress::Done);
        let expected = Negotiated {
            version: Some(ProtocolVersion::TLSv1_3),
            suite: Some(SUITES[0]),
            is_resumed,
            server_name: Some("localhost"),
        };
        assert_eq!(pair.ours.negotiated(), expected);
        pair.peer.receive(&out).unwrap();
    }
}

/// A key update right behind the Finished: rustls must not see it, else its keys are not the logged
/// ones.
#[test]
fn key_update_in_the_segment_of_the_finished_is_ours() {
    for suite in SUITES {
        let configs = Configs::of(suite);
        for side in SIDES {
            for piece in [usize::MAX, 1, 7] {
                let pair = Pair::new(side, &configs.server, &configs.client);
                let (mut ours, mut peer) = pair.run(piece, update_and_send).unwrap();
                let (data, end, answer) = ours.receive(b"");
                assert_eq!((data.as_slice(), end), (&b"behind"[..], None));
                // rustls requests ours.
                assert!(!answer.is_empty());
                peer.receive(&answer).unwrap();
                assert_eq!(peer.receive(&ours.send(b"back")).unwrap(), b"back");
            }
        }
    }
}

fn update_and_send(peer: &mut Peer) {
    peer.0.refresh_traffic_keys().unwrap();
    peer.write(b"behind");
}

#[test]
fn handshake_may_come_byte_by_byte() {
    let configs = Configs::of(SUITES[0]);
    for side in SIDES {
        let pair = Pair::new(side, &configs.server, &configs.client);
        let (mut ours, mut peer) = pair.run(1, |peer| peer.write(b"early")).unwrap();
        assert_eq!(ours.receive(b"").0, b"early");
        assert_eq!(ours.receive(&peer.send(b"late")).0, b"late");
        assert_eq!(peer.receive(&ours.send(b"back")).unwrap(), b"back");
    }
}

#[test]
fn connection_that_cannot_leave_rustls_stays_there() {
    let certificate = Certificate::new("issuer");
    let client = Arc::new(certificate.client(TLS13, None));
    let server = Arc::new(certificate.server(TLS13));
    for configs in [Configs { server, client }, Configs::tls12()] {
        for side in SIDES {
            let pair = Pair::new(side, &configs.server, &configs.client);
            let (mut ours, mut peer) = pair.run(7, |peer| peer.write(b"behind")).unwrap();
            assert_eq!(ours.receive(b"").0, b"behind");
            assert_eq!(peer.receive(&ours.send(b"back")).unwrap(), b"back");
        }
    }
}

#[test]
fn other_key_log_is_noticed() {
    let configs = Configs::of(SUITES[0]);
    let mut server = (*configs.server).clone();
    server.key_log = Arc::new(rustls::NoKeyLog);
    let pair = Pair::new(Side::Server, &Arc::new(server), &configs.client);
    assert!(matches!(pair.run(usize::MAX, |_| {}), Err(HandshakeError::OtherSecrets)));
}

#[test]
fn plain_http_is_not_tls() {
    let configs = Configs::of(SUITES[0]);
    for input in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"G", b"\x80\x2e\x01", b"\x16\x05", b"\0"] {
        let (mut ours, mut out) = (Handshake::server(&configs.server).unwrap(), Vec::new());
        let refused = ours.receive(input, &mut out);
        assert!(matches!(refused, Err(HandshakeError::NotTls)), "{refused:?}");
        assert!(out.is_empty());
    }
    let mut out = Vec::new();
    let mut ours = Handshake::client(&configs.client, name(), &mut out).unwrap();
    let refused = ours.receive(b"HTTP/1.1 400 Bad Request\r\n", &mut out);
    assert!(matches!(refused, Err(HandshakeError::NotTls)), "{refused:?}");
}

#[test]
fn nothing_is_no_reason_to_refuse() {
    let configs = Configs::of(SUITES[0]);
    let mut ours = Handshake::server(&configs.server).unwrap();
    assert_eq!(ours.receive(b"", &mut Vec::new()).unwrap(), Progress::Continues);
    assert!(matches!(ours.finish(), Err(HandshakeError::NotDone)));
}

/// A message of 64 KiB: three records, and the fourth up to its last byte but one.
#[test]
fn endless_handshake_is_refused() {
    let configs = Configs::of(SUITES[0]);
    let mut ours = Handshake::server(&configs.server).unwrap();
    let mut record = vec![0; 5 + 16_384];
    record[..9].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff]);
    for _ in 0..3 {
        assert_eq!(ours.receive(&record, &mut Vec::new()).unwrap(), Progress::Continues);
        record[5..].fill(0);
    }
    for byte in &record[..16_388] {
        match ours.receive(&[*byte], &mut Vec::new()) {
            Ok(_) => assert!(ours.held_bytes() <= 64 * 1024),
            Err(refused) => {
                assert!(matches!(refused, HandshakeError::TooLong), "{refused:?}");
                return;
            }
        }
    }
    panic!("more than 64 KiB are held");
}

/// RFC 8446 §5.1: the alert of rustls reaches the peer.
#[test]
fn record_that_is_too_long_is_refused() {
    let configs = Configs::of(SUITES[0]);
    let (mut ours, mut out) = (Handshake::server(&configs.server).unwrap(), Vec::new());
    let refused = ours.receive(&[22, 3, 1, 0xff, 0xff], &mut out);
    assert!(matches!(refused, Err(HandshakeError::Refused(Error::InvalidMessage(_)))));
    assert_eq!(out[..5], [21, 3, 3, 0, 2], "an alert");
}

/// RFC 8446 §4.1.3: the server's random value says that it could do better.
#[test]
fn downgrade_is_noticed() {
    let certificate = Certificate::new("issuer");
    for side in SIDES {
        let (mut server, mut client) = (
            certificate.server(rustls::ALL_VERSIONS),
            certificate.client(rustls::ALL_VERSIONS, None),
        );
        prepare_server(&mut server);
        prepare_client(&mut client);
        let (server, client) = (Arc::new(server), Arc::new(client));
        let mut hello = Vec::new();
        // Someone between the two hides the extension `supported_versions` (43).
        let hide = |hello: &mut Vec<u8>| {
            let versions = [0, 43, 0, 5, 4, 3, 4, 3, 3];
            let at = hello.windows(9).position(|window| window == versions).unwrap();
            hello[at..at + 2].copy_from_slice(&[0xfa, 0xfa]);
        };
        let error = match side {
            Side::Server => {
                let (mut ours, mut peer) =
                    (Handshake::server(&server).unwrap(), Peer::client(&client));
                hello.extend(peer.output());
                hide(&mut hello);
                let mut out = Vec::new();
                ours.receive(&hello, &mut out).unwrap();
                failure(ours, peer, out).0
            }
            Side::Client => {
                let ours = Handshake::client(&client, name(), &mut hello).unwrap();
                hide(&mut hello);
                let (error, mut peer, out) = failure(ours, Peer::server(&server), hello);
                let alert = Error::AlertReceived(AlertDescription::IllegalParameter);
                assert_eq!(peer.receive(&out), Err(alert));
                error
            }
        };
        let HandshakeError::Refused(error) = error else { panic!("{error}") };
        match side {
            Side::Server => {
                assert_eq!(error, Error::AlertReceived(AlertDescription::IllegalParameter));
            }
            Side::Client => assert!(matches!(error, Error::PeerMisbehaved(_)), "{error}"),
        }
    }
}

#[test]
fn untrusted_certificate_is_explained_on_both_sides() {
    let server = Arc::new(Certificate::new("issuer").server(TLS13));
    let client = Arc::new(Certificate::new("another issuer").client(TLS13, None));
    let ours = Handshake::server(&server).unwrap();
    let (error, ..) = failure(ours, Peer::client(&client), Vec::new());
    assert!(error.to_string().starts_with("the other side does not accept our certificate (alert"));
    let mut out = Vec::new();
    let ours = Handshake::client(&client, name(), &mut out).unwrap();
    let (error, mut peer, out) = failure(ours, Peer::server(&server), out);
    assert!(error.to_string().starts_with("the certificate of the other side is not valid"));
    assert!(matches!(error, HandshakeError::Refused(Error::InvalidCertificate(_))));
    assert!(matches!(peer.receive(&out), Err(Error::AlertReceived(_))), "gets our alert");
}

#[test]
fn missing_common_version_is_explained() {
    let certificate = Certificate::new("issuer");
    let server = Arc::new(certificate.server(TLS13));
    let client = Arc::new(certificate.client(TLS12, None));
    let ours = Handshake::server(&server).unwrap();
    let (error, mut peer, out) = failure(ours, Peer::client(&client), Vec::new());
    assert_eq!(error.to_string(), "the two sides have no TLS version in common");
    let alert = Error::AlertReceived(AlertDescription::ProtocolVersion);
    assert_eq!(peer.receive(&out), Err(alert));
}
