//! Any history of a topic, compared with a plain list of all that ever happened to it.

use proptest::collection::vec;
use proptest::prelude::*;
use simurgh_history::{
    Dropped, Epoch, Ids, KeptTopic, Limits, Place, Position, Ring, Saver, Since, Stored, saved,
};

use crate::model::{EPOCH, Model};

#[derive(Clone, Debug)]
enum Step {
    /// So far behind the head, or the next item of the same number if that is 0.
    Push {
        ahead: u64,
        bytes: usize,
    },
    Enforce(Limits),
    Evict,
    Purge,
    Lose {
        ahead: u64,
        back: u64,
    },
    Wait(u64),
}

fn limits() -> impl Strategy<Value = Limits> {
    let bytes = prop_oneof![0..200u64, Just(u64::MAX)];
    let age = prop_oneof![0..200u64, Just(u64::MAX)];
    let count = prop_oneof![0..12usize, Just(usize::MAX)];
    (count, bytes, age).prop_map(|(count, bytes, age_ms)| Limits { count, bytes, age_ms })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..4u64, 0..60usize).prop_map(|(ahead, bytes)| Step::Push { ahead, bytes }),
        3 => limits().prop_map(Step::Enforce),
        1 => Just(Step::Evict),
        1 => Just(Step::Purge),
        1 => (0..3u64, 0..9u64).prop_map(|(ahead, back)| Step::Lose { ahead, back }),
        3 => (0..60u64).prop_map(Step::Wait),
    ]
}

/// One publish: a step of time before it, bytes, and one of a few ids or none.
fn publish() -> impl Strategy<Value = (u64, usize, Option<u8>)> {
    let wait = prop_oneof![0..50u64, 0..Ids::AGE_MS];
    (wait, 0..60usize, prop::option::of(0..6u8))
}

fn odd_seq() -> impl Strategy<Value = u64> {
    prop_oneof![0..50u64, Just(u64::MAX), any::<u64>()]
}

