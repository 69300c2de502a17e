//! Members that have not taken everything they were sent, and the bytes that wait for them.

use std::time::Duration;

use simurgh_data::{Key, Next};
use simurgh_proto::message::Payload;

use super::{news, publish};
use crate::registry::BEHIND;
use crate::testing::*;
use crate::*;

const LOOK: Next = Next::After(Duration::from_millis(5));
const WEIGHT: usize = 4 + "t".len() + "news".len() + 64;

fn members(it: &mut TestShard, count: usize, slow: usize) -> Vec<Key> {
    let keys: Vec<Key> = (0..count).map(|_| it.joined(&["t"])).collect();
    keys[..slow].iter().for_each(|key| it.out.peer(*key).window = 0);
    keys
}

fn crowd(count: usize, slow: usize) -> (TestShard, Vec<Key>) {
    let mut it = TestShard::new();
    let keys = members(&mut it, count, slow);
    (it, keys)
}

fn takes_all(it: &mut TestShard, key: Key) {
    it.out.peer(key).window = usize::MAX;
    assert!(it.out.peer(key).takes_more(usize::MAX));
    it.core.drained(&it.out, key);
}

fn behind(it: &TestShard) -> u32 {
    let topic = it.core.registry().topic(it.core.find_topic("t").unwrap()).unwrap();
    topic.deliveries.behind
}

fn under_way(it: &mut TestShard) -> (usize, Next) {
    let next = it.core.settle(&mut it.out);
    (it.node.charged(0), next)
}

#[test]
fn bytes_are_withheld_while_most_readers_have_not_taken_them() {
    for (slow, withheld) in [(2, 0), (3, 2 * WEIGHT)] {
        let (mut it, keys) = crowd(4, slow);
        it.broadcasts("t", "news", "null");
        it.broadcasts("t", "news", "null");
        assert_eq!(it.fans_out(), Next::Idle);
        assert!(keys.iter().all(|key| it.receives(*key).len() == 2));
        assert_eq!(behind(&it) as usize, slow);
        let next = if withheld == 0 { Next::Idle } else { LOOK };
        assert_eq!(it.core.fanout().withheld.len(), usize::from(withheld > 0));
        assert_eq!(under_way(&mut it), (withheld, next));
        assert_eq!(it.core.metrics().fanout_topics.value(), 0, "there is nothing to be sent");
        takes_all(&mut it, keys[0]);
        assert_eq!((behind(&it) as usize, under_way(&mut it)), (slow - 1, (0, Next::Idle)));
        keys[1..slow].iter().for_each(|key| takes_all(&mut it, *key));
        assert_eq!(behind(&it), 0);
    }
}

#[test]
fn closed_reader_does_not_delay_release() {
    let (mut it, keys) = crowd(4, 3);
    it.delivers("t", "news", "null");
    assert_eq!(under_way(&mut it), (WEIGHT, LOOK));
    it.disconnects(keys[3]);
    assert_eq!(under_way(&mut it), (WEIGHT, LOOK), "three of three");
    it.disconnects(keys[0]);
    assert_eq!((behind(&it), under_way(&mut it)), (2, (WEIGHT, LOOK)), "two of two");
    it.disconnects(keys[1]);
    it.disconnects(keys[2]);
    assert_eq!(under_way(&mut it), (0, Next::Idle));
    assert_eq!(it.core.metrics().topics.value(), 0);
}

#[test]
fn leave_of_another_member_can_release_bytes() {
    let (mut it, keys) = crowd(3, 2);
    it.delivers("t", "news", "null");
    takes_all(&mut it, keys[0]);
    assert_eq!(under_way(&mut it), (0, Next::Idle), "one of three");
    let more = members(&mut it, 1, 1);
    it.delivers("t", "news", "null");
    assert_eq!((behind(&it), under_way(&mut it)), (2, (0, Next::Idle)), "two of four");
    it.disconnects(keys[2]);
    it.delivers("t", "news", "null");
    assert_eq!((behind(&it), under_way(&mut it)), (2, (WEIGHT, LOOK)), "two of three");
    it.disconnects(more[0]);
    assert_eq!((behind(&it), under_way(&mut it)), (1, (0, Next::Idle)), "one of two");
}

