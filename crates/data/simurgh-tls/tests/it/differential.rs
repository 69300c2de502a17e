//! Thousands of exchanges with stock rustls on the other side: what one sends, the other reads.

use rustls::{AlertDescription, Error};
use simurgh_tls::{End, PLAIN_BYTES_MAX, rustls};

use crate::support::config::{Configs, SUITES};
use crate::support::{Ours, Peer, SIDES, Side, established};

/// Lengths at every border, and a number of others below 2,000.
fn lengths() -> impl Iterator<Item = usize> {
    let borders = [0, 1, 15, 16, 17, PLAIN_BYTES_MAX - 1, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX + 1];
    borders.into_iter().chain([60_000]).chain((0..100).map(|n| n * 6_151 % 2_000))
}

fn data(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + bytes) as u8).collect()
}

/// One exchange in both directions.
fn exchange(ours: &mut Ours, peer: &mut Peer, sent: &[u8], piece: usize) {
    let (received, end, answer) = ours.receive_by(piece, &peer.send(sent));
    assert!(received == sent && end.is_none() && ours.holds_nothing(), "{} B up", sent.len());
    assert_eq!(peer.receive(&answer).unwrap(), b"");
    assert!(peer.receive(&ours.send(sent)).unwrap() == sent, "{} B down", sent.len());
}

#[test]
fn data_of_any_length_passes_whatever_the_cut() {
    let mut cases = 0;
    for suite in SUITES {
        let configs = Configs::of(suite);
        for side in SIDES {
            for piece in [1, 7, 4096] {
                let (mut ours, mut peer) = established(side, &configs);
                for (round, bytes) in lengths().enumerate() {
                    // rustls changes its key in between, and asks for ours.
                    if round % 5 == 3 {
                        peer.0.refresh_traffic_keys().unwrap();
                        cases += 1;
                    }
                    exchange(&mut ours, &mut peer, &data(bytes), piece);
                    cases += 2;
                }
            }
        }
    }
    assert!(cases >= 4_000, "{cases}");
}

/// RFC 8446 §5.2: no plaintext, and an alert that rustls can read.
#[test]
fn forged_record_fails_at_every_byte() {
    for suite in SUITES {
        let configs = Configs::of(suite);
        for side in SIDES {
            let mut at = 0;
            loop {
                let (mut ours, mut peer) = established(side, &configs);
                let mut record = peer.send(b"forged");
                let Some(byte) = record.get_mut(at) else { break };
                *byte ^= 1;
                let (received, end, answer) = ours.receive(&record);
                assert!(received.is_empty());
                match at {
                    0 => assert_eq!(end, Some(End::Failed(10))),
                    // A longer record than came; else bytes of one are missing.
                    3 | 4 if end.is_none() => assert!(!ours.holds_nothing()),
                    _ => assert_eq!(end, Some(End::Failed(20)), "byte {at}"),
                }
                if let Some(End::Failed(alert)) = end {
                    let expected = Error::AlertReceived(AlertDescription::from(alert));
                    assert_eq!(peer.receive(&answer), Err(expected));
                }
                at += 1;
            }
            assert_eq!(at, 5 + 6 + 1 + 16);
        }
    }
}

/// RFC 8446 §5.3.
#[test]
fn replayed_record_fails() {
    for side in SIDES {
        let (mut ours, mut peer) = established(side, &Configs::of(SUITES[0]));
        let record = peer.send(b"once");
        assert_eq!(ours.receive(&record).0, b"once");
        assert_eq!(ours.receive(&record).1, Some(End::Failed(20)));
    }
}

/// RFC 8446 §6.1: half closed, what we send still arrives; then both are closed.
#[test]
fn closing_is_clean_in_both_directions() {
    for suite in SUITES {
        let configs = Configs::of(suite);
        for side in SIDES {
            let (mut ours, mut peer) = established(side, &configs);
            peer.0.send_close_notify();
            assert_eq!(ours.receive(&peer.output()), (vec![], Some(End::Closed), vec![]));
            assert_eq!(peer.receive(&ours.send(b"late")).unwrap(), b"late");
            let close = ours.close();
            assert_eq!(peer.receive(&close).unwrap(), b"");
            assert!(peer.has_received_close());
            // And the other way round.
            let (mut ours, mut peer) = established(side, &configs);
            let close = ours.close();
            peer.receive(&close).unwrap();
            assert!(peer.has_received_close());
            assert_eq!(ours.receive(&peer.send(b"late")).0, b"late");
            peer.0.send_close_notify();
            assert_eq!(ours.receive(&peer.output()).1, Some(End::Closed));
        }
    }
}

/// rustls permits 32 key updates without data, as we do.
#[test]
fn flood_of_key_updates_ends() {
    let (mut ours, mut peer) = established(Side::Server, &Configs::of(SUITES[0]));
    for _ in 0..32 {
        peer.0.refresh_traffic_keys().unwrap();
        let (_, end, answer) = ours.receive(&peer.output());
        assert_eq!(end, None);
        peer.receive(&answer).unwrap();
    }
    peer.0.refresh_traffic_keys().unwrap();
    let (_, end, answer) = ours.receive(&peer.output());
    assert_eq!(end, Some(End::Failed(10)));
    let expected = Error::AlertReceived(AlertDescription::UnexpectedMessage);
    assert_eq!(peer.receive(&answer), Err(expected));
}

/// Both sides ours.
#[test]
fn our_client_and_our_server_understand_each_other() {
    use simurgh_tls::{Handshake, Progress};

    for suite in SUITES {
        let configs = Configs::of(suite);
        let mut up = Vec::new();
        let name = crate::support::config::name();
        let mut client = Handshake::client(&configs.client, name, &mut up).unwrap();
        let mut server = Handshake::server(&configs.server).unwrap();
        let (mut down, mut finished) = (Vec::new(), Vec::new());
        assert_eq!(server.receive(&up, &mut down).unwrap(), Progress::Continues);
        assert_eq!(client.receive(&down, &mut finished).unwrap(), Progress::Done);
        let mut tickets = Vec::new();
        assert_eq!(server.receive(&finished, &mut tickets).unwrap(), Progress::Done);
        let (mut client, mut server) = (Ours::new(client), Ours::new(server));
        // Our client skips rustls' tickets.
        assert!(!tickets.is_empty());
        assert_eq!(client.receive(&tickets), (vec![], None, vec![]));
        for bytes in lengths() {
            let sent = data(bytes);
            assert!(server.receive(&client.send(&sent)).0 == sent);
            assert!(client.receive(&server.send(&sent)).0 == sent);
        }
    }
}
