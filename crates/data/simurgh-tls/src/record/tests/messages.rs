//! Key updates, tickets and alerts.

use super::*;

const NOT_REQUESTED: &[u8] = &[KEY_UPDATE, 0, 0, 1, 0];
const REQUESTED: &[u8] = &[KEY_UPDATE, 0, 0, 1, 1];

/// RFC 8446 §4.6.3, §7.2: what follows comes with the next key, and its numbers begin anew.
#[test]
fn key_update_changes_the_key_for_opening() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    let mut input = [peer.data(b"old "), peer.record(HANDSHAKE, NOT_REQUESTED)].concat();
    peer.next_key();
    input.extend([peer.data(b"new "), peer.padded(HANDSHAKE, NOT_REQUESTED, 9)].concat());
    peer.next_key();
    input.extend(peer.data(b"newer"));
    assert_eq!(open(&mut keys, &input), (b"old new newer".to_vec(), None, Vec::new()));
}

/// RFC 8446 §4.6.3.
#[test]
fn old_key_is_refused_after_a_key_update() {
    let mut peer = Peer::sender();
    let input = [peer.record(HANDSHAKE, NOT_REQUESTED), peer.data(b"x")].concat();
    fails(&mut server(), &input, 20);
}

/// RFC 8446 §4.6.3: ours goes out with the old key, and requests none.
#[test]
fn requested_key_update_is_answered() {
    for mut keys in [server(), client()] {
        let mut peer = Peer::sender();
        let (_, end, mut answer) = open(&mut keys, &peer.record(HANDSHAKE, REQUESTED));
        assert_eq!(end, None);
        keys.record().seal([&b"behind"[..]], &mut answer).unwrap();
        let mut receiver = Peer::receiver();
        assert_eq!(receiver.open(&mut answer), (HANDSHAKE, NOT_REQUESTED.to_vec()));
        receiver.next_key();
        assert_eq!(receiver.open(&mut answer), (APPLICATION_DATA, b"behind".to_vec()));
        assert!(answer.is_empty());
    }
}

/// RFC 8446 §6.1: nothing is sent after our `close_notify`.
#[test]
fn requested_key_update_is_not_answered_after_we_closed() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    keys.record().close(&mut Vec::new());
    assert_eq!(open(&mut keys, &peer.record(HANDSHAKE, REQUESTED)), (vec![], None, vec![]));
    peer.next_key();
    assert_eq!(open(&mut keys, &peer.data(b"x")), (b"x".to_vec(), None, vec![]));
}

/// RFC 8446 §5.1: a message may be split over records.
#[test]
fn key_update_may_be_split() {
    for cut in 1..NOT_REQUESTED.len() {
        let (mut keys, mut peer) = (server(), Peer::sender());
        let (front, back) = NOT_REQUESTED.split_at(cut);
        assert_eq!(open(&mut keys, &peer.record(HANDSHAKE, front)), (vec![], None, vec![]));
        let mut input = peer.record(HANDSHAKE, back);
        peer.next_key();
        input.extend(peer.data(b"x"));
        assert_eq!(open(&mut keys, &input), (b"x".to_vec(), None, vec![]), "{cut}");
    }
}

/// RFC 8446 §5.1: nothing else comes between the parts of a message.
#[test]
fn split_message_is_not_interrupted() {
    for cut in 1..NOT_REQUESTED.len() {
        for (kind, content) in [(APPLICATION_DATA, &b"x"[..]), (ALERT, &[WARNING, CLOSE_NOTIFY])] {
            let mut peer = Peer::sender();
            let front = peer.record(HANDSHAKE, &NOT_REQUESTED[..cut]);
            fails(&mut server(), &[front, peer.record(kind, content)].concat(), 10);
        }
    }
}

/// RFC 8446 §5.1: no message may span a change of keys.
#[test]
fn key_update_ends_its_record() {
    for more in [&NOT_REQUESTED[..1], NOT_REQUESTED] {
        let record = Peer::sender().record(HANDSHAKE, &[NOT_REQUESTED, more].concat());
        fails(&mut server(), &record, 10);
    }
}

/// RFC 8446 §4.6.3: `illegal_parameter`.
#[test]
fn key_update_requests_or_does_not() {
    for request in 2..=255 {
        let record = Peer::sender().record(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, request]);
        fails(&mut server(), &record, 47);
    }
}

/// RFC 8446 §6.2: `decode_error` for a wrong length.
#[test]
fn key_update_has_one_byte() {
    for length in [[0, 0, 0], [0, 0, 2], [0, 1, 1], [1, 0, 1]] {
        let record = Peer::sender().record(HANDSHAKE, &[&[KEY_UPDATE][..], &length].concat());
        fails(&mut server(), &record, 50);
    }
}

#[test]
fn flood_of_key_updates_ends() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    for _ in 0..EMPTY_MAX {
        assert_eq!(open(&mut keys, &peer.record(HANDSHAKE, NOT_REQUESTED)).1, None);
        peer.next_key();
    }
    fails(&mut keys, &peer.record(HANDSHAKE, NOT_REQUESTED), 10);
}