/// A reader with a quarter of its limit waiting is given time, alone among many.
#[test]
fn lagging_reader_gets_time() {
    for (bytes, withheld) in [(1000, false), (1001, true)] {
        let config = Config { outbound_bytes_max: 4000, ..Config::default() };
        let mut it = TestShard::configured(config);
        let keys = members(&mut it, 5, 1);
        publish(&mut it, super::payload_of_frame(bytes));
        it.fans_out();
        assert_eq!(it.core.settle(&mut it.out), if withheld { LOOK } else { Next::Idle });
        takes_all(&mut it, keys[0]);
        assert_eq!(under_way(&mut it), (0, Next::Idle));
    }
}

#[test]
fn reader_that_caught_up_does_not_delay_release() {
    let config = Config { outbound_bytes_max: 4000, ..Config::default() };
    let mut it = TestShard::configured(config);
    let keys = members(&mut it, 5, 1);
    publish(&mut it, super::payload_of_frame(1001));
    it.fans_out();
    assert_eq!(it.core.settle(&mut it.out), LOOK);
    assert!(!it.out.peer(keys[0]).takes_more(900), "it is behind with the rest");
    it.delivers("t", "news", "null");
    assert_eq!((behind(&it), under_way(&mut it)), (1, (0, Next::Idle)));
}

/// Half of what may wait for one reader, in the time in which a reader may take nothing: here a
/// broadcast a second.
#[test]
fn withheld_bytes_are_released_gradually() {
    let outbound_bytes_max = 2 * WEIGHT * 4;
    let slow_after = Duration::from_secs(4);
    let config = Config { outbound_bytes_max, slow_after, ..Config::default() };
    let mut it = TestShard::configured(config);
    let _keys = members(&mut it, 1, 1);
    (0..3).for_each(|_| it.broadcasts("t", "news", "null"));
    it.fans_out();
    assert_eq!(under_way(&mut it), (3 * WEIGHT, LOOK));
    it.advances(Duration::from_nanos(999_999_999));
    assert_eq!(under_way(&mut it), (3 * WEIGHT, LOOK));
    it.advances(Duration::from_nanos(1));
    assert_eq!(under_way(&mut it), (2 * WEIGHT, LOOK));
    assert_eq!(it.core.metrics().fanout_bytes.value(), 2 * WEIGHT as u64);
    // More is withheld behind that.
    it.delivers("t", "news", "null");
    assert_eq!(it.core.fanout().withheld.len(), 1, "the topic is there once");
    assert_eq!(under_way(&mut it), (3 * WEIGHT, LOOK));
    for left in [2, 1] {
        it.advances(Duration::from_secs(1));
        assert_eq!(under_way(&mut it), (left * WEIGHT, LOOK));
    }
    it.advances(Duration::from_secs(1));
    assert_eq!(under_way(&mut it), (0, Next::Idle));
    assert_eq!((behind(&it), it.core.metrics().fanout_bytes.value()), (1, 0));
}

/// While a member is behind, the next frames are linked behind those it waits for, so its queue
/// does not grow. Otherwise the sent frames would be kept for the next ones.
#[test]
fn next_broadcast_is_chained_while_a_reader_is_behind() {
    let (mut it, keys) = crowd(3, 1);
    let follows = |it: &mut TestShard| {
        it.delivers("t", "news", "null");
        [0, 2].map(|at| std::mem::take(&mut it.out.peer(keys[at]).follows))
    };
    assert_eq!(follows(&mut it), [0, 0], "the first");
    assert_eq!(follows(&mut it), [1, 1]);
    assert_eq!(follows(&mut it), [1, 1]);
    takes_all(&mut it, keys[0]);
    for _ in 0..3 {
        assert_eq!(follows(&mut it), [0, 0]);
    }
}

