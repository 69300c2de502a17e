//! Presences encoded and decoded, in parts, and untrusted bytes.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::message::Message;

const OWNER: Owner = Owner(77);

fn phx_ref(n: u32) -> PhxRef {
    let mut bytes = [9; REF_BYTES];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    PhxRef::from_bytes(bytes)
}

fn entry(n: u32, key: &str, meta: &str) -> Shared {
    let meta = Meta::parse(meta).unwrap();
    Shared { key: key.into(), phx_ref: phx_ref(n), phx_ref_prev: None, meta, extra: None }
}

fn shared() -> impl Strategy<Value = Shared> {
    const METAS: [&str; 3] = ["{}", r#"{"a":"räum"}"#, r#"{"n":[1,2.50],"x":{"phx_ref":1}}"#];
    let refs = (any::<u32>(), any::<Option<u32>>(), any::<bool>());
    (".{0,20}", refs, prop::sample::select(&METAS[..])).prop_map(|(key, refs, meta)| Shared {
        phx_ref_prev: refs.1.map(phx_ref),
        extra: refs.2.then(|| Extra::parse(r#"{"user":{"name":"Zoë"}}"#).unwrap()),
        ..entry(refs.0, &key, meta)
    })
}

fn deltas() -> impl Strategy<Value = Delta> {
    let entries = prop::collection::vec(shared(), 0..9);
    let leaves = prop::collection::vec(any::<u32>().prop_map(phx_ref), 0..9);
    (any::<(u32, u32, u64)>(), entries, leaves).prop_map(|((from, more, owner), joins, leaves)| {
        let (from, to) = (from.into(), u64::from(from) + u64::from(more));
        Delta { owner: Owner(owner), from, to, joins, leaves }
    })
}

fn snapshots() -> impl Strategy<Value = Snapshot> {
    let entries = prop::collection::vec(shared(), 0..9);
    (any::<u64>(), any::<u64>(), entries).prop_map(|(owner, version, entries)| Snapshot {
        owner: Owner(owner),
        version,
        entries,
    })
}

/// Some entries of more bytes than fit into one part less.
fn crowd(parts: usize, seed: u32) -> Snapshot {
    let meta = format!("{{\"text\":\"{}\"}}", "x".repeat(60_000));
    let count = (parts - 1) * PART_BYTES / 60_000 + 1;
    let entries = (0..count as u32).map(|n| entry(n + seed, &n.to_string(), &meta)).collect();
    Snapshot { owner: OWNER, version: seed.into(), entries }
}

fn numbered(drafts: Vec<Draft>) -> Vec<Bytes> {
    drafts.into_iter().zip(1..).map(|(draft, n)| draft.numbered(n)).collect()
}

fn take(
    parts: &mut PresenceParts,
    envelope: &[u8],
) -> Result<Option<PresenceUpdate>, EnvelopeError> {
    match Envelope::decode(envelope)?.message()? {
        Message::Presence(part) => parts.take(part),
        other => panic!("{other:?}"),
    }
}

/// Decodes a payload of one part that was made by hand, with a correct checksum.
fn decode_raw(kind: Kind, whole: &[u8]) -> Result<Option<PresenceUpdate>, EnvelopeError> {
    let draft = drafts(kind, OWNER, "t", whole).unwrap().remove(0);
    take(&mut PresenceParts::new(0), &draft.numbered(1))
}

fn whole(envelope: &[u8]) -> Vec<u8> {
    Envelope::decode(envelope).unwrap().payload()[8..].to_vec()
}

proptest! {
    #[test]
    fn decoded_deltas_and_snapshots_equal_the_sent_ones(
        topic in ".{0,20}",
        delta in deltas(),
        snapshot in snapshots(),
    ) {
        let mut parts = PresenceParts::new(0);
        let one = numbered(delta_drafts(&topic, &delta).unwrap());
        prop_assert_eq!(one.len(), 1);
        let envelope = Envelope::decode(&one[0]).unwrap();
        prop_assert_eq!((envelope.header.kind, envelope.topic), (Kind::Presence, &topic[..]));
        prop_assert_eq!(take(&mut parts, &one[0]), Ok(Some(PresenceUpdate::Delta(delta))));
        let one = numbered(state_drafts(&topic, &snapshot).unwrap());
        prop_assert_eq!(Envelope::decode(&one[0]).unwrap().header.kind, Kind::State);
        prop_assert_eq!(take(&mut parts, &one[0]), Ok(Some(PresenceUpdate::Snapshot(snapshot))));
        prop_assert!(parts.is_empty());
    }

    #[test]
    fn truncated_or_extended_payloads_are_rejected(delta in deltas(), snapshot in snapshots()) {
        let delta = numbered(delta_drafts("t", &delta).unwrap());
        let snapshot = numbered(state_drafts("t", &snapshot).unwrap());
        let wholes = [(Kind::Presence, whole(&delta[0])), (Kind::State, whole(&snapshot[0]))];
        for (kind, whole) in wholes {
            for cut in 1..whole.len() {
                let said = decode_raw(kind, &whole[..cut]);
                prop_assert_eq!(said, Err(EnvelopeError::Cut), "{} bytes", cut);
            }
            let longer = [&whole[..], &[0]].concat();
            prop_assert_eq!(decode_raw(kind, &longer), Err(EnvelopeError::Trailing(1)));
        }
    }
}

proptest! {
    // Each case cuts and joins three megabytes.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// All parts of each whole arrive, in any order, some twice, between those of others.
    #[test]
    fn parts_in_any_order_complete_a_presence_update_exactly_once(
        order in prop::collection::vec(any::<Index>(), 40),
        again in prop::collection::vec(any::<Index>(), 10),
    ) {
        let (one, two) = (crowd(3, 1), crowd(4, 100));
        let joins = crowd(2, 5).entries;
        let delta = Delta { owner: OWNER, from: 1, to: 9, joins, leaves: vec![] };
        let sent = [
            (PresenceUpdate::Snapshot(one.clone()), numbered(state_drafts("a", &one).unwrap())),
            (PresenceUpdate::Snapshot(one.clone()), numbered(state_drafts("b", &one).unwrap())),
            (PresenceUpdate::Snapshot(two.clone()), numbered(state_drafts("a", &two).unwrap())),
            (PresenceUpdate::Delta(delta.clone()), numbered(delta_drafts("a", &delta).unwrap())),
        ];
        let mut in_flight: Vec<(usize, Bytes)> = Vec::new();
        for (which, (_, envelopes)) in sent.iter().enumerate() {
            in_flight.extend(envelopes.iter().map(|it| (which, it.clone())));
        }
        prop_assert_eq!(in_flight.len(), 3 + 3 + 4 + 2);
        let mut parts = PresenceParts::new(16 << 20);
        let (mut came, mut heard) = (Vec::new(), HashMap::new());
        let mut order = order.into_iter();
        while !in_flight.is_empty() {
            let at = order.next().map_or(0, |it| it.index(in_flight.len()));
            let (which, envelope) = in_flight.remove(at);
            if let Some(told) = take(&mut parts, &envelope).unwrap() {
                prop_assert_eq!(&told, &sent[which].0);
                *heard.entry(which).or_insert(0) += 1;
            } else {
                came.push(envelope);
                if let Some(again) = again.get(came.len())
                    && heard.is_empty()
                {
                    let twice = &came[again.index(came.len())];
                    prop_assert_eq!(take(&mut parts, twice), Ok(None));
                }
            }
        }
        prop_assert_eq!(heard.len(), 4);
        prop_assert!(heard.values().all(|count| *count == 1));
        prop_assert_eq!((parts.bytes(), parts.len(), parts.dropped()), (0, 0, 0));
    }
}

#[test]
fn presence_update_too_large_for_one_envelope_is_sent_in_parts() {
    let snapshot = crowd(5, 1);
    let drafts = state_drafts("t", &snapshot).unwrap();
    assert_eq!(drafts.len(), 5);
    for draft in &drafts {
        assert!(draft.len() <= PART_BYTES + 100, "{}", draft.len());
    }
    // One entry alone may be larger than any envelope.
    let text = format!("{{\"text\":\"{}\"}}", "x".repeat(3 << 20));
    let large = Snapshot { owner: OWNER, version: 1, entries: vec![entry(1, "k", &text)] };
    let envelopes = numbered(state_drafts("t", &large).unwrap());
    assert_eq!(envelopes.len(), 13);
    let mut parts = PresenceParts::new(4 << 20);
    let told: Vec<_> = envelopes.iter().map(|it| take(&mut parts, it).unwrap()).collect();
    assert!(told[..12].iter().all(Option::is_none));
    assert_eq!(told[12], Some(PresenceUpdate::Snapshot(large)));
}

#[test]
fn parts_of_different_answers_are_kept_separate() {
    let mut snapshot = crowd(3, 1);
    let first = numbered(state_drafts("t", &snapshot).unwrap());
    snapshot.entries.reverse();
    let second = numbered(state_drafts("t", &snapshot).unwrap());
    let mut parts = PresenceParts::new(16 << 20);
    assert_eq!(take(&mut parts, &first[0]), Ok(None));
    assert_eq!(take(&mut parts, &second[1]), Ok(None));
    assert_eq!(take(&mut parts, &second[2]), Ok(None));
    assert_eq!(parts.len(), 2);
    assert_eq!(take(&mut parts, &second[0]), Ok(Some(PresenceUpdate::Snapshot(snapshot))));
    assert_eq!(parts.len(), 1);
}

#[test]
fn oldest_incomplete_update_is_dropped_at_the_byte_and_count_limits() {
    let envelopes: Vec<_> =
        (0..4).map(|n| numbered(state_drafts(&n.to_string(), &crowd(2, n)).unwrap())).collect();
    let mut parts = PresenceParts::new(2 * PART_BYTES + 1000);
    for (n, envelope) in envelopes.iter().enumerate() {
        assert_eq!(take(&mut parts, &envelope[0]), Ok(None));
        assert!(parts.bytes() <= 2 * PART_BYTES + 1000);
        assert_eq!((parts.len(), parts.dropped()), ((n + 1).min(2), n.saturating_sub(1) as u64));
    }
    assert!(matches!(take(&mut parts, &envelopes[3][1]), Ok(Some(_))), "the newest is whole");
    assert!(matches!(take(&mut parts, &envelopes[2][1]), Ok(Some(_))));
    assert_eq!(take(&mut parts, &envelopes[0][1]), Ok(None), "its first part is gone");

    let mut parts = PresenceParts::new(usize::MAX);
    for n in 0..UNFINISHED_MAX as u32 + 10 {
        assert_eq!(take(&mut parts, &part_of_two(n)), Ok(None));
    }
    assert_eq!((parts.len(), parts.dropped()), (UNFINISHED_MAX, 10));
    parts.forget(NodeId(OWNER.0 + 1));
    assert_eq!(parts.len(), UNFINISHED_MAX);
    parts.forget(NodeId(OWNER.0));
    assert_eq!((parts.len(), parts.bytes()), (0, 0));
}

/// The first of two parts, of a whole that does not exist.
fn part_of_two(checksum: u32) -> Bytes {
    part_of(Kind::State, OWNER, [0, 2], checksum)
}

fn part_of(kind: Kind, owner: Owner, [part, parts]: [u8; 2], checksum: u32) -> Bytes {
    let payload = [&[part, 0, parts, 0][..], &checksum.to_le_bytes(), b"abc"].concat();
    let draft = Draft::with_payload(kind, NodeId(owner.0), "t", Some(&payload));
    draft.unwrap().numbered(1)
}

#[test]
fn equal_checksum_alone_does_not_join_parts() {
    let mut parts = PresenceParts::new(1 << 20);
    let others = [
        part_of_two(7),
        part_of(Kind::State, Owner(OWNER.0 + 1), [1, 2], 7),
        part_of(Kind::Presence, OWNER, [1, 2], 7),
        part_of(Kind::State, OWNER, [1, 3], 7),
    ];
    for (n, other) in others.iter().enumerate() {
        assert_eq!((take(&mut parts, other), parts.len()), (Ok(None), n + 1));
    }
    let second = take(&mut parts, &part_of(Kind::State, OWNER, [1, 2], 7));
    assert!(matches!(second, Err(EnvelopeError::Malformed(_))), "it is whole, and wrong");
    assert_eq!(parts.len(), 3);
}

#[test]
fn update_larger_than_the_byte_limit_is_never_buffered() {
    let envelopes = numbered(state_drafts("t", &crowd(6, 1)).unwrap());
    let mut parts = PresenceParts::new(3 * PART_BYTES);
    for envelope in &envelopes {
        assert_eq!(take(&mut parts, envelope), Ok(None));
        assert!(parts.bytes() <= 3 * PART_BYTES);
    }
    assert!(parts.dropped() >= 1);
}

#[test]
fn wrong_part_numbers_and_checksums_are_rejected() {
    let payload = |part: u16, parts: u16| {
        let whole = [0; 12];
        let mut payload = [part.to_le_bytes(), parts.to_le_bytes()].concat();
        payload.extend_from_slice(&crc32fast::hash(&whole).to_le_bytes());
        payload.extend_from_slice(&whole);
        payload
    };
    let told = |payload: &[u8]| {
        let draft = Draft::with_payload(Kind::State, NodeId(OWNER.0), "t", Some(payload));
        take(&mut PresenceParts::new(1 << 20), &draft.unwrap().numbered(1))
    };
    let empty = Snapshot { owner: OWNER, version: 0, entries: vec![] };
    assert_eq!(told(&payload(0, 1)), Ok(Some(PresenceUpdate::Snapshot(empty))));
    assert_eq!(told(&payload(PARTS_MAX - 1, PARTS_MAX)), Ok(None));
    for (part, parts) in [(0, 0), (1, 1), (7, 3), (0, PARTS_MAX + 1), (u16::MAX, u16::MAX)] {
        let said = told(&payload(part, parts));
        assert!(matches!(said, Err(EnvelopeError::Malformed(_))), "{part} of {parts}: {said:?}");
    }
    let mut flipped = payload(0, 1);
    flipped[8] ^= 1;
    assert!(matches!(told(&flipped), Err(EnvelopeError::Malformed(_))));
    assert_eq!(told(&payload(0, 1)[..7]), Err(EnvelopeError::Cut));
}

#[test]
fn presence_data_that_no_table_could_send_is_rejected() {
    let ok = entry(7, "k", r#"{"a":1}"#);
    let delta = |from: u64, to: u64, edit: &dyn Fn(&mut Vec<u8>)| {
        let delta = Delta { owner: OWNER, from: 0, to: 1, joins: vec![ok.clone()], leaves: vec![] };
        let mut bytes = whole(&numbered(delta_drafts("t", &delta).unwrap())[0]);
        bytes[..8].copy_from_slice(&from.to_le_bytes());
        bytes[8..16].copy_from_slice(&to.to_le_bytes());
        edit(&mut bytes);
        decode_raw(Kind::Presence, &bytes)
    };
    let least = Snapshot { owner: OWNER, version: 1, entries: vec![entry(1, "", "{}")] };
    let bytes = whole(&numbered(state_drafts("t", &least).unwrap())[0]);
    assert_eq!(decode_raw(Kind::State, &bytes), Ok(Some(PresenceUpdate::Snapshot(least))));
    let unchanged: &dyn Fn(&mut Vec<u8>) = &|_| {};
    assert!(delta(5, 5, unchanged).is_ok());
    assert!(matches!(delta(6, 5, unchanged), Err(EnvelopeError::Malformed(_))));
    // The entry's flag and its ref follow the versions and the count.
    let at = 8 + 8 + 4;
    assert!(matches!(delta(0, 1, &|it| it[at] = 4), Err(EnvelopeError::Malformed(_))));
    let no_ref: &dyn Fn(&mut Vec<u8>) = &|it| it[at + 1..at + 13].fill(0);
    assert!(matches!(delta(0, 1, no_ref), Err(EnvelopeError::Malformed(_))));
    let many: &dyn Fn(&mut Vec<u8>) = &|it| it[16..20].fill(255);
    assert_eq!(delta(0, 1, many), Err(EnvelopeError::Cut));
    let many_gone: &dyn Fn(&mut Vec<u8>) =
        &|it| it.iter_mut().rev().take(4).for_each(|it| *it = 255);
    assert_eq!(delta(0, 1, many_gone), Err(EnvelopeError::Cut));
    let no_object: &dyn Fn(&mut Vec<u8>) = &|it| {
        let meta = it.iter().position(|byte| *byte == b'{').unwrap();
        it[meta] = b'[';
    };
    assert!(matches!(delta(0, 1, no_object), Err(EnvelopeError::Meta(_))));
    let not_utf8: &dyn Fn(&mut Vec<u8>) = &|it| {
        let key = it.iter().position(|byte| *byte == b'k').unwrap();
        it[key] = 255;
    };
    assert_eq!(delta(0, 1, not_utf8), Err(EnvelopeError::NotUtf8));
}

#[test]
fn state_requests_are_combined_into_few_envelopes() {
    let ask = |topics: &[&str]| ask_drafts(NodeId(1), topics.iter().copied()).unwrap();
    assert!(ask(&[]).is_empty());
    let heard = |drafts: Vec<Draft>| -> Vec<Vec<String>> {
        let topics = numbered(drafts).into_iter().map(|envelope| {
            match Envelope::decode(&envelope).unwrap().message().unwrap() {
                Message::AskState(topics) => topics.into_iter().map(str::to_owned).collect(),
                other => panic!("{other:?}"),
            }
        });
        topics.collect()
    };
    assert_eq!(heard(ask(&["a", "", "räum"])), [["a", "", "räum"]]);
    // Many short topics, or long ones, fill more than one envelope, and none is lost.
    let many: Vec<String> = (0..70_000).map(|n| n.to_string()).collect();
    let long: Vec<String> = (0..9).map(|n| n.to_string().repeat(65_535)).collect();
    let empty = vec![String::new(); 70_000];
    for topics in [many, long, empty] {
        let drafts = ask_drafts(NodeId(1), topics.iter().map(String::as_str)).unwrap();
        assert!((2..4).contains(&drafts.len()), "{}", drafts.len());
        assert!(drafts.iter().all(|it| it.len() <= ENVELOPE_BYTES_MAX));
        assert_eq!(heard(drafts).concat(), topics);
    }
    let too_long = "x".repeat(65_536);
    assert_eq!(ask_drafts(NodeId(1), ["a", &too_long]), Err(EncodeError::Topic(65_536)));
}
