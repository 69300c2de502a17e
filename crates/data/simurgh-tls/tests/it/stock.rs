//! Connections that stay with rustls.

use simurgh_tls::{End, Established, SealError, Stock};

use crate::support::config::Configs;
use crate::support::{Peer, SIDES, Side, established};

fn data(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + bytes) as u8).collect()
}

#[test]
fn data_of_any_length_passes_in_both_directions() {
    let configs = Configs::tls12();
    for side in SIDES {
        for piece in [1, 7, 4096, usize::MAX] {
            let (mut ours, mut peer) = established(side, &configs);
            for bytes in [0, 1, 200, 16_383, 16_384, 16_385, 60_000, 200_000] {
                let sent = data(bytes);
                if piece > 1 || bytes < 20_000 {
                    let (received, end, answer) = ours.receive_by(piece, &peer.send(&sent));
                    assert_eq!((end, answer.len()), (None, 0));
                    assert!(received == sent && ours.holds_nothing(), "{bytes} by {piece}");
                }
                assert!(peer.receive(&ours.send(&sent)).unwrap() == sent, "{bytes}");
            }
        }
    }
}

#[test]
fn close_notify_is_sent_once_and_received() {
    let (mut ours, mut peer) = established(Side::Server, &Configs::tls12());
    let out = ours.close();
    assert_eq!(peer.receive(&out).unwrap(), b"");
    assert!(peer.has_received_close() && ours.close().is_empty());
    peer.0.send_close_notify();
    assert_eq!(ours.receive(&peer.send(b"late")).1, Some(End::Closed));
    assert_eq!(ours.receive(b"anything"), (Vec::new(), None, Vec::new()));
}

#[test]
fn change_of_any_byte_ends_the_connection() {
    let configs = Configs::tls12();
    for at in (0..30).filter(|at| ![3, 4].contains(at)) {
        let (mut ours, mut peer) = established(Side::Server, &configs);
        let mut record = peer.send(b"forged");
        record[at] ^= 0x40;
        let (received, end, answer) = ours.receive(&record);
        assert!(received.is_empty() && matches!(end, Some(End::Failed(_))), "{at}: {end:?}");
        assert!(peer.receive(&answer).is_err(), "{at}: gets the alert");
    }
}

fn stock() -> (Stock, Peer) {
    let (ours, peer) = established(Side::Server, &Configs::tls12());
    let Established::Stock(stock) = ours.established else { panic!("not stock") };
    (*stock, peer)
}

/// More than rustls buffers by itself.
#[test]
fn long_piece_leaves_at_once() {
    let ((mut stock, mut peer), mut out) = (stock(), Vec::new());
    let sent = data(300_000);
    stock.seal([sent.as_slice()], &mut out).unwrap();
    assert!(peer.receive(&out).unwrap() == sent);
}

#[test]
fn nothing_is_sealed_after_the_end() {
    let (mut stock, _) = stock();
    let (mut plain, mut answer) = (b"before".to_vec(), Vec::new());
    let opened = stock.open(&[23, 3, 3, 0xff, 0xff], &mut plain, &mut answer);
    assert_eq!((opened.plain, opened.end), (6..6, Some(End::Failed(50))));
    let mut out = Vec::new();
    assert_eq!(stock.seal([&b"x"[..]], &mut out), Err(SealError::Closed));
    stock.close(&mut out);
    assert!(out.is_empty());
}
