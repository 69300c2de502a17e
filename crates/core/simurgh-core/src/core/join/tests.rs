//! Joins, by PROTOCOL §5.

mod later;

use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::CloseCode;

use super::{REF_BYTES_MAX, SHORT_TOPIC_BYTES, TOPIC_BYTES_MAX};
use crate::socket::Socket;
use crate::testing::*;
use crate::*;

const JOIN: &str = r#"[1,1,"t","phx_join",{}]"#;
const REJOIN: &str = r#"[2,2,"t","phx_join",{}]"#;

fn closed(join_ref: u32) -> String {
    format!(r#"[{join_ref},{join_ref},"t","phx_close",{{}}]"#)
}

fn deciding() -> UserSocket {
    user_socket(|ctx, payload| {
        ctx.push("early", Payload::EMPTY_OBJECT);
        ctx.broadcast_to("hall", "came", Payload::EMPTY_OBJECT);
        match payload.json().unwrap() {
            r#""error""# => Join::error(Payload::from_json(r#"{"reason":"no"}"#)),
            r#""crash""# => crash(),
            r#""later""# => Join::later(async { Join::ok(scripted(standard)) }),
            r#""never""# => Join::later(async { crash() }),
            r#""later error""# => Join::later(async { Join::error(Payload::NULL) }),
            r#""twice""# => {
                Join::later(async { Join::later(async { Join::error(Payload::NULL) }) })
            }
            _ => Join::ok(scripted(standard)),
        }
    })
}

