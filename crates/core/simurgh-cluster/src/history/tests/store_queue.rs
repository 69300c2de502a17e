//! The store queue: gathering, the order of sending, and outcomes.

use std::collections::BTreeMap;

use simurgh_history::{NotKept, StoredAt};

use super::engine::RecordingSink;
use super::*;
use crate::adapter::ID_BYTES_MAX;
use crate::envelope::{Header, Kind};
use crate::history::store_queue::{GATHERED_BYTES_MAX, ITEMS_MAX, STORE_BYTES};

struct Scenario {
    keeping: History,
    sink: RecordingSink,
    n: u64,
    now_ns: u64,
}

impl Scenario {
    fn new() -> Self {
        Self::with(HistoryConfig::default())
    }

    fn storing(numbers: std::ops::Range<u64>) -> Self {
        let mut it = Self::new();
        it.store_range("a", numbers);
        it
    }

    fn with(config: HistoryConfig) -> Self {
        let prefix = Prefix::new("p").unwrap();
        let mut keeping = History::new(config, NodeId(5), &prefix, 7);
        keeping.up(Some(77), 0);
        Self { keeping, sink: RecordingSink::default(), n: 0, now_ns: 0 }
    }

    fn store_range(&mut self, topic: &str, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| self.push(topic, store(number, &number.to_string())));
    }

    fn push(&mut self, topic: &str, item: StoreItem<'_>) {
        self.keeping.push(topic, &Storing::Item(item), self.now_ns, &mut self.sink);
    }

    fn forget(&mut self, topic: &str, number: u64) {
        self.keeping.push(topic, &Storing::Forget(number), self.now_ns, &mut self.sink);
    }

    /// Answers everything that leaves, one by one. Returns what `seen` says of each.
    fn answer_all<T>(&mut self, answer: (u64, bool), seen: impl Fn(&Outgoing) -> T) -> Vec<T> {
        let mut all = Vec::new();
        while let Some(outgoing) = self.leaves().pop() {
            all.push(seen(&outgoing));
            self.answers(&outgoing, Ok(answer));
        }
        all
    }

    fn store_with_id(&mut self, topic: &str, number: u64, id: &str) {
        let text = number.to_string();
        self.push(topic, StoreItem { id: Some(id), ..store(number, &text) });
    }

    /// Everything that is handed over now.
    fn leaves(&mut self) -> Vec<Outgoing> {
        let mut all = Vec::new();
        while let Some(next) = self.keeping.next(&mut self.n, self.now_ns) {
            let Next::Store(outgoing) = next else { panic!("nothing is followed") };
            all.push(outgoing);
        }
        all
    }

    fn answers(&mut self, to: &Outgoing, answer: Result<(u64, bool), NotStored>) {
        let time = Time { ns: self.now_ns, unix_ms: 0 };
        self.keeping.stored(to.ticket, answer, time, &mut self.sink);
    }

    fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
        let time = Time { ns: self.now_ns, unix_ms: 0 };
        self.keeping.tick(time, &mut self.sink);
    }
}

fn texts(outgoing: &Outgoing) -> Vec<String> {
    let envelope = Envelope::decode(&outgoing.envelope).unwrap();
    assert_eq!(outgoing.to, Prefix::new("p").unwrap().topic(Space::Store, envelope.topic));
    envelope.items().map(|it| String::from_utf8(it.payload.data().into()).unwrap()).collect()
}

const fn at(seq: u64, index: u16) -> Result<StoredAt, NotKept> {
    Ok(StoredAt { epoch: 77, seq, index, is_duplicate: false })
}

