//! Two shards: one with members, and one that is the home of half of the topics.

mod bounds;
mod read;
mod rejoin;
mod reload;
mod replay;
mod save;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{HistoryRule, Outcome, Reply, home_shard};
use simurgh_data::Key;
use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::wire::Wire;
use crate::*;

type Node = TwoShards;

impl Node {
    fn running(channel: Scripted) -> Self {
        Self::with(channel, HistoryRule::default())
    }

    fn with(channel: Scripted, rule: HistoryRule) -> Self {
        Self::on(Config::default(), channel, rule)
    }

    fn on(config: Config, channel: Scripted, rule: HistoryRule) -> Self {
        Self::new(TestNode::new(2, config, vec![keeping(channel, rule)]))
    }

    fn joins(&mut self, wire: Wire, topic: &str, params: &str) -> (Key, Vec<String>) {
        let key = self.test_shard.opens(wire);
        (key, self.joins_again(key, topic, params))
    }

    fn joins_again(&mut self, key: Key, topic: &str, params: &str) -> Vec<String> {
        self.sends(key, topic, "phx_join", params)
    }

    fn sends(&mut self, key: Key, topic: &str, event: &str, payload: &str) -> Vec<String> {
        self.writes(key, topic, event, payload);
        self.settles();
        self.receives(key)
    }

    fn settled_events(&mut self, key: Key) -> Vec<String> {
        self.settles();
        events(&self.receives(key))
    }

    /// A new client joins that receives positions. Returns its first.
    fn opts_in(&mut self, topic: &str) -> (Key, String) {
        let (key, joined) = self.joins(Wire::V2, topic, OPTED_IN);
        (key, position_of(&joined[1]))
    }

