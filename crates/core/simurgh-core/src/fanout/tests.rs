//! Broadcasts on their way through a shard (PROTOCOL rows 51–57), and how long a slice lasts.

mod backlog;
mod publish;

use std::sync::Arc;

use simurgh_channel::Permit;
use simurgh_data::{Key, Next};
use simurgh_proto::message::Payload;

use crate::frames::LONG_BYTES;
use crate::testing::*;
use crate::*;

/// The private constants of `deliver`, `batch` and `slice`.
const STRIDE: usize = 16;
const CLOCK_CHECK_BYTES: usize = 16 << 10;
const WHOLE_BYTES_MAX: usize = 64 << 10;
const FEW: usize = 32;
const SLICE_NS: u64 = 400_000;

fn news(json: &str) -> String {
    format!(r#"[null,null,"t","news",{json}]"#)
}

const V1_JOIN: &str = r#"{"topic":"t","event":"phx_join","payload":{},"ref":1}"#;

fn v1_news(json: &str) -> String {
    format!(r#"{{"topic":"t","event":"news","payload":{json},"ref":null}}"#)
}

fn joined_v1(it: &mut TestShard) -> Key {
    let key = it.opens(Wire::V1);
    it.asks(key, V1_JOIN);
    key
}

fn members(it: &mut TestShard, count: usize) -> Vec<Key> {
    (0..count).map(|_| it.joined(&["t"])).collect()
}

fn crowd(count: usize) -> (TestShard, Vec<Key>) {
    let mut it = TestShard::new();
    let keys = members(&mut it, count);
    (it, keys)
}

fn told(it: &mut TestShard, keys: &[Key], text: &[String]) -> usize {
    let said = keys.iter().map(|key| it.receives(*key)).filter(|said| !said.is_empty());
    said.inspect(|said| assert_eq!(said, text)).count()
}

/// A JSON string so long that its broadcast on `t` is a frame of these bytes for V2.
fn payload_of_frame(bytes: usize) -> Payload<'static> {
    let around = news("\"\"").len();
    let head = match bytes {
        0..=127 => 2,
        128..=65_539 => 4,
        _ => 10,
    };
    Payload::from_json(format!("\"{}\"", "x".repeat(bytes - head - around)))
}

fn publish(it: &mut TestShard, payload: Payload<'static>) {
    it.node.broadcast(Broadcast::new("t", "news", payload)).unwrap();
    it.handles_mail();
}

/// PROTOCOL rows 51 and 54: each member gets its own form, whichever channel broadcasts.
#[test]
fn each_member_receives_a_broadcast_in_its_serializer() {
    let plain = plain("t", |_, _| Join::ok(scripted(standard)));
    let mut it = TestShard::with(Config::default(), vec![scripted(standard).user_socket(), plain]);
    let keys = [Wire::V1, Wire::V2, Wire::Plain, Wire::Values].map(|wire| {
        let key = it.out.connect(Phase::Connecting, wire);
        it.out.peer(key).socket.lead_to(u8::from(wire == Wire::Plain), wire);
        it.core.opened(&mut it.out, key, SocketState::default());
        match wire {
            Wire::V1 => it.sends(key, V1_JOIN),
            Wire::V2 | Wire::Values => it.sends(key, r#"[1,1,"t","phx_join",{}]"#),
            _ => {}
        }
        it.receives(key);
        key
    });
    it.counts();
    it.broadcasts("t", "news", "[7]");
    it.broadcasts("t", "news", "[8]");
    assert_eq!(it.fans_out(), Next::Idle);
    assert_eq!(it.receives(keys[0]), ["[7]", "[8]"].map(v1_news));
    assert_eq!(it.receives(keys[1]), [news("[7]"), news("[8]")]);
    assert_eq!(it.receives(keys[2]), ["[7]", "[8]"]);
    assert_eq!(it.receives(keys[3]), ["t news [7]", "t news [8]"]);
    assert_eq!(it.counts(), ["messages_out +8", "broadcasts +2", "deliveries +8"]);
    assert_eq!(it.node.charged(0), 0);
    // From one of them: to all except that one, in each wire.
    for (from, key) in keys.iter().enumerate().filter(|(from, _)| *from != 2) {
        match from {
            0 => it.sends(*key, r#"{"topic":"t","event":"bcast_from","payload":9,"ref":1}"#),
            _ => it.sends(*key, r#"[1,2,"t","bcast_from",9]"#),
        }
        it.fans_out();
        let forms = [v1_news("9"), news("9"), "9".into(), "t news 9".into()];
        for (at, (key, form)) in keys.iter().zip(forms).enumerate() {
            let said = it.receives(*key);
            assert_eq!(said, if at == from { vec![] } else { vec![form] }, "{at} of {from}");
        }
        assert_eq!(it.counts(), ["messages_out +3", "broadcasts +1", "deliveries +3"]);
    }
}

/// PROTOCOL row 139: replies and pushes are compressed for their receiver, broadcasts for all.
#[test]
fn broadcast_is_compressed_once_for_all_members_with_deflate() {
    let mut it = TestShard::new();
    let wires = [Wire::V2, Wire::V2Deflate, Wire::V2Deflate, Wire::V1Deflate, Wire::V1Deflate];
    let keys = wires.map(|wire| {
        let key = it.opens(wire);
        let is_v1 = wire == Wire::V1Deflate;
        it.asks(key, if is_v1 { V1_JOIN } else { r#"[1,1,"t","phx_join",{}]"# });
        it.out.peer(key).bytes.clear();
        key
    });
    let (short, long) = ("[1]", format!("[{}2]", "1,".repeat(200)));
    it.broadcasts("t", "news", short);
    publish(&mut it, Payload::from_json(long.clone()));
    it.fans_out();
    assert_eq!(it.out.compressed, 2, "the long one, once for each serializer");
    let plain = it.out.peer(keys[0]).bytes.len();
    for (key, wire) in keys.into_iter().zip(wires) {
        let expected = match wire {
            Wire::V1Deflate => [v1_news(short), v1_news(&long)],
            _ => [news(short), news(&long)],
        };
        assert_eq!(it.receives(key), expected);
        let bytes = it.out.peer(key).bytes.len();
        assert!(wire == Wire::V2 || bytes < plain / 2, "{bytes} of {plain}");
    }
}

/// PROTOCOL row 54 and §4: a missing form is counted once for all members without it.
#[test]
fn broadcast_that_cannot_be_encoded_is_skipped() {
    let mut it = TestShard::new();
    let v1: Vec<Key> = (0..3).map(|_| joined_v1(&mut it)).collect();
    let v2 = it.joined(&["t"]);
    it.counts();
    it.broadcasts("t", "news", "1");
    publish(&mut it, Payload::from_bytes(vec![7]));
    it.delivers("t", "news", "2");
    assert_eq!(told(&mut it, &v1, &["1", "2"].map(v1_news)), 3);
    let binary = r"binary \x02\x01\x04tnews\x07".to_owned();
    assert_eq!(it.receives(v2), [news("1"), binary, news("2")]);
    assert_eq!(it.changes(), "messages_out +9, broadcasts +3, deliveries +9, errors_encode +1");
    publish(&mut it, Payload::from_bytes(vec![7]));
    it.fans_out();
    assert_eq!(told(&mut it, &v1, &[]), 0, "for nobody of them is anything left");
    assert_eq!(it.changes(), "messages_out +1, broadcasts +1, deliveries +1, errors_encode +1");
}

/// The same one by one, through channels that do not intercept.
#[test]
fn intercepted_push_that_cannot_be_encoded_is_skipped() {
    for bytes in [1, LONG_BYTES + 1] {
        let mut it = TestShard::running(scripted(standard).intercepting(&["other"]));
        let v1 = joined_v1(&mut it);
        let (v2, values) = (it.joined(&["t"]), it.out.connect(Phase::Connecting, Wire::Values));
        it.core.opened(&mut it.out, values, SocketState::default());
        it.asks(values, r#"[1,1,"t","phx_join",{}]"#);
        it.counts();
        publish(&mut it, Payload::from_bytes(vec![b'x'; bytes]));
        assert_eq!(it.delivers("t", "news", "1").receives(v1), [v1_news("1")]);
        let binary = format!(r"binary \x02\x01\x04tnews{}", "x".repeat(bytes));
        assert_eq!(it.receives(v2), [binary, news("1")]);
        assert_eq!(it.receives(values), ["t news binary", "t news 1"]);
        let changes = "messages_out +5, broadcasts +2, deliveries +5, errors_encode +1";
        assert_eq!(it.changes(), changes, "what was not sent is no delivery");
    }
}

/// PROTOCOL row 52: the excluded slot may have had another member, or be on another shard.
#[test]
fn sender_is_excluded_by_its_full_channel_id() {
    let mut it = TestShard::new();
    let keys = [it.joined(&["t"]), it.joined(&["t"])];
    let id = it.channel(keys[0]);
    let from = |it: &mut TestShard, id: ChannelId| {
        let mut broadcast = Broadcast::new("t", "news", Payload::from_json("1"));
        broadcast.except = Some(id);
        it.node.broadcast(broadcast).unwrap();
        it.handles_mail();
        it.fans_out();
        [it.receives(keys[0]).len(), it.receives(keys[1]).len()]
    };
    assert_eq!(from(&mut it, id), [0, 1]);
    assert_eq!(from(&mut it, ChannelId { shard: 1, ..id }), [1, 1]);
    assert_eq!(from(&mut it, ChannelId { generation: id.generation + 1, ..id }), [1, 1]);
    assert_eq!(from(&mut it, ChannelId { membership: 9, ..id }), [1, 1]);
}

/// The sender of one gets the others of a burst; all others get all.
#[test]
fn sender_receives_broadcasts_of_others() {
    let (mut it, keys) = crowd(3);
    it.counts();
    it.broadcasts("t", "news", "1");
    it.sends(keys[1], r#"[1,2,"t","bcast_from",2]"#);
    it.broadcasts("t", "news", "3");
    assert_eq!(it.delivers("t", "news", "4").receives(keys[1]), ["1", "3", "4"].map(news));
    assert_eq!(told(&mut it, &keys, &["1", "2", "3", "4"].map(news)), 2);
    assert_eq!(it.counts(), ["messages_out +11", "broadcasts +4", "deliveries +11"]);
    assert_eq!(it.out.later, 2, "two runs, with the second left out between them");
}

/// PROTOCOL row 53 and §5.5: from the join on, to the leave, however the fan-out is cut.
#[test]
fn member_receives_broadcasts_made_during_its_membership() {
    let (mut it, early) = crowd(20);
    it.broadcasts("t", "news", "1");
    it.out.step_ns = SLICE_NS;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    let late = it.joined(&["t"]);
    it.broadcasts("t", "news", "2");
    it.disconnects(early[0]);
    it.fans_out();
    assert_eq!(told(&mut it, &early[1..], &[news("1"), news("2")]), 19);
    assert_eq!(it.receives(late), [news("2")]);
    assert_eq!(it.node.charged(0), 0);
}

/// The clock is read after so many members, and not before.
#[test]
fn slice_ends_at_the_first_late_clock_reading() {
    for (step, first) in
        [(SLICE_NS, STRIDE), (SLICE_NS - 1, 2 * STRIDE), (SLICE_NS / 3, 3 * STRIDE)]
    {
        let (mut it, keys) = crowd(4 * STRIDE);
        it.broadcasts("t", "news", "1");
        it.counts();
        it.out.step_ns = step;
        assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
        let first = if step == SLICE_NS / 3 { first + STRIDE } else { first };
        assert_eq!(told(&mut it, &keys, &[news("1")]), first);
        assert_eq!(it.core.metrics().fanout_topics.value(), 1);
        it.fans_out();
        assert_eq!(told(&mut it, &keys, &[news("1")]), keys.len() - first);
        assert_eq!(it.core.metrics().fanout_topics.value(), 0);
    }
}

/// The same after so many bytes, whether they were put together for all or not.
#[test]
fn slice_reads_the_clock_after_some_bytes() {
    for (bytes, first) in
        [(CLOCK_CHECK_BYTES, 1), (CLOCK_CHECK_BYTES - 1, 2), (CLOCK_CHECK_BYTES / 2, 2)]
    {
        let (mut it, keys) = crowd(5);
        publish(&mut it, payload_of_frame(bytes));
        it.out.step_ns = SLICE_NS;
        let mut left = keys.len();
        while left > 0 {
            assert!(left == 5 || it.core.metrics().fanout_topics.value() == 1);
            it.core.fan_out(&mut it.out);
            let said = keys.iter().filter(|key| !it.out.peer(**key).received().is_empty()).count();
            assert_eq!(said, first.min(left), "{bytes} bytes each");
            left -= said;
        }
        assert_eq!(it.out.peer(keys[0]).bytes.len() - ok(1, 1, "t", "{}").len() - 2, bytes);
    }
}

/// However little time that takes: what is queued is written after the slice, in the same turn.
#[test]
fn slice_ends_after_half_a_mebibyte() {
    let (mut it, keys) = crowd(20);
    publish(&mut it, payload_of_frame(64 << 10));
    it.out.step_ns = 0;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    assert_eq!(keys.iter().filter(|key| !it.out.peer(**key).received().is_empty()).count(), 8);
}

#[test]
fn topics_are_served_in_turn() {
    let (mut it, many) = crowd(2 * STRIDE);
    let other = it.joined(&["u"]);
    it.broadcasts("t", "news", "1");
    it.broadcasts("u", "news", "2");
    it.out.step_ns = SLICE_NS;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    assert_eq!((told(&mut it, &many, &[news("1")]), it.receives(other).len()), (STRIDE, 0));
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    assert_eq!((told(&mut it, &many, &[news("1")]), it.receives(other).len()), (0, 1));
    it.fans_out();
    assert_eq!(told(&mut it, &many, &[news("1")]), STRIDE);
}

#[test]
fn late_slice_begins_no_topic() {
    let mut it = TestShard::new();
    let keys = [it.joined(&["t"]), it.joined(&["u"])];
    it.broadcasts("t", "news", "1");
    it.broadcasts("u", "news", "2");
    it.out.step_ns = SLICE_NS;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    assert_eq!((it.receives(keys[0]).len(), it.receives(keys[1]).len()), (1, 0));
    it.out.step_ns = SLICE_NS - 1;
    it.broadcasts("t", "news", "3");
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
    assert_eq!((it.receives(keys[0]).len(), it.receives(keys[1]).len()), (1, 1));
}

#[test]
fn burst_is_assembled_once() {
    for (bytes, gathered) in [(WHOLE_BYTES_MAX, 0), (WHOLE_BYTES_MAX + 1, 3)] {
        let (mut it, keys) = crowd(3);
        let half = bytes / 2;
        publish(&mut it, payload_of_frame(half));
        publish(&mut it, payload_of_frame(bytes - half));
        it.fans_out();
        assert_eq!(it.out.gathered, gathered);
        assert_eq!(it.out.ready, if gathered == 0 { 2 } else { 0 }, "all but the first");
        assert!(keys.iter().all(|key| it.receives(*key).len() == 2));
    }
}

#[test]
fn long_broadcast_is_equal_for_all_members() {
    for bytes in [LONG_BYTES, LONG_BYTES + 1] {
        let passing = scripted(standard).intercepting(&["other"]);
        let mut it = TestShard::of(user_socket(move |_, payload| match payload.json() {
            Some("1") => Join::ok(passing.clone()),
            _ => Join::ok(scripted(standard)),
        }));
        let keys = [
            it.joined_as(r#"[1,1,"t","phx_join",{}]"#),
            it.joined_as(r#"[1,1,"t","phx_join",1]"#),
            it.joined_as(r#"[1,1,"t","phx_join",{}]"#),
        ];
        let json = format!("\"{}\"", "x".repeat(bytes - 2));
        publish(&mut it, Payload::from_json(json.clone()));
        it.counts();
        it.sends(keys[2], r#"[1,2,"t","echo",7]"#);
        it.fans_out();
        for key in &keys[..2] {
            assert_eq!(it.receives(*key), [news(&json)]);
        }
        assert_eq!(it.receives(keys[2]), [news(&json), ok(1, 2, "t", "7")]);
        assert_eq!(it.counts(), ["messages_out +4", "deliveries +3", "fanout_topics -1"]);
        let is_long = usize::from(bytes > LONG_BYTES);
        assert_eq!((it.out.gathered, it.out.later), (is_long, 1 + is_long), "in its parts");
        let all = [0, 1].map(|at| it.out.peer(keys[at]).bytes.clone());
        assert!(all[0] == all[1], "long or not, passing its channel or not");
    }
}

fn permits_of(shards: usize, cores: usize, user_sockets: Vec<UserSocket>) -> TestNode {
    let mut node = TestNode::new(shards, Config::default(), user_sockets);
    node.permits = FanoutPermits::new(shards, cores);
    node
}

/// The first of several shards, which have six permits, five of them taken.
fn with_one_permit(shards: usize) -> TestShard {
    let node = permits_of(shards, 1, vec![scripted(standard).user_socket()]);
    (1..6).for_each(|shard| assert_eq!(node.permits.take(shard, 0), Permit::Held(0)));
    TestShard::with_node(node)
}

fn has_permit(it: &TestShard, shard: usize) -> bool {
    let mail = std::mem::take(&mut it.node.log().mail[shard]);
    mail.iter().any(|it| matches!(it, Mail::Permit))
}

/// Without a permit only topics with few members here are served; it arrives by mail.
#[test]
fn shard_without_a_permit_serves_few_members() {
    let mut it = TestShard::with_node(permits_of(1, 0, vec![scripted(standard).user_socket()]));
    let many = members(&mut it, FEW);
    let few = it.joined(&["u"]);
    it.broadcasts("u", "news", "1");
    it.broadcasts("t", "news", "2");
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
    assert_eq!((told(&mut it, &many, &[news("2")]), it.receives(few).len()), (FEW, 1));
    let many = [many, vec![it.joined(&["t"])]].concat();
    it.broadcasts("t", "news", "3");
    it.broadcasts("u", "news", "4");
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle, "the permit will come");
    assert_eq!((told(&mut it, &many, &[news("3")]), it.receives(few).len()), (0, 1));
    assert_eq!(it.core.metrics().fanout_topics.value(), 1);
    let node = Arc::clone(&it.node);
    node.permits.put_back(0, |next| node.post(next, Mail::Permit));
    it.handles_mail();
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
    assert_eq!(told(&mut it, &many, &[news("3")]), FEW + 1);
    // It was returned.
    assert!(matches!(it.node.permits.take(0, 0), Permit::Held(0)));
}

/// Searching for small topics takes time, too.
#[test]
fn slice_without_a_permit_ends_in_time() {
    let mut it = TestShard::with_node(permits_of(1, 0, vec![scripted(standard).user_socket()]));
    let _many = members(&mut it, FEW + 1);
    let few = it.joined(&["u"]);
    it.broadcasts("t", "news", "1");
    it.broadcasts("u", "news", "2");
    it.out.step_ns = SLICE_NS;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now, "others are still to be looked at");
    assert!(it.receives(few).is_empty());
    it.out.step_ns = SLICE_NS / 2 - 1;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
    assert_eq!(it.receives(few).len(), 1);
}

/// An interceptor may publish to few members, who do not wait for the permit.
#[test]
fn small_topic_is_served_in_a_slice_without_a_permit() {
    let speaking = scripted(|ctx, heard| match heard {
        ChannelCall::Out(..) => {
            ctx.broadcast_to("v", "news", Payload::from_json("9"));
            Outcome::NoReply
        }
        other => standard(ctx, other),
    });
    let passing = speaking.intercepting(&["shout"]);
    let mut it = TestShard::with_node(permits_of(1, 0, vec![passing.user_socket()]));
    let many = members(&mut it, FEW + 1);
    let (few, third) = (it.joined(&["u"]), it.joined(&["v"]));
    it.broadcasts("t", "news", "1");
    it.broadcasts("u", "shout", "2");
    it.broadcasts("t", "news", "3");
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle, "only the large one is left");
    assert_eq!((told(&mut it, &many, &[]), it.receives(few).len()), (0, 0));
    assert_eq!(it.receives(third).len(), 1);
    it.broadcasts("u", "shout", "4");
    it.out.step_ns = SLICE_NS / 2;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
    assert!(it.receives(third).is_empty());
    it.out.step_ns = 0;
    assert_eq!(it.core.fan_out(&mut it.out), Next::Idle);
    assert_eq!(it.receives(third).len(), 1);
}

/// A shard with nothing to send passes its permit to the next in the queue, by mail.
#[test]
fn permit_passes_to_the_next_waiting_shard() {
    let mut it = with_one_permit(8);
    let key = it.joined(&["t"]);
    it.broadcasts("t", "news", "1");
    it.out.step_ns = 1;
    let (registry, fanout, _) = it.core.parts();
    let mut slice = fanout.begin_slice(&it.out).unwrap();
    assert_eq!(it.node.permits.take(6, 0), Permit::Queued, "the last is here");
    assert!(fanout.go_on(registry, &mut it.out, &mut slice).is_none());
    assert_eq!(fanout.end_slice(&it.out, &slice), Next::Idle);
    assert!(has_permit(&it, 6) && it.receives(key).len() == 1);
    // Now this shard must wait; the permit it was queued for is too late.
    assert_eq!(it.delivers("t", "news", "2").receives(key).len(), 1, "few are served all the same");
    assert_eq!(it.node.permits.take(7, 0), Permit::Queued);
    let node = Arc::clone(&it.node);
    node.permits.put_back(1, |next| node.post(next, Mail::Permit));
    assert!(has_permit(&it, 7), "the next after the first");
    node.permits.put_back(7, |next| node.post(next, Mail::Permit));
    it.handles_mail();
    let held = it.node.permits.take(3, 0);
    assert_eq!(held, Permit::Held(0), "it was put back at once: nothing is to be sent");
}

/// A permit that is held for long is passed to others that wait, although there is more to send.
#[test]
fn permit_passes_on_after_its_time() {
    for (held_ns, is_passed) in [(4_000_000, true), (3_999_999, false)] {
        let mut it = with_one_permit(7);
        let _keys = members(&mut it, 2 * STRIDE);
        it.broadcasts("t", "news", "1");
        it.out.step_ns = SLICE_NS;
        assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
        assert_eq!(it.node.permits.take(6, 0), Permit::Queued);
        assert!(!has_permit(&it, 6));
        it.broadcasts("t", "news", "2");
        // A slice reads the clock as it begins, after a stride, and as it ends.
        it.out.clock_ns.set(held_ns - 2 * SLICE_NS);
        assert_eq!(it.core.fan_out(&mut it.out), Next::Now);
        assert_eq!(has_permit(&it, 6), is_passed);
    }
}

#[test]
fn permit_of_an_ending_shard_is_returned() {
    let mut it = with_one_permit(7);
    it.core.retire();
    let _keys = members(&mut it, 2 * STRIDE);
    it.broadcasts("t", "news", "1");
    it.out.step_ns = SLICE_NS;
    it.core.fan_out(&mut it.out);
    assert_eq!(it.node.permits.take(6, 0), Permit::Queued);
    it.core.retire();
    assert!(has_permit(&it, 6));
    it.core.fan_out(&mut it.out);
    it.core.retire();
    assert_eq!(it.node.permits.take(0, 0), Permit::Queued, "it had none to put back");
    assert!(it.node.permits.leave(0));
    it.node.permits.put_back(6, |_| panic!("it has left the line"));
}

#[test]
fn observer_sees_topics_and_their_totals() {
    let mut it = TestShard::new();
    let keys = [it.joined(&["t", "u"]), it.joined(&["t"])];
    it.broadcasts("t", "news", "1");
    it.broadcasts("t", "news", "2");
    let look = |it: &mut TestShard, roll: bool| {
        let (mut cursor, mut seen) = (0, Vec::new());
        it.core.visit_topics(&mut cursor, 9, roll, |_, topic| {
            seen.push((topic.name.to_owned(), topic.members, topic.deliveries_before));
        });
        assert_eq!(cursor, 0);
        seen
    };
    let none = [("t".to_owned(), 2, 0), ("u".to_owned(), 1, 0)];
    assert_eq!(look(&mut it, false), none);
    let four = [("t".to_owned(), 2, 4), ("u".to_owned(), 1, 0)];
    assert_eq!(look(&mut it, true), four);
    assert_eq!(look(&mut it, false), four);
    assert_eq!(look(&mut it, true), none);
    let topic = it.core.find_topic("t").unwrap();
    assert_eq!(it.core.topic(topic).unwrap().members, 2);
    assert_eq!(it.core.members(topic).collect::<Vec<_>>(), keys);
    assert!(it.core.find_topic("v").is_none());
    let of = |it: &TestShard, key: Key, topic: &str| {
        it.core.join_ref(key, it.out.socket(key).unwrap(), topic).map(|it| format!("{it:?}"))
    };
    assert_eq!(of(&it, keys[0], "u").as_deref(), Some("OwnedRef(1)"));
    assert_eq!(of(&it, keys[1], "u"), None);
    let key = it.joined_as(r#"[null,5,"t","phx_join",{}]"#);
    assert_eq!(of(&it, key, "t").as_deref(), Some("OwnedRef(null)"));
    assert!(format!("{:?}", it.core).contains("topics: 2"));
    let socket = it.out.socket(keys[0]).unwrap();
    let topics: Vec<_> = it.core.topics_of(socket).map(|it| it.to_string()).collect();
    assert_eq!(topics, ["u", "t"]);
}