#[test]
fn messages_queued_during_a_store_share_the_next_envelope() {
    let mut it = Scenario::storing(0..2);
    let first = it.leaves();
    assert_eq!(first.iter().map(texts).collect::<Vec<_>>(), [["0", "1"]]);
    it.store_range("a", 2..70);
    it.store_range("b", 100..101);
    let other = it.leaves();
    assert_eq!(other.iter().map(texts).collect::<Vec<_>>(), [["100"]], "another topic's");
    it.answers(&first[0], Ok((9, false)));
    assert_eq!(it.sink.stored, BTreeMap::from([(0, at(9, 0)), (1, at(9, 1))]));
    let second = it.leaves();
    assert_eq!((second.len(), texts(&second[0]).len()), (1, ITEMS_MAX));
    it.answers(&second[0], Ok((12, false)));
    assert_eq!(it.sink.stored[&65], at(12, 63));
    let third = it.leaves();
    assert_eq!(texts(&third[0]), ["66", "67", "68", "69"]);
    let header = |it: &Outgoing| Header::read(&it.envelope).unwrap();
    assert_eq!((header(&first[0]).n, header(&third[0]).n), (1, 4));
    assert_eq!(&*first[0].id, format!("{}-1", NodeId(5)));
    it.answers(&third[0], Ok((13, false)));
    it.answers(&other[0], Ok((14, false)));
    assert!(it.keeping.stores.is_empty() && it.keeping.stores.bytes() == 0);
}

#[test]
fn envelope_of_several_messages_stays_within_its_size_limit() {
    let mut it = Scenario::new();
    let text = format!("\"{}\"", "x".repeat(30_000));
    for number in 0..5 {
        it.push("a", store(number, &text));
    }
    let large = format!("\"{}\"", "x".repeat(100_000));
    it.push("a", store(5, &large));
    let counts = it.answer_all((1, false), |outgoing| {
        let count = texts(outgoing).len();
        assert!(count == 1 || outgoing.envelope.len() <= GATHERED_BYTES_MAX);
        count
    });
    assert_eq!(counts, [2, 2, 1, 1]);
}

#[test]
fn messages_of_another_age_or_too_long_a_wait_get_their_own_envelope() {
    let mut it = Scenario::new();
    let second = |seconds| Some(std::time::Duration::from_secs(seconds));
    for (number, age) in [(0, second(5)), (1, second(5)), (2, None), (3, None)] {
        it.push("a", StoreItem { age, ..store(number, "1") });
    }
    it.advance(SECOND);
    it.store_range("a", 4..5);
    let ages = it.answer_all((1, false), |it| (it.age, texts(it).len()));
    assert_eq!(ages, [(second(5), 2), (None, 2), (None, 1)]);
}

#[test]
fn message_with_id_is_stored_alone_under_an_id_unique_to_its_topic() {
    let mut it = Scenario::storing(0..1);
    it.store_with_id("a", 1, "order 1");
    it.store_with_id("a", 2, "order 1");
    it.store_range("a", 3..4);
    it.store_with_id("a.order 1", 4, "");
    it.store_with_id("b", 5, "order 1");
    let long = "é\r\n".repeat(1_000);
    it.store_with_id(&long, 6, &long);
    it.store_with_id("b", 7, &long);
    let mut ids = Vec::new();
    loop {
        let all = it.leaves();
        if all.is_empty() {
            break;
        }
        for outgoing in all {
            ids.push((outgoing.id.to_string(), texts(&outgoing)[0].clone()));
            it.answers(&outgoing, Ok((1, true)));
        }
    }
    let of = |text: &str| ids.iter().find(|it| it.1 == text).unwrap().0.clone();
    assert_eq!((of("1"), of("2")), ("i:a.order=201".into(), of("1")));
    let mut publishers: Vec<_> = ["1", "4", "5", "6", "7"].map(of).into();
    for id in &publishers {
        assert!(id.len() <= 128 && id.len() <= ID_BYTES_MAX);
        assert!(id.bytes().all(|it| it.is_ascii_graphic()), "{id}");
    }
    publishers.sort_unstable();
    publishers.dedup();
    assert_eq!(publishers.len(), 5);
    let is_duplicate = |number: u64| it.sink.stored[&number].as_ref().unwrap().is_duplicate;
    assert!(!is_duplicate(0), "the adapter has repeated it, nobody else");
    assert!(is_duplicate(1) && is_duplicate(5));
}

