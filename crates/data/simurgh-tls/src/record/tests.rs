//! The rules of RFC 8446 for an established connection, one by one, against a peer that seals
//! whatever a test wants.

mod messages;
mod sealing;

use super::cipher::Cipher;
use super::*;

const OURS: [u8; 32] = [1; 32];
const PEERS: [u8; 32] = [2; 32];

type Aes128 = Keys<AES_128_GCM_BYTES>;

fn direction(secret: &[u8], number: u64) -> Direction<'_> {
    Direction { secret, number }
}

fn server() -> Aes128 {
    Keys::new(Suite::Aes128Gcm, false, direction(&OURS, 0), direction(&PEERS, 0)).unwrap()
}

fn client() -> Aes128 {
    Keys::new(Suite::Aes128Gcm, true, direction(&OURS, 0), direction(&PEERS, 0)).unwrap()
}

/// One direction of the peer: it seals with one secret, or opens with the other.
struct Peer {
    secret: Vec<u8>,
    number: u64,
}

impl Peer {
    fn sender() -> Self {
        Self { secret: PEERS.to_vec(), number: 0 }
    }

    fn receiver() -> Self {
        Self { secret: OURS.to_vec(), number: 0 }
    }

    fn cipher(&mut self) -> (Cipher, u64) {
        self.number += 1;
        (Suite::Aes128Gcm.opening(&self.secret).unwrap(), self.number - 1)
    }

    fn next_key(&mut self) {
        let next = Suite::Aes128Gcm.next_secret(&self.secret).unwrap();
        *self = Self { secret: next[..32].to_vec(), number: 0 };
    }

    fn padded(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut text = [content, &[kind], &vec![0; padding]].concat();
        self.sealed(&mut text)
    }

    /// Seals `text`, which may have no type.
    fn sealed(&mut self, text: &mut [u8]) -> Vec<u8> {
        let [high, low] = ((text.len() + TAG_BYTES) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let (cipher, number) = self.cipher();
        let tag = cipher.seal(number, header, text).unwrap();
        [&header, &*text, tag.as_ref()].concat()
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        self.padded(kind, content, 0)
    }

    fn data(&mut self, content: &[u8]) -> Vec<u8> {
        self.record(APPLICATION_DATA, content)
    }

    /// Opens the one record at the front of `wire`, and takes it off.
    fn open(&mut self, wire: &mut Vec<u8>) -> (u8, Vec<u8>) {
        let (header, body) = complete(wire).ok().flatten().unwrap();
        let mut record: Vec<u8> = wire.drain(..HEADER + body).skip(HEADER).collect();
        let (cipher, number) = self.cipher();
        let text = cipher.open(number, header, &mut record, 0).unwrap();
        let (kind, content) = text.split_last().unwrap();
        (*kind, content.to_vec())
    }
}

/// Data, end and answer of one call.
fn open(keys: &mut Aes128, input: &[u8]) -> (Vec<u8>, Option<End>, Vec<u8>) {
    let (mut input, mut answer) = (input.to_vec(), Vec::new());
    let opened = keys.record().open(&mut input, &mut answer);
    assert!(opened.used <= input.len());
    (input[opened.plain].to_vec(), opened.end, answer)
}

/// Checks that `input` ends the connection with `alert`, that the peer gets it, and that nothing is
/// opened or sealed afterwards.
fn fails(keys: &mut Aes128, input: &[u8], alert: u8) {
    let (_, end, mut answer) = open(keys, input);
    assert_eq!(end, Some(End::Failed(alert)));
    assert_eq!(Peer::receiver().open(&mut answer), (ALERT, vec![FATAL, alert]));
    assert_eq!(open(keys, b"anything"), (Vec::new(), None, Vec::new()));
    let mut out = Vec::new();
    assert_eq!(keys.record().seal([&b"x"[..]], &mut out), Err(SealError::Closed));
    keys.record().close(&mut out);
    assert!(out.is_empty());
}

/// RFC 8446 §5.1: the boundaries of records mean nothing.
#[test]
fn data_of_several_records_is_moved_together() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    let mut input = [peer.data(b"one "), peer.data(b""), peer.data(b"two")].concat();
    let whole = input.len();
    input.extend_from_slice(&peer.data(b"later")[..20]);
    let opened = keys.record().open(&mut input, &mut Vec::new());
    // The first stays at its place.
    assert_eq!(opened, Opened { plain: 5..12, used: whole, end: None });
    assert_eq!(&input[opened.plain], b"one two");
}