fn listener_and_joiner(it: &mut TestShard) -> (Key, Key) {
    let listener = it.joined_as(r#"[1,1,"hall","phx_join",{}]"#);
    let joiner = it.opens(Wire::V2);
    it.fans_out();
    it.receives(listener);
    it.counts();
    (listener, joiner)
}

/// PROTOCOL rows 19 and 26.
#[test]
fn reply_to_a_join_has_its_refs() {
    let long = format!("\"{}\"", "x".repeat(300));
    for msg_ref in ["7", "0", "\"\"", "\"5\"", &long] {
        let (mut it, key) = TestShard::new().opened();
        it.sends(key, &format!(r#"[{msg_ref},{msg_ref},"t","phx_join",{{}}]"#));
        assert_eq!(it.receives(key), [ok(msg_ref, msg_ref, "t", "{}")]);
        let changes = "channels +1, topics +1, subscriptions +1, joins +1, messages_out +1";
        assert_eq!(it.changes(), changes);
        let key = it.opens(Wire::V1);
        it.sends(
            key,
            &format!(r#"{{"topic":"t","event":"phx_join","payload":{{}},"ref":{msg_ref}}}"#),
        );
        let payload = r#"{"status":"ok","response":{}}"#;
        let reply =
            format!(r#"{{"topic":"t","event":"phx_reply","payload":{payload},"ref":{msg_ref}}}"#);
        assert_eq!(it.receives(key), [reply]);
    }
}

/// PROTOCOL rows 20 and 28.
#[test]
fn join_accepts_and_replies_any_payload() {
    let mut it = TestShard::of(user_socket(|_, payload| {
        Join::ok(scripted(standard)).reply(payload.into_owned())
    }));
    for payload in ["null", "[1]", r#"{"a":1}"#] {
        let key = it.opens(Wire::V2);
        it.sends(key, &format!(r#"[1,1,"t","phx_join",{payload}]"#));
        assert_eq!(it.receives(key), [ok(1, 1, "t", payload)]);
    }
    let refused = Join::error(Payload::NULL).reply(Payload::EMPTY_OBJECT);
    assert_eq!(format!("{refused:?}"), "Join::error", "a refusal has its own payload");
}

/// PROTOCOL row 21. Only the function's effects for others are carried out.
#[test]
fn refused_join_creates_no_channel() {
    let mut it = TestShard::of(deciding());
    let (listener, key) = listener_and_joiner(&mut it);
    assert_eq!(it.asks(key, r#"[1,1,"t","phx_join","error"]"#), [refused(1, 1, "t", "no")]);
    assert_eq!(it.receives_all(listener), [r#"[null,null,"hall","came",{}]"#]);
    let changes =
        "joins_refused +1, messages_out +2, broadcasts +1, deliveries +1, errors_before_join +1";
    assert_eq!(it.changes(), changes);
    it.sends(key, r#"[1,2,"t","echo",{}]"#);
    assert_eq!(it.receives(key), [refused("null", 2, "t", "unmatched topic")]);
    assert_eq!(it.counts(), ["messages_out +1", "errors_unmatched_topic +1"]);
}

/// PROTOCOL row 22.
#[test]
fn panic_in_a_join_keeps_the_socket() {
    let mut it = TestShard::of(deciding());
    let (listener, key) = listener_and_joiner(&mut it);
    it.sends(key, r#"[1,1,"t","phx_join","crash"]"#);
    assert_eq!(it.receives(key), [refused(1, 1, "t", "join crashed")]);
    it.fans_out();
    assert_eq!(it.receives(listener), [r#"[null,null,"hall","came",{}]"#], "made before the panic");
    let changes = "joins_refused +1, messages_out +2, broadcasts +1, deliveries +1, \
        errors_before_join +1, errors_callback_panic +1";
    assert_eq!(it.changes(), changes);
    assert_eq!(it.asks(key, JOIN), [ok(1, 1, "t", "{}"), r#"[1,null,"t","early",{}]"#.into()]);
}

/// PROTOCOL rows 23–25: without a matching pattern there is no join; the answer has no join_ref.
#[test]
fn first_matching_pattern_handles_a_topic() {
    let route = |pattern: &str, name: &'static str| {
        let join = move |_: &mut ShardContext<'_>, _: Payload<'_>| {
            Join::ok(scripted(standard)).reply(Payload::from_json(name))
        };
        Route::new(Pattern::parse(pattern).unwrap(), std::sync::Arc::new(join))
    };
    let routes = vec![route("exact", "1"), route("rooms:*", "2"), route("rooms:x", "3")];
    let (mut it, key) = TestShard::of(UserSocket::new(Kind::Channels(routes))).opened();
    for (topic, name) in [("exact", "1"), ("rooms:", "2"), ("rooms:a:b", "2"), ("rooms:x", "2")] {
        it.sends(key, &format!(r#"[1,1,"{topic}","phx_join",{{}}]"#));
        assert_eq!(it.receives(key), [ok(1, 1, topic, name)]);
    }
    it.counts();
    for topic in ["exact1", "rooms", "phoenix"] {
        it.sends(key, &format!(r#"[1,1,"{topic}","phx_join",{{}}]"#));
        assert_eq!(it.receives(key), [refused("null", 1, topic, "unmatched topic")]);
    }
    assert_eq!(it.counts(), ["messages_out +3", "errors_unmatched_topic +3"]);
}

/// PROTOCOL row 27, and §3: the reply and the close have null, pushes the ref of the join.
#[test]
fn join_without_join_ref_uses_its_ref_for_pushes() {
    let (mut it, key) = TestShard::new().opened();
    it.sends(key, r#"[null,5,"t","phx_join",{}]"#);
    it.sends(key, r#"[null,6,"t","push_me",1]"#);
    it.sends(key, r#"[null,7,"t","echo",2]"#);
    it.sends(key, r#"[null,8,"t","stop",{}]"#);
    assert_eq!(
        it.receives(key),
        [
            ok("null", 5, "t", "{}"),
            r#"[5,null,"t","pushed",1]"#.into(),
            ok(5, 7, "t", "2"),
            r#"[null,null,"t","phx_close",{}]"#.into(),
            r#"[5,null,"t","you_left",{}]"#.into(),
        ]
    );
}

/// PROTOCOL row 31: a rejoin does not count as one more.
#[test]
fn channels_per_socket_are_limited() {
    let mut it = TestShard::of(UserSocket { channels_max: 2, ..scripted(standard).user_socket() });
    let key = it.joined(&["a", "t"]);
    it.counts();
    it.sends(key, r#"[3,3,"c","phx_join",{}]"#);
    assert_eq!(it.receives(key), [refused(3, 3, "c", "too many channels joined")]);
    assert_eq!(it.counts(), ["joins_refused +1", "messages_out +1"]);
    it.sends(key, REJOIN);
    assert_eq!(
        it.receives(key),
        [ok(2, 2, "t", "{}"), closed(1), r#"[1,null,"t","you_left",{}]"#.into()]
    );
    it.asks(key, r#"[1,4,"a","phx_leave",{}]"#);
    assert_eq!(it.asks(key, r#"[3,3,"c","phx_join",{}]"#), [ok(3, 3, "c", "{}")]);
}

/// The size of a membership is limited, to the byte.
#[test]
fn long_join_is_refused() {
    let mut it = TestShard::new();
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let long_ref = text(REF_BYTES_MAX);
    let long_topic = "t".repeat(TOPIC_BYTES_MAX);
    let longest = [("1", "1", &*long_topic), (&*long_ref, "1", "t"), ("null", &*long_ref, "u")];
    for (join_ref, msg_ref, topic) in longest {
        let key = it.opens(Wire::V2);
        it.sends(key, &format!(r#"[{join_ref},{msg_ref},"{topic}","phx_join",{{}}]"#));
        assert_eq!(it.receives(key), [ok(join_ref, msg_ref, topic, "{}")]);
    }
    let long_ref = text(REF_BYTES_MAX + 1);
    let long_topic = "t".repeat(TOPIC_BYTES_MAX + 1);
    it.counts();
    let key = it.opens(Wire::V2);
    let too_long = [("1", "1", &*long_topic), (&*long_ref, "1", "t"), ("null", &*long_ref, "t")];
    for (join_ref, msg_ref, topic) in too_long {
        it.sends(key, &format!(r#"[{join_ref},{msg_ref},"{topic}","phx_join",{{}}]"#));
        let refusal = refused(join_ref, msg_ref, topic, "topic or join_ref too long");
        assert_eq!(it.receives(key), [refusal]);
    }
    assert_eq!(it.counts(), ["sockets +1", "upgrades +1", "joins_refused +3", "messages_out +3"]);
}

#[test]
fn socket_has_64_kib_of_long_topics() {
    let (mut it, key) = TestShard::new().opened();
    let topic = |n: usize, bytes: usize| format!("{n}{}", "t".repeat(bytes - 1));
    let mut join = |topic: &str| {
        it.sends(key, &format!(r#"[1,1,"{topic}","phx_join",{{}}]"#));
        it.receives(key) == [ok(1, 1, topic, "{}")]
    };
    for n in 0..3 {
        assert!(join(&topic(n, TOPIC_BYTES_MAX)));
    }
    assert!(join(&topic(3, TOPIC_BYTES_MAX - 1)) && !join(&topic(4, SHORT_TOPIC_BYTES + 1)));
    assert!(join("short") && join(&topic(5, SHORT_TOPIC_BYTES)));
}

/// PROTOCOL §6: the existing channel stays, and has received earlier broadcasts; if it ends by
/// that, the refusal is sent before.
#[test]
fn refusal_of_a_long_join_follows_earlier_broadcasts() {
    let long_ref = format!("\"{}\"", "x".repeat(REF_BYTES_MAX));
    let long = format!(r#"[{long_ref},2,"t","phx_join",{{}}]"#);
    let refusal = refused(&long_ref, 2, "t", "topic or join_ref too long");
    let news = |event: &str| format!(r#"[null,null,"t","{event}",1]"#);
    let (mut it, [key]) = TestShard::new().members();
    it.broadcasts("t", "news", "1");
    assert_eq!(it.asks(key, &long), [news("news"), refusal.clone()]);
    it.sends(key, r#"[1,3,"t","echo",{}]"#);
    it.fans_out();
    assert_eq!(it.receives(key), [ok(1, 3, "t", "{}")], "it is joined, and hears nothing twice");

    let stops = scripted(|_, heard| match heard {
        ChannelCall::Out(..) => Outcome::Stop(Stop::Normal),
        _ => Outcome::NoReply,
    });
    let (mut it, [key]) = TestShard::running(stops.intercepting(&["last"])).members();
    it.broadcasts("t", "news", "1");
    it.broadcasts("t", "last", "1");
    assert_eq!(it.asks(key, &long), [news("news"), refusal, closed(1)]);
    it.sends(key, r#"[1,3,"t","echo",{}]"#);
    assert_eq!(it.receives(key), [refused("null", 3, "t", "unmatched topic")], "it has ended");
}

/// PROTOCOL rows 29 and 30, and §6: earlier broadcasts go to the old channel, and first.
#[test]
fn rejoin_is_answered_before_the_old_channel_closes() {
    let mut it = TestShard::of(user_socket(|ctx, _| {
        ctx.push("early", Payload::EMPTY_OBJECT);
        Join::ok(scripted(|ctx, heard| match heard {
            ChannelCall::Joined => {
                ctx.push("joined", Payload::EMPTY_OBJECT);
                Outcome::NoReply
            }
            ChannelCall::Ends(Reason::Rejoined) => {
                ctx.broadcast("gone", Payload::EMPTY_OBJECT);
                ctx.push("bye", Payload::EMPTY_OBJECT);
                Outcome::NoReply
            }
            other => standard(ctx, other),
        }))
    }));
    let (key, witness) = (it.joined_as(JOIN), it.joined_as(JOIN));
    it.broadcasts("t", "before", "0");
    it.counts();
    it.sends(key, REJOIN);
    let said = it.receives(key);
    assert_eq!(
        said,
        [
            r#"[null,null,"t","before",0]"#.into(),
            ok(2, 2, "t", "{}"),
            closed(1),
            r#"[1,null,"t","bye",{}]"#.into(),
            r#"[2,null,"t","early",{}]"#.into(),
            r#"[2,null,"t","joined",{}]"#.into(),
        ]
    );
    assert!(it.receives_all(key).is_empty(), "what the old one broadcast was before the new one");
    let gone = [r#"[null,null,"t","before",0]"#, r#"[null,null,"t","gone",{}]"#];
    assert_eq!(it.receives(witness), gone);
    let changes = it.counts();
    assert!(changes.contains(&"joins +1".into()) && !changes.iter().any(|it| it.contains("chan")));
    it.delivers("t", "after", "1");
    assert_eq!(it.receives(key), [r#"[null,null,"t","after",1]"#], "once");
}

/// Whatever the outcome of the join, the old channel has ended, and its close follows the reply.
#[test]
fn failed_rejoin_ends_the_old_channel() {
    for (payload, status, response) in [
        (r#""error""#, "error", r#"{"reason":"no"}"#),
        (r#""crash""#, "error", r#"{"reason":"join crashed"}"#),
        (r#""never""#, "error", r#"{"reason":"join crashed"}"#),
        (r#""later error""#, "error", "null"),
        (r#""later""#, "ok", "{}"),
    ] {
        let mut it = TestShard::of(deciding());
        let key = it.joined_as(JOIN);
        it.sends(key, &format!(r#"[2,2,"t","phx_join",{payload}]"#));
        if it.out.peer(key).socket.phase() == Phase::Waiting {
            assert!(it.receives(key).is_empty(), "its close waits for the reply, too");
            it.decides();
        }
        let said = it.receives(key);
        let bye = r#"[1,null,"t","you_left",{}]"#.to_owned();
        assert_eq!(said, [reply(2, 2, "t", status, response), closed(1), bye]);
        let channels = u64::from(status == "ok");
        assert_eq!(it.core.metrics().channels.value(), channels);
        assert_eq!(u64::from(it.out.peer(key).socket.channels()), channels);
    }
}

/// Its `terminate` may close the socket: then no client is left to admit.
#[test]
fn old_channel_can_close_the_rejoining_socket() {
    let leaving = scripted(|ctx, heard| {
        if let ChannelCall::Ends(Reason::Rejoined) = heard {
            ctx.close_socket(CloseCode::RESTART);
        }
        Outcome::NoReply
    });
    let mut it = TestShard::of(user_socket(move |_, payload| match payload.json() {
        Some("1") => Join::later(async { crash() }),
        Some("2") => Join::error(Payload::NULL),
        _ => Join::ok(leaving.clone()),
    }));
    for payload in ["{}", "1", "2"] {
        let key = it.joined_as(JOIN);
        it.sends(key, &format!(r#"[2,2,"t","phx_join",{payload}]"#));
        assert_eq!(it.receives(key), ["close 1012 server restarts"]);
        assert_eq!(it.core.metrics().channels.value(), 0);
        assert_eq!(it.core.metrics().topics.value(), 0);
        assert_eq!(it.out.peer(key).socket.phase(), Phase::Closing);
    }
    assert!(it.node.log().decides.is_empty(), "nobody waits for it");
}

/// The old channel may end by what it receives before the join ends it.
#[test]
fn old_channel_can_end_before_it_is_replaced() {
    let stopping = scripted(|ctx, heard| match heard {
        ChannelCall::Out(..) => Outcome::Stop(Stop::Normal),
        other => standard(ctx, other),
    });
    let mut it = TestShard::running(stopping.intercepting(&["last"]));
    let key = it.joined_as(JOIN);
    it.broadcasts("t", "last", "{}");
    it.sends(key, REJOIN);
    let bye = r#"[1,null,"t","you_left",{}]"#.to_owned();
    assert_eq!(it.receives(key), [closed(1), bye, ok(2, 2, "t", "{}")]);
    assert_eq!(it.core.metrics().channels.value(), 1);
}

/// PROTOCOL §5.5: the channel is there before its reply, so its broadcasts reach itself.
#[test]
fn broadcasts_after_the_join_follow_the_reply() {
    let (mut it, key) = TestShard::of(user_socket(|ctx, _| {
        ctx.broadcast("first", Payload::EMPTY_OBJECT);
        ctx.broadcast_from("second", Payload::EMPTY_OBJECT);
        Join::ok(scripted(|ctx, heard| {
            if let ChannelCall::Joined = heard {
                ctx.broadcast("third", Payload::EMPTY_OBJECT);
                ctx.broadcast_from("not for me", Payload::EMPTY_OBJECT);
                ctx.push("fourth", Payload::EMPTY_OBJECT);
            }
            Outcome::Stop(Stop::Normal)
        }))
    }))
    .opened();
    it.sends(key, JOIN);
    it.fans_out();
    let news = |event: &str| format!(r#"[null,null,"t","{event}",{{}}]"#);
    let fourth = r#"[1,null,"t","fourth",{}]"#.to_owned();
    // By then the channel is the member that broadcasts: the second is not for itself.
    assert_eq!(it.receives(key), [ok(1, 1, "t", "{}"), news("first"), news("third"), fourth]);
    let callbacks = [Callback::Join, Callback::AfterJoin];
    assert_eq!(it.node.log().callbacks, callbacks, "what it answers after_join is not asked");
}

/// The channel's admission is carried out first; its effects may close its socket.
#[test]
fn join_can_close_its_socket() {
    for payload in ["0", "1"] {
        let (mut it, key) = TestShard::of(user_socket(|ctx, payload| {
            ctx.close_socket(CloseCode::POLICY);
            ctx.push("never", Payload::EMPTY_OBJECT);
            match payload.json() {
                Some("0") => Join::ok(scripted(standard)),
                _ => Join::error(Payload::NULL),
            }
        }))
        .opened();
        it.sends(key, &format!(r#"[1,1,"t","phx_join",{payload}]"#));
        let answer =
            if payload == "0" { ok(1, 1, "t", "{}") } else { reply(1, 1, "t", "error", "null") };
        assert_eq!(it.receives(key), [answer, "close 1008 ".into()]);
        assert!(!it.node.log().callbacks.contains(&Callback::AfterJoin));
    }
}

/// `intercept` may panic, too.
#[test]
fn panic_in_intercept_refuses_the_join() {
    struct Crashing(#[allow(dead_code, reason = "its drop crashes, too")] Bomb);
    impl ShardChannel for Crashing {
        fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
            Outcome::NoReply
        }
        fn intercept(&self) -> &'static [&'static str] {
            crash()
        }
    }
    let (mut it, key) = TestShard::of(user_socket(|_, _| Join::ok(Crashing(Bomb)))).opened();
    assert_eq!(it.asks(key, JOIN), [refused(1, 1, "t", "join crashed")]);
    assert_eq!(it.counts(), ["joins_refused +1", "messages_out +1", "errors_callback_panic +2"]);
}

#[test]
fn members_are_counted_if_the_user_socket_requests_it() {
    let counting = UserSocket { count_members: true, ..scripted(standard).user_socket() };
    let mut it =
        TestShard::with(Config::default(), vec![counting, scripted(standard).user_socket()]);
    let keys = [it.joined(&["t"]), it.joined(&["t"])];
    let uncounted = it.out.connect(Phase::Connecting, Wire::V2);
    it.out.peer(uncounted).socket.lead_to(1, Wire::V2);
    it.core.opened(&mut it.out, uncounted, SocketState::default());
    it.sends(uncounted, JOIN);
    assert_eq!(it.node.member_count("t"), Some(2));
    it.sends(keys[0], REJOIN);
    assert_eq!(it.node.member_count("t"), Some(2));
    it.disconnects(keys[0]);
    it.disconnects(uncounted);
    assert_eq!(it.node.member_count("t"), Some(1));
    it.sends(keys[1], r#"[1,3,"t","phx_leave",{}]"#);
    assert_eq!(it.node.member_count("t"), Some(0));
}

/// The prepared form of a long message is passed to the join function, and to the channel.
#[test]
fn prepared_value_reaches_the_join_function() {
    let (mut it, key) = TestShard::of(user_socket(|ctx, _| {
        assert_eq!(ctx.take_prepared::<u32>(), Some(7));
        assert!(ctx.reply_ref().is_none(), "a join is not answered later");
        Join::ok(scripted(|ctx, heard| match heard {
            ChannelCall::In(_, _) if ctx.take_prepared::<u32>() == Some(8) => {
                Outcome::ok(Payload::NULL)
            }
            _ => Outcome::NoReply,
        }))
    }))
    .opened();
    for (number, text) in [(7_u32, JOIN), (8, r#"[1,2,"t","e",{}]"#)] {
        let message = Serializer::V2.decode(Frame::Text(text)).unwrap();
        let received = Received { message, prepared: Some(Box::new(number)), taken_bytes: 0 };
        it.core.message(&mut it.out, key, received);
    }
    assert_eq!(it.receives(key), [ok(1, 1, "t", "{}"), ok(1, 2, "t", "null")]);
}

#[test]
fn plain_socket_joins_when_it_opens() {
    let mut it = TestShard::of(plain("chat", |_, payload| {
        assert_eq!(payload, Payload::EMPTY_OBJECT);
        Join::ok(scripted(standard))
    }));
    let key = it.opens(Wire::Plain);
    assert!(it.receives(key).is_empty());
    let changes = "sockets +1, channels +1, topics +1, subscriptions +1, upgrades +1, joins +1";
    assert_eq!(it.changes(), changes);
    let socket: &Socket = it.out.socket(key).unwrap();
    let topics: Vec<_> = it.core.topics_of(socket).map(|it| it.to_string()).collect();
    assert_eq!(topics, ["chat"]);
}

#[test]
fn refused_plain_socket_is_closed() {
    for is_crash in [true, false] {
        let mut it = TestShard::of(plain("chat", move |_, _| {
            if is_crash { crash() } else { Join::error(Payload::NULL) }
        }));
        let key = it.opens(Wire::Plain);
        assert_eq!(it.receives(key), ["close 1008 "]);
        assert_eq!(it.core.metrics().joins_refused.value(), 1);
    }
    let mut it = TestShard::of(scripted(standard).user_socket());
    let key = it.opens(Wire::Plain);
    assert!(it.receives(key).is_empty(), "a user socket of channels has no plain join");
}