#[test]
fn stores_in_flight_are_limited_per_topic_and_overall() {
    let mut it = Scenario::with(HistoryConfig { in_flight_max: 3, ..HistoryConfig::default() });
    for (number, topic) in (1..).zip(["a", "b", "c", "d", "e"]) {
        it.store_with_id(topic, number, "1");
        it.store_with_id(topic, 10 * number, "2");
    }
    let first = it.leaves();
    assert_eq!(first.len(), 3);
    it.answers(&first[1], Ok((1, false)));
    let next = it.leaves();
    assert_eq!(Envelope::decode(&next[0].envelope).unwrap().topic, "d", "whose turn it is");
    it.answers(&first[0], Ok((1, false)));
    it.answers(&first[2], Ok((1, false)));
    let topic = |it: &Outgoing| Envelope::decode(&it.envelope).unwrap().topic.to_owned();
    assert_eq!(it.leaves().iter().map(topic).collect::<Vec<_>>(), ["e", "b"]);
}

#[test]
fn unsent_store_is_refused_at_its_timeout_and_never_sent_later() {
    let mut it = Scenario::storing(0..3);
    let wait_ns = HistoryConfig::default().wait_ns;
    it.advance(wait_ns - 1);
    assert!(it.sink.stored.is_empty());
    it.advance(1);
    assert!((0..3).all(|number| matches!(it.sink.stored[&number], Err(NotKept::Refused(_)))));
    assert!(it.leaves().is_empty());
    assert!(it.keeping.stores.is_empty() && it.keeping.stores.bytes() == 0);
    it.store_range("a", 3..4);
    assert_eq!(texts(&it.leaves()[0]), ["3"]);
}

#[test]
fn sent_store_times_out_unconfirmed_and_its_topic_waits_for_the_answer() {
    let mut it = Scenario::storing(0..2);
    it.advance(4 * SECOND);
    let first = it.leaves();
    it.store_range("a", 2..3);
    it.advance(5 * SECOND);
    assert_eq!(it.sink.stored[&0], Err(NotKept::Unconfirmed));
    assert_eq!(it.sink.stored[&1], Err(NotKept::Unconfirmed));
    assert!(it.leaves().is_empty(), "the first may still be stored, before the next");
    assert!(!it.keeping.stores.is_empty());
    it.answers(&first[0], Ok((1, false)));
    let second = it.leaves();
    assert_eq!(texts(&second[0]), ["2"]);
    it.answers(&second[0], Err(NotStored::Unconfirmed));
    assert_eq!(it.sink.stored[&2], Err(NotKept::Unconfirmed));
    assert_eq!((it.keeping.counts.unconfirmed, it.keeping.stores.bytes()), (3, 0));
}

/// The number is its envelope's: whatever the adapter takes first, no number is used twice.
#[test]
fn store_not_taken_by_the_adapter_is_sent_next_or_never() {
    let mut it = Scenario::storing(0..1);
    let refused = it.leaves().remove(0);
    let (n, id) = (it.n, refused.id.clone());
    it.keeping.not_taken(Next::Store(refused));
    it.store_range("b", 1..2);
    let again = it.leaves();
    assert_eq!((&again[0].id, it.n, again.len()), (&id, n + 1, 2));
    let refused = it.leaves().pop();
    assert!(refused.is_none());
    it.store_range("c", 2..3);
    let refused = it.leaves().remove(0);
    it.keeping.not_taken(Next::Store(refused));
    it.advance(9 * SECOND);
    assert!(matches!(it.sink.stored[&2], Err(NotKept::Refused(_))));
    assert!(it.leaves().is_empty());
    it.store_range("c", 3..4);
    assert_eq!(texts(&it.leaves()[0]), ["3"]);
}

