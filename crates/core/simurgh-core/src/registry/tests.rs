//! The registry tested by hand, and against a model.

use proptest::prelude::*;
use simurgh_channel::Outcome;
use simurgh_proto::message::OwnedRef;

use super::model::{KINDS, Nothing, Pair, SOCKETS, Step, TOPICS, key, registry};
use super::*;
use crate::testing::scripted;

fn channel(flags: u16) -> Subscriber {
    let holds = Holds::Channel(Box::new(scripted(|_, _| Outcome::NoReply)));
    Subscriber { holds, join_ref: OwnedRef::NULL, via_channel: false, flags }
}

fn join(registry: &mut Registry<Nothing>, list: &mut List, socket: usize, topic: &str) -> u32 {
    registry.subscribe(list, key(socket), topic, channel(0)).ok().unwrap()
}

/// A registry with one channel, and the list of its socket.
fn joined() -> (Registry<Nothing>, Arc<ShardMetrics>, List, u32) {
    let ((mut registry, metrics), mut list) = (registry(), List::default());
    let id = join(&mut registry, &mut list, 1, "t");
    (registry, metrics, list, id)
}

/// Searched by memberships or by members; ids and further topics are not channels.
#[test]
fn channel_is_found_by_socket_and_topic() {
    let (mut registry, _) = registry();
    let (mut one, mut two, mut three) = (List::default(), List::default(), List::default());
    let relay = Subscriber::through(Holds::Relay(0), RELAY);
    registry.subscribe(&mut one, key(1), "a", relay).ok().unwrap();
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    registry.subscribe(&mut one, key(1), "a", itself).ok().unwrap();
    let one_a = join(&mut registry, &mut one, 1, "a");
    let one_b = join(&mut registry, &mut one, 1, "b");
    let two_a = join(&mut registry, &mut two, 2, "a");
    let (a, b) = (registry.find("a").unwrap(), registry.find("b").unwrap());
    assert_eq!(registry.joined_in(key(1), one, b), Some(one_b));
    assert_eq!(registry.joined_in(key(1), one, a), Some(one_a));
    assert_eq!(registry.joined_in(key(2), two, a), Some(two_a));
    assert_eq!(registry.joined_in(key(2), two, b), None);
    assert_eq!(registry.joined_in(key(3), three, a), None);
    // More channels than members, one of which is not a channel: the members are searched.
    let three_a = join(&mut registry, &mut three, 3, "a");
    for topic in ["c", "d", "e", "f", "g"] {
        join(&mut registry, &mut three, 3, topic);
    }
    assert_eq!(registry.joined_in(key(3), three, a), Some(three_a));
    assert_eq!(registry.joined_in(key(3), three, b), None);
    registry.leave(&mut three, three_a);
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    registry.subscribe(&mut three, key(3), "a", itself).ok().unwrap();
    assert_eq!(registry.joined_in(key(3), three, a), None, "the socket itself is no channel");
    assert_eq!(registry.joined_in(key(3), three, TopicId::default()), None);
}

#[test]
fn relay_is_found_by_channel_and_topic() {
    let (mut registry, _, mut list, first) = joined();
    let second = join(&mut registry, &mut list, 1, "u");
    let mut relay = |list: &mut List, channel: u32, topic: &str| {
        let relay = Subscriber::through(Holds::Relay(channel), RELAY);
        registry.subscribe(list, key(1), topic, relay).ok().unwrap()
    };
    let relays =
        [relay(&mut list, first, "x"), relay(&mut list, second, "x"), relay(&mut list, first, "y")];
    assert_eq!(registry.relay(list, first, "x"), Some(relays[0]));
    assert_eq!(registry.relay(list, second, "x"), Some(relays[1]));
    assert_eq!(registry.relay(list, first, "y"), Some(relays[2]));
    assert_eq!(registry.relay(list, second, "y"), None);
    assert_eq!(registry.relay(list, first, "t"), None, "its own topic");
    assert_eq!(registry.relay(list, first, "z"), None, "no topic");
    let it = registry.member(relays[1]).unwrap();
    assert_eq!((it.relay_for(), it.is_joined()), (Some(second), false));
    assert_eq!(registry.member(first).unwrap().relay_for(), None);
    registry.wake(first);
    assert_eq!(registry.member(first).unwrap().relay_for(), None, "a callback of it runs");
}

#[test]
fn leave_returns_its_pending_work() {
    let (mut registry, metrics) = registry();
    let mut list = List::default();
    let counted = registry.subscribe(&mut list, key(1), "t", channel(COUNTED)).ok().unwrap();
    let plain = join(&mut registry, &mut list, 1, "t");
    assert!(registry.mark(plain, BEHIND, true));
    let left = registry.leave(&mut list, counted).unwrap();
    assert_eq!((left.counted.as_deref(), left.was_behind), (Some("t"), false));
    assert!(left.channel.is_some());
    assert_eq!(left.topic, registry.find("t").unwrap());
    assert!(registry.leave(&mut list, counted).is_none(), "it has left");
    assert_eq!((registry.ended(), list.channels(), metrics.channels.value()), (1, 1, 1));
    let taken = registry.wake(plain);
    let left = registry.leave(&mut list, plain).unwrap();
    assert!(left.counted.is_none() && left.was_behind);
    assert!(taken.is_some() && left.channel.is_none(), "a callback has it");
    registry.close_if_empty(left.topic);
    assert_eq!((registry.topics.len(), registry.topics.slots(), metrics.topics.value()), (0, 1, 0));
}

