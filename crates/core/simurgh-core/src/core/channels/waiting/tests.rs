//! A channel that wants no more messages for now, and the socket that waits with it.

use std::time::Duration;

use simurgh_channel::Effect;
use simurgh_data::Key;
use simurgh_proto::ws::CloseCode;

use crate::testing::*;
use crate::*;

fn test_shard() -> TestShard {
    TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::In("enough", _) => {
            ctx.carry_out([Effect::Hold]);
            Outcome::ok(simurgh_proto::message::Payload::NULL)
        }
        ChannelCall::Info(_) => {
            ctx.carry_out([Effect::Proceed]);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    }))
}

fn phase(it: &mut TestShard, key: Key) -> Phase {
    it.out.peer(key).socket.phase()
}

#[test]
fn socket_waits_until_its_channel_is_ready() {
    let (mut it, [key]) = test_shard().members();
    let id = it.channel(key);
    it.sends(key, r#"[1,2,"t","enough",{}]"#);
    assert_eq!(it.receives(key), [ok(1, 2, "t", "null")], "what it had in hand is answered");
    assert!(it.out.is_held(key) && phase(&mut it, key) == Phase::Waiting);
    assert_eq!(it.delivers("t", "news", "1").receives(key), [r#"[null,null,"t","news",1]"#]);
    it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
    assert!(!it.out.is_held(key) && phase(&mut it, key) == Phase::Open);
    assert!(it.out.peer(key).socket.own.is_none(), "nothing is kept for it");
    it.out.deeds();
    it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
    assert!(it.out.deeds().is_empty(), "it is released once");
}

/// Whatever ends it: a second join cannot arrive, for its socket is not read.
#[test]
fn socket_does_not_wait_for_an_ended_channel() {
    for how in [Stop::Normal, Stop::Abnormal] {
        let mut it = test_shard();
        let key = it.joined(&["t", "u"]);
        let id = it.channel(key);
        let topic = it.core.channels().speaker(&it.out, id.membership).unwrap().topic;
        it.sends(key, &format!(r#"[1,2,"{topic}","enough",{{}}]"#));
        it.core.mail(&mut it.out, Mail::ToChannel(id, ToChannel::Stop(how)));
        assert!(!it.out.is_held(key) && phase(&mut it, key) == Phase::Open);
        it.sends(key, &format!(r#"[3,3,"{topic}","phx_join",{{}}]"#));
        it.sends(key, &format!(r#"[3,4,"{topic}","enough",{{}}]"#));
        it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
        assert!(it.out.is_held(key), "an old name releases nobody");
    }
}

/// It has ended: it would never proceed, and never be given up.
#[test]
fn ending_channel_does_not_pause_its_socket() {
    let (mut it, [key]) = TestShard::running(scripted(|ctx, heard| {
        if let ChannelCall::Ends(_) = heard {
            ctx.carry_out([Effect::Hold]);
            return Outcome::NoReply;
        }
        standard(ctx, heard)
    }))
    .members();
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    assert!(!it.out.is_held(key) && phase(&mut it, key) == Phase::Open);
    it.sends(key, r#"[2,3,"t","phx_join",{}]"#);
    it.sends(key, r#"[4,4,"t","phx_join",{}]"#);
    assert!(!it.out.is_held(key), "the one that was replaced holds nothing either");
}

#[test]
fn closing_socket_stops_waiting() {
    let (mut it, [key]) = test_shard().members();
    it.asks(key, r#"[1,2,"t","enough",{}]"#);
    it.core.close(&mut it.out, key, CloseCode::NORMAL);
    assert_eq!(it.receives(key), ["close 1000 "]);
    assert!(!it.out.is_held(key) && phase(&mut it, key) == Phase::Closing);
}

/// Its socket would never be read again, without notice.
#[test]
fn channel_that_never_becomes_ready_times_out() {
    let (mut it, [key]) = test_shard().members();
    it.asks(key, r#"[1,2,"t","enough",{}]"#);
    it.counts();
    let wait = it.node.config.decision_timeout;
    it.advances(wait - Duration::from_secs(1));
    it.core.tick(&mut it.out);
    assert!(it.out.is_held(key));
    // A sweep may be late by its own interval.
    for _ in 0..100 {
        it.advances(Duration::from_secs(1));
        it.core.tick(&mut it.out);
        if !it.out.is_held(key) {
            break;
        }
    }
    assert_eq!(it.receives(key)[0], r#"[1,1,"t","phx_error",{"reason":"channel_crash"}]"#);
    assert!(it.counts().contains(&"errors_decision_timeout +1".to_owned()));
    assert!(!it.out.is_held(key) && phase(&mut it, key) == Phase::Open);
}

/// While it waits for a join, that has its own timeout.
#[test]
fn socket_waits_for_each_reason_separately() {
    let (mut it, [key]) = TestShard::of(user_socket(|_, payload| match payload.json() {
        Some("\"later\"") => Join::later(async { Join::ok(scripted(standard)) }),
        _ => Join::ok(scripted(|ctx, heard| match heard {
            ChannelCall::Info(_) => {
                ctx.carry_out([Effect::Hold, Effect::Proceed]);
                Outcome::NoReply
            }
            other => standard(ctx, other),
        })),
    }))
    .members();
    let id = it.channel(key);
    it.sends(key, r#"[2,2,"u","phx_join","later"]"#);
    it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
    assert!(it.out.is_held(key) && phase(&mut it, key) == Phase::Waiting);
    it.decides();
    assert!(!it.out.is_held(key));
}