#[test]
fn store_beyond_the_byte_limit_is_refused_until_bytes_are_released() {
    let max = 10_000;
    let mut it = Scenario::with(HistoryConfig { waiting_bytes: max, ..HistoryConfig::default() });
    let mut number = 0;
    while !it.sink.stored.contains_key(&number) {
        number += 1;
        it.store_range(&format!("topic {}", number % 7), number..number + 1);
    }
    assert_eq!(it.sink.stored[&number], Err(NotKept::Full));
    let bytes = it.keeping.stores.bytes();
    assert!(bytes <= max && bytes > max - 1_000 - STORE_BYTES, "{bytes}");
    for outgoing in it.leaves() {
        it.answers(&outgoing, Err(NotStored::Refused("no".into())));
    }
    assert_eq!(it.keeping.stores.bytes(), 0);
    assert_eq!(it.sink.stored[&1], Err(NotKept::Refused("no".into())));
    let counts = it.keeping.counts;
    assert_eq!((counts.full, counts.refused), (1, number - 1));
}

#[test]
fn store_that_cannot_be_encoded_is_refused_with_the_reason() {
    let mut it = Scenario::new();
    let reserved =
        StoreItem { item: Item::new("phx_close", ItemPayload::Json("1")), ..store(1, "1") };
    it.push("a", reserved);
    it.store_range(&"x".repeat(70_000), 2..3);
    it.forget(&"x".repeat(70_000), 3);
    for number in 1..=3 {
        assert!(matches!(it.sink.stored[&number], Err(NotKept::Refused(_))), "{number}");
    }
    assert!(it.keeping.stores.is_empty() && it.leaves().is_empty());
    assert_eq!(it.keeping.stores.bytes(), 0);
}

#[test]
fn purge_keeps_its_place_among_stored_messages() {
    let mut it = Scenario::storing(0..2);
    it.forget("a", 2);
    it.store_range("a", 3..5);
    let mut kinds = Vec::new();
    loop {
        let Some(next) = it.keeping.next(&mut it.n, 0) else { break };
        match next {
            Next::Store(outgoing) => {
                let kind = Header::read(&outgoing.envelope).unwrap().kind;
                kinds.push((kind, texts(&outgoing).len()));
                it.answers(&outgoing, Ok((kinds.len() as u64 * 10, false)));
            }
            Next::Purge(ticket, of, before) => {
                assert_eq!((of.as_str(), before), ("p.h.e.8b.a", 20));
                it.keeping.purged(ticket, Some(NotStored::Refused("no permission".into())));
            }
            Next::Fetch(..) => panic!("nothing is followed"),
        }
    }
    assert_eq!(kinds, [(Kind::Broadcast, 2), (Kind::Forget, 0), (Kind::Broadcast, 2)]);
    assert_eq!(it.sink.stored[&2], at(20, 0));
    let why = NotStored::Refused("no permission".into());
    assert_eq!(it.keeping.notices.pop_front(), Some(HistoryNotice::NotPurged("a".into(), why)));
    assert_eq!(it.keeping.counts.purges_failed, 1);
}

/// In a new broker this number would be that of another message.
#[test]
fn purge_for_a_lost_broker_is_not_applied_to_the_next_one() {
    let mut it = Scenario::new();
    it.forget("a", 0);
    let Some(Next::Store(outgoing)) = it.keeping.next(&mut it.n, 0) else { panic!("the wish") };
    it.answers(&outgoing, Ok((20, false)));
    it.keeping.follows.down(false, 0);
    it.keeping.up(Some(78), 0);
    assert!(it.keeping.next(&mut it.n, 0).is_none());
}

/// Topics that begin and end without a broker leave nothing.
#[test]
fn topics_with_nothing_to_store_are_released() {
    let mut it = Scenario::new();
    for round in 0..100 {
        for topic in 0..50 {
            it.store_range(&format!("{round} {topic}"), round * 50 + topic..round * 50 + topic + 1);
        }
        it.advance(9 * SECOND);
    }
    assert_eq!(it.sink.stored.len(), 5_000);
    assert!(it.keeping.stores.ready_len() <= 64, "{}", it.keeping.stores.ready_len());
    assert!(it.keeping.stores.is_empty() && it.leaves().is_empty());
}
