//! Effects and answers of callbacks, by PROTOCOL §6 and §7.

mod closing;

use std::sync::Mutex;

use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use crate::frames::close_reason;
use crate::testing::*;
use crate::*;

const CLOSED: &str = r#"[1,1,"t","phx_close",{}]"#;
const CRASHED: &str = r#"[1,1,"t","phx_error",{"reason":"channel_crash"}]"#;
const BYE: &str = r#"[1,null,"t","you_left",{}]"#;

fn news(json: &str) -> String {
    format!(r#"[null,null,"t","news",{json}]"#)
}

fn pushed(json: &str) -> String {
    format!(r#"[1,null,"t","pushed",{json}]"#)
}

fn interceptor() -> Scripted {
    let it = scripted(|ctx, heard| {
        let ChannelCall::Out(event, payload) = heard else { return standard(ctx, heard) };
        if event == "whisper" {
            return Outcome::NoReply;
        }
        ctx.push("heard", payload);
        match payload.json().unwrap() {
            "\"stop\"" => Outcome::Stop(Stop::Normal),
            "\"reply\"" => Outcome::ok(Payload::NULL),
            "\"crash\"" => crash(),
            "\"answer\"" => {
                ctx.broadcast("shout", Payload::from_json("\"answered\""));
                ctx.push("pushed", Payload::EMPTY_OBJECT);
                Outcome::NoReply
            }
            "\"close\"" => {
                ctx.close_socket(CloseCode::NORMAL);
                Outcome::NoReply
            }
            _ => Outcome::NoReply,
        }
    });
    it.intercepting(&["shout", "whisper"])
}

fn heard(json: &str) -> String {
    format!(r#"[1,null,"t","heard",{json}]"#)
}

/// PROTOCOL rows 34–38: any status, or no reply.
#[test]
fn handler_replies_with_any_payload() {
    let (mut it, [key]) = TestShard::running(scripted(|_, heard| match heard {
        ChannelCall::In("ok", payload) => Outcome::ok(payload.into_owned()),
        ChannelCall::In("error", payload) => Outcome::error(payload.into_owned()),
        ChannelCall::In("weird", _) => Outcome::Reply(Reply::new("weird", Payload::NULL)),
        _ => Outcome::NoReply,
    }))
    .members();
    it.sends(key, r#"[1,2,"t","ok",{}]"#);
    it.sends(key, r#"[1,3,"t","error",[1]]"#);
    it.sends(key, r#"[1,4,"t","weird",{}]"#);
    it.sends(key, r#"[1,5,"t","other",{}]"#);
    let weird = reply(1, 4, "t", "weird", "null");
    assert_eq!(it.receives(key), [ok(1, 2, "t", "{}"), reply(1, 3, "t", "error", "[1]"), weird]);
    assert_eq!(it.counts(), ["messages_out +3"]);
}

/// PROTOCOL rows 51–53 and 58.
#[test]
fn effects_leave_in_order() {
    let mut it = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::In(..) => {
            ctx.broadcast("news", Payload::from_json("1"));
            ctx.push("pushed", Payload::from_json("2"));
            ctx.broadcast_from("news", Payload::from_json("3"));
            ctx.broadcast("news", Payload::from_json("4"));
            ctx.broadcast_to("u", "news", Payload::from_json("5"));
            Outcome::ok(Payload::from_json("6"))
        }
        _ => Outcome::NoReply,
    }));
    let (key, other, _third) = (it.joined(&["t"]), it.joined(&["t"]), it.joined(&["v"]));
    it.sends(key, r#"[1,2,"t","do",{}]"#);
    assert_eq!(it.receives(key), [news("1"), pushed("2"), news("4"), ok(1, 2, "t", "6")]);
    assert!(it.receives_all(key).is_empty(), "it is up to date");
    assert_eq!(it.receives(other), [news("1"), news("3"), news("4")]);
    assert_eq!(it.node.charged(0), 0, "nobody is on the other topic");
}

/// PROTOCOL rows 32, 64 and 66.
#[test]
fn stopping_channel_reports_the_reason_to_its_client() {
    for (event, notice, count) in [
        ("stop", CLOSED, None),
        ("stop_shutdown", CLOSED, None),
        ("stop_bad", CRASHED, Some("errors_abnormal_stop +1")),
        ("stop_expired", CRASHED, Some("expirations +1")),
        ("unknown", CRASHED, Some("errors_abnormal_stop +1")),
        ("crash", CRASHED, Some("errors_callback_panic +1")),
    ] {
        let mut it = TestShard::new();
        let key = it.joined(&["t", "u"]);
        it.counts();
        assert_eq!(it.asks(key, &format!(r#"[1,2,"t","{event}",{{}}]"#)), [notice, BYE]);
        let mut changes = vec!["channels -1", "topics -1", "subscriptions -1", "messages_out +2"];
        changes.extend(count);
        assert_eq!(it.counts(), changes);
        it.sends(key, r#"[1,3,"u","echo",{}]"#);
        it.sends(key, r#"[1,4,"t","phx_join",{}]"#);
        assert_eq!(it.receives(key), [ok(1, 3, "u", "{}"), ok(1, 4, "t", "{}")]);
    }
}

/// PROTOCOL row 65.
#[test]
fn channel_can_reply_and_stop() {
    let (mut it, [key]) = TestShard::new().members();
    assert_eq!(it.asks(key, r#"[1,2,"t","stop_reply",7]"#), [&*ok(1, 2, "t", "7"), CLOSED, BYE]);
}

#[test]
fn terminate_receives_the_reason() {
    let (notes, told) = Notes::shared();
    let mut it = TestShard::running(scripted(move |ctx, heard| match heard {
        ChannelCall::Ends(reason) => told.of_call(format!("{reason:?}")),
        other => standard(ctx, other),
    }));
    for event in ["stop", "stop_shutdown", "stop_bad", "crash"] {
        let key = it.joined(&["t"]);
        it.sends(key, &format!(r#"[1,2,"t","{event}",{{}}]"#));
    }
    let reasons = ["Stopped(Normal)", "Stopped(Shutdown)", "Stopped(Abnormal)", "Crashed"];
    assert_eq!(notes.take(), reasons);
    let callbacks = [Callback::Join, Callback::AfterJoin, Callback::HandleIn, Callback::Terminate];
    assert_eq!(it.node.log().callbacks, callbacks.repeat(4));
}

/// PROTOCOL §6: what was made before the panic is sent before the error.
#[test]
fn effects_before_a_panic_are_applied() {
    let (mut it, [key, other]) = TestShard::running(scripted(|ctx, heard| {
        if let ChannelCall::In(..) = heard {
            ctx.push("pushed", Payload::EMPTY_OBJECT);
            ctx.broadcast("news", Payload::EMPTY_OBJECT);
            crash();
        }
        Outcome::NoReply
    }))
    .members();
    assert_eq!(it.asks(key, r#"[1,2,"t","do",{}]"#), [pushed("{}"), news("{}"), CRASHED.into()]);
    assert_eq!(it.receives_all(other), [news("{}")]);
}

/// `terminate` and the drop of a channel may crash, too: it is gone all the same.
#[test]
fn panic_in_terminate_ends_the_channel() {
    let (mut it, [key]) = TestShard::of(user_socket(|_, _| {
        let bomb = Bomb;
        Join::ok(scripted(move |ctx, heard| {
            let _ = &bomb;
            if let ChannelCall::Ends(_) = heard {
                ctx.push("pushed", Payload::EMPTY_OBJECT);
                crash();
            }
            standard(ctx, heard)
        }))
    }))
    .members();
    assert_eq!(it.asks(key, r#"[1,2,"t","stop",{}]"#), [CLOSED.into(), pushed("{}")]);
    let changes =
        "channels -1, topics -1, subscriptions -1, messages_out +2, errors_callback_panic +2";
    assert_eq!(it.changes(), changes);
}

/// A reply or a push follows the broadcasts that were made before it.
#[test]
fn later_messages_do_not_overtake_a_broadcast() {
    let (mut it, [key]) = TestShard::new().members();
    for (event, last) in
        [("echo", ok(1, 2, "t", "0")), ("push_me", pushed("0")), ("stop", CLOSED.into())]
    {
        it.broadcasts("t", "news", "1");
        it.broadcasts("t", "news", "2");
        it.counts();
        it.sends(key, &format!(r#"[1,2,"t","{event}",0]"#));
        assert_eq!(it.receives(key)[..3], [news("1"), news("2"), last]);
        let changes = it.counts();
        assert!(changes.contains(&"deliveries +2".into()), "{changes:?}");
        it.fans_out();
        assert!(event == "stop" || it.receives(key).is_empty());
    }
}

/// An answer without a request is dropped.
#[test]
fn only_messages_of_the_client_get_replies() {
    let (mut it, [key]) = TestShard::running(interceptor()).members();
    assert_eq!(it.delivers("t", "shout", "\"reply\"").receives(key), [heard("\"reply\"")]);
}

#[test]
fn outcome_of_an_ended_channel_is_dropped() {
    for outcome in ["reply", "stop", "both", "crash"] {
        let (notes, told) = Notes::shared();
        let (mut it, [key, other]) = TestShard::running(scripted(move |ctx, heard| match heard {
            ChannelCall::In(..) => {
                ctx.close_socket(CloseCode::POLICY);
                ctx.push("pushed", Payload::EMPTY_OBJECT);
                ctx.broadcast("news", Payload::EMPTY_OBJECT);
                match outcome {
                    "reply" => Outcome::ok(Payload::NULL),
                    "stop" => Outcome::Stop(Stop::Abnormal),
                    "both" => Outcome::ReplyAndStop(Reply::ok(Payload::NULL), Stop::Abnormal),
                    _ => crash(),
                }
            }
            ChannelCall::Ends(reason) => told.of_call(format!("{reason:?}")),
            _ => Outcome::NoReply,
        }))
        .members();
        assert_eq!(it.asks(key, r#"[1,2,"t","do",{}]"#), ["close 1008 "]);
        assert_eq!(notes.take(), ["Closed"]);
        assert_eq!(it.receives_all(other), [news("{}")], "others hear all of it");
    }
}

/// PROTOCOL rows 55 and 56: such deliveries are pushes, each as its member's channel makes it.
#[test]
fn intercepted_broadcast_passes_through_handle_out() {
    let (mut it, [key]) = TestShard::running(interceptor()).members();
    it.broadcasts("t", "shout", "1");
    it.broadcasts("t", "news", "2");
    it.broadcasts("t", "whisper", "3");
    assert_eq!(it.delivers("t", "shout", "4").receives(key), [heard("1"), news("2"), heard("4")]);
    assert_eq!(it.counts(), ["messages_out +3", "broadcasts +4", "deliveries +4"]);
    let asked = [Callback::Join, Callback::AfterJoin].into_iter();
    let asked: Vec<_> = asked.chain([Callback::HandleOut; 3]).collect();
    assert_eq!(it.node.log().callbacks, asked);
}

/// PROTOCOL row 52 for a channel that intercepts.
#[test]
fn intercepting_sender_does_not_receive_its_broadcast_from() {
    let (mut it, [key, other]) = TestShard::running(interceptor()).members();
    it.sends(key, r#"[1,2,"t","bcast_from",1]"#);
    it.sends(key, r#"[1,3,"t","bcast",2]"#);
    assert_eq!(it.receives_all(key), [news("2")]);
    assert_eq!(it.receives(other), [news("1"), news("2")]);
}

#[test]
fn broadcast_of_an_interceptor_follows_the_intercepted_one() {
    let (mut it, [key, other]) = TestShard::running(interceptor()).members();
    it.broadcasts("t", "shout", "\"answer\"");
    it.broadcasts("t", "news", "2");
    it.sends(key, r#"[1,2,"t","echo",3]"#);
    let first = [heard("\"answer\""), pushed("{}"), news("2"), ok(1, 2, "t", "3")];
    assert_eq!(it.receives(key), first);
    it.fans_out();
    // The other's answer is second: its channel was called later.
    assert_eq!(it.receives(key), [heard("\"answered\""), heard("\"answered\"")]);
    let second = [heard("\"answer\""), pushed("{}"), news("2")];
    let answers = [heard("\"answered\""), heard("\"answered\"")];
    let said = it.receives(other);
    assert_eq!(said[..3], second);
    assert_eq!(said[3..], answers);
    it.broadcasts("t", "shout", "5");
    it.sends(key, r#"[1,3,"t","push_me",6]"#);
    assert_eq!(it.receives(key), [heard("5"), pushed("6")], "it is brought up to date again");
}

/// `intercept` is called with each broadcast, and may crash.
#[test]
fn panic_in_intercept_ends_the_channel() {
    struct Fickle(Mutex<u32>);
    impl ShardChannel for Fickle {
        fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
            Outcome::NoReply
        }
        fn intercept(&self) -> &'static [&'static str] {
            let mut asked = self.0.lock().unwrap();
            *asked += 1;
            if *asked < 3 { &["shout"] } else { crash() }
        }
    }
    let user_socket = user_socket(|_, _| Join::ok(Fickle(Mutex::new(0))));
    let (mut it, [key]) = TestShard::of(user_socket).members();
    it.broadcasts("t", "shout", "1");
    it.broadcasts("t", "shout", "2");
    it.broadcasts("t", "shout", "3");
    it.counts();
    it.fans_out();
    let passed = r#"[1,null,"t","shout",1]"#;
    assert_eq!(it.receives(key), [passed, CRASHED], "the standard handler passes it on as it is");
    let changes = "channels -1, topics -1, subscriptions -1, messages_out +2, deliveries +1, \
        fanout_topics -1, errors_callback_panic +1";
    assert_eq!(it.changes(), changes);
}

/// PROTOCOL row 68 and all other closes of ours: earlier broadcasts are received, then the close
/// frame and nothing else; the answer is waited for.
#[test]
fn close_frame_is_last() {
    let mut it = TestShard::running(interceptor());
    let key = it.joined(&["t", "u"]);
    it.broadcasts("t", "shout", "1");
    it.broadcasts("u", "news", "{}");
    it.advances(TICK * 5);
    it.counts();
    it.core.close(&mut it.out, key, CloseCode::RESTART);
    let news = r#"[null,null,"u","news",{}]"#.to_owned();
    assert_eq!(it.receives(key), [news, heard("1"), "close 1012 server restarts".into()]);
    assert_eq!(it.out.deeds(), ["release 0"], "who was held has to hear the answer");
    let socket = &it.out.peer(key).socket;
    assert_eq!((socket.phase(), socket.last_heard(), socket.channels()), (Phase::Closing, 5, 0));
    let changes = "sockets -1, channels -2, subscriptions -2, messages_out +2, deliveries +2";
    assert_eq!(it.changes(), changes);
    assert_eq!(it.node.log().seats_freed, 1);
    it.core.close(&mut it.out, key, CloseCode::RESTART);
    assert!(it.receives(key).is_empty() && it.out.deeds().is_empty(), "it closes once");
}

/// An interceptor that is brought up to date for the close closes as well.
#[test]
fn closing_socket_is_not_closed_again() {
    let mut it = TestShard::running(interceptor());
    let key = it.joined(&["t", "u"]);
    it.broadcasts("t", "shout", "\"close\"");
    it.broadcasts("u", "shout", "\"stop\"");
    it.core.close(&mut it.out, key, CloseCode::GOING_AWAY);
    let u = |event: &str, json: &str| format!(r#"[1,null,"u","{event}",{json}]"#);
    let said = it.receives(key);
    let closed = r#"[1,1,"u","phx_close",{}]"#.to_owned();
    assert_eq!(said[..3], [u("heard", "\"stop\""), closed, u("you_left", "{}")]);
    assert_eq!(said[3..], [heard("\"close\""), "close 1001 disconnected".into()]);
    assert_eq!(it.core.metrics().subscriptions.value(), 0);
}

#[test]
fn sockets_close_according_to_their_phase() {
    let mut it = TestShard::new();
    for (phase, deeds) in [
        (Phase::Head, None),
        (Phase::Full, None),
        (Phase::Connecting, Some("abandon Drain")),
        (Phase::Closing, None),
        (Phase::Ending, None),
    ] {
        let key = it.out.connect(phase, Wire::V2);
        it.core.close(&mut it.out, key, CloseCode::RESTART);
        assert!(it.receives(key).is_empty());
        let deeds = deeds.map(|deed| format!("{deed} {}", key.slot));
        assert_eq!(it.out.deeds(), Vec::from_iter(deeds));
        assert_eq!(it.out.peer(key).socket.phase(), phase);
    }
    assert!(it.counts().is_empty());
}

/// A driver has no connection to its sockets: it receives the close at once.
#[test]
fn driven_socket_closes_without_an_answer() {
    for (wire, said) in
        [(Wire::V2, "close 1012 server restarts"), (Wire::Values, "closed Some(CloseCode(1012))")]
    {
        let mut it = TestShard::new();
        let key = it.out.connect(Phase::Connecting, wire);
        it.out.peer(key).socket.transport = 0;
        it.core.opened(&mut it.out, key, SocketState::default());
        it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
        assert_eq!(it.asks(key, r#"[1,2,"t","close",{}]"#), [&*ok(1, 1, "t", "{}"), said]);
        assert_eq!(it.out.deeds(), ["close 0"]);
    }
}

/// PROTOCOL §7: a plain client learns of its channel's end by the end of its socket, which is last.
#[test]
fn plain_channel_ends_with_its_socket() {
    for (event, close) in [("stop", "close 1000 "), ("crash", "close 1011 ")] {
        let (notes, told) = Notes::shared();
        let channel = scripted(move |ctx, heard| match heard {
            ChannelCall::In(_, payload) => {
                standard(ctx, ChannelCall::In(payload.json().unwrap(), Payload::NULL))
            }
            ChannelCall::Ends(reason) => {
                told.add(format!("{reason:?}"));
                standard(ctx, ChannelCall::Ends(reason))
            }
            other => standard(ctx, other),
        });
        let mut it = TestShard::of(plain("chat", move |_, _| Join::ok(channel.clone())));
        let key = it.opens(Wire::Plain);
        let frame = simurgh_proto::serializer::Frame::Text(event);
        it.core.plain_message(&mut it.out, key, frame);
        assert_eq!(it.receives(key), ["{}", close]);
        assert_eq!(it.out.peer(key).socket.phase(), Phase::Closing);
        let reason = if event == "stop" { "Stopped(Normal)" } else { "Crashed" };
        assert_eq!(notes.take(), [reason], "not that its socket closed");
    }
}

/// Of the effects of ending channels only those for others are carried out.
#[test]
fn last_broadcasts_of_a_closed_socket_reach_other_members() {
    let (mut it, [key, other]) = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::Ends(_) => {
            ctx.push("pushed", Payload::EMPTY_OBJECT);
            ctx.subscribe("u");
            ctx.broadcast("news", Payload::from_json("1"));
            ctx.broadcast_from("news", Payload::from_json("2"));
            ctx.close_socket(CloseCode::POLICY);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    }))
    .members();
    it.core.close(&mut it.out, key, CloseCode::NORMAL);
    assert_eq!(it.receives_all(key), ["close 1000 "]);
    assert_eq!(it.receives(other), [news("1"), news("2")]);
    assert_eq!(it.core.metrics().subscriptions.value(), 1);
}

#[test]
fn close_frame_contains_the_reason() {
    for (code, reason) in [
        (CloseCode::NORMAL, ""),
        (CloseCode::GOING_AWAY, "disconnected"),
        (CloseCode::TRY_AGAIN, "too much unfinished"),
        (CloseCode::RESTART, "server restarts"),
        (CloseCode::PROTOCOL, "protocol error or idle"),
        (CloseCode::INTERNAL, ""),
    ] {
        assert_eq!(close_reason(code), reason);
    }
}
