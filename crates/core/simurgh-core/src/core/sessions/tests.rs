//! Messages, by PROTOCOL §6 and §7; how sessions begin and end.

use std::sync::Arc;

use simurgh_channel::RenewFn;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::Frame;
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::CloseCode;

use crate::testing::*;
use crate::*;

fn bye(topic: &str) -> String {
    format!(r#"[1,null,"{topic}","you_left",{{}}]"#)
}

fn closed(topic: &str) -> String {
    format!(r#"[1,1,"{topic}","phx_close",{{}}]"#)
}

/// The standard channel, which also records its end.
fn noting(notes: &Notes) -> Scripted {
    let notes = notes.clone();
    scripted(move |ctx, heard| {
        if let ChannelCall::Ends(reason) = heard {
            notes.add(format!("{} {reason:?}", ctx.topic()));
            ctx.push("bye", Payload::EMPTY_OBJECT);
            ctx.broadcast_to("hall", "left", Payload::EMPTY_OBJECT);
            ctx.close_socket(CloseCode::POLICY);
            return Outcome::NoReply;
        }
        standard(ctx, heard)
    })
}

/// PROTOCOL rows 71 and 72.
#[test]
fn heartbeat_gets_a_reply() {
    let (mut it, key) = TestShard::new().opened();
    for (text, msg_ref) in [
        (r#"[null,2,"phoenix","heartbeat",{}]"#, "2"),
        (r#"["",null,"phoenix","heartbeat",null]"#, "null"),
    ] {
        assert_eq!(it.asks(key, text), [ok("null", msg_ref, "phoenix", "{}")]);
    }
    assert_eq!(it.counts(), ["heartbeats +2", "messages_out +2"]);
    let key = it.opens(Wire::V1);
    it.sends(key, r#"{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"2"}"#);
    let payload = r#"{"status":"ok","response":{}}"#;
    let answer =
        format!(r#"{{"topic":"phoenix","event":"phx_reply","payload":{payload},"ref":"2"}}"#);
    assert_eq!(it.receives(key), [answer]);
}

/// PROTOCOL rows 41 and 73.
#[test]
fn message_for_an_unjoined_topic_is_unmatched() {
    let mut it = TestShard::new();
    let (key, _other) = (it.opens(Wire::V2), it.joined(&["t"]));
    it.counts();
    for (text, topic) in [
        (r#"[9,2,"t","echo",{}]"#, "t"),
        (r#"[9,2,"u","e",{}]"#, "u"),
        (r#"[9,2,"phoenix","e",{}]"#, "phoenix"),
    ] {
        assert_eq!(it.asks(key, text), [refused("null", 2, topic, "unmatched topic")]);
    }
    assert_eq!(it.counts(), ["messages_out +3", "errors_unmatched_topic +3"]);
}

/// PROTOCOL rows 34, 43: a reply has the message's ref and the channel's join_ref.
#[test]
fn message_reaches_the_named_channel_or_the_present_one() {
    let mut it = TestShard::new();
    let key = it.joined(&["a", "t", "z"]);
    it.counts();
    it.sends(key, r#"[1,2,"t","echo",[7]]"#);
    it.sends(key, r#"[null,3,"t","echo",[8]]"#);
    assert_eq!(it.receives(key), [ok(1, 2, "t", "[7]"), ok(1, 3, "t", "[8]")]);
    assert_eq!(it.counts(), ["messages_out +2"]);
}

/// PROTOCOL row 42.
#[test]
fn message_for_a_replaced_channel_is_dropped() {
    let (mut it, [key]) = TestShard::new().members();
    it.asks(key, r#"[2,2,"t","phx_join",{}]"#);
    it.counts();
    it.sends(key, r#"[1,3,"t","echo",{}]"#);
    it.sends(key, r#"[1,4,"t","phx_leave",{}]"#);
    assert!(it.receives(key).is_empty() && it.counts().is_empty());
    assert_eq!(it.asks(key, r#"[2,5,"t","echo",{}]"#), [ok(2, 5, "t", "{}")]);
}

/// PROTOCOL row 60 and §6: reply, close, last pushes; before them, earlier broadcasts.
#[test]
fn leave_reply_precedes_phx_close() {
    for join_ref in ["1", "null"] {
        let (mut it, [key]) = TestShard::new().members();
        it.broadcasts("t", "before", "{}");
        it.counts();
        it.sends(key, &format!(r#"[{join_ref},2,"t","phx_leave",{{}}]"#));
        let before = r#"[null,null,"t","before",{}]"#.to_owned();
        assert_eq!(it.receives(key), [before, ok(1, 2, "t", "{}"), closed("t"), bye("t")]);
        let changes = it.counts();
        let ends = ["channels -1", "subscriptions -1", "messages_out +4", "deliveries +1"];
        assert_eq!(changes, ends, "its topic has a broadcast under way");
        it.fans_out();
        assert_eq!(it.counts(), ["topics -1", "fanout_topics -1"]);
        it.sends(key, r#"[1,3,"t","echo",{}]"#);
        assert_eq!(it.receives(key), [refused("null", 3, "t", "unmatched topic")], "row 63");
    }
}

/// PROTOCOL row 61.
#[test]
fn leave_of_an_unjoined_topic_is_ok() {
    let (mut it, key) = TestShard::new().opened();
    assert_eq!(it.asks(key, r#"[9,2,"t","phx_leave",{}]"#), [ok(9, 2, "t", "{}")]);
    assert_eq!(it.counts(), ["messages_out +1"]);
}

/// A channel may end by what it receives before it has left.
#[test]
fn leave_of_an_ending_channel_is_ok() {
    let stopping = scripted(|ctx, heard| match heard {
        ChannelCall::Out(..) => Outcome::Stop(Stop::Abnormal),
        other => standard(ctx, other),
    });
    let (mut it, [key]) = TestShard::running(stopping.intercepting(&["last"])).members();
    it.broadcasts("t", "last", "{}");
    it.sends(key, r#"[null,2,"t","phx_leave",{}]"#);
    let error = r#"[1,1,"t","phx_error",{"reason":"channel_crash"}]"#.to_owned();
    assert_eq!(it.receives(key), [error, bye("t"), ok("null", 2, "t", "{}")]);
}

#[test]
fn left_channel_gets_the_reason() {
    let notes = Notes::default();
    let mut it = TestShard::running(noting(&notes));
    let (listener, key) = (it.joined(&["hall"]), it.joined(&["t"]));
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    assert_eq!(notes.take(), ["t Left"]);
    let bye = r#"[1,null,"t","bye",{}]"#.to_owned();
    assert_eq!(it.receives(key), [ok(1, 2, "t", "{}"), closed("t"), bye, "close 1008 ".into()]);
    assert_eq!(it.receives_all(listener), [r#"[null,null,"hall","left",{}]"#]);
}

/// PROTOCOL row 67: all sockets of that id, and no others; other events on the id do nothing.
#[test]
fn disconnect_closes_a_socket_with_the_id() {
    let mut it = TestShard::new();
    let keys = ["users:1", "users:1", "users:2"].map(|id| it.opens_as(Wire::V2, id));
    assert_eq!(it.counts(), ["sockets +3", "topics +2", "subscriptions +3", "upgrades +3"]);
    assert_eq!(it.out.peer(keys[0]).socket.channels(), 0, "that is no channel");
    it.asks(keys[0], r#"[1,1,"users:1","phx_join",{}]"#);
    it.delivers("users:1", "other", "{}");
    assert!(it.receives(keys[1]).is_empty(), "the socket itself is told nothing");
    assert_eq!(it.receives(keys[0]), [r#"[null,null,"users:1","other",{}]"#]);
    it.broadcasts("users:1", "disconnect", "{}");
    it.counts();
    assert_eq!(it.receives_all(keys[1]), ["close 1001 disconnected"]);
    let disconnect = r#"[null,null,"users:1","disconnect",{}]"#;
    assert_eq!(it.receives(keys[0]), [disconnect, "close 1001 disconnected"]);
    assert!(it.receives(keys[2]).is_empty());
    let changes = "sockets -2, channels -1, topics -1, subscriptions -3, messages_out +1, \
        deliveries +1, fanout_topics -1";
    assert_eq!(it.changes(), changes);
    assert_eq!(it.node.log().seats_freed, 2);
}

/// PROTOCOL row 67 from within the application.
#[test]
fn channel_disconnects_sockets_by_id() {
    let mut it = TestShard::new();
    let (key, other) = (it.joined(&["t"]), it.opens_as(Wire::V1, "users:1"));
    it.sends(key, r#"[1,2,"t","disconnect","users:1"]"#);
    assert_eq!(it.receives_all(other), ["close 1001 disconnected"]);
    assert!(it.receives(key).is_empty());
}

#[test]
fn session_begins_with_the_result_of_connect() {
    let (notes, told) = Notes::shared();
    let mut it = TestShard::of(user_socket(move |ctx, _| {
        told.add(format!("{:?} {:?}", ctx.socket_id(), ctx.assigns::<u32>()));
        assert!(ctx.assigns::<u64>().is_none());
        Join::error(Payload::NULL)
    }));
    it.out.turn_ns = 300_000_000;
    let state = SocketState {
        id: Some("a".into()),
        assigns: Some(Arc::new(7_u32)),
        ..SocketState::default()
    };
    let key = it.opens_with(Wire::V2, state);
    let socket = &it.out.peer(key).socket;
    assert_eq!((socket.phase(), socket.last_heard()), (Phase::Open, 3));
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    let assigns = SocketState { assigns: Some(Arc::new(8_u32)), ..SocketState::default() };
    let key = it.opens_with(Wire::V2, assigns);
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    let key = it.opens(Wire::V2);
    assert!(it.out.peer(key).socket.own.is_none(), "nothing of its own, no memory for that");
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    assert_eq!(notes.take(), [r#"Some("a") Some(7)"#, "None Some(8)", "None None"]);
}

/// The state of a socket that is gone is dropped where a panic does no harm.
#[test]
fn session_without_a_socket_does_not_begin() {
    let (mut it, key) = TestShard::new().opened();
    it.disconnects(key);
    it.counts();
    let state = || SocketState { assigns: Some(Arc::new(Bomb)), ..SocketState::default() };
    it.core.opened(&mut it.out, key, state());
    assert_eq!(it.counts(), ["errors_callback_panic +1"]);
    let key = it.opens_with(Wire::V2, state());
    it.disconnects(key);
    assert_eq!(it.counts(), ["upgrades +1", "errors_callback_panic +1"]);
}

/// PROTOCOL row 90: every channel ends with `Closed`; others receive what they broadcast.
#[test]
fn channels_end_with_their_connection() {
    let notes = Notes::default();
    let mut it = TestShard::running(noting(&notes));
    let (listener, key) = (it.joined(&["hall"]), it.joined(&["a", "b"]));
    it.sends(key, r#"[1,2,"a","subscribe","c"]"#);
    it.counts();
    it.disconnects(key);
    assert_eq!(notes.take(), ["b Closed", "a Closed"], "the last first");
    let changes =
        "sockets -1, channels -2, topics -3, subscriptions -3, broadcasts +2, fanout_topics +1";
    assert_eq!(it.changes(), changes);
    it.fans_out();
    let left = r#"[null,null,"hall","left",{}]"#;
    assert_eq!(it.receives(listener), [left, left]);
    assert!(it.out.deeds().is_empty(), "there is nothing to close");
    assert_eq!(it.node.log().seats_freed, 1);
}

/// A connection that closes after its session is over has no connection permit to release.
#[test]
fn seat_is_freed_once() {
    let (mut it, key) = TestShard::new().opened();
    it.core.close(&mut it.out, key, CloseCode::NORMAL);
    it.disconnects(key);
    assert_eq!((it.node.log().seats_freed, it.core.metrics().sockets.value()), (1, 0));
    let key = it.out.connect(Phase::Head, Wire::V2);
    it.disconnects(key);
    assert_eq!(it.node.log().seats_freed, 1);
}

/// PROTOCOL row 69: the answer has the peer's code; channels send nothing any more.
#[test]
fn close_of_the_client_is_answered() {
    for (code, answer) in [(Some(CloseCode::NORMAL), "close 1000 "), (None, "close")] {
        let notes = Notes::default();
        let (mut it, [key]) = TestShard::running(noting(&notes)).members();
        it.core.peer_closed(&mut it.out, key, code);
        assert_eq!(it.receives(key), [answer]);
        assert_eq!(it.out.deeds(), [format!("close {}", key.slot)]);
        assert_eq!(notes.take(), ["t Closed"]);
        assert_eq!(it.core.metrics().sockets.value(), 0);
    }
    let (mut it, key) = TestShard::new().opened();
    it.core.close(&mut it.out, key, CloseCode::RESTART);
    it.receives(key);
    it.out.deeds();
    it.core.peer_closed(&mut it.out, key, Some(CloseCode::RESTART));
    assert!(it.receives(key).is_empty(), "this was the answer to ours");
    assert_eq!(it.out.deeds(), [format!("close {}", key.slot)]);
}

/// PROTOCOL rows 75–79: the rest is ignored, but read, so that the close frame is not lost.
#[test]
fn protocol_error_closes_with_its_code() {
    let notes = Notes::default();
    let (mut it, [key]) = TestShard::running(noting(&notes)).members();
    it.advances(TICK * 9);
    it.core.fail(&mut it.out, key, CloseCode::INTERNAL);
    assert_eq!(it.receives(key), ["close 1011 "]);
    assert_eq!(it.out.deeds(), ["shutdown 0", "release 0"]);
    assert_eq!(notes.take(), ["t Closed"]);
    let socket = &it.out.peer(key).socket;
    assert_eq!((socket.phase(), socket.last_heard()), (Phase::Ending, 9));
    for phase in [Phase::Head, Phase::Full, Phase::Connecting] {
        let key = it.out.connect(phase, Wire::V2);
        it.core.fail(&mut it.out, key, CloseCode::INTERNAL);
        assert!(it.receives(key).is_empty(), "it has no session");
        assert_eq!(it.out.deeds(), [format!("close {}", key.slot)]);
        assert_eq!(it.out.peer(key).socket.phase(), phase);
    }
}

/// RFC 6455, 5.5.1: nothing follows a close frame, not even another one.
#[test]
fn invalid_answer_to_a_close_gets_no_response() {
    let (mut it, [key]) = TestShard::new().members();
    it.core.close(&mut it.out, key, CloseCode::RESTART);
    assert_eq!(it.receives(key), ["close 1012 server restarts"]);
    it.out.deeds();
    it.advances(TICK * 9);
    it.core.fail(&mut it.out, key, CloseCode::PROTOCOL);
    assert!(it.receives(key).is_empty());
    assert_eq!(it.out.deeds(), ["shutdown 0", "release 0"]);
    let socket = &it.out.peer(key).socket;
    assert_eq!((socket.phase(), socket.last_heard()), (Phase::Ending, 9));
    // Its close timeout is not restarted either.
    it.advances(TICK);
    it.core.fail(&mut it.out, key, CloseCode::PROTOCOL);
    assert_eq!(it.out.peer(key).socket.last_heard(), 9);
    assert!(it.out.deeds().is_empty() && it.receives(key).is_empty());
    assert_eq!(it.node.log().seats_freed, 1);
}

#[test]
fn handle_reaches_its_channel_from_any_thread() {
    let (notes, told) = Notes::shared();
    let (mut it, [key]) = TestShard::running(scripted(move |ctx, heard| match heard {
        ChannelCall::In("later", payload) => {
            let (handle, message) = (ctx.handle::<Scripted>(), ctx.reply_ref().unwrap());
            let payload = payload.into_owned();
            ctx.spawn(async move {
                handle.send(7_u32);
                handle.push("pushed", Payload::EMPTY_OBJECT);
                handle.reply(message, Reply::new("weird", payload));
            });
            Outcome::NoReply
        }
        ChannelCall::In("end", _) => {
            ctx.handle::<Scripted>().stop(Stop::Normal);
            Outcome::NoReply
        }
        ChannelCall::Info(info) => {
            told.add(format!("{:?} {}", info.downcast_ref::<u32>(), ctx.reply_ref().is_none()));
            Outcome::Reply(Reply::ok(Payload::NULL))
        }
        ChannelCall::Ends(reason) => told.of_call(format!("{reason:?}")),
        other => standard(ctx, other),
    }))
    .members();
    it.broadcasts("t", "before", "{}");
    it.sends(key, r#"[1,2,"t","later",9]"#);
    assert!(it.receives(key).is_empty());
    it.handles_mail();
    assert_eq!(notes.take(), ["Some(7) true"]);
    let before = r#"[null,null,"t","before",{}]"#.to_owned();
    let pushed = r#"[1,null,"t","pushed",{}]"#.to_owned();
    assert_eq!(it.receives(key), [before, pushed, reply(1, 2, "t", "weird", "9")]);
    it.sends(key, r#"[1,3,"t","end",{}]"#);
    it.handles_mail();
    assert_eq!(
        (it.receives(key), notes.take()),
        (vec![closed("t")], vec!["Stopped(Normal)".into()])
    );
}

/// A slot that is used again is not reached by its old name.
#[test]
fn handle_of_an_ended_channel_reaches_no_channel() {
    let (mut it, [key]) = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::In("handle", _) => {
            let handle = ctx.handle::<Scripted>();
            handle.push("late", Payload::EMPTY_OBJECT);
            handle.reply(ctx.reply_ref().unwrap(), Reply::ok(Payload::NULL));
            handle.stop(Stop::Abnormal);
            handle.send(Bomb);
            Outcome::NoReply
        }
        ChannelCall::Info(_) => panic!("that was for another"),
        other => standard(ctx, other),
    }))
    .members();
    it.sends(key, r#"[1,2,"t","handle",{}]"#);
    it.asks(key, r#"[2,2,"t","phx_join",{}]"#);
    it.counts();
    it.handles_mail();
    assert!(it.receives(key).is_empty());
    assert!(it.counts().is_empty(), "what was sent is not dropped here");
    let mut id = ChannelId { shard: 0, membership: 0, generation: 0 };
    while it.core.registry().live(id).is_none() {
        id.generation += 1;
    }
    assert_eq!(it.core.registry().live(ChannelId { shard: 1, ..id }), None, "another shard");
}

/// No serializer; messages are bare, and the channel may have further topics.
#[test]
fn plain_socket_messages_reach_its_only_channel() {
    let (notes, told) = Notes::shared();
    let channel = scripted(move |ctx, heard| match heard {
        ChannelCall::In("text", payload) if payload.json() == Some("bye") => {
            Outcome::Stop(Stop::Abnormal)
        }
        ChannelCall::In(event, payload) => {
            told.add(event);
            ctx.subscribe("further");
            Outcome::ok(payload.into_owned())
        }
        ChannelCall::Ends(reason) => {
            told.add(format!("{reason:?}"));
            ctx.push("e", Payload::NULL);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    });
    let mut it = TestShard::of(plain("chat", move |_, _| Join::ok(channel.clone())));
    let keys = [it.opens(Wire::Plain), it.opens(Wire::Plain)];
    it.core.plain_message(&mut it.out, keys[0], Frame::Text("hello"));
    it.core.plain_message(&mut it.out, keys[0], Frame::Binary(&[7]));
    assert_eq!(it.receives(keys[0]), ["hello", "binary \\x07"]);
    assert_eq!(notes.take(), ["text", "binary"]);
    it.broadcasts("chat", "e", "all");
    assert_eq!(it.delivers("further", "e", "1").receives(keys[1]), ["all"]);
    let mut heard = it.receives(keys[0]);
    heard.sort();
    assert_eq!(heard, ["1", "all"]);
    it.core.plain_message(&mut it.out, keys[0], Frame::Text("bye"));
    assert_eq!(it.receives(keys[0]), ["null", "close 1011 "], "its end is the socket's");
    assert_eq!(notes.take(), ["Stopped(Abnormal)"]);
    it.core.plain_message(&mut it.out, keys[0], Frame::Text("hello"));
    assert!(notes.take().is_empty());
    it.core.plain_message(&mut it.out, keys[1], Frame::Text("hello"));
    it.disconnects(keys[1]);
    assert_eq!(notes.take(), ["text", "Closed"]);
    assert_eq!(it.core.metrics().subscriptions.value(), 0);
}

/// A message that arrives when its socket is gone is dropped.
#[test]
fn nothing_is_sent_after_the_end() {
    let (mut it, [key]) = TestShard::new().members();
    it.disconnects(key);
    it.counts();
    let text = Frame::Text(r#"[1,2,"t","phx_join",{}]"#);
    let message = simurgh_proto::serializer::Serializer::V2.decode(text).unwrap();
    it.core.message(&mut it.out, key, message.into());
    it.core.plain_message(&mut it.out, key, Frame::Text("x"));
    it.core.drained(&it.out, key);
    it.core.resume(&mut it.out, key);
    it.core.close(&mut it.out, key, CloseCode::NORMAL);
    assert!(it.counts().is_empty());
}

#[test]
fn fresh_token_goes_to_the_function_of_its_route() {
    let route = |pattern: &str| {
        let join: JoinFn = Arc::new(|_, _| Join::ok(scripted(|_, _| Outcome::unknown_event())));
        Route::new(Pattern::parse(pattern).unwrap(), join)
    };
    let renew: RenewFn = Arc::new(|ctx, payload| {
        ctx.push("renewed", payload.clone().into_owned());
        Outcome::ok(Payload::EMPTY_OBJECT)
    });
    let routes = vec![Route { renew: Some(renew), ..route("renewed:*") }, route("*")];
    let (mut it, key) = TestShard::of(UserSocket::new(Kind::Channels(routes))).opened();
    for topic in ["renewed:a", "t"] {
        it.sends(key, &format!(r#"[1,1,"{topic}","phx_join",{{}}]"#));
    }
    it.receives(key);
    it.sends(key, r#"[1,2,"renewed:a","access_token",{"a":1}]"#);
    let pushed = r#"[1,null,"renewed:a","renewed",{"a":1}]"#.to_owned();
    assert_eq!(it.receives(key), [pushed, ok(1, 2, "renewed:a", "{}")]);
    it.sends(key, r#"[1,3,"t","access_token",{"a":1}]"#);
    it.sends(key, r#"[1,4,"renewed:a","other",{}]"#);
    let ended = |topic| format!(r#"[1,1,"{topic}","phx_error",{{"reason":"channel_crash"}}]"#);
    assert_eq!(it.receives(key), ["t", "renewed:a"].map(ended), "their channels handle them");
}
