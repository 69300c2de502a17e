//! Replays of more than can be sent at once, in parts.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_channel::Posted;
use simurgh_history::ReplayLimits;
use simurgh_proto::ws::CloseCode;

use super::*;

fn two_at_once(channel: Scripted, rule: HistoryRule) -> Node {
    let mut config = Config::default();
    config.history.portion = ReplayLimits { count: 2, bytes: 64 << 10 };
    Node::on(config, channel, rule)
}

impl Node {
    fn is_full(&mut self, is_here: bool, count: u64) -> (Key, String, String) {
        let topic = if is_here { self.here.clone() } else { self.there.clone() };
        let (speaker, first) = self.opts_in(&topic);
        self.says(speaker, &topic, 1..count + 1);
        (speaker, topic, first)
    }

    fn tells_who_comes(&mut self, topic: &str) {
        let broadcast = Broadcast::new(topic, "joins", Payload::EMPTY_OBJECT);
        self.test_shard.node.post_charged(0, Posted::new(Arc::new(broadcast), None));
        self.test_shard.handles_mail();
        self.test_shard.fans_out();
    }

    fn comes_back(&mut self, wire: Wire, topic: &str, last: &str) -> Key {
        let key = self.test_shard.opens(wire);
        self.test_shard.sends(key, &format!(r#"["1","1","{topic}","phx_join",{}]"#, since(last)));
        (0..3).for_each(|_| self.takes_turns());
        key
    }
}

fn greeting(ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>) -> Outcome {
    match heard {
        ChannelCall::Joined => {
            ctx.push("hello", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    }
}

#[test]
fn long_replay_is_sent_in_parts_before_new_messages() {
    for is_here in [true, false] {
        let mut it = two_at_once(scripted(greeting), HistoryRule::default());
        let (speaker, topic, first) = it.is_full(is_here, 7);
        let key = it.comes_back(Wire::V2, &topic, &first);
        let mut heard = it.receives(key);
        assert!(heard[1].contains(r#"{"recovered":true,"count":7}"#), "{heard:?}");
        assert_eq!(positions(&heard[2..]).0, [1, 2], "a part");
        assert!(it.test_shard.out.is_held(key), "what it says waits until it has heard all");
        // A broadcast meanwhile, which is in this shard's log, is sent once, in its place.
        it.test_shard.sends(speaker, &format!(r#"["1","1","{topic}","bcast",{{"n":8}}]"#));
        it.takes_turns();
        it.test_shard.fans_out();
        assert!(it.receives(key).is_empty());
        it.settles();
        heard.extend(it.receives(key));
        let (seqs, texts) = positions(&heard[2..]);
        assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(texts.last().unwrap().contains("hello"), "it is pushed behind: {texts:?}");
        assert!(!it.test_shard.out.is_held(key));
        it.broadcasts(speaker, &topic, 9);
        assert_eq!(positions(&it.receives(key)).0, [9]);
        it.test_shard.disconnects(key);
        it.test_shard.disconnects(speaker);
        assert_eq!(it.test_shard.core.history_waits(), 0);
    }
}

#[test]
fn slow_client_is_not_read_and_gets_a_gap() {
    for is_here in [true, false] {
        let rule = HistoryRule { count: 5, ..HistoryRule::default() };
        let mut it = two_at_once(scripted(standard), rule);
        let (speaker, topic, first) = it.is_full(is_here, 5);
        let key = it.comes_back(Wire::V2, &topic, &first);
        assert_eq!(positions(&it.receives(key)[2..]).0, [1, 2]);
        it.test_shard.out.peer(key).queued = 40 << 10;
        for n in 6..=9 {
            it.broadcasts(speaker, &topic, n);
        }
        it.advances(Duration::from_secs(20));
        assert!(it.receives(key).is_empty(), "its socket has not taken the last part");
        it.test_shard.out.peer(key).queued = 0;
        it.settles();
        let heard = it.receives(key);
        let gap = r#""simurgh:gap",{"recovered":false,"reason":"overwritten"}"#;
        assert!(heard[0].contains(gap), "{heard:?}");
        assert_eq!(positions(&heard).0, [4, 5, 6, 7, 8, 9]);
        assert!(!it.test_shard.out.is_held(key));
    }
}

#[test]
fn channel_that_ends_during_a_replay_receives_nothing_more() {
    for is_here in [true, false] {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let script = move |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
            ChannelCall::Out("news", payload) => {
                ctx.push("seen", payload);
                match payload.json() {
                    Some(r#"{"n":3}"#) if is_over.load(Relaxed) => Outcome::Stop(Stop::Normal),
                    _ => Outcome::NoReply,
                }
            }
            other => standard(ctx, other),
        };
        let channel = scripted(script).intercepting(&["news"]);
        let mut it = two_at_once(channel, HistoryRule::default());
        let (_, topic, first) = it.is_full(is_here, 6);
        ends.store(true, Relaxed);
        let key = it.comes_back(Wire::V2, &topic, &first);
        it.settles();
        let events: Vec<String> = it.receives(key).iter().map(|it| event(it)).collect();
        let expected =
            ["phx_reply", "simurgh:resumed", "seen", "seen", "seen", "phx_close", "you_left"];
        assert_eq!(events, expected);
        assert!(!it.test_shard.out.is_held(key));
        ends.store(false, Relaxed);
        let heard = it.joins_again(key, &topic, &since(&first));
        assert_eq!(positions(&heard[2..]).0, [4, 5, 6]);
    }
}

#[test]
fn socket_that_closes_during_a_replay_leaves_no_state() {
    let mut it = two_at_once(scripted(greeting), HistoryRule::default());
    let (speaker, topic, first) = it.is_full(false, 7);
    let gone = it.comes_back(Wire::V2, &topic, &first);
    it.test_shard.disconnects(gone);
    let closed = it.comes_back(Wire::V2, &topic, &first);
    it.test_shard.core.close(&mut it.test_shard.out, closed, CloseCode::RESTART);
    it.test_shard.disconnects(closed);
    it.settles();
    it.test_shard.disconnects(speaker);
    assert_eq!(it.test_shard.core.history_waits(), 0);
}

/// Presence diffs have no position, and are never missed.
#[test]
fn messages_without_a_position_follow_a_replay() {
    for channel in [scripted(standard), scripted(standard).intercepting(&["other"])] {
        let mut it = two_at_once(channel, HistoryRule::default());
        let (_, topic, first) = it.is_full(false, 5);
        let key = it.comes_back(Wire::V2, &topic, &first);
        it.tells_who_comes(&topic);
        assert_eq!(positions(&it.receives(key)[2..]).0, [1, 2]);
        it.settles();
        let (seqs, texts) = positions(&it.receives(key));
        assert_eq!((seqs, &*event(&texts[3])), (vec![3, 4, 5], "joins"));
    }
}

#[test]
fn client_with_too_much_queued_after_its_replay_is_closed() {
    let mut it = two_at_once(scripted(standard), HistoryRule::default());
    let (_, topic, first) = it.is_full(true, 5);
    let key = it.comes_back(Wire::V2, &topic, &first);
    it.test_shard.out.peer(key).queued = 40 << 10;
    for _ in 0..1_100 {
        it.tells_who_comes(&topic);
    }
    let closing = it.receives(key);
    assert!(closing.last().is_some_and(|it| it.contains("1013")), "{:?}", closing.last());
}