#[test]
fn incomplete_record_is_left_to_the_caller() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    let record = peer.data(b"hello");
    for cut in 0..record.len() {
        let opened = keys.record().open(&mut record[..cut].to_vec(), &mut Vec::new());
        assert_eq!(opened, Opened { plain: 0..0, used: 0, end: None }, "{cut}");
    }
    assert_eq!(open(&mut keys, &record).0, b"hello");
}

#[test]
fn data_before_a_failure_is_delivered() {
    let (mut keys, mut peer) = (server(), Peer::sender());
    let input = [peer.data(b"good"), peer.record(99, b"")].concat();
    let (data, end, _) = open(&mut keys, &input);
    assert_eq!((data.as_slice(), end), (&b"good"[..], Some(End::Failed(10))));
}

/// RFC 8446 §5.2: at most 2^14 + 256 bytes, which the header says.
#[test]
fn record_that_is_too_long_fails_at_its_header() {
    fails(&mut server(), &[23, 3, 3, 0x41, 1], 22);
    let allowed = open(&mut server(), &[23, 3, 3, 0x41, 0]);
    assert_eq!(allowed, (Vec::new(), None, Vec::new()));
}

/// RFC 8446 §5.4: with padding at most 2^14 + 1 bytes.
#[test]
fn plaintext_that_is_too_long_fails() {
    let full = vec![7; PLAIN_BYTES_MAX];
    let mut keys = server();
    assert_eq!(open(&mut keys, &Peer::sender().data(&full)).0, full);
    let too_long = Peer::sender().data(&[7; PLAIN_BYTES_MAX + 1]);
    fails(&mut server(), &too_long, 22);
    let padded = Peer::sender().padded(APPLICATION_DATA, b"x", PLAIN_BYTES_MAX);
    fails(&mut server(), &padded, 22);
}

/// RFC 8446 §5, §5.2: after the handshake every record is an encrypted one.
#[test]
fn record_in_the_clear_fails() {
    for input in [&[20, 3, 3, 0, 1, 1][..], &[21, 3, 3, 0, 2, 1, 0], &[22], b"GET / HTTP/1.1"] {
        fails(&mut server(), input, 10);
    }
}

/// RFC 8446 §5.1, §5.2: the version is ignored, but authenticated with the header.
#[test]
fn change_of_any_byte_is_noticed() {
    let record = Peer::sender().data(b"forged");
    for at in 0..record.len() {
        let mut record = record.clone();
        record[at] ^= 1;
        match at {
            0 => fails(&mut server(), &record, 10),
            // A length that is not there yet, or too long.
            3 => fails(&mut server(), &[&record[..], &[0; 512]].concat(), 20),
            4 => fails(&mut server(), &[&record[..], &[0; 512]].concat(), 20),
            _ => fails(&mut server(), &record, 20),
        }
    }
}

/// RFC 8446 §5.2: shorter than a tag.
#[test]
fn record_without_room_for_a_tag_fails() {
    for length in 0..16 {
        let record = [&[23, 3, 3, 0, length][..], &vec![0; length.into()]].concat();
        fails(&mut server(), &record, 20);
    }
}

/// RFC 8446 §5.3: each record has the next number.
#[test]
fn replayed_lost_or_swapped_record_fails() {
    let mut peer = Peer::sender();
    let [first, second] = [peer.data(b"1"), peer.data(b"2")];
    let mut keys = server();
    assert_eq!(open(&mut keys, &first).0, b"1");
    fails(&mut keys, &first, 20);
    fails(&mut server(), &second, 20);
}

