//! Publishers, and which are held for having published too much.

use std::sync::Arc;
use std::time::Duration;

use simurgh_data::{Key, Next};
use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::*;

const fn weight(bytes: usize) -> usize {
    bytes + "t".len() + "news".len() + 64
}

fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

fn sends(it: &mut TestShard, key: Key, event: &str, bytes: usize) {
    it.sends(key, &format!(r#"[1,2,"t","{event}",{}]"#, text(bytes)));
}

/// A shard of several, of which 800 bytes may be in flight, and 100 of one flow.
fn test_shard(shards: usize) -> TestShard {
    let config = Config { mailbox_bytes_max: 800, outbound_bytes_max: 2000, ..Config::default() };
    configured(shards, config)
}

fn configured(shards: usize, config: Config) -> TestShard {
    TestShard::with_node(TestNode::new(shards, config, vec![scripted(standard).user_socket()]))
}

fn posted(it: &TestShard, shard: usize) -> Vec<Posted> {
    let mail = std::mem::take(&mut it.node.log().mail[shard]);
    let posted = mail.into_iter().map(|mail| match mail {
        Mail::Broadcast(posted) => posted,
        other => panic!("{other:?}"),
    });
    posted.collect()
}

#[test]
fn broadcast_is_posted_to_all_other_shards() {
    let mut it = test_shard(4);
    it.node.log().ended.push(2);
    let key = it.joined(&["t"]);
    sends(&mut it, key, "bcast_from", 10);
    assert_eq!(it.node.log().bytes, [weight(10), weight(10), 0, weight(10)], "not to an ended one");
    for shard in [1, 3] {
        let all = posted(&it, shard);
        let broadcast = all[0].broadcast();
        assert_eq!((all.len(), broadcast.topic(), broadcast.event()), (1, "t", "news"));
        assert_eq!(broadcast.payload(), &Payload::from_json(text(10)));
        assert_eq!(broadcast.except, Some(it.channel(key)));
    }
    assert!(it.node.log().mail[0].is_empty(), "here at once");
    it.fans_out();
    assert_eq!(it.node.charged(0), 0);
}

/// While they are in flight, and not only when some of them are released.
#[test]
fn bytes_in_flight_are_counted_at_the_end_of_each_turn() {
    let (mut it, [key]) = test_shard(2).members();
    let counted = |it: &mut TestShard| {
        it.core.settle(&mut it.out);
        it.core.metrics().fanout_bytes.value() as usize
    };
    sends(&mut it, key, "bcast", 10);
    assert_eq!(counted(&mut it), weight(10));
    it.node.charge(0, 7);
    assert_eq!(counted(&mut it), weight(10) + 7, "what another shard has posted");
    it.fans_out();
    assert_eq!(counted(&mut it), 7);
    it.node.discharge(0, 7);
    assert_eq!(counted(&mut it), 0);
}

/// Without members here a broadcast is done at once.
#[test]
fn broadcast_without_members_completes_at_once() {
    let (mut it, [key]) = test_shard(1).members();
    it.sends(key, r#"[1,2,"t","bcast_to","elsewhere"]"#);
    assert_eq!(it.node.charged(0), 0);
    it.broadcasts("elsewhere", "news", "1");
    assert_eq!((it.node.charged(0), it.counts()), (0, vec!["broadcasts +2".to_owned()]));
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
}

/// Half of what may wait for one reader, to the byte.
#[test]
fn broadcast_that_is_too_large_is_refused_with_a_reply() {
    let (mut it, [key]) = test_shard(2).members();
    sends(&mut it, key, "bcast", 1001);
    assert_eq!(it.counts(), ["messages_out +1", "errors_broadcast_too_big +1"]);
    assert_eq!((it.node.charged(0), posted(&it, 1).len(), it.fans_out()), (0, 0, Next::Idle));
    sends(&mut it, key, "bcast", 1000);
    assert_eq!((posted(&it, 1).len(), it.core.metrics().broadcasts.value()), (1, 1));
    let broadcast = |bytes: usize| {
        it.node.log().bytes = vec![0; 2];
        it.node.broadcast(Broadcast::new("t", "news", Payload::from_json(text(bytes))))
    };
    assert_eq!(broadcast(1000), Ok(()));
    assert_eq!(broadcast(1001), Err(BroadcastError::TooLarge { bytes: 1001, bytes_max: 1000 }));
}

/// A broadcast from outside of channels is for all shards or for none.
#[test]
fn broadcast_is_refused_while_too_much_is_in_flight() {
    let it = test_shard(3);
    let broadcast = || it.node.broadcast(Broadcast::new("t", "news", Payload::NULL));
    it.node.log().bytes[2] = 800;
    assert_eq!(broadcast(), Ok(()));
    assert_eq!(it.node.log().bytes, [weight(4), weight(4), 800 + weight(4)]);
    let all: Vec<_> = (0..3).flat_map(|shard| posted(&it, shard)).collect();
    assert!(all.len() == 3 && all.iter().all(|it| Arc::ptr_eq(it.broadcast(), all[0].broadcast())));
    it.node.log().bytes = vec![0, 801, 0];
    assert_eq!(broadcast(), Err(BroadcastError::Congested));
    assert!((0..3).all(|shard| posted(&it, shard).is_empty()));
    it.node.log().ended.push(1);
    assert_eq!(broadcast(), Ok(()), "what an ended shard has never comes back");
}

/// A flow has an eighth of what may be in flight.
#[test]
fn publisher_above_its_share_is_paused() {
    let (mut it, [key]) = test_shard(1).members();
    sends(&mut it, key, "bcast", 100 - weight(0));
    assert!(it.out.deeds().is_empty() && !it.core.is_held_back(key), "just its share");
    it.fans_out();
    it.counts();
    sends(&mut it, key, "bcast", 101 - weight(0));
    assert_eq!((it.out.deeds(), it.core.is_held_back(key)), (vec!["hold 0".into()], true));
    sends(&mut it, key, "bcast", 90);
    assert!(it.out.deeds().is_empty(), "once");
    let changes = it.counts();
    assert!(changes.contains(&"publishers_held +1".into()), "{changes:?}");
    assert_eq!(it.core.settle(&mut it.out), Next::After(Duration::from_millis(5)));
    it.fans_out();
    assert_eq!(it.core.settle(&mut it.out), Next::Now, "it may publish again");
    assert_eq!((it.out.deeds(), it.core.is_held_back(key)), (vec!["release 0".into()], false));
    assert_eq!(it.core.settle(&mut it.out), Next::Idle);
}

/// A topic's bytes in flight do not hold the publishers of another.
#[test]
fn flow_belongs_to_its_topic() {
    let mut it = test_shard(1);
    let keys = [it.joined(&["t"]), it.joined(&["t", "u"]), it.joined(&["v"])];
    for key in &keys[..2] {
        sends(&mut it, *key, "bcast", 10);
    }
    assert_eq!(it.out.deeds(), ["hold 1"], "together they have more than one flow may");
    it.sends(keys[2], r#"[1,2,"v","bcast",1]"#);
    it.sends(keys[2], r#"[1,2,"v","bcast_to","nowhere"]"#);
    assert!(it.out.deeds().is_empty());
}

#[test]
fn congested_node_pauses_publishers() {
    for (bytes, first, second) in [(1600, false, false), (1601, false, true), (6401, true, true)] {
        let config = Config { mailbox_bytes_max: 1600, ..Config::default() };
        let mut it = configured(2, config);
        for is_held in [first, second] {
            let key = it.joined(&["t"]);
            // The bytes of another shard by then, since this one's change as well.
            it.node.log().bytes = vec![0, bytes - weight(1)];
            it.sends(key, r#"[1,2,"t","bcast",1]"#);
            assert_eq!(it.core.is_held_back(key), is_held, "{bytes} bytes under way elsewhere");
        }
    }
}

/// Half of its share must have left, and half of what may be in flight, so that it does not
/// alternate; or all of its own.
#[test]
fn paused_publisher_resumes_when_enough_was_sent() {
    for (bytes, left, goes_on) in [
        (400, 50, true),
        (400, 51, false),
        (401, 50, false),
        (401, 0, true),
        (3200, 0, true),
        (3201, 0, false),
    ] {
        let (mut it, [key]) = test_shard(2).members();
        sends(&mut it, key, "bcast", 101 - weight(0) + 4);
        assert!(it.core.is_held_back(key));
        it.fans_out();
        drop(posted(&it, 1));
        let topic = it.core.find_topic("t").unwrap();
        let delivery = &mut it.core.parts().0.topic_mut(topic).unwrap().deliveries;
        let flow = Arc::clone(delivery.flow.as_ref().unwrap());
        assert_eq!(flow.bytes(), 0, "the other shard is done");
        let charge = flow.charge(left);
        it.node.log().bytes = vec![0, bytes];
        it.out.deeds();
        let next = it.core.settle(&mut it.out);
        assert_eq!(!it.core.is_held_back(key), goes_on, "{bytes} bytes, {left} left");
        assert_eq!(next, if goes_on { Next::Now } else { Next::After(Duration::from_millis(5)) });
        assert_eq!(it.out.deeds().len(), usize::from(goes_on));
        drop(charge);
    }
}

/// Each of them may bring as much as one read holds.
#[test]
fn resuming_publishers_is_bounded_per_turn() {
    let mut it = test_shard(1);
    let keys: Vec<Key> = (0..40).map(|_| it.joined(&["t"])).collect();
    keys.iter().for_each(|key| sends(&mut it, *key, "bcast", 101));
    assert!(keys.iter().all(|key| it.core.is_held_back(*key)));
    it.fans_out();
    it.out.deeds();
    for (released, next) in [(16, Next::Now), (16, Next::Now), (8, Next::Now), (0, Next::Idle)] {
        assert_eq!(it.core.settle(&mut it.out), next);
        assert_eq!(it.out.deeds().len(), released);
    }
    assert!(!keys.iter().any(|key| it.out.is_held(*key)));
}

/// A publisher that waits for something else stays held for that; one that is gone is forgotten.
#[test]
fn waiting_or_closed_publisher_is_not_resumed() {
    let mut it = test_shard(1);
    let keys: Vec<Key> = (0..4).map(|_| it.joined(&["t"])).collect();
    keys.iter().for_each(|key| sends(&mut it, *key, "bcast", 101));
    it.fans_out();
    for (key, phase) in [(keys[0], Phase::Waiting), (keys[1], Phase::Connecting)] {
        it.out.peer(key).socket.enter(phase, 0);
    }
    it.disconnects(keys[2]);
    assert!(!it.core.is_held_back(keys[2]));
    it.out.deeds();
    assert_eq!(it.core.settle(&mut it.out), Next::Now);
    assert_eq!(it.out.deeds(), ["release 3"]);
    assert!(!keys.iter().any(|key| it.core.is_held_back(*key)));
}

/// A publisher that is gone does not keep others from being checked, nor its place.
#[test]
fn closed_publisher_leaves_no_state() {
    let mut it = test_shard(1);
    let keys: Vec<Key> = (0..40).map(|_| it.joined(&["t"])).collect();
    keys.iter().for_each(|key| sends(&mut it, *key, "bcast", 101));
    keys[1..].iter().for_each(|key| it.disconnects(*key));
    it.out.deeds();
    assert_eq!(it.core.settle(&mut it.out), Next::After(Duration::from_millis(5)));
    let left =
        |it: &TestShard| it.core.fanout().held.as_ref().map(|it| (it.queue.len(), it.keys.len()));
    assert_eq!(left(&it), Some((1, 1)));
    it.fans_out();
    assert_eq!(it.core.settle(&mut it.out), Next::Now);
    assert_eq!((it.out.deeds(), left(&it)), (vec!["release 0".into()], Some((0, 0))));
}

/// A channel may broadcast in `terminate`: a socket that is gone is not held.
#[test]
fn closed_publisher_is_not_paused() {
    let channel = scripted(|ctx, heard| {
        if let ChannelCall::Ends(_) = heard {
            ctx.broadcast_to("hall", "news", Payload::NULL);
        }
        Outcome::NoReply
    });
    let config = Config { mailbox_bytes_max: 80, ..Config::default() };
    let mut it = TestShard::with(config, vec![channel.user_socket()]);
    let (_listener, key) = (it.joined(&["hall"]), it.joined(&["t"]));
    it.disconnects(key);
    assert!(it.out.deeds().is_empty() && !it.core.is_held_back(key));
    assert_eq!(it.core.metrics().publishers_held.value(), 0);
}

#[test]
fn topic_releases_its_flow() {
    let (mut it, [key]) = test_shard(2).members();
    sends(&mut it, key, "bcast", 10);
    let topic = it.core.find_topic("t").unwrap();
    assert!(!it.core.parts().0.topics_mut().shrink(0), "something is to be sent here");
    it.fans_out();
    let elsewhere = posted(&it, 1);
    let has_flow =
        |it: &TestShard| it.core.registry().topic(topic).unwrap().deliveries.flow.is_some();
    assert!(it.core.parts().0.topics_mut().shrink(0) && has_flow(&it), "there was room in its log");
    drop(elsewhere);
    assert!(has_flow(&it));
    it.core.parts().0.topics_mut().shrink(0);
    assert!(!has_flow(&it));
}

/// A client that leaves and joins again is the same publisher.
#[test]
fn bytes_in_flight_count_after_the_last_leave() {
    let config = Config { mailbox_bytes_max: 1600, ..Config::default() };
    let (mut it, [key]) = configured(2, config).members();
    sends(&mut it, key, "bcast", 90);
    it.fans_out();
    assert!(!it.out.is_held(key));
    // Its first broadcast is still in the mailbox of the other shard.
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    sends(&mut it, key, "bcast", 90);
    assert!(it.out.is_held(key), "both count");
}

#[test]
fn publisher_whose_socket_closes_is_not_paused() {
    let (mut it, [key, _]) = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::In("last", _) => {
            ctx.close_socket(simurgh_proto::ws::CloseCode::RESTART);
            for _ in 0..2 {
                ctx.broadcast("news", Payload::from_json(format!("\"{}\"", "x".repeat(9 << 20))));
            }
            Outcome::NoReply
        }
        other => standard(ctx, other),
    }))
    .members();
    it.sends(key, r#"[1,2,"t","last",{}]"#);
    assert_eq!(it.out.peer(key).socket.phase(), Phase::Closing);
    assert!(!it.out.is_held(key));
}
