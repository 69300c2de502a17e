//! Interceptors that end by what they receive, and what is sent before that.

use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use super::{BYE, CLOSED, CRASHED, heard, interceptor, pushed};
use crate::testing::*;
use crate::*;

/// An interceptor that stops or crashes over a broadcast gets no more of them.
#[test]
fn interceptor_can_stop_in_handle_out() {
    for (how, last) in [("\"stop\"", CLOSED), ("\"crash\"", CRASHED)] {
        let (mut it, [key]) = TestShard::running(interceptor()).members();
        it.broadcasts("t", "shout", how);
        it.broadcasts("t", "shout", "2");
        assert_eq!(it.delivers("t", "news", "3").receives(key), [&*heard(how), last, BYE]);
        assert_eq!(it.core.metrics().topics.value(), 0);
        assert_eq!(it.node.charged(0), 0);
    }
}

/// The same before another message: that was due, and nothing may follow the notice (PROTOCOL §6).
/// It ends once, for the first reason, and sees nothing more.
#[test]
fn stopping_interceptor_sends_pending_messages_first() {
    let answer = ok(1, 2, "t", "{}");
    for (event, due) in [
        ("stop_reply", Some(&answer)),
        ("echo", Some(&answer)),
        ("push_me", Some(&pushed("{}"))),
        ("stop_bad", None),
        ("crash", None),
    ] {
        for (how, notice) in [("\"stop\"", CLOSED), ("\"crash\"", CRASHED)] {
            let (mut it, [key]) = TestShard::running(interceptor()).members();
            it.broadcasts("t", "shout", how);
            it.broadcasts("t", "shout", "2");
            it.broadcasts("t", "news", "3");
            it.sends(key, &format!(r#"[1,2,"t","{event}",{{}}]"#));
            let said = [Some(&heard(how)), due, Some(&notice.into()), Some(&BYE.into())];
            let said: Vec<&String> = said.into_iter().flatten().collect();
            assert_eq!(it.receives(key).iter().collect::<Vec<_>>(), said, "{event} {how}");
            assert!(it.core.history_waits() == 0);
            it.sends(key, r#"[1,4,"t","phx_join",{}]"#);
            assert_eq!(it.receives_all(key), [ok(1, 4, "t", "{}")], "nothing of it is left");
            assert_eq!(it.core.metrics().channels.value(), 1);
        }
    }
}

/// Its own effects may end it: all effects of the callback are carried out before.
#[test]
fn channel_that_ends_by_its_own_broadcast_sends_everything_before() {
    let (notes, told) = Notes::shared();
    let channel = scripted(move |ctx, heard| match heard {
        ChannelCall::Out(..) => Outcome::Stop(Stop::Normal),
        ChannelCall::In(event, _) => {
            ctx.broadcast("shout", Payload::NULL);
            ctx.push("pushed", Payload::from_json("1"));
            ctx.broadcast("shout", Payload::NULL);
            ctx.broadcast("news", Payload::NULL);
            ctx.push("pushed", Payload::from_json("2"));
            if event == "close" {
                ctx.close_socket(CloseCode::POLICY);
            }
            Outcome::ReplyAndStop(Reply::ok(Payload::NULL), Stop::Abnormal)
        }
        ChannelCall::Info(_) => {
            ctx.broadcast("shout", Payload::NULL);
            ctx.push("pushed", Payload::from_json("1"));
            Outcome::NoReply
        }
        ChannelCall::Ends(reason) => told.of_call(format!("{reason:?}")),
        _ => Outcome::NoReply,
    });
    let (mut it, [key]) = TestShard::running(channel.clone().intercepting(&["shout"])).members();
    it.sends(key, r#"[1,2,"t","all",{}]"#);
    assert_eq!(it.receives(key), [pushed("1"), pushed("2"), ok(1, 2, "t", "null"), CLOSED.into()]);
    let key = it.joined(&["t"]);
    it.sends(key, r#"[1,2,"t","close",{}]"#);
    assert_eq!(it.receives(key), [&*pushed("1"), &*pushed("2"), CLOSED, "close 1008 "]);
    let key = it.joined(&["t"]);
    let id = it.channel(key);
    it.core.mail(&mut it.out, Mail::ToChannel(id, info(())));
    assert_eq!(it.receives(key), [pushed("1"), CLOSED.into()]);
    let key = it.joined(&["t"]);
    let id = it.channel(key);
    it.broadcasts("t", "shout", "0");
    let push = ToChannel::Push("pushed".into(), Payload::from_json("1"));
    it.core.mail(&mut it.out, Mail::ToChannel(id, push));
    assert_eq!(it.receives(key), [pushed("1"), CLOSED.into()]);
    assert_eq!(notes.take(), ["Stopped(Normal)"; 4]);
    assert!(it.core.history_waits() == 0);
    let joining = channel.intercepting(&["shout"]);
    let (mut it, key) = TestShard::of(user_socket(move |ctx, _| {
        ctx.broadcast("shout", Payload::NULL);
        ctx.push("pushed", Payload::from_json("1"));
        Join::ok(joining.clone())
    }))
    .opened();
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    assert_eq!(it.receives(key), [ok(1, 1, "t", "{}"), pushed("1"), CLOSED.into()]);
    assert_eq!(notes.take(), ["Stopped(Normal)"]);
    it.fans_out();
    assert_eq!(it.core.metrics().topics.value(), 0);
}