/// RFC 8446 §5.3: a number must not wrap. Ours has 48 bits.
#[test]
fn last_number_ends_the_connection() {
    let last = keys::OPEN_MAX;
    let mut keys: Aes128 =
        Keys::new(Suite::Aes128Gcm, false, direction(&OURS, 0), direction(&PEERS, last - 1))
            .unwrap();
    let mut peer = Peer { number: last - 1, ..Peer::sender() };
    assert_eq!(open(&mut keys, &peer.data(b"x")).0, b"x");
    fails(&mut keys, &peer.data(b"y"), 80);
}

/// RFC 8446 §5.4.
#[test]
fn padding_is_removed() {
    for padding in [1, 100, PLAIN_BYTES_MAX - 3] {
        let record = Peer::sender().padded(APPLICATION_DATA, b"a\0b", padding);
        assert_eq!(open(&mut server(), &record).0, b"a\0b");
    }
}

/// RFC 8446 §5.4: `unexpected_message` without a type.
#[test]
fn record_of_zeros_fails() {
    for length in [0, 1, 50] {
        let record = Peer::sender().sealed(&mut vec![0; length]);
        fails(&mut server(), &record, 10);
    }
}

/// RFC 8446 §5: types that are unknown, or that are not sent encrypted.
#[test]
fn other_types_fail() {
    for kind in [1, 20, 24, 25, 99, 255] {
        let record = Peer::sender().record(kind, &[1]);
        fails(&mut server(), &record, 10);
    }
}

/// RFC 8446 §5.1 allows records without data; a flood of them is a way to waste our time.
#[test]
fn flood_of_records_without_data_ends() {
    let flood = |peer: &mut Peer, kind: u8, content: &[u8], count| -> Vec<u8> {
        (0..count).flat_map(|_| peer.record(kind, content)).collect()
    };
    for (kind, content) in [(APPLICATION_DATA, &[][..]), (ALERT, &[WARNING, USER_CANCELED])] {
        let (mut keys, mut peer) = (server(), Peer::sender());
        for _ in 0..3 {
            let input = [flood(&mut peer, kind, content, EMPTY_MAX), peer.data(b"x")].concat();
            assert_eq!(open(&mut keys, &input), (b"x".to_vec(), None, Vec::new()));
        }
        fails(&mut keys, &flood(&mut peer, kind, content, EMPTY_MAX + 1), 10);
    }
}

#[test]
fn keys_have_their_sizes() {
    assert_eq!([AES_128_GCM_BYTES, CHACHA20_POLY1305_BYTES, AES_256_GCM_BYTES], [106, 122, 154]);
    assert_eq!(size_of::<Aes128>(), 106);
    assert_eq!(size_of::<Keys<CHACHA20_POLY1305_BYTES>>(), 122);
    assert_eq!(size_of::<Keys<AES_256_GCM_BYTES>>(), 154);
    assert_eq!(align_of::<Keys<AES_256_GCM_BYTES>>(), 1);
}

#[test]
fn keys_of_another_suite_are_refused() {
    let (ours, peers) = (direction(&OURS, 0), direction(&PEERS, 0));
    assert!(Keys::<AES_128_GCM_BYTES>::new(Suite::ChaCha20Poly1305, false, ours, peers).is_err());
    assert!(Keys::<AES_256_GCM_BYTES>::new(Suite::Aes256Gcm, false, ours, peers).is_err());
    assert!(Aes128::new(Suite::Aes128Gcm, false, ours, direction(&[], 0)).is_err());
}

#[test]
fn keys_are_wiped_on_drop() {
    assert!(std::mem::needs_drop::<Aes128>());
    let mut keys = server();
    assert!(keys.record().0[14..].windows(32).any(|window| window == OURS));
    // All that `drop` does.
    keys.record().wipe();
    assert!(keys.record().0.iter().all(|byte| *byte == 0));
}

#[test]
fn debug_output_has_no_secrets() {
    let mut keys = server();
    assert_eq!(format!("{keys:?}"), "Keys { .. }");
    assert_eq!(format!("{:?}", keys.record()), "Record { suite: Aes128Gcm, .. }");
}