/// RFC 8446 §4: a server that asks for no certificate later gets nothing but key updates.
#[test]
fn server_takes_no_other_handshake_message() {
    for kind in (0..=255).filter(|kind| *kind != KEY_UPDATE) {
        fails(&mut server(), &Peer::sender().record(HANDSHAKE, &[kind]), 10);
    }
}

/// RFC 8446 §4.6: a client that offers no later authentication gets tickets, too.
#[test]
fn client_takes_no_other_handshake_message() {
    let allowed = [KEY_UPDATE, NEW_SESSION_TICKET];
    for kind in (0..=255).filter(|kind| !allowed.contains(kind)) {
        fails(&mut client(), &Peer::sender().record(HANDSHAKE, &[kind]), 10);
    }
}

/// RFC 8446 §5.1: an empty handshake or alert record.
#[test]
fn empty_message_fails() {
    for kind in [HANDSHAKE, ALERT] {
        fails(&mut server(), &Peer::sender().record(kind, b""), 10);
    }
}

fn ticket(bytes: u16) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    [vec![NEW_SESSION_TICKET, 0, high, low], vec![KEY_UPDATE; bytes.into()]].concat()
}

/// RFC 8446 §4.6.1, §5.1: several in one record, and one in several; then a key update.
#[test]
fn client_skips_tickets_however_they_are_cut() {
    for bytes in [1, 255, 256, 300, u16::MAX] {
        let tickets = [ticket(1), ticket(bytes), ticket(2), NOT_REQUESTED.to_vec()].concat();
        for piece in [tickets.len(), 1, 2, 3, 5, 7, 4096] {
            let pieces = tickets.len().div_ceil(piece.min(PLAIN_BYTES_MAX));
            if pieces > usize::from(EMPTY_MAX) {
                continue;
            }
            let (mut keys, mut peer) = (client(), Peer::sender());
            for piece in tickets.chunks(piece.min(PLAIN_BYTES_MAX)) {
                assert_eq!(open(&mut keys, &peer.record(HANDSHAKE, piece)), (vec![], None, vec![]));
            }
            peer.next_key();
            assert_eq!(open(&mut keys, &peer.data(b"x")).0, b"x", "{bytes} by {piece}");
        }
    }
}

#[test]
fn ticket_of_64_kib_or_of_nothing_fails() {
    for length in [[1, 0, 0], [255, 255, 255], [0, 0, 0]] {
        let record =
            Peer::sender().record(HANDSHAKE, &[&[NEW_SESSION_TICKET][..], &length].concat());
        fails(&mut client(), &record, 50);
    }
}

/// RFC 8446 §6.1: what comes behind is ignored; what we send still arrives.
#[test]
fn close_notify_ends_the_peers_direction_only() {
    for level in [WARNING, FATAL] {
        let (mut keys, mut peer) = (server(), Peer::sender());
        let input =
            [peer.data(b"last"), peer.record(ALERT, &[level, 0]), peer.data(b"late")].concat();
        let mut opened = input.clone();
        let end = keys.record().open(&mut opened, &mut Vec::new());
        assert_eq!((end.used, end.end), (input.len(), Some(End::Closed)));
        assert_eq!(&opened[end.plain], b"last");
        let later = keys.record().open(&mut peer.data(b"later"), &mut Vec::new());
        assert_eq!((later.plain.len(), later.end), (0, None));
        let (mut out, mut receiver) = (Vec::new(), Peer::receiver());
        keys.record().seal([&b"ours"[..]], &mut out).unwrap();
        keys.record().close(&mut out);
        assert_eq!(receiver.open(&mut out), (APPLICATION_DATA, b"ours".to_vec()));
        assert_eq!(receiver.open(&mut out), (ALERT, vec![WARNING, CLOSE_NOTIFY]));
    }
}

/// RFC 8446 §6: all other alerts end the connection, whatever their level. We answer nothing.
#[test]
fn alert_of_the_peer_ends_the_connection() {
    for (level, number) in [(1, 100), (2, 40), (2, 90), (7, 40), (1, 255)] {
        let mut keys = server();
        let record = Peer::sender().record(ALERT, &[level, number]);
        assert_eq!(open(&mut keys, &record), (vec![], Some(End::Alert(number)), vec![]));
        let mut out = Vec::new();
        assert_eq!(keys.record().seal([], &mut out), Err(SealError::Closed));
        keys.record().close(&mut out);
        assert!(out.is_empty());
    }
}

/// RFC 8446 §6.1: its sender closes next.
#[test]
fn user_canceled_alone_ends_nothing() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    let input = [peer.record(ALERT, &[WARNING, USER_CANCELED]), peer.data(b"x")].concat();
    assert_eq!(open(&mut keys, &input), (b"x".to_vec(), None, vec![]));
}

/// RFC 8446 §5.1: an alert is alone in its record, and whole.
#[test]
fn alert_has_two_bytes() {
    for content in [&[2][..], &[1, 0, 0], &[1, 90, 1, 0]] {
        fails(&mut server(), &Peer::sender().record(ALERT, content), 50);
    }
}