fn check_all(ring: &Ring<u64>, model: &Model, odd: &[u64]) {
    model.check_state(ring);
    let places = model.places();
    let near = places.iter().flat_map(|place| {
        let before = Place { seq: place.seq.saturating_sub(1), item: u16::MAX };
        [before, *place, Place { item: place.item + 1, ..*place }]
    });
    let odd = odd.iter().map(|&seq| Place::new(seq));
    for place in near.chain(odd).chain([Place::ZERO]) {
        model.check_since(ring, Since::After(Position { epoch: EPOCH, place }));
        let epoch = Epoch::from_seed(u64::from(EPOCH.get()) + 1);
        model.check_since(ring, Since::After(Position { epoch, place }));
    }
    model.check_since(ring, Since::Now);
    for count in [0, 1, 3, u32::MAX] {
        model.check_since(ring, Since::Newest(count));
    }
    model.check_since(ring, Since::Unknown);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn ring_matches_its_model(
        head in 0..3u64,
        steps in vec(step(), 0..60),
        odd in vec(odd_seq(), 0..4),
    ) {
        let mut model = Model::new(Place::new(head));
        let mut ring = Ring::new(EPOCH, Place::new(head));
        for step in steps {
            let now = model.now_ms;
            match step {
                Step::Push { ahead, bytes } => {
                    let head = ring.head();
                    let place = match ahead {
                        0 => Place { seq: head.seq, item: head.item + 1 },
                        _ => Place::new(head.seq + ahead),
                    };
                    let value = model.push(place, bytes);
                    prop_assert!(ring.push(place, now, bytes, value));
                    prop_assert!(!ring.push(place, now, bytes, value), "twice");
                }
                Step::Enforce(limits) => {
                    prop_assert_eq!(ring.enforce(&limits, now), model.enforce(&limits));
                }
                Step::Evict => prop_assert_eq!(ring.evict_half(), model.evict_half()),
                Step::Purge => prop_assert_eq!(ring.purge(), model.purge()),
                Step::Lose { ahead, back } => {
                    let through = Place::new((ring.head().seq + ahead).saturating_sub(back));
                    prop_assert_eq!(ring.lose(through), model.lose(through));
                }
                Step::Wait(ms) => model.now_ms += ms,
            }
            model.check_state(&ring);
        }
        check_all(&ring, &model, &odd);
    }

    #[test]
    fn topic_and_its_save_match_the_model(
        limits in limits(),
        publishes in vec(publish(), 0..40),
        purge_at in 0..80usize,
    ) {
        let mut model = Model::new(Place::ZERO);
        let mut topic = KeptTopic::new(EPOCH, 7);
        let mut ids = std::collections::HashMap::new();
        for (n, (wait, bytes, id)) in publishes.into_iter().enumerate() {
            model.now_ms += wait;
            let now = model.now_ms;
            if n == purge_at {
                prop_assert_eq!(topic.purge(), model.purge());
            }
            let remembered = ids.get(&id).filter(|(_, at)| id.is_some() && now - at < Ids::AGE_MS);
            let text = id.map(|id| id.to_string());
            let expected = match remembered {
                Some(&(place, _)) => Stored::Duplicate(Position { epoch: EPOCH, place }),
                None => {
                    let place = Place::new(topic.ring().head().seq + 1);
                    ids.insert(id, (place, now));
                    model.push(place, bytes);
                    Stored::New(Position { epoch: EPOCH, place }, model.enforce(&limits))
                }
            };
            let value = model.last_value();
            prop_assert_eq!(topic.store(value, bytes, text.as_deref(), now, &limits), expected);
        }
        check_all(topic.ring(), &model, &[]);

        let (mut saver, mut bytes) = (Saver::new(), Vec::new());
        saver.topic(&mut bytes, "room:1", &topic, |value, out| {
            out.extend_from_slice(&value.to_le_bytes());
        });
        saver.finish(&mut bytes);
        let decode = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        let read = saved(&bytes, 8, decode).unwrap();
        prop_assert_eq!(read.len(), 1);
        let (name, mut again) = read.into_iter().next().unwrap();
        prop_assert_eq!(name, "room:1");
        check_all(again.ring(), &model, &[]);
        let now = model.now_ms;
        for id in 0..6u8 {
            let place = ids.get(&Some(id)).filter(|(_, at)| now - at < Ids::AGE_MS);
            let place = place.map(|&(place, _)| Position { epoch: EPOCH, place });
            let none = Limits { count: 0, bytes: 0, age_ms: 0 };
            let stored = again.store(0, 0, Some(&id.to_string()), now, &none);
            match stored {
                Stored::Duplicate(position) => prop_assert_eq!(Some(position), place),
                Stored::New(position, Dropped { .. }) => {
                    prop_assert_eq!(place, None);
                    prop_assert!(position.place > topic.ring().head());
                }
            }
        }
    }

    #[test]
    fn positions_survive_formatting_and_parsing(
        seed in any::<u64>(),
        seq in any::<u64>(),
        item in 0..=Place::ITEM_MAX,
    ) {
        let position = Position { epoch: Epoch::from_seed(seed), place: Place { seq, item } };
        let text = position.to_string();
        prop_assert!(text.len() <= Position::CHARS_MAX);
        prop_assert_eq!(Position::parse(&text), Some(position));
        let mut out = Vec::new();
        position.encode(&mut out);
        prop_assert_eq!(out, text.into_bytes());
    }

    #[test]
    fn parsed_position_text_is_reproduced_exactly(
        text in "[a-z`{][0-9a-zA-Z]{5}[.,][0-9+]{0,3}(-[0-9]{0,5})?",
    ) {
        if let Some(position) = Position::parse(&text) {
            prop_assert_eq!(position.to_string(), text);
        }
    }

    #[test]
    fn positions_of_one_epoch_are_ordered_like_their_places(
        a in (0..3u64, 0..3u16),
        b in (0..3u64, 0..3u16),
    ) {
        let place = |(seq, item)| Place { seq, item };
        prop_assert_eq!(place(a).cmp(&place(b)), a.cmp(&b));
    }
}
