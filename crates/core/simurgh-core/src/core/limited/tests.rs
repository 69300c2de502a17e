//! Clients that exceed their limits, by PROTOCOL §6.7, and clients that do not.

use std::time::Duration;

use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::Frame;

use crate::testing::*;
use crate::*;

const SECOND: Duration = Duration::from_secs(1);
const NO_CHANNEL: ChannelLimits =
    ChannelLimits { messages: None, bytes: None, presence_calls: None, payload_bytes: None };
const NO_SOCKET: SocketLimits =
    SocketLimits { joins: None, messages: None, bytes: None, presence_calls: None };

fn by(count: u64, policy: LimitPolicy) -> Option<RateLimit> {
    Some(RateLimit::from(Rate::per_second(count).unwrap()).or(policy))
}

fn limited(socket: SocketLimits, channel: ChannelLimits) -> TestShard {
    TestShard::of(limit(scripted(standard).user_socket(), socket, channel))
}

fn limit(mut user_socket: UserSocket, socket: SocketLimits, channel: ChannelLimits) -> UserSocket {
    user_socket.limits = socket;
    if let Kind::Channels(routes) = &mut user_socket.kind {
        routes.iter_mut().for_each(|route| route.limits = channel);
    }
    user_socket
}

fn over(msg_ref: u32, topic: &str, limit: &str, ms: u32) -> String {
    reply(1, msg_ref, topic, "error", &rate_limited(limit, ms))
}

