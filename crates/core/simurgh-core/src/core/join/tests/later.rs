//! Joins that are not decided at once (PROTOCOL §5.4).

use std::sync::Arc;

use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use super::{deciding, listener_and_joiner, user_socket};
use crate::testing::*;
use crate::*;

/// PROTOCOL row 33 and §5.4: nothing is read from the socket until the join is decided.
#[test]
fn pending_join_pauses_its_socket() {
    let mut it = TestShard::of(deciding());
    let (listener, key) = listener_and_joiner(&mut it);
    it.sends(key, r#"[1,1,"t","phx_join","later"]"#);
    assert_eq!(it.out.deeds(), [format!("hold {}", key.slot)]);
    assert_eq!(it.out.peer(key).socket.phase(), Phase::Waiting);
    assert!(it.receives(key).is_empty());
    assert_eq!(it.receives_all(listener), [r#"[null,null,"hall","came",{}]"#], "it does not wait");
    it.counts();
    assert_eq!(it.decides().receives(key), [ok(1, 1, "t", "{}")], "what was pushed before is gone");
    assert_eq!(it.out.deeds(), [format!("release {}", key.slot)]);
    let socket = &it.out.peer(key).socket;
    assert!(socket.phase() == Phase::Open && socket.own.is_none(), "it keeps no memory for that");
    assert_eq!(it.changes(), "channels +1, topics +1, subscriptions +1, joins +1, messages_out +1");
}

#[test]
fn late_decision_can_refuse_panic_or_defer_again() {
    let mut it = TestShard::of(deciding());
    let (_, key) = listener_and_joiner(&mut it);
    it.sends(key, r#"[1,1,"t","phx_join","later error"]"#);
    assert_eq!(it.decides().receives(key), [reply(1, 1, "t", "error", "null")]);
    it.fans_out();
    it.counts();
    it.sends(key, r#"[1,2,"t","phx_join","never"]"#);
    it.counts();
    assert_eq!(it.decides().receives(key), [refused(1, 2, "t", "join crashed")]);
    assert_eq!(it.counts(), ["joins_refused +1", "messages_out +1", "errors_callback_panic +1"]);
    it.sends(key, r#"[1,3,"t","phx_join","twice"]"#);
    it.decides();
    assert!(it.receives(key).is_empty() && it.out.peer(key).socket.phase() == Phase::Waiting);
    assert_eq!(it.decides().receives(key), [reply(1, 3, "t", "error", "null")]);
}

/// Another thread calls back, and learns when nobody waits any more.
#[test]
fn join_decided_by_a_call_is_answered_and_given_up_with_its_socket() {
    let place = Arc::new(());
    let given = Arc::clone(&place);
    let mut it = TestShard::of(user_socket(move |_, payload| {
        let (given, is_decided) = (Arc::clone(&given), payload.json() == Some("1"));
        Join::asked(move |done| {
            if is_decided {
                done(Join::ok(scripted(standard)));
            }
            Box::new(given)
        })
    }));
    let (key, other) = (it.opens(Wire::V2), it.opens(Wire::V2));
    it.sends(key, r#"[1,1,"t","phx_join",1]"#);
    it.handles_mail();
    assert_eq!(it.receives(key), [ok(1, 1, "t", "{}")]);
    it.sends(other, r#"[1,1,"t","phx_join",2]"#);
    it.handles_mail();
    assert!(it.receives(other).is_empty());
    assert_eq!(Arc::strong_count(&place), 3, "the join function has one");
    it.disconnects(other);
    assert_eq!(Arc::strong_count(&place), 2);
}

/// An earlier decision is distinguished from the awaited one.
#[test]
fn late_join_decision_is_dropped() {
    let mut it = TestShard::of(deciding());
    let (_, key) = listener_and_joiner(&mut it);
    it.sends(key, r#"[1,1,"t","phx_join","later"]"#);
    let (_, first, _) = it.node.log().decides.remove(0);
    it.core.join_overdue(&mut it.out, key);
    assert_eq!(it.receives(key), [refused(1, 1, "t", "join timed out")]);
    it.sends(key, r#"[1,2,"t","phx_join","later"]"#);
    let late = Some(Join::ok(scripted(standard)));
    it.core.mail(&mut it.out, Mail::Joined(key, first, late));
    assert!(it.receives(key).is_empty(), "that is not what is awaited");
    assert_eq!(it.decides().receives(key), [ok(1, 2, "t", "{}")]);
    it.counts();
    let bomb = Bomb;
    let late = Some(Join::ok(scripted(move |_, _| {
        let _ = &bomb;
        Outcome::NoReply
    })));
    it.core.mail(&mut it.out, Mail::Joined(key, first, late));
    assert_eq!(it.counts(), ["errors_callback_panic +1"], "its drop is the application's");
}

#[test]
fn closing_socket_does_not_wait_for_a_decision() {
    let mut it = TestShard::of(deciding());
    let (_, key) = listener_and_joiner(&mut it);
    it.sends(key, r#"[1,1,"t","phx_join","later"]"#);
    it.core.close(&mut it.out, key, CloseCode::NORMAL);
    assert_eq!(it.receives(key), ["close 1000 "]);
    assert!(it.decides().receives(key).is_empty());
    assert_eq!(it.out.peer(key).socket.phase(), Phase::Closing);
    assert_eq!(it.core.metrics().joins.value(), 1);
    it.core.resume(&mut it.out, key);
    assert_eq!(it.out.peer(key).socket.phase(), Phase::Closing, "only who waits goes on");
}

/// Its own state outlives the wait.
#[test]
fn socket_keeps_its_id_after_a_decision() {
    let mut it = TestShard::of(deciding());
    let key = it.opens_as(Wire::V2, "users:1");
    it.sends(key, r#"[1,1,"t","phx_join","later"]"#);
    it.advances(TICK * 7);
    it.decides();
    let socket = &it.out.peer(key).socket;
    assert_eq!(socket.state().unwrap().id.as_deref(), Some("users:1"));
    assert_eq!(socket.last_heard(), 7, "its silence begins anew");
}

/// A socket that publishes too much while it waits is held for that when its join is decided:
/// otherwise a client that joins and leaves could have any amount in flight.
#[test]
fn publisher_above_its_share_stays_paused_after_a_join() {
    for by_join in [true, false] {
        let config = Config { mailbox_bytes_max: 800, ..Config::default() };
        let long = || Payload::from_json(format!("\"{}\"", "x".repeat(100)));
        let user_socket = user_socket(move |ctx, payload| {
            if payload.json() != Some("\"later\"") {
                return Join::ok(scripted(move |ctx, heard| {
                    if let ChannelCall::Info(_) = heard {
                        ctx.broadcast("news", long());
                    }
                    Outcome::NoReply
                }));
            }
            if by_join {
                ctx.broadcast_to("t", "news", long());
            }
            Join::later(async { Join::error(Payload::NULL) })
        });
        let (mut it, [key]) = TestShard::with(config, vec![user_socket]).members();
        it.sends(key, r#"[1,1,"u","phx_join","later"]"#);
        if !by_join {
            let id = it.channel(key);
            it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
        }
        it.decides();
        assert!(it.out.is_held(key) && it.out.peer(key).socket.phase() == Phase::Open);
        it.core.settle(&mut it.out);
        assert!(it.out.is_held(key), "too much is under way");
        it.fans_out();
        it.core.settle(&mut it.out);
        assert!(!it.out.is_held(key));
        assert_eq!(it.core.metrics().publishers_held.value(), 1);
        it.sends(key, r#"[1,1,"u","phx_join","later"]"#);
        it.fans_out();
        it.core.settle(&mut it.out);
        assert!(it.out.is_held(key), "it waits");
        it.decides();
        assert!(!it.out.is_held(key));
    }
}

/// The join function's effects wait with the channel, and none is lost.
#[test]
fn paused_client_joins_with_all_effects_of_its_join() {
    let held = |payload: &str| match payload {
        "1" => Join::ok(scripted(standard)).after(async {}).after(async {}),
        "2" => Join::later(async { Join::ok(scripted(standard)).after(async {}) }),
        "3" => Join::later(async { Join::ok(scripted(standard)) }).after(async {}),
        _ => Join::ok(scripted(standard)).after(async { crash() }).reply(Payload::NULL),
    };
    let mut it = TestShard::of(user_socket(move |ctx, payload| {
        ctx.push("early", Payload::EMPTY_OBJECT);
        held(payload.json().unwrap())
    }));
    for (payload, decisions) in [("1", 1), ("2", 2), ("3", 2)] {
        let key = it.opens(Wire::V2);
        it.sends(key, &format!(r#"[1,1,"t","phx_join",{payload}]"#));
        let is_member = |it: &TestShard| it.core.metrics().channels.value();
        let before = is_member(&it);
        for _ in 0..decisions {
            assert!(it.receives(key).is_empty() && is_member(&it) == before);
            it.decides();
        }
        let early = r#"[1,null,"t","early",{}]"#.to_owned();
        let with_early = vec![ok(1, 1, "t", "{}"), early];
        let expected = if payload == "1" { with_early } else { vec![ok(1, 1, "t", "{}")] };
        assert_eq!((it.receives(key), is_member(&it)), (expected, before + 1));
    }
    let key = it.opens(Wire::V2);
    it.sends(key, r#"[1,1,"t","phx_join",4]"#);
    assert_eq!(it.decides().receives(key), [refused(1, 1, "t", "join crashed")]);
    it.sends(key, r#"[1,2,"t","phx_join",1]"#);
    it.core.join_overdue(&mut it.out, key);
    assert_eq!(it.receives(key), [refused(1, 2, "t", "join timed out")]);
}

#[test]
fn start_function_runs_with_the_member_before_after_join() {
    let joined = |payload: &str| {
        let channel = scripted(|ctx, heard| {
            if matches!(heard, ChannelCall::Joined) {
                ctx.push("joined", Payload::EMPTY_OBJECT);
            }
            Outcome::NoReply
        });
        let join = match payload {
            "1" => Join::ok(channel),
            "2" => Join::later(async { Join::ok(channel) }),
            "3" => Join::ok(channel).after(async {}),
            _ => Join::error(Payload::NULL),
        };
        join.on_start(|ctx| ctx.push("started", Payload::EMPTY_OBJECT))
    };
    let mut it = TestShard::of(user_socket(move |_, payload| joined(payload.json().unwrap())));
    let pushed = |event: &str| format!(r#"[1,null,"t","{event}",{{}}]"#);
    for payload in ["1", "2", "3"] {
        let key = it.opens(Wire::V2);
        it.sends(key, &format!(r#"[1,1,"t","phx_join",{payload}]"#));
        if payload != "1" {
            it.decides();
        }
        let expected = [ok(1, 1, "t", "{}"), pushed("started"), pushed("joined")];
        assert_eq!(it.receives(key), expected, "{payload}");
    }
    let key = it.opens(Wire::V2);
    assert_eq!(it.asks(key, r#"[1,1,"t","phx_join",4]"#), [reply(1, 1, "t", "error", "null")]);
}
