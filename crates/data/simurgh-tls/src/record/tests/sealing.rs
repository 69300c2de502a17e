//! Tests of sealed records.

use super::*;

#[test]
fn pieces_become_one_record() {
    let (mut keys, mut out) = (server(), b"before".to_vec());
    keys.record().seal([&b"one "[..], b"", b"two"], &mut out).unwrap();
    let mut record = out.split_off(6);
    assert_eq!(out, b"before");
    assert_eq!(record.len(), 5 + 7 + 1 + 16);
    assert_eq!(Peer::receiver().open(&mut record), (APPLICATION_DATA, b"one two".to_vec()));
    assert!(record.is_empty());
}

/// RFC 8446 §5.1.
#[test]
fn data_longer_than_a_record_is_an_error() {
    let (mut keys, mut out) = (server(), b"before".to_vec());
    let half = [7; PLAIN_BYTES_MAX / 2];
    let long = keys.record().seal([&half[..], &half, &[1]], &mut out);
    assert_eq!((long, out.as_slice()), (Err(SealError::TooLong), &b"before"[..]));
    keys.record().seal([&half[..], &half], &mut out).unwrap();
    let mut record = out.split_off(6);
    assert_eq!(Peer::receiver().open(&mut record).1.len(), PLAIN_BYTES_MAX);
}

/// RFC 8446 §5.3: the same plaintext never gets the same nonce, even after a refusal or a panic.
#[test]
fn number_moves_with_each_record() {
    let (mut keys, mut peer) = (server(), Peer::receiver());
    let (mut out, mut last) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let refused = keys.record().seal([&[0; PLAIN_BYTES_MAX + 1][..]], &mut out);
        assert_eq!(refused, Err(SealError::TooLong));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let pieces =
                (0..2).map(|n| if n == 0 { &b"x"[..] } else { panic!("a caller's fault") });
            keys.record().seal(pieces, &mut Vec::new())
        }));
        assert!(panicked.is_err());
        keys.record().seal([&b"same"[..]], &mut out).unwrap();
        assert_ne!(out, last);
        last.clone_from(&out);
        assert_eq!(keys.record().number(TO_SEND), round + 1);
        assert_eq!(peer.open(&mut out), (APPLICATION_DATA, b"same".to_vec()));
    }
}

/// RFC 8446 §6.1.
#[test]
fn close_notify_is_sent_once() {
    let (mut keys, mut out) = (server(), Vec::new());
    keys.record().close(&mut out);
    keys.record().close(&mut out);
    assert_eq!(Peer::receiver().open(&mut out), (ALERT, vec![WARNING, CLOSE_NOTIFY]));
    assert!(out.is_empty());
    assert_eq!(keys.record().seal([&b"x"[..]], &mut out), Err(SealError::Closed));
    assert!(out.is_empty());
    // The peer's direction is still open.
    let mut peer = Peer::sender();
    assert_eq!(open(&mut keys, &peer.data(b"x")).0, b"x");
    // A failure cannot be answered any more.
    assert_eq!(open(&mut keys, b"broken").1, Some(End::Failed(10)));
}

/// RFC 8446 §5.5: AES-GCM allows 2^24.5 records; we change the key after 2^23, of every suite.
#[test]
fn key_changes_after_2_23_records() {
    let near = RECORDS_MAX - 1;
    let mut keys: Aes128 =
        Keys::new(Suite::Aes128Gcm, false, direction(&OURS, near), direction(&PEERS, 0)).unwrap();
    let (mut out, mut peer) = (Vec::new(), Peer { number: near, ..Peer::receiver() });
    for text in [&b"last"[..], b"first", b"second"] {
        keys.record().seal([text], &mut out).unwrap();
    }
    assert_eq!(peer.open(&mut out), (APPLICATION_DATA, b"last".to_vec()));
    assert_eq!(peer.open(&mut out), (HANDSHAKE, vec![KEY_UPDATE, 0, 0, 1, 0]));
    peer.next_key();
    assert_eq!(peer.open(&mut out), (APPLICATION_DATA, b"first".to_vec()));
    assert_eq!(peer.open(&mut out), (APPLICATION_DATA, b"second".to_vec()));
    assert!(out.is_empty());
}

/// At the limit, an alert does not wait for a new key.
#[test]
fn close_notify_is_sent_at_the_limit_too() {
    let mut keys: Aes128 =
        Keys::new(Suite::Aes128Gcm, false, direction(&OURS, RECORDS_MAX), direction(&PEERS, 0))
            .unwrap();
    let mut out = Vec::new();
    keys.record().close(&mut out);
    let mut peer = Peer { number: RECORDS_MAX, ..Peer::receiver() };
    assert_eq!(peer.open(&mut out), (ALERT, vec![WARNING, CLOSE_NOTIFY]));
}