fn rate_limited(limit: &str, ms: u32) -> String {
    format!(r#"{{"reason":"rate_limited","limit":"{limit}","retry_after_ms":{ms}}}"#)
}

/// A client that may send so many messages a second on its socket.
fn socket_messages(count: u64, policy: LimitPolicy, topics: &[&str]) -> (TestShard, Key) {
    let mut it = limited(SocketLimits { messages: by(count, policy), ..NO_SOCKET }, NO_CHANNEL);
    let key = it.joined(topics);
    (it, key)
}

/// A client that may send so many messages a second to each channel.
fn channel_messages(count: u64, policy: LimitPolicy, topics: &[&str]) -> (TestShard, Key) {
    let mut it = limited(NO_SOCKET, ChannelLimits { messages: by(count, policy), ..NO_CHANNEL });
    let key = it.joined(topics);
    (it, key)
}

impl TestShard {
    fn echoes(&mut self, key: Key, topic: &str, msg_ref: u32) -> Vec<String> {
        self.sends(key, &format!(r#"[1,{msg_ref},"{topic}","echo",{{}}]"#));
        self.receives(key)
    }

    fn limit_met(&self, key: Key) -> Option<(Limit, u32)> {
        self.core.limit_met(key, self.out.turn_ns)
    }

    fn is_closed(&mut self, key: Key, reason: &str) {
        assert_eq!(self.receives(key), [format!("close 1008 {reason}")]);
        assert_eq!(self.out.peer(key).socket.phase(), Phase::Closing);
    }
}

#[test]
fn messages_above_the_rate_get_errors_until_tokens_return() {
    let socket = SocketLimits { messages: by(4, LimitPolicy::Reply), ..NO_SOCKET };
    let mut it = limited(socket, NO_CHANNEL);
    // The two joins count.
    let (key, other) = (it.joined(&["a", "b"]), it.joined(&["a"]));
    it.counts();
    assert_eq!(it.echoes(key, "a", 2), [ok(1, 2, "a", "{}")]);
    assert_eq!(it.echoes(key, "b", 3), [ok(1, 3, "b", "{}")]);
    assert_eq!(it.echoes(key, "a", 4), [over(4, "a", "messages", 250)]);
    assert_eq!(it.echoes(key, "b", 5), [over(5, "b", "messages", 250)]);
    assert_eq!(it.counts(), ["messages_out +4", "limited_messages +2"]);
    assert_eq!(it.limit_met(key), Some((Limit::Messages, 2)));
    assert_eq!((it.echoes(other, "a", 2), it.limit_met(other)), (vec![ok(1, 2, "a", "{}")], None));
    it.advances(Duration::from_millis(249));
    assert_eq!(it.echoes(key, "a", 6), [over(6, "a", "messages", 1)]);
    it.advances(Duration::from_millis(1));
    assert_eq!(it.echoes(key, "a", 7), [ok(1, 7, "a", "{}")]);
    assert_eq!(it.echoes(key, "a", 8), [over(8, "a", "messages", 250)]);
}

#[test]
fn dropped_messages_get_no_reply_and_a_close_has_its_reason() {
    for (policy, limit) in [LimitPolicy::Drop, LimitPolicy::Close].into_iter().flat_map(|policy| {
        ["joins", "messages", "bytes", "payload_bytes"].map(|limit| (policy, limit))
    }) {
        let (mut socket, mut channel) = (NO_SOCKET, NO_CHANNEL);
        match limit {
            "joins" => socket.joins = by(1, policy),
            "messages" => channel.messages = by(1, policy),
            "bytes" => socket.bytes = by(80, policy),
            _ => channel.payload_bytes = Some(SizeLimit { bytes_max: 9, policy }),
        }
        let mut it = limited(socket, channel);
        let (key, other) = (it.joined(&["a"]), it.joined(&["a"]));
        it.counts();
        let over = match limit {
            "joins" => r#"[2,2,"b","phx_join",{}]"#.to_owned(),
            _ => format!(r#"[1,3,"a","bcast","{}"]"#, "x".repeat(60)),
        };
        if limit == "messages" {
            assert_eq!(it.echoes(key, "a", 2), [ok(1, 2, "a", "{}")]);
        }
        it.sends(key, &over);
        let refused = if limit == "joins" { "joins_refused +1" } else { "" };
        let counted = it.counts();
        assert!(counted.contains(&format!("limited_{limit} +1")), "{counted:?}");
        assert_eq!(counted.iter().any(|it| it == refused), !refused.is_empty());
        it.handles_mail();
        it.fans_out();
        match policy {
            LimitPolicy::Close if limit == "payload_bytes" => {
                it.is_closed(key, "payload_too_large");
            }
            LimitPolicy::Close => it.is_closed(key, &format!("rate_limited: {limit}")),
            _ => assert_eq!(it.receives(key), Vec::<String>::new(), "{limit}"),
        }
        assert_eq!(it.receives(other), Vec::<String>::new(), "nothing was broadcast: {limit}");
        assert_eq!(it.echoes(other, "a", 2), [ok(1, 2, "a", "{}")]);
    }
}

#[test]
fn joins_above_the_rate_are_refused_and_the_old_channel_stays() {
    let socket = SocketLimits { joins: by(1, LimitPolicy::Reply), ..NO_SOCKET };
    let mut it = limited(socket, NO_CHANNEL);
    let key = it.joined(&["a"]);
    it.counts();
    it.sends(key, r#"[2,2,"a","phx_join",{}]"#);
    assert_eq!(it.receives(key), [reply(2, 2, "a", "error", &rate_limited("joins", 1_000))]);
    assert_eq!(it.counts(), ["joins_refused +1", "messages_out +1", "limited_joins +1"]);
    assert_eq!(it.echoes(key, "a", 3), [ok(1, 3, "a", "{}")]);
    it.advances(SECOND);
    assert_eq!(it.asks(key, r#"[4,4,"b","phx_join",{}]"#), [ok(4, 4, "b", "{}")]);
}

#[test]
fn limited_bytes_are_equal_in_every_serializer() {
    // 1 + 1 + 1 + 4 + 4 of the first echo.
    let channel = ChannelLimits { bytes: by(11, LimitPolicy::Reply), ..NO_CHANNEL };
    let mut it = limited(NO_SOCKET, channel);
    let two = it.joined(&["a"]);
    assert_eq!(it.asks(two, r#"[ 1 , 2, "a","echo", [0] ]"#), [ok(1, 2, "a", "[0]")]);
    it.advances(SECOND);
    assert_eq!(it.asks(two, r#"[1,3,"a","echo",[10]]"#), [ok(1, 3, "a", "[10]")]);
    assert_eq!(it.echoes(two, "a", 4), [over(4, "a", "bytes", 819)]);
    // A byte more than the bucket holds: waiting would not help.
    it.advances(SECOND);
    it.sends(two, r#"[1,5,"a","echo",[100]]"#);
    let never = r#"{"reason":"rate_limited","limit":"bytes"}"#;
    assert_eq!(it.receives(two), [reply(1, 5, "a", "error", never)]);
    let one = it.opens(Wire::V1);
    let sends = |event: &str, payload: &str| {
        format!(r#"{{"topic":"a","event":"{event}","payload":{payload},"ref":1,"join_ref":1}}"#)
    };
    it.asks(one, &sends("phx_join", "{}"));
    it.sends(one, &sends("echo", "[10]"));
    it.sends(one, &sends("echo", "[10]"));
    let heard = it.receives(one);
    assert!(heard[0].contains(r#""response":[10]"#) && heard[1].contains("bytes"), "{heard:?}");
}

#[test]
fn heartbeats_and_leaves_count_and_get_replies_unless_the_policy_closes() {
    let beat = r#"[null,9,"phoenix","heartbeat",{}]"#;
    for policy in [LimitPolicy::Reply, LimitPolicy::Drop] {
        let (mut it, key) = socket_messages(3, policy, &["a"]);
        for _ in 0..5 {
            assert_eq!(it.asks(key, beat), [ok("null", 9, "phoenix", "{}")]);
        }
        it.counts();
        it.sends(key, r#"[1,2,"a","phx_leave",{}]"#);
        assert_eq!(it.receives(key)[0], ok(1, 2, "a", "{}"));
        assert!(!it.counts().iter().any(|it| it.starts_with("limited")));
        it.sends(key, r#"[1,2,"b","phx_join",{}]"#);
        assert_eq!(it.counts()[0], "joins_refused +1");
    }
    let (mut it, key) = socket_messages(3, LimitPolicy::Close, &["a"]);
    for _ in 0..2 {
        assert_eq!(it.asks(key, beat), [ok("null", 9, "phoenix", "{}")]);
    }
    it.sends(key, beat);
    it.is_closed(key, "rate_limited: messages");
}

#[test]
fn rejoin_keeps_the_rest_of_the_bucket() {
    let (mut it, key) = channel_messages(2, LimitPolicy::Reply, &["a", "b"]);
    for msg_ref in [2, 3] {
        assert_eq!(it.echoes(key, "a", msg_ref), [ok(1, msg_ref, "a", "{}")]);
    }
    it.asks(key, r#"[1,4,"a","phx_leave",{}]"#);
    assert_eq!(it.asks(key, r#"[1,1,"a","phx_join",{}]"#), [ok(1, 1, "a", "{}")]);
    assert_eq!(it.echoes(key, "a", 5), [over(5, "a", "messages", 500)]);
    assert_eq!(it.echoes(key, "b", 6), [ok(1, 6, "b", "{}")]);
}

#[test]
fn ended_channel_gets_no_limit_reply() {
    let (mut it, key) = socket_messages(1, LimitPolicy::Reply, &["a"]);
    assert_eq!(it.asks(key, r#"[9,2,"a","echo",{}]"#), Vec::<String>::new());
    it.sends(key, r#"[9,2,"b","echo",{}]"#);
    let expected = reply("null", 2, "b", "error", &rate_limited("messages", 1_000));
    assert_eq!(it.receives(key), [expected]);
    // Stale messages do not use up what the new channel has.
    let (mut it, key) = channel_messages(1, LimitPolicy::Reply, &["a"]);
    for _ in 0..3 {
        it.sends(key, r#"[9,2,"a","echo",{}]"#);
    }
    assert_eq!(it.receives(key), Vec::<String>::new());
    assert_eq!(it.echoes(key, "a", 3), [ok(1, 3, "a", "{}")]);
}

#[test]
fn limit_reply_follows_earlier_broadcasts() {
    let (mut it, key) = channel_messages(1, LimitPolicy::Reply, &["a"]);
    it.sends(key, r#"[1,2,"a","bcast",{}]"#);
    it.handles_mail();
    assert_eq!(
        it.echoes(key, "a", 3),
        [r#"[null,null,"a","news",{}]"#.to_owned(), over(3, "a", "messages", 1_000)]
    );
}

#[test]
fn payload_limit_applies_to_messages_and_joins() {
    let policy = LimitPolicy::Reply;
    let payload_bytes = Some(SizeLimit { bytes_max: 4, policy });
    let mut it = limited(NO_SOCKET, ChannelLimits { payload_bytes, ..NO_CHANNEL });
    let key = it.joined(&["a"]);
    it.counts();
    assert_eq!(it.asks(key, r#"[1,2,"a","echo",[10]]"#), [ok(1, 2, "a", "[10]")]);
    for text in [r#"[1,3,"a","echo",[100]]"#, r#"[1,3,"a","phx_join",[100]]"#] {
        assert_eq!(it.asks(key, text), [refused(1, 3, "a", "payload_too_large")]);
    }
    assert_eq!(it.counts(), ["joins_refused +1", "messages_out +3", "limited_payload_bytes +2"]);
    // A prepared message counts with its original length.
    let message = simurgh_proto::serializer::Serializer::V2;
    let message = message.decode(Frame::Text(r#"[1,4,"a","echo",null]"#)).unwrap();
    let received = Received { message, prepared: None, taken_bytes: 1 };
    it.core.message(&mut it.out, key, received);
    assert_eq!(it.receives(key), [refused(1, 4, "a", "payload_too_large")]);
}

#[test]
fn plain_messages_get_no_limit_reply() {
    for (policy, is_heard) in [(LimitPolicy::Reply, true), (LimitPolicy::Close, false)] {
        let notes = Notes::default();
        let heard = notes.clone();
        let channel = scripted(move |_, what| match what {
            ChannelCall::In(event, _) => heard.of_call(event),
            _ => Outcome::NoReply,
        });
        let chat = plain("chat", move |_, _| Join::ok(channel.clone()));
        let socket = SocketLimits { messages: by(2, policy), ..NO_SOCKET };
        let mut it = TestShard::of(limit(chat, socket, NO_CHANNEL));
        let key = it.opens(Wire::Plain);
        for _ in 0..3 {
            it.core.plain_message(&mut it.out, key, Frame::Text("hi"));
        }
        assert_eq!(notes.take(), ["text", "text"]);
        match is_heard {
            true => {
                assert_eq!(it.receives(key), Vec::<String>::new());
                it.advances(SECOND);
                it.core.plain_message(&mut it.out, key, Frame::Text("hi"));
                assert_eq!(notes.take(), ["text"]);
            }
            false => it.is_closed(key, "rate_limited: messages"),
        }
    }
}

/// It has no refs and no topic, and its event is the core's own.
#[test]
fn plain_message_is_charged_by_its_data() {
    for frame in [Frame::Text("12345"), Frame::Binary(b"12345")] {
        let chat = plain("chat", |_, _| Join::ok(scripted(|_, _| Outcome::NoReply)));
        let socket = SocketLimits { bytes: by(11, LimitPolicy::Close), ..NO_SOCKET };
        let mut it = TestShard::of(limit(chat, socket, NO_CHANNEL));
        let key = it.opens(Wire::Plain);
        for _ in 0..2 {
            it.core.plain_message(&mut it.out, key, frame);
            assert!(it.receives(key).is_empty());
        }
        it.core.plain_message(&mut it.out, key, frame);
        it.is_closed(key, "rate_limited: bytes");
    }
}

fn present() -> Scripted {
    scripted(|ctx, heard| {
        let event = match heard {
            ChannelCall::Joined => "track",
            ChannelCall::In(event, _) => event,
            ChannelCall::Info(_) => "track",
            _ => return Outcome::NoReply,
        };
        let meta = || Payload::EMPTY_OBJECT;
        let mut presence = ctx.presence();
        let done = match event {
            "track" => presence.track("k", meta()),
            "update" => presence.update("k", meta()),
            "both" => presence.update("k", meta()).and_then(|()| presence.update("k", meta())),
            "state" => {
                presence.push_state();
                Ok(())
            }
            _ => {
                presence.untrack("k");
                Ok(())
            }
        };
        done.unwrap();
        match event {
            "update" => Outcome::NoReply,
            _ => Outcome::ok(Payload::EMPTY_OBJECT),
        }
    })
}

#[test]
fn presence_changes_above_the_rate_are_refused() {
    for (of_socket, policy) in [
        (true, LimitPolicy::Reply),
        (false, LimitPolicy::Reply),
        (false, LimitPolicy::Drop),
        (true, LimitPolicy::Close),
    ] {
        let presence_calls = by(2, policy);
        let (socket, channel) = match of_socket {
            true => (SocketLimits { presence_calls, ..NO_SOCKET }, NO_CHANNEL),
            false => (NO_SOCKET, ChannelLimits { presence_calls, ..NO_CHANNEL }),
        };
        let (mut it, [key]) =
            TestShard::of(limit(present().user_socket(), socket, channel)).members();
        let mails = |it: &mut TestShard| std::mem::take(&mut it.node.log().mail[0]).len();
        assert_eq!(mails(&mut it), 1);
        for msg_ref in 2..9 {
            it.sends(key, &format!(r#"[1,{msg_ref},"t","untrack",{{}}]"#));
        }
        it.sends(key, r#"[1,9,"t","state",{}]"#);
        assert_eq!((mails(&mut it), it.receives(key).len()), (8, 8));
        it.counts();
        it.sends(key, r#"[1,10,"t","both",{}]"#);
        assert_eq!(mails(&mut it), if policy == LimitPolicy::Close { 2 } else { 1 });
        assert!(it.counts().contains(&"limited_presence_calls +1".to_owned()));
        match policy {
            LimitPolicy::Reply => {
                assert_eq!(it.receives(key), [over(10, "t", "presence_calls", 500)]);
                // Also if the channel would not have answered.
                it.sends(key, r#"[1,11,"t","update",{}]"#);
                assert_eq!(it.receives(key), [over(11, "t", "presence_calls", 500)]);
            }
            LimitPolicy::Drop => assert_eq!(it.receives(key), [ok(1, 10, "t", "{}")]),
            LimitPolicy::Close => {
                it.is_closed(key, "rate_limited: presence_calls");
                continue;
            }
        }
        let told = |it: &mut TestShard| {
            let channel = it.channel(key);
            it.core.mail(&mut it.out, Mail::ToChannel(channel, info(())));
        };
        told(&mut it);
        assert_eq!((mails(&mut it), it.receives(key).len()), (0, 0), "nobody has asked");
        it.advances(SECOND);
        told(&mut it);
        assert_eq!((mails(&mut it), it.receives(key).len()), (1, 0));
    }
}

#[test]
fn meters_exist_only_with_limits_and_are_removed() {
    assert!(!TestShard::new().core.channels().is_limited());
    let (mut it, key) = socket_messages(1, LimitPolicy::Reply, &["a"]);
    it.echoes(key, "a", 2);
    assert_eq!(it.limit_met(key), Some((Limit::Messages, 1)));
    for _ in 0..60 {
        it.advances(SECOND);
        it.sends(key, r#"[null,9,"phoenix","heartbeat",{}]"#);
        it.core.tick(&mut it.out);
    }
    assert_eq!(it.limit_met(key), None);
    it.sends(key, r#"[null,9,"phoenix","heartbeat",{}]"#);
    it.echoes(key, "a", 2);
    assert_eq!(it.limit_met(key), Some((Limit::Messages, 1)));
    it.disconnects(key);
    it.core.tick(&mut it.out);
    assert_eq!(it.limit_met(key), None);
}

/// They would receive an error as an ordinary message.
#[test]
fn plain_clients_get_no_reply_about_limited_presence_changes() {
    for policy in [LimitPolicy::Reply, LimitPolicy::Drop] {
        let chat = plain("chat", |_, _| {
            Join::ok(scripted(|ctx, heard| {
                if let ChannelCall::In(..) = heard {
                    ctx.presence().push_state();
                }
                Outcome::NoReply
            }))
        });
        let socket = SocketLimits { presence_calls: by(1, policy), ..NO_SOCKET };
        let mut it = TestShard::of(limit(chat, socket, NO_CHANNEL));
        let key = it.opens(Wire::Plain);
        it.counts();
        for _ in 0..3 {
            it.core.plain_message(&mut it.out, key, Frame::Text("hi"));
        }
        assert_eq!(it.counts(), ["limited_presence_calls +2"]);
        assert_eq!(it.receives(key), Vec::<String>::new());
    }
}
