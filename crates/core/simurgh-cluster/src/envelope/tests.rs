//! Envelopes encoded and decoded, and untrusted bytes in their place.

use bytes::Bytes;
use proptest::prelude::*;
use simurgh_proto::message::{Payload, UserBroadcast, events};

use simurgh_proto::serializer::json;

use simurgh_channel::ChannelId;

use super::*;
use simurgh_proto::message::events::is_reserved;

use crate::TOPIC_BYTES_MAX;

const ORIGIN: NodeId = NodeId(0x0102_0304_0506_0708);

fn json(event: &'static str, text: &'static str) -> Item<'static> {
    Item::new(event, ItemPayload::Json(text))
}

fn decoded(bytes: &[u8]) -> Result<Envelope<'_>, EnvelopeError> {
    Envelope::decode(bytes)
}

fn wrong(bytes: &[u8]) -> EnvelopeError {
    Envelope::decode(bytes).map(|_| ()).unwrap_err()
}

/// An envelope of any kind by hand: a draft would refuse some of these.
fn raw_envelope(kind: u8, topic: &[u8], items: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = vec![1, kind, 0, 0];
    bytes.extend_from_slice(&ORIGIN.0.to_le_bytes());
    bytes.extend_from_slice(&9_u64.to_le_bytes());
    bytes.extend_from_slice(&(topic.len() as u16).to_le_bytes());
    bytes.extend_from_slice(topic);
    bytes.extend_from_slice(&(items.len() as u16).to_le_bytes());
    for (flags, event, rest) in items {
        bytes.extend_from_slice(&[*flags, event.len() as u8]);
        bytes.extend_from_slice(event);
        bytes.extend_from_slice(rest);
    }
    bytes
}

/// The same, each payload with flags.
fn with_payloads(kind: u8, topic: &[u8], items: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
    let with_length = |payload: &[u8]| {
        let mut rest = (payload.len() as u32).to_le_bytes().to_vec();
        rest.extend_from_slice(payload);
        rest
    };
    let rest: Vec<_> = items.iter().map(|(_, _, payload)| with_length(payload)).collect();
    let items: Vec<_> = items.iter().zip(&rest).map(|(it, rest)| (it.0, it.1, &rest[..])).collect();
    raw_envelope(kind, topic, &items)
}

#[derive(Clone, Debug)]
struct Sample {
    event: String,
    payload: Payload<'static>,
    except: Option<(u16, u32, u32)>,
    exclusion: Option<u64>,
}