    /// A new client joins, and so many messages follow without a gap.
    #[track_caller]
    fn recovers(&mut self, topic: &str, params: &str, count: usize) -> (Key, Vec<String>) {
        self.resumes(topic, params, &format!(r#"{{"recovered":true,"count":{count}}}"#))
    }

    /// A new client joins and receives a gap with this reason before so many messages.
    #[track_caller]
    fn misses(&mut self, topic: &str, params: &str, why: &str, count: u8) -> (Key, Vec<String>) {
        let gap = format!(r#"{{"recovered":false,"reason":"{why}","count":{count}"#);
        self.resumes(topic, params, &gap)
    }

    #[track_caller]
    fn resumes(&mut self, topic: &str, params: &str, notice: &str) -> (Key, Vec<String>) {
        let (key, heard) = self.joins(Wire::V2, topic, params);
        assert!(heard[1].contains(notice), "{params}: {heard:?}");
        (key, heard)
    }

    fn broadcasts(&mut self, speaker: Key, topic: &str, n: u64) -> Vec<String> {
        self.sends(speaker, topic, "bcast", &format!(r#"{{"n":{n}}}"#))
    }

    fn says(&mut self, speaker: Key, topic: &str, all: std::ops::Range<u64>) {
        all.for_each(|n| _ = self.broadcasts(speaker, topic, n));
    }
}

/// The received positions, which must be in order; and the texts without them.
fn positions(heard: &[String]) -> (Vec<u64>, Vec<String>) {
    let (mut seqs, mut texts) = (Vec::new(), Vec::new());
    for text in heard {
        let at = try_position(text);
        let position = at.and_then(simurgh_history::Position::parse);
        seqs.extend(position.map(|it| it.place.seq));
        texts.push(at.map_or(text.clone(), |at| text.replace(at, "P")));
    }
    assert!(seqs.is_sorted(), "{heard:?}");
    (seqs, texts)
}

/// A node for a topic that its first shard keeps, and another for one that the second keeps.
fn both(channel: Scripted) -> [(Node, String); 2] {
    both_with(channel, HistoryRule::default())
}

fn both_with(channel: Scripted, rule: HistoryRule) -> [(Node, String); 2] {
    [0, 1].map(|shard| (Node::with(channel.clone(), rule), topic_at(shard)))
}

#[test]
fn client_without_the_opt_in_sees_no_difference() {
    for (mut it, topic) in both(scripted(standard)) {
        let (key, joined) = it.joins(Wire::V2, &topic, "{}");
        let quoted = |event: &str, json: &str| format!(r#"["1","1","{topic}","{event}",{json}]"#);
        let ok = r#"{"status":"ok","response":{}}"#;
        assert_eq!(joined, [quoted("phx_reply", ok)]);
        let heard = it.sends(key, &topic, "bcast", r#"{"n":1}"#);
        assert_eq!(heard, [format!(r#"[null,null,"{topic}","news",{{"n":1}}]"#)]);
    }
}

#[test]
fn opted_in_client_gets_its_position_from_the_first_join() {
    for wire in [Wire::V1, Wire::V2] {
        for (mut it, topic) in both(scripted(standard)) {
            let (key, joined) = it.joins(wire, &topic, OPTED_IN);
            assert_eq!(joined.len(), 2, "{joined:?}");
            assert!(joined[1].contains("simurgh:resumed"), "{joined:?}");
            assert!(joined[1].contains(r#"{"recovered":true,"count":0}"#), "{joined:?}");
            let heard = it.sends(key, &topic, "bcast", r#"{"n":1}"#);
            let (seqs, texts) = positions(&heard);
            let expected = match wire {
                Wire::V1 => {
                    format!(r#"{{"topic":"{topic}","event":"news","payload":{{"n":1}},"ref":"P"}}"#)
                }
                _ => format!(r#"[null,"P","{topic}","news",{{"n":1}}]"#),
            };
            assert_eq!((seqs, texts), (vec![1], vec![expected]));
        }
    }
}

#[test]
fn resuming_client_gets_missed_messages_in_order_and_once() {
    for wire in [Wire::V1, Wire::V2] {
        for (mut it, topic) in both(scripted(standard)) {
            let (speaker, _) = it.joins(Wire::V2, &topic, "{}");
            let (away, joined) = it.joins(wire, &topic, OPTED_IN);
            let mut last = position_of(&joined[1]);
            it.sends(speaker, &topic, "bcast", r#"{"n":1}"#);
            last = it.receives(away).first().map_or(last, |it| position_of(it));
            it.test_shard.disconnects(away);
            it.says(speaker, &topic, 2..6);
            let (back, heard) = it.joins(wire, &topic, &since(&last));
            assert!(heard[1].contains(r#"{"recovered":true,"count":4}"#), "{heard:?}");
            let (seqs, texts) = positions(&heard[2..]);
            assert_eq!(seqs, [2, 3, 4, 5]);
            let said = |n: usize| texts[n].contains(&format!(r#"{{"n":{}}}"#, n + 2));
            assert!((0..4).all(said), "{texts:?}");
            it.sends(speaker, &topic, "bcast", r#"{"n":6}"#);
            let (seqs, _) = positions(&it.receives(back));
            assert_eq!(seqs, [6]);
        }
    }
}

#[test]
fn effects_after_a_broadcast_wait_until_it_is_stored() {
    let script = |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
        ChannelCall::In("two", _) => {
            ctx.broadcast("first", Payload::EMPTY_OBJECT);
            ctx.push("between", Payload::EMPTY_OBJECT);
            ctx.broadcast("second", Payload::EMPTY_OBJECT);
            ctx.push("behind", Payload::EMPTY_OBJECT);
            Outcome::ok(Payload::EMPTY_OBJECT)
        }
        ChannelCall::In("stop", _) => {
            ctx.broadcast("first", Payload::EMPTY_OBJECT);
            Outcome::ReplyAndStop(Reply::ok(Payload::EMPTY_OBJECT), Stop::Normal)
        }
        other => standard(ctx, other),
    };
    let mut it = Node::running(scripted(script));
    let topic = it.there.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","two",{{}}]"#));
    assert!(it.receives(key).is_empty(), "nothing before it is kept");
    assert!(it.test_shard.out.is_held(key), "and nothing more is read");
    assert_eq!(it.test_shard.core.history_waits(), 2, "the channel, and its socket");
    assert_eq!(it.settled_events(key), ["first", "between", "second", "behind", "phx_reply"]);
    assert!(!it.test_shard.out.is_held(key));
    it.test_shard.sends(key, &format!(r#"["1","3","{topic}","stop",{{}}]"#));
    assert_eq!(it.settled_events(key), ["first", "phx_reply", "phx_close", "you_left"]);
    assert!(!it.test_shard.out.is_held(key));
}

fn events(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| event(text)).collect()
}

fn event(text: &str) -> String {
    let fields: Vec<&str> = text.splitn(5, ',').collect();
    fields[3].trim_matches('"').to_owned()
}

#[test]
fn gap_has_its_reason_and_the_retained_messages() {
    let rule = HistoryRule { count: 2, age: Duration::from_secs(60), ..HistoryRule::default() };
    let mut it = Node::with(scripted(standard), rule);
    let topic = it.here.clone();
    let (speaker, first) = it.opts_in(&topic);
    it.says(speaker, &topic, 1..5);
    let (_, heard) = it.misses(&topic, &since(&first), "overwritten", 2);
    assert_eq!(positions(&heard[2..]).0, [3, 4]);
    let none = format!(r#"{{"simurgh":{{"since":"{first}","partial":false}}}}"#);
    let (_, heard) = it.joins(Wire::V2, &topic, &none);
    assert!(heard[1].contains(r#"{"recovered":false,"reason":"overwritten","count":0}"#));
    assert_eq!(heard.len(), 2);
    it.misses(&topic, &since("zzzzzz.1"), "epoch", 2);
    it.test_shard.advances(Duration::from_secs(61));
    it.misses(&topic, &since(&first), "expired", 0);
}

#[test]
fn invalid_resume_is_refused_and_the_old_channel_stays() {
    let mut it = Node::running(scripted(standard));
    let topic = it.here.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    for wrong in ["7", "[]", r#"{"since":60}"#, r#"{"id":"short"}"#, r#"{"partial":1}"#] {
        let heard = it.joins_again(key, &topic, &format!(r#"{{"simurgh":{wrong}}}"#));
        assert_eq!(heard.len(), 1, "{wrong}: {heard:?}");
        assert!(heard[0].contains(r#"{"reason":"bad resume"}"#), "{wrong}: {heard:?}");
    }
    assert_eq!(it.sends(key, &topic, "bcast", "{}").len(), 1, "it is a member as before");
}

/// Everything sent on the same connection has arrived, whatever the client's join states.
#[test]
fn rejoin_on_one_connection_repeats_no_message() {
    for (mut it, topic) in both(scripted(standard)) {
        let (key, first) = it.opts_in(&topic);
        it.sends(key, &topic, "bcast", r#"{"n":1}"#);
        it.sends(key, &topic, "bcast", r#"{"n":2}"#);
        let heard = it.joins_again(key, &topic, &since(&first)).pop().unwrap();
        assert!(heard.contains(r#"{"recovered":true,"count":0}"#), "{heard}");
        it.sends(key, &topic, "crash", "{}");
        let heard = it.joins_again(key, &topic, &since(&first)).pop().unwrap();
        assert!(heard.contains(r#"{"recovered":true,"count":0}"#), "{heard}");
    }
}

#[test]
fn client_does_not_receive_its_own_broadcast_on_any_connection() {
    for (mut it, topic) in both(scripted(standard)) {
        let (key, joined) = it.joins(Wire::V2, &topic, ANN);
        let first = position_of(&joined[1]);
        let heard = it.sends(key, &topic, "bcast_from", r#"{"n":1}"#);
        assert_eq!(positions(&heard).1, [format!(r#"[null,"P","{topic}","simurgh:at",{{}}]"#)]);
        // Its new connection is there before the old one's last message.
        let (new, heard) = it.recovers(&topic, &as_ann(&first), 0);
        assert!(heard[2].contains("simurgh:at"), "{heard:?}");
        it.sends(key, &topic, "bcast_from", r#"{"n":2}"#);
        let heard = it.receives(new);
        assert_eq!(positions(&heard).1, [format!(r#"[null,"P","{topic}","simurgh:at",{{}}]"#)]);
        it.recovers(&topic, &since(&first), 2);
    }
}

#[test]
fn interceptor_receives_missed_messages_and_its_pushes_have_positions() {
    let script = |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
        ChannelCall::Out("news", payload) => {
            if payload.json() != Some(r#"{"n":2}"#) {
                ctx.push("seen", payload);
            }
            Outcome::NoReply
        }
        other => standard(ctx, other),
    };
    for (mut it, topic) in both(scripted(script).intercepting(&["news"])) {
        let (speaker, first) = it.opts_in(&topic);
        let live: Vec<_> = (1..4).flat_map(|n| it.broadcasts(speaker, &topic, n)).collect();
        let expected = [
            format!(r#"["1","P","{topic}","seen",{{"n":1}}]"#),
            format!(r#"["1","P","{topic}","simurgh:at",{{}}]"#),
            format!(r#"["1","P","{topic}","seen",{{"n":3}}]"#),
        ];
        assert_eq!(positions(&live), (vec![1, 2, 3], expected.to_vec()));
        let (_, heard) = it.joins(Wire::V2, &topic, &since(&first));
        assert_eq!(positions(&heard[2..]), (vec![1, 2, 3], expected.to_vec()));
    }
}

/// Broadcasts before a client's first join are not its own; the proof of its time is.
#[test]
fn only_messages_after_its_first_join_belong_to_a_client() {
    let rule = HistoryRule { only_own: true, ..HistoryRule::default() };
    for (mut it, topic) in both_with(scripted(standard), rule) {
        let (speaker, start) = it.opts_in(&topic);
        it.broadcasts(speaker, &topic, 1);
        let (ann, joined) = it.joins(Wire::V2, &topic, &since(&start));
        assert!(joined[1].contains(r#""recovered":false,"reason":"epoch","count":0"#));
        let first = position_of(&joined[1]);
        let key = key_of(&joined[1]);
        it.broadcasts(speaker, &topic, 2);
        it.test_shard.disconnects(ann);
        let with = |since: &str, key: &str| {
            format!(r#"{{"simurgh":{{"since":"{since}","key":"{key}"}}}}"#)
        };
        let (_, heard) = it.recovers(&topic, &with(&first, key), 1);
        assert_eq!(positions(&heard[2..]).0, [2]);
        let (_, heard) = it.joins(Wire::V2, &topic, &with(&start, key));
        assert_eq!(positions(&heard[2..]).0, [2], "not from before");
        let forged = key.replacen(&first, &start, 1);
        assert_ne!(forged, key);
        for wrong in [&forged, "", "~", &key[1..], &format!("{key}x")] {
            let (_, heard) = it.misses(&topic, &with(&start, wrong), "epoch", 0);
            assert_eq!(heard.len(), 2, "{wrong}");
        }
    }
}

#[test]
fn newest_messages_are_shown_to_a_client_that_joins_for_the_first_time() {
    let rule = HistoryRule { on_join: 2, ..HistoryRule::default() };
    for (mut it, topic) in both_with(scripted(standard), rule) {
        let (speaker, _) = it.opts_in(&topic);
        (1..4).for_each(|n| drop(it.broadcasts(speaker, &topic, n)));
        let (_, heard) = it.recovers(&topic, r#"{"simurgh":{}}"#, 2);
        let (shown, _) = positions(&heard[2..]);
        assert_eq!(shown, [2, 3]);
        let before = position_of(&heard[1]);
        it.broadcasts(speaker, &topic, 4);
        let (_, heard) = it.recovers(&topic, &since(&before), 3);
        assert_eq!(positions(&heard[2..]).0, [2, 3, 4], "a resume is not limited");
        let (_, heard) = it.joins(Wire::V2, &topic, "{}");
        assert_eq!(heard.len(), 1, "a client that takes no positions gets none");
    }
}

#[test]
fn confirmation_that_arrives_at_once_is_sent() {
    let mut it = Node::running(talking());
    let topic = it.there.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    it.test_shard.sends(key, &format!(r#"["1","7","{topic}","say",{{}}]"#));
    it.advances(Duration::from_secs(8));
    assert!(it.receives(key).is_empty() && it.test_shard.out.is_held(key));
    it.advances(Duration::from_secs(2));
    let answer = r#"{"status":"error","response":{"reason":"unconfirmed"}}"#;
    assert_eq!(it.receives(key), [format!(r#"["1","7","{topic}","phx_reply",{answer}]"#)]);
    assert!(!it.test_shard.out.is_held(key));
    assert_eq!(it.test_shard.core.metrics().errors_unconfirmed.value(), 1);
    assert_eq!(it.settled_events(key), ["news"]);
    assert_eq!(events(&it.sends(key, &topic, "say", "{}")), ["news", "behind", "phx_reply"]);
}

#[test]
fn broadcast_of_a_socket_that_closes_while_waiting_is_delivered() {
    let script = |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
        ChannelCall::In("two", _) => {
            ctx.broadcast("first", Payload::EMPTY_OBJECT);
            ctx.push("between", Payload::EMPTY_OBJECT);
            ctx.broadcast("second", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        ChannelCall::Ends(_) => {
            ctx.broadcast("gone", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    };
    let mut it = Node::running(scripted(script));
    let topic = it.there.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    let (other, _) = it.joins(Wire::V2, &topic, OPTED_IN);
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","two",{{}}]"#));
    it.test_shard.disconnects(key);
    it.settles();
    let heard = it.receives(other);
    assert_eq!(positions(&heard).0, [1, 2, 3]);
    assert_eq!(events(&heard), ["first", "second", "gone"]);
    assert_eq!(it.test_shard.core.history_waits(), 0);
}

#[test]
fn effects_of_a_handle_wait_for_its_broadcast() {
    let mut it = Node::running(scripted(standard));
    let topic = it.there.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    let channel = ChannelId { shard: 0, membership: 0, generation: 0 };
    let push = |event: &str| ToChannel::Push(event.into(), Payload::EMPTY_OBJECT);
    let handle = Arc::clone(&it.test_shard.node);
    handle.broadcast_by(channel, "news", Payload::EMPTY_OBJECT, Audience::All).unwrap();
    handle.send(channel, push("behind"));
    handle.send(channel, ToChannel::Stop(Stop::Normal));
    it.test_shard.handles_mail();
    assert!(it.receives(key).is_empty());
    assert_eq!(it.settled_events(key), ["news", "behind", "phx_close", "you_left"]);
}

#[test]
fn least_recently_used_topic_is_evicted_above_the_limit() {
    let config = HistoryConfig { bytes_max: 20_000, ..HistoryConfig::default() };
    let user_sockets = vec![keeping(scripted(standard), HistoryRule::default())];
    let config = Config { history: config, ..Config::default() };
    let mut test_shard = TestShard::with_node(TestNode::new(1, config, user_sockets));
    let keys: Vec<Key> = (0..4).map(|n| test_shard.joined(&[&format!("r{n}")])).collect();
    let text = "x".repeat(900);
    for round in 0..9 {
        for (n, key) in keys.iter().enumerate() {
            if n > 0 || round == 0 {
                test_shard.advances(Duration::from_millis(10));
                test_shard.sends(*key, &format!(r#"[1,2,"r{n}","bcast","{text}"]"#));
                test_shard.handles_mail();
                test_shard.fans_out();
            }
        }
    }
    let (topics, messages, bytes) = test_shard.core.histories().kept.counts();
    assert_eq!(topics, 4);
    assert!(bytes <= 20_000 && messages < 28, "{messages} of {bytes} bytes");
    let key = test_shard.opens(Wire::V2);
    let since = format!("{}.0", simurgh_history::Epoch::from_seed(7));
    test_shard.sends(key, &format!(r#"[1,1,"r0","phx_join",{}]"#, self::since(&since)));
    let heard = test_shard.receives(key);
    assert!(heard[1].contains(r#""reason":"evicted","count":0"#), "{heard:?}");
}

/// Otherwise a client's position would be taken for one of the new numbers.
#[test]
fn numbering_continues_after_a_topic_was_evicted() {
    let rule = HistoryRule { age: Duration::from_secs(5), ..HistoryRule::default() };
    let mut it = Node::with(scripted(standard), rule);
    for topic in [it.here.clone(), it.there.clone()] {
        let (key, _) = it.joins(Wire::V2, &topic, OPTED_IN);
        let last = it.sends(key, &topic, "bcast", "{}");
        assert_eq!(positions(&last).0, [1]);
        let topics = |it: &Node| {
            let of = |core: &Core<TestNode>| core.histories().kept.counts().0;
            (of(&it.test_shard.core), of(&it.other))
        };
        it.advances(Duration::from_secs(6));
        assert_ne!(topics(&it), (0, 0), "it is known that nothing was missed");
        for _ in 0..3 {
            it.advances(Duration::from_secs(6));
        }
        assert_eq!(topics(&it), (0, 0));
        it.recovers(&topic, &since(&position_of(&last[0])), 0);
        let next = it.sends(key, &topic, "bcast", "{}");
        assert_eq!(positions(&next).0, [2], "behind all that were");
    }
}

/// Its position is that of others, and nothing was broadcast since.
#[test]
fn eviction_of_other_topics_is_no_gap() {
    let rule = HistoryRule { age: Duration::from_secs(5), ..HistoryRule::default() };
    for shard in [0, 1] {
        let mut it = Node::with(scripted(standard), rule);
        let mut topics = (0..).map(|n| format!("q{n}")).filter(|it| home_shard(it, 2) == shard);
        let [empty, quiet, busy] = std::array::from_fn(|_| topics.next().unwrap());
        let (_, at_empty) = it.opts_in(&empty);
        let (key, _) = it.joins(Wire::V2, &quiet, OPTED_IN);
        let at_quiet = position_of(it.sends(key, &quiet, "bcast", "{}").last().unwrap());
        let (key, at_busy) = it.opts_in(&busy);
        for _ in 0..3 {
            it.sends(key, &busy, "bcast", "{}");
        }
        (0..4).for_each(|_| it.advances(Duration::from_secs(6)));
        let kept = |core: &Core<TestNode>| core.histories().kept.counts().0;
        assert_eq!((kept(&it.test_shard.core), kept(&it.other)), (0, 0), "all are forgotten");
        for (topic, at) in [(&empty, &at_empty), (&quiet, &at_quiet)] {
            let (key, _) = it.recovers(topic, &since(at), 0);
            it.sends(key, topic, "bcast", "{}");
            it.recovers(topic, &since(at), 1);
        }
        it.misses(&busy, &since(&at_busy), "expired", 0);
    }
}

#[test]
fn position_precedes_a_payload_that_cannot_carry_it() {
    let script = |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
        ChannelCall::In("bytes", payload) => {
            let len: usize = payload.parse().unwrap();
            ctx.broadcast("raw", Payload::from_bytes(vec![7; len]));
            Outcome::NoReply
        }
        ChannelCall::In("text", payload) => {
            let len: usize = payload.parse().unwrap();
            ctx.broadcast("long", Payload::from_json(format!("\"{}\"", "x".repeat(len))));
            Outcome::NoReply
        }
        other => standard(ctx, other),
    };
    for (len, is_here) in [(5, true), (5, false), (2_000, true), (100_000, true), (100_000, false)]
    {
        let mut it = Node::running(scripted(script));
        let topic = if is_here { it.here.clone() } else { it.there.clone() };
        let (speaker, joined) = it.joins(Wire::V2, &topic, OPTED_IN);
        let (old, _) = it.joins(Wire::V1, &topic, OPTED_IN);
        let first = position_of(&joined[1]);
        let mut live = it.sends(speaker, &topic, "bytes", &len.to_string());
        live.extend(it.sends(speaker, &topic, "text", &len.to_string()));
        assert_eq!(live.len(), 3, "a notice and its frame, and a text");
        let (seqs, texts) = positions(&live);
        assert_eq!(texts[0], format!(r#"[null,"P","{topic}","simurgh:next",{{}}]"#));
        assert_eq!(seqs, [1, 2]);
        assert!(texts[2].starts_with(&format!(r#"[null,"P","{topic}","long","xxxxx"#)));
        let old = it.receives(old);
        assert!(old[0].contains(r#""event":"simurgh:at""#), "{}", &old[0][..80]);
        assert_eq!((positions(&old).0, old.len()), (vec![1, 2], 2));
        let (_, heard) = it.joins(Wire::V2, &topic, &since(&first));
        assert_eq!(&heard[2..], &live[..]);
    }
}