#[test]
fn withheld_bytes_are_counted_per_topic() {
    let config = Config { slow_after: Duration::from_millis(1), ..Config::default() };
    let mut it = TestShard::configured(config);
    let keys = ["t", "u"].map(|topic| it.joined(&[topic]));
    for (key, topic) in keys.iter().zip(["t", "u"]) {
        it.out.peer(*key).window = 0;
        it.broadcasts(topic, "news", "null");
    }
    it.fans_out();
    assert_eq!(under_way(&mut it), (2 * WEIGHT, LOOK));
    takes_all(&mut it, keys[0]);
    assert_eq!(under_way(&mut it), (WEIGHT, LOOK));
    it.advances(Duration::from_secs(1));
    assert_eq!(under_way(&mut it), (0, Next::Idle));
}

/// A topic without members stays for what is withheld of it, and no longer.
#[test]
fn topic_ends_with_its_withheld_bytes() {
    let (mut it, keys) = crowd(2, 2);
    it.delivers("t", "news", "null");
    it.broadcasts("t", "news", "null");
    keys.iter().for_each(|key| it.disconnects(*key));
    assert_eq!(it.core.metrics().topics.value(), 1, "something is to be sent");
    it.fans_out();
    assert_eq!(it.core.metrics().topics.value(), 0);
    assert_eq!(under_way(&mut it), (0, Next::Idle));
}

#[test]
fn every_receiver_can_be_behind() {
    let passing = scripted(|ctx, heard| match heard {
        ChannelCall::Out(event, payload) => {
            ctx.push(event, payload);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    });
    let mut it = TestShard::running(passing.intercepting(&["news"]));
    let keys = members(&mut it, 2, 1);
    it.delivers("t", "news", "null");
    it.out.end_turn();
    // Its channel's push is counted once the turn's bytes have met the slow peer.
    it.delivers("t", "news", "null");
    assert_eq!((behind(&it), it.out.peer(keys[0]).received().len()), (1, 2));
    takes_all(&mut it, keys[0]);
    assert_eq!(behind(&it), 0);

    let (mut it, keys) = crowd(2, 1);
    it.delivers("t", "news", "0");
    it.broadcasts("t", "news", "1");
    it.sends(keys[1], r#"[1,2,"t","bcast_from",2]"#);
    assert_eq!(it.delivers("t", "news", "3").receives(keys[0]), ["0", "1", "2", "3"].map(news));
    assert_eq!(it.receives(keys[1]), ["0", "1", "3"].map(news));
    assert_eq!(behind(&it), 1);
}

#[test]
fn slow_sender_is_behind_with_its_own_messages() {
    let (mut it, keys) = crowd(3, 1);
    it.delivers("t", "news", "0");
    let topic = it.core.registry().topic(it.core.find_topic("t").unwrap()).unwrap();
    let membership = topic.member_at(0).unwrap().membership();
    it.core.parts().0.mark(membership, BEHIND, false);
    let id = it.core.find_topic("t").unwrap();
    it.core.parts().0.topic_mut(id).unwrap().deliveries.behind = 0;
    it.sends(keys[0], r#"[1,2,"t","bcast_from",1]"#);
    it.delivers("t", "news", "2");
    assert_eq!(behind(&it), 1, "it is noticed anew");
    assert_eq!(it.receives(keys[0]), ["0", "2"].map(news));
}

#[test]
fn member_that_ends_by_a_broadcast_is_not_behind() {
    let stopping = scripted(|ctx, heard| match heard {
        ChannelCall::Out(..) => {
            ctx.push("last", Payload::NULL);
            Outcome::Stop(Stop::Normal)
        }
        other => standard(ctx, other),
    });
    let mut it = TestShard::running(stopping.intercepting(&["last"]));
    let keys = members(&mut it, 2, 1);
    it.delivers("t", "news", "0");
    it.delivers("t", "news", "1");
    assert_eq!(behind(&it), 1);
    it.broadcasts("t", "last", "2");
    it.disconnects(keys[1]);
    it.fans_out();
    assert_eq!(under_way(&mut it), (0, Next::Idle));
    assert_eq!(it.core.metrics().topics.value(), 0);
}
