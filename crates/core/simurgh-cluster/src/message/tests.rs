//! Self-descriptions of nodes, encoded and decoded, at their bounds and beyond.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::envelope::Header;

const ORIGIN: NodeId = NodeId(77);

fn beat() -> Beat {
    Beat {
        id: ORIGIN,
        name: "näme".into(),
        version: "1.0".into(),
        envelopes: (1, 3),
        sockets: 5,
        is_draining: true,
        unix_ms: 6,
    }
}

fn beats() -> impl Strategy<Value = Beat> {
    let texts = (".{0,60}", "[ -~]{0,64}");
    let numbers = (any::<u64>(), any::<u64>(), any::<bool>(), any::<u64>());
    (texts, (0..=9u8, 9..=255u8), numbers).prop_map(|((name, version), envelopes, numbers)| {
        let (id, sockets, is_draining, unix_ms) = numbers;
        let (name, version) = (name.into(), version.into());
        Beat { id: NodeId(id), name, version, envelopes, sockets, is_draining, unix_ms }
    })
}

fn patterns() -> impl Strategy<Value = Vec<(Box<str>, u64)>> {
    prop::collection::vec((".{0,30}".prop_map(Box::from), any::<u64>()), 0..20)
}

/// Encodes a draft; every truncation of it is refused.
fn encoded(draft: Draft) -> Bytes {
    let bytes = draft.numbered(1);
    let envelope = Envelope::decode(&bytes).unwrap();
    let payload = envelope.payload();
    for cut in 0..payload.len() {
        let Header { kind, origin, .. } = envelope.header;
        let shorter = Draft::with_payload(kind, origin, envelope.topic, Some(&payload[..cut]));
        let shorter = shorter.unwrap().numbered(1);
        let said = Envelope::decode(&shorter).unwrap().message().map(|_| ());
        assert_eq!(said, Err(EnvelopeError::Cut), "{cut} bytes");
    }
    if !payload.is_empty() {
        let (kind, longer) = (envelope.header.kind, [payload, &[0]].concat());
        let longer = Draft::with_payload(kind, ORIGIN, envelope.topic, Some(&longer));
        let longer = longer.unwrap().numbered(1);
        let said = Envelope::decode(&longer).unwrap().message().map(|_| ());
        assert_eq!(said, Err(EnvelopeError::Trailing(1)));
    }
    bytes
}

fn decode_raw(kind: Kind, payload: &[u8]) -> Result<(), EnvelopeError> {
    let bytes = Draft::with_payload(kind, ORIGIN, "", Some(payload)).unwrap().numbered(1);
    Envelope::decode(&bytes).unwrap().message().map(|_| ())
}

proptest! {
    #[test]
    fn decoded_heartbeats_and_hellos_equal_the_sent_ones(beat in beats(), settings in patterns()) {
        let bytes = encoded(beat.draft().unwrap());
        let envelope = Envelope::decode(&bytes).unwrap();
        prop_assert!(matches!(envelope.message(), Ok(Message::Beat(it)) if it == beat));
        let hello = Hello { beat, settings };
        let bytes = encoded(hello.draft().unwrap());
        let envelope = Envelope::decode(&bytes).unwrap();
        prop_assert!(matches!(envelope.message(), Ok(Message::Hello(it)) if it == hello));
    }
}

#[test]
fn decoded_short_messages_equal_the_sent_ones() {
    let bytes = encoded(Draft::bye(ORIGIN).unwrap());
    assert!(matches!(Envelope::decode(&bytes).unwrap().message(), Ok(Message::Bye)));
    let bytes = encoded(Draft::disconnect(ORIGIN, "users:42", 9).unwrap());
    let envelope = Envelope::decode(&bytes).unwrap();
    assert_eq!(envelope.topic, "users:42");
    assert!(matches!(envelope.message(), Ok(Message::Disconnect { number: 9 })));
    let bytes = encoded(Draft::answer(ORIGIN, u64::MAX).unwrap());
    let envelope = Envelope::decode(&bytes).unwrap();
    assert!(matches!(envelope.message(), Ok(Message::Answer { number: u64::MAX })));
    assert_eq!(envelope.header.origin, ORIGIN);
    let bytes = Draft::order(ORIGIN, 9, b"what").unwrap().numbered(1);
    let envelope = Envelope::decode(&bytes).unwrap();
    assert!(matches!(envelope.message(), Ok(Message::Order { number: 9, order: b"what" })));
    let bytes = Draft::done(ORIGIN, 9, 0).unwrap().numbered(1);
    let envelope = Envelope::decode(&bytes).unwrap();
    assert!(matches!(envelope.message(), Ok(Message::Done { number: 9, count: 0 })));
    let bytes = Draft::grants(ORIGIN, b"any").unwrap().numbered(1);
    let envelope = Envelope::decode(&bytes).unwrap();
    assert!(matches!(envelope.message(), Ok(Message::Grants(b"any"))));
}

#[test]
fn names_versions_and_settings_are_bounded_when_encoded() {
    let of_itself = |draft: Result<Draft, EncodeError>| {
        assert!(matches!(draft, Err(EncodeError::OfItself(_))), "{draft:?}");
    };
    let longest = Beat { name: "x".repeat(255).into(), version: "9".repeat(64).into(), ..beat() };
    encoded(longest.draft().unwrap());
    of_itself(Beat { name: "x".repeat(256).into(), ..beat() }.draft());
    of_itself(Beat { version: "9".repeat(65).into(), ..beat() }.draft());

    let hello = |count, bytes| {
        let pattern = "p".repeat(bytes).into_boxed_str();
        Hello { beat: beat(), settings: vec![(pattern, 7); count] }
    };
    let most = hello(1000, 255);
    let bytes = most.draft().unwrap().numbered(1);
    let envelope = Envelope::decode(&bytes).unwrap();
    assert!(matches!(envelope.message(), Ok(Message::Hello(it)) if it == most));
    of_itself(hello(1001, 1).draft());
    of_itself(hello(1, 256).draft());
}

#[test]
fn decoder_applies_the_same_bounds_to_foreign_payloads() {
    let beat = |version: usize, envelopes: [u8; 2], draining: u8| {
        let mut payload = vec![0, version as u8];
        payload.resize(2 + version, b'1');
        payload.extend_from_slice(&envelopes);
        payload.extend_from_slice(&[0; 8]);
        payload.push(draining);
        payload.extend_from_slice(&[0; 8]);
        payload
    };
    let refused = |payload: &[u8]| {
        matches!(decode_raw(Kind::Beat, payload), Err(EnvelopeError::Malformed(_)))
    };
    assert_eq!(decode_raw(Kind::Beat, &beat(64, [1, 1], 1)), Ok(()));
    assert!(refused(&beat(65, [1, 1], 1)));
    assert!(refused(&beat(1, [2, 1], 0)));
    assert!(refused(&beat(1, [1, 2], 2)));
    let hello = |count: u16, settings: usize| {
        let mut payload = beat(1, [1, 1], 0);
        payload.extend_from_slice(&count.to_le_bytes());
        payload.resize(payload.len() + 9 * settings, 0);
        decode_raw(Kind::Hello, &payload)
    };
    assert_eq!(hello(1000, 1000), Ok(()));
    assert!(matches!(hello(1001, 1001), Err(EnvelopeError::Malformed(_))));
    assert_eq!(hello(1000, 999), Err(EnvelopeError::Cut));
    assert_eq!(hello(1, 2), Err(EnvelopeError::Trailing(9)));
    assert_eq!(decode_raw(Kind::Beat, &[1, 0xff]), Err(EnvelopeError::NotUtf8));
}