fn payloads() -> impl Strategy<Value = Payload<'static>> {
    const TEXTS: [&str; 4] =
        ["{}", "null", r#"{"body":"h\u00e9","n":[1,2.50,{"a":[]}]}"#, "\"räum\""];
    let bytes = || prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![
        prop::sample::select(&TEXTS[..]).prop_map(Payload::from_json),
        ".{0,20}".prop_map(|text| Payload::from(serde_json::Value::from(text))),
        bytes().prop_map(Payload::from_bytes),
        bytes().prop_map(|data| UserBroadcast::raw("mine", &data).unwrap().into()),
        Just(UserBroadcast::json("", r#"{"a": 1}"#).unwrap().into()),
    ]
}

fn samples() -> impl Strategy<Value = Sample> {
    let event = prop_oneof!["[a-z:_]{0,12}", ".{0,30}"];
    let event = event.prop_filter("its own", |event| !is_reserved(event) && event.len() < 256);
    (event, payloads(), any::<Option<(u16, u32, u32)>>(), any::<Option<u64>>()).prop_map(
        |(event, payload, except, exclusion)| Sample { event, payload, except, exclusion },
    )
}

impl Sample {
    fn item<'a>(&'a self, frame: &'a mut Vec<u8>) -> Item<'a> {
        let except = self.except;
        Item {
            event: &self.event,
            payload: ItemPayload::of(&self.payload, frame),
            except: except.map(|(shard, membership, generation)| ChannelId {
                shard,
                membership,
                generation,
            }),
            exclusion: self.exclusion,
        }
    }
}

fn drafted(topic: &str, all: &[Sample]) -> Draft {
    let mut frames = vec![Vec::new(); all.len()];
    let mut items = all.iter().zip(&mut frames).map(|(made, frame)| made.item(frame));
    let mut draft = Draft::broadcast(ORIGIN, topic, &items.next().unwrap()).unwrap();
    items.for_each(|item| draft.push(&item).unwrap());
    draft
}

proptest! {
    #[test]
    fn decoded_broadcasts_equal_the_sent_ones(
        topic in ".{0,40}",
        all in prop::collection::vec(samples(), 1..6),
        n in 1..u64::MAX,
    ) {
        let draft = drafted(&topic, &all);
        let length = draft.len();
        let bytes = draft.numbered(n);
        prop_assert_eq!(bytes.len(), length);
        let envelope = Envelope::decode(&bytes).unwrap();
        let header = Header { kind: Kind::Broadcast, flags: Flags::NONE, origin: ORIGIN, n };
        prop_assert_eq!(envelope.header, header);
        prop_assert_eq!(Header::read(&bytes), Ok(header));
        prop_assert_eq!(envelope.topic, topic);
        prop_assert_eq!(envelope.items().len(), all.len());
        for (item, made) in envelope.items().zip(&all) {
            let mut frame = Vec::new();
            prop_assert_eq!(item, made.item(&mut frame));
            prop_assert_eq!(item.payload.to_payload(), made.payload.borrow());
        }
    }

    #[test]
    fn truncated_or_extended_envelopes_are_rejected(
        topic in ".{0,9}",
        all in prop::collection::vec(samples(), 1..4),
        more in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        let bytes = drafted(&topic, &all).numbered(1);
        for cut in 0..bytes.len() {
            prop_assert_eq!(wrong(&bytes[..cut]), EnvelopeError::Cut, "{} bytes", cut);
        }
        let longer = [&bytes[..], &more].concat();
        prop_assert_eq!(wrong(&longer), EnvelopeError::Trailing(more.len()));
    }
}

#[test]
fn envelope_layout_matches_the_documented_table() {
    let mut draft = Draft::broadcast(ORIGIN, "é", &json("e", "[1]")).unwrap();
    let except = ChannelId { shard: 0x0b0a, membership: 3, generation: 4 };
    let left_out = Item { except: Some(except), exclusion: Some(5), ..json("ab", "7") };
    draft.push(&left_out).unwrap();
    draft.push(&Item::new("", ItemPayload::Binary(&[255]))).unwrap();
    let user = [4, 0, 1, 0, 0, b'x', 9];
    draft.push(&Item::new("broadcast", ItemPayload::User(&user))).unwrap();
    let bytes = resent(draft.numbered(0x1122));
    let head = b"\x01\x01\x01\x00\x08\x07\x06\x05\x04\x03\x02\x01\x22\x11\0\0\0\0\0\0";
    let topic = b"\x02\x00\xc3\xa9\x04\x00";
    let first = b"\x00\x01e\x03\0\0\0[1]";
    let second = b"\x06\x02ab\x0a\x0b\x03\0\0\0\x04\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\x007";
    let third = b"\x01\x00\x01\0\0\0\xff";
    let fourth = b"\x08\x09broadcast\x07\0\0\0\x04\0\x01\0\0x\x09";
    let whole = [&head[..], topic, first, second, third, fourth].concat();
    assert_eq!(bytes, whole);
    let envelope = decoded(&bytes).unwrap();
    assert!(envelope.header.flags.is_resent());
    assert_eq!(envelope.items().nth(1), Some(left_out));
    let user = UserBroadcast::raw("x", &[9]).unwrap();
    assert_eq!(envelope.items().last().unwrap().payload.to_payload(), Payload::User(user));
}

#[test]
fn number_is_written_in_place_unless_the_bytes_are_shared() {
    let draft = Draft::broadcast(ORIGIN, "t", &json("e", "{}")).unwrap();
    let waiting = draft.clone().unnumbered();
    assert_eq!(wrong(&waiting), EnvelopeError::Malformed("it has no number"));
    let place = waiting.as_ptr();
    let first = stamped(waiting, 7);
    assert_eq!((first.as_ptr(), &first), (place, &draft.numbered(7)));

    let in_flight = first.clone();
    let again = resent(first);
    assert_ne!(again.as_ptr(), place);
    assert!(!decoded(&in_flight).unwrap().header.flags.is_resent());
    let Header { flags, n, .. } = decoded(&again).unwrap().header;
    assert_eq!((flags, n), (Flags::RESENT, 7));
    let place = again.as_ptr();
    let once_more = resent(again);
    assert_eq!(once_more.as_ptr(), place);
    assert_eq!(decoded(&once_more).unwrap().header.flags, Flags::RESENT);

    let no_envelope = Bytes::from_static(b"short");
    assert_eq!(resent(stamped(no_envelope.clone(), 1)), no_envelope);
}

#[test]
fn unknown_versions_and_kinds_differ_from_malformed_envelopes() {
    let whole = raw_envelope(7, b"", &[]);
    assert!(decoded(&whole).is_ok());
    for (at, value, expected) in [
        (0, 2, EnvelopeError::UnknownVersion(2)),
        (0, 0, EnvelopeError::UnknownVersion(0)),
        (1, 15, EnvelopeError::UnknownKind(15)),
        (1, 0, EnvelopeError::UnknownKind(0)),
    ] {
        let mut other = whole.clone();
        other[at] = value;
        assert_eq!(wrong(&other), expected);
        assert!(expected.is_of_another_version());
        assert_eq!(Header::read(&other), Err(expected));
    }
    assert_eq!(wrong(b""), EnvelopeError::Cut);
    assert!(!EnvelopeError::Cut.is_of_another_version());
    let mut flagged = whole;
    flagged[3] = 0x80;
    assert_eq!(decoded(&flagged).unwrap().header.flags, Flags(0x8000), "unknown ones mean nothing");
}

#[test]
fn reserved_events_are_rejected_from_the_wire_and_the_application() {
    for event in ["phx_", "phx_close", "phx_error", "phx_reply", "simurgh:gap", "simurgh:"] {
        assert_eq!(wrong(&with_payloads(1, b"t", &[(0, event.as_bytes(), b"{}")])), {
            EnvelopeError::Reserved
        });
        let item = Item::new(event, ItemPayload::Json("{}"));
        assert_eq!(Draft::broadcast(ORIGIN, "t", &item), Err(EncodeError::Reserved));
    }
    // An application may broadcast to all nodes all it may broadcast on one.
    let legal =
        [events::DISCONNECT, "presence_diff", "presence_state", "heartbeat", "phx", "", "P"];
    for event in legal {
        let bytes = Draft::broadcast(ORIGIN, "phoenix", &Item::new(event, ItemPayload::Json("1")));
        assert_eq!(decoded(&bytes.unwrap().numbered(1)).unwrap().items().len(), 1, "{event}");
    }
    let mut draft = Draft::broadcast(ORIGIN, "t", &json("e", "{}")).unwrap();
    let before = draft.clone();
    assert_eq!(draft.push(&json("phx_close", "{}")), Err(EncodeError::Reserved));
    assert_eq!(draft, before);
}

#[test]
fn payload_must_be_valid_in_a_frame() {
    let of = |flags, payload: &[u8]| {
        let one = with_payloads(1, b"t", &[(flags, b"broadcast", payload)]);
        let two = with_payloads(1, b"t", &[(1, b"", b""), (flags, b"broadcast", payload)]);
        let (one, two) = (decoded(&one).map(|_| ()), decoded(&two).map(|_| ()));
        assert_eq!(one, two);
        one
    };
    for text in ["{}", "null", "[1,\"a b\"]", "1"] {
        assert_eq!(of(0, text.as_bytes()), Ok(()), "{text}");
    }
    for text in [" {}", "{} ", "{ }", "[1, 2]", "\n1"] {
        assert_eq!(of(0, text.as_bytes()), Err(EnvelopeError::NotCompact), "{text}");
    }
    for text in ["", "{", "{}{}", "{\"a\"}", "nul", "],[null"] {
        assert!(matches!(of(0, text.as_bytes()), Err(EnvelopeError::Json(_))), "{text}");
    }
    let deep = [[b'['; 2000], [b']'; 2000]].concat();
    assert!(matches!(of(0, &deep), Err(EnvelopeError::Json(json::JsonError::TooDeep))));
    assert_eq!(of(0, b"\"\xff\""), Err(EnvelopeError::NotUtf8));
    assert_eq!(of(1, b"\xff"), Ok(()));
    assert_eq!(of(8, &[4, 0, 1, 0, 1, b'x', b'7']), Ok(()));
    for frame in [&[4, 0, 1, 0, 1, b'x', b'{'][..], &[4, 0, 2, 0, 0, b'x'], &[9], &[]] {
        assert!(matches!(of(8, frame), Err(EnvelopeError::User(_))), "{frame:?}");
    }
    for frame in [&[2, 0, 1, b'e', 7][..], &[4, 1, 1, 0, 0, b't', b'x']] {
        assert!(matches!(of(8, frame), Err(EnvelopeError::Malformed(_))), "{frame:?}");
    }
    for flags in [9, 16, 128, 255] {
        let bytes = with_payloads(1, b"t", &[(flags, b"", &[0; 40])]);
        assert!(matches!(wrong(&bytes), EnvelopeError::ItemFlags(_) | EnvelopeError::Cut));
    }
    assert_eq!(of(9, b"{}"), Err(EnvelopeError::ItemFlags(9)));
    assert_eq!(wrong(&with_payloads(1, b"\xc3", &[(1, b"", b"")])), EnvelopeError::NotUtf8);
    assert_eq!(wrong(&with_payloads(1, b"t", &[(1, b"\xc3", b"")])), EnvelopeError::NotUtf8);
}

#[test]
fn each_envelope_kind_accepts_only_its_own_items() {
    let bare: (u8, &[u8], &[u8]) = (1, b"", &[0; 8]);
    let shape = |kind: Kind, topic: &[u8], items: &[(u8, &[u8], &[u8])]| {
        let bytes = with_payloads(kind as u8, topic, items);
        decoded(&bytes).map(|_| ())
    };
    for &kind in Kind::ALL {
        assert_eq!(Kind::from_repr(kind as u8), Some(kind));
        let right = match kind {
            Kind::Bye | Kind::Forget => &[][..],
            _ => &[bare][..],
        };
        assert_eq!(shape(kind, b"", right), Ok(()), "{kind:?}");
        let on_topic =
            matches!(kind.name(), "broadcast" | "presence" | "state" | "disconnect" | "forget");
        assert_eq!(shape(kind, b"t", right).is_ok(), on_topic, "{kind:?}");
        let is_broadcast = kind == Kind::Broadcast;
        let has_none = matches!(kind, Kind::Bye | Kind::Forget);
        assert_eq!(shape(kind, b"", &[]).is_ok(), has_none, "{kind:?}");
        assert_eq!(shape(kind, b"", &[bare, bare]).is_ok(), is_broadcast, "{kind:?}");
        assert_eq!(shape(kind, b"", &[(0, b"", b"{}")]).is_ok(), is_broadcast, "{kind:?}");
        assert_eq!(shape(kind, b"", &[(1, b"e", b"{}")]).is_ok(), is_broadcast, "{kind:?}");
        let excluded = raw_envelope(kind as u8, b"", &[(5, b"", &[0; 12])]);
        assert_eq!(decoded(&excluded).is_ok(), is_broadcast, "{kind:?}");
    }
}

#[test]
fn announced_items_and_bytes_must_be_present() {
    let mut bytes = raw_envelope(1, b"", &[]);
    let items_at = bytes.len() - 2;
    bytes[items_at..].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(wrong(&bytes), EnvelopeError::Cut);
    // Refused before anything else is read.
    let mut bytes = with_payloads(1, b"", &[(0, b"phx_close", b"{}")]);
    bytes[items_at..items_at + 2].copy_from_slice(&4_u16.to_le_bytes());
    assert_eq!(wrong(&bytes), EnvelopeError::Cut);
    let four_gigabytes = raw_envelope(1, b"", &[(1, b"", &u32::MAX.to_le_bytes())]);
    assert_eq!(wrong(&four_gigabytes), EnvelopeError::Cut);
}

#[test]
fn largest_envelope_is_accepted_and_a_larger_one_is_never_made() {
    let room = ENVELOPE_BYTES_MAX - raw_envelope(1, b"t", &[(0, b"", b"1234")]).len();
    let data = vec![7; room + 1];
    let item = |bytes| Item::new("", ItemPayload::Binary(bytes));
    let largest = Draft::broadcast(ORIGIN, "t", &item(&data[1..])).unwrap();
    assert_eq!(largest.len(), ENVELOPE_BYTES_MAX);
    let largest = largest.numbered(1).to_vec();
    assert!(decoded(&largest).is_ok());
    let too_large = EncodeError::TooLarge(ENVELOPE_BYTES_MAX + 1);
    assert_eq!(Draft::broadcast(ORIGIN, "t", &item(&data)), Err(too_large));
    let longer = [&largest[..], &[0]].concat();
    assert_eq!(wrong(&longer), EnvelopeError::TooLarge(longer.len()));

    let topic = "x".repeat(TOPIC_BYTES_MAX + 1);
    let small = json("e", "{}");
    assert_eq!(Draft::broadcast(ORIGIN, &topic, &small), Err(EncodeError::Topic(topic.len())));
    assert!(Draft::broadcast(ORIGIN, &topic[1..], &small).is_ok());
    let mut draft = Draft::broadcast(ORIGIN, &topic[1..], &small).unwrap();
    let before = draft.clone();
    let event = "e".repeat(256);
    let long = Item::new(&event, ItemPayload::Json("{}"));
    assert_eq!(draft.push(&long), Err(EncodeError::Event(256)));
    assert!(matches!(draft.push(&item(&data)), Err(EncodeError::TooLarge(_))));
    assert_eq!(draft, before, "it is as it was");
    for _ in 1..u16::MAX {
        draft.push(&item(&[])).unwrap();
    }
    assert_eq!(draft.push(&item(&[])), Err(EncodeError::Items));
    assert_eq!(decoded(&draft.numbered(1)).unwrap().items().count(), 65_535);
}

#[test]
fn errors_say_what_is_wrong() {
    let said = EnvelopeError::UnknownVersion(2).to_string();
    assert_eq!(said, "an envelope of version 2; this node supports version 1");
    let long = "x".repeat(70_000);
    let error = Draft::disconnect(ORIGIN, &long, 1).unwrap_err().to_string();
    assert_eq!(error, "too large for the cluster: a topic of 70000 bytes; the maximum is 65535");
    assert_eq!(EncodeError::Reserved.to_string(), "the event is reserved");
}