#[test]
fn mark_is_reported_once() {
    let (mut registry, _, _, id) = joined();
    assert!(registry.mark(id, BEHIND, true) && !registry.mark(id, BEHIND, true));
    assert!(registry.mark(id, HAS_RELAYS, true), "marks do not touch each other");
    assert!(registry.mark(id, BEHIND, false) && !registry.mark(id, BEHIND, false));
    let it = registry.member(id).unwrap();
    assert!(it.is(HAS_RELAYS) && !it.is(BEHIND));
    assert!(!registry.mark(id + 1, BEHIND, true) && !registry.mark(id + 1, BEHIND, false));
}

#[test]
fn channel_is_taken_out_during_its_callbacks() {
    let (mut registry, metrics, mut list, id) = joined();
    let channel = registry.wake(id).unwrap();
    assert!(registry.wake(id).is_none() && registry.member(id).unwrap().channel().is_none());
    registry.put_back(id, channel);
    assert!(registry.member(id).unwrap().channel().is_some());
    assert!(registry.send_to_sleep(id).is_none() && registry.send_to_sleep(id).is_some());
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (1, 0));
    assert!(registry.send_to_sleep(id).is_none(), "it sleeps");
    let channel = registry.wake(id).unwrap();
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (0, 1));
    registry.put_back(id, channel);
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    let itself = registry.subscribe(&mut list, key(1), "id", itself).ok().unwrap();
    assert!((0..3).all(|_| registry.send_to_sleep(itself).is_none()));
    assert_eq!(registry.awake(), 1, "the socket itself is nobody to sleep");
    registry.send_to_sleep(id);
    registry.send_to_sleep(id);
    registry.leave(&mut list, id);
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (0, 0));
}

#[test]
fn old_channel_id_finds_nothing() {
    let (mut registry, _, mut list, id) = joined();
    let old = registry.channel_id(id).unwrap();
    assert_eq!(registry.live(old), Some(id));
    registry.leave(&mut list, id);
    assert_eq!(registry.live(old), None);
    assert_eq!(join(&mut registry, &mut list, 1, "t"), id);
    assert_eq!(registry.live(old), None);
    assert!(registry.live(registry.channel_id(id).unwrap()).is_some());
    assert!(id < registry.end());
}

#[test]
fn topic_frees_unused_memory() {
    let (mut registry, _) = registry();
    let mut list = List::default();
    let ids: Vec<u32> = (0..9).map(|_| join(&mut registry, &mut list, 1, "t")).collect();
    ids.iter().for_each(|id| assert!(registry.leave(&mut list, *id).is_some()));
    let topic = registry.find("t").unwrap();
    assert!(registry.topics.shrink(0) && !registry.topics.shrink(0), "once");
    registry.topic_mut(topic).unwrap().deliveries.has_room = true;
    assert!(registry.topics.shrink(0) && !registry.topics.shrink(0), "what is under way, too");
    registry.topic_mut(topic).unwrap().deliveries.has_room = true;
    registry.topic_mut(topic).unwrap().deliveries.is_busy = true;
    assert!(!registry.topics.shrink(0) && !registry.topics.shrink(1));
    join(&mut registry, &mut list, 1, "u");
    assert_eq!((registry.topics.len(), registry.topics.slots()), (2, 2));
}

fn step() -> impl Strategy<Value = Step> {
    let (topic, any) = (0..TOPICS.len(), any::<usize>());
    prop_oneof![
        4 => (0..SOCKETS, topic.clone(), 0..KINDS.len(), 1..9_usize).prop_map(
            |(socket, topic, kind, count)| Step::Subscribe { socket, topic, kind, count }
        ),
        12 => any.prop_map(Step::Leave),
        2 => (any, proptest::bool::ANY).prop_map(|(at, on)| Step::Mark(at, on)),
        4 => any.prop_map(Step::Sleep),
        2 => any.prop_map(Step::Wake),
        4 => (topic.clone(), 1..9_usize).prop_map(|(topic, count)| Step::Visit { topic, count }),
        1 => topic.clone().prop_map(Step::BeginRound),
        1 => topic.clone().prop_map(Step::Broadcast),
        1 => (topic, proptest::bool::ANY).prop_map(|(topic, on)| Step::Busy(topic, on)),
        1 => Just(Step::Shrink),
    ]
}

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

#[test]
fn fuzz_corpus_passes() {
    corpus::run("registry", model::run);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn tables_lists_and_counters_always_agree(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
            pair.check();
        }
    }
}
