//! Supabase channels beside others on one user socket, without a network (PROTOCOL §11).

use crate::support::handled;
use serde_json::json;
use simurgh::driver::Options;
use simurgh::supabase::Settings;
use simurgh::{
    ChannelRoute, Outcome, Payload, Serializer, ShardContext, UserBroadcast, UserSocket,
};
use simurgh_testing::{TestServer, assert_closed, assert_push, assert_reply};

/// A Phoenix channel that broadcasts everything it receives.
fn echo(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    ctx.broadcast(event, payload.into_owned());
    Outcome::NoReply
}

fn user_socket() -> UserSocket {
    UserSocket::new("/socket")
        .channel(ChannelRoute::supabase("realtime:*", Settings::default()))
        .channel(handled("rooms:*", echo))
}

fn said(data: &str) -> Payload<'static> {
    Payload::User(UserBroadcast::json("e", data).unwrap())
}

/// A Phoenix client would throw at a frame of kind 4, so other channels must never send one.
#[test]
fn supabase_frames_reach_only_supabase_channels() {
    let long = format!("[{}1]", "1,".repeat(100_000));
    for data in ["1", &long] {
        let mut options = Options::default();
        options.serializer = Some(Serializer::V2);
        let server = TestServer::with(user_socket(), options);
        let (ann, bob) = (server.connect(()), server.connect(()));
        let (here, there) = (ann.join("rooms:a", json!({})), bob.join("rooms:a", json!({})));
        here.push("broadcast", said(data));
        assert_closed!(ann, 1011, timeout_ms = 2_000);
        assert_reply!(there.leave(), "ok", {});
        // Topics that are unknown or not joined are answered as for any other message.
        for topic in ["nobody:a", "realtime:a"] {
            let reply = bob.push(topic, "broadcast", said(data));
            assert_reply!(reply, "error", {"reason": "unmatched topic"}, timeout_ms = 2_000);
        }
        let (cho, one) = (server.connect(()), bob.join("realtime:a", json!({})));
        cho.join("realtime:a", json!({}));
        one.push("broadcast", said(data));
        assert_push!(cho, "broadcast", == said(data), timeout_ms = 2_000);
    }
}

#[test]
fn other_channels_work_beside_supabase() {
    let server = TestServer::start(user_socket());
    let (ann, bob) = (server.connect(()), server.connect(()));
    let rooms = [ann.join("rooms:a", json!({})), bob.join("rooms:a", json!({}))];
    ann.join("realtime:a", json!({}));
    let realtime = bob.join("realtime:a", json!({}));
    rooms[0].push("new_msg", vec![1, 2]);
    for socket in [&ann, &bob] {
        assert_push!(socket, "new_msg", == vec![1, 2]);
    }
    realtime.push("broadcast", json!({"event": "e", "payload": 7}));
    assert_push!(ann, "broadcast", {"event": "e", "payload": 7});
}
