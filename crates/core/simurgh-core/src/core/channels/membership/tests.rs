//! Subscriptions of channels to further topics (PROTOCOL row 59), and what counts as a channel.

use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::*;

const CLOSED: &str = r#"[1,1,"t","phx_close",{}]"#;
const BYE: &str = r#"[1,null,"t","you_left",{}]"#;

fn relayed(json: &str) -> String {
    format!(r#"[1,null,"t","news",{json}]"#)
}

fn news(topic: &str, json: &str) -> String {
    format!(r#"[null,null,"{topic}","news",{json}]"#)
}

#[test]
fn channel_receives_its_further_topics() {
    let (mut it, [key]) = TestShard::new().members();
    it.sends(key, r#"[1,2,"t","subscribe","u"]"#);
    assert_eq!(it.counts(), ["topics +1", "subscriptions +1"], "that is no channel");
    assert_eq!(it.out.peer(key).socket.channels(), 1);
    assert_eq!(it.delivers("u", "news", "1").receives(key), [relayed("1")]);
    assert_eq!(it.counts(), ["messages_out +1", "broadcasts +1"], "a push, and no delivery");
    it.sends(key, r#"[1,3,"u","echo",{}]"#);
    assert_eq!(it.receives(key), [refused("null", 3, "u", "unmatched topic")]);
}

#[test]
fn channel_subscribes_to_a_topic_once() {
    let (mut it, [key]) = TestShard::new().members();
    it.sends(key, r#"[1,2,"t","subscribe","u"]"#);
    it.counts();
    it.sends(key, r#"[1,3,"t","subscribe","u"]"#);
    assert!(it.counts().is_empty());
    assert_eq!(it.delivers("u", "news", "1").receives(key), [relayed("1")]);
}

#[test]
fn unsubscribed_channel_receives_nothing_more() {
    let (mut it, [key]) = TestShard::new().members();
    for topic in ["u", "v"] {
        it.sends(key, &format!(r#"[1,2,"t","subscribe","{topic}"]"#));
    }
    it.counts();
    it.sends(key, r#"[1,3,"t","unsubscribe","u"]"#);
    assert_eq!(it.counts(), ["topics -1", "subscriptions -1"]);
    it.sends(key, r#"[1,3,"t","unsubscribe","u"]"#);
    it.sends(key, r#"[1,3,"t","unsubscribe","t"]"#);
    assert!(it.counts().is_empty(), "its own topic is not a further one");
    it.broadcasts("u", "news", "1");
    assert_eq!(it.delivers("v", "news", "2").receives(key), [relayed("2")]);
}

/// Each channel's own, whatever else its socket has.
#[test]
fn further_topics_end_only_with_their_channel() {
    let mut it = TestShard::new();
    let key = it.joined(&["t", "w"]);
    for (topic, further) in [("t", "u"), ("w", "u"), ("t", "v")] {
        it.sends(key, &format!(r#"[1,2,"{topic}","subscribe","{further}"]"#));
    }
    it.counts();
    assert_eq!(it.asks(key, r#"[1,3,"t","phx_leave",{}]"#), [&*ok(1, 3, "t", "{}"), CLOSED, BYE]);
    let changes = ["channels -1", "topics -2", "subscriptions -3", "messages_out +3"];
    assert_eq!(it.counts(), changes);
    assert_eq!(it.delivers("u", "news", "1").receives(key), [r#"[1,null,"w","news",1]"#]);
    it.sends(key, r#"[1,3,"w","stop",{}]"#);
    assert_eq!(it.core.metrics().subscriptions.value(), 0);
    assert_eq!(it.core.metrics().topics.value(), 0);
    assert_eq!(it.core.ended(), 5);
}

/// The channel that replaces another must make its own subscriptions.
#[test]
fn rejoin_removes_further_topics() {
    let (mut it, [key]) = TestShard::new().members();
    it.sends(key, r#"[1,2,"t","subscribe","u"]"#);
    it.asks(key, r#"[2,2,"t","phx_join",{}]"#);
    it.delivers("u", "news", "1");
    assert!(it.receives(key).is_empty());
}

/// A channel that is subscribed to its own topic is still the sender.
#[test]
fn relay_is_excluded_with_its_channel() {
    let (mut it, [key, other]) = TestShard::new().members();
    it.sends(key, r#"[1,2,"t","subscribe","t"]"#);
    it.sends(other, r#"[1,2,"t","subscribe","t"]"#);
    it.sends(key, r#"[1,3,"t","bcast_from",1]"#);
    assert!(it.receives_all(key).is_empty());
    let mut said = it.receives(other);
    said.sort();
    assert_eq!(said, [relayed("1"), news("t", "1")], "as a member, and as one subscribed");
    it.sends(key, r#"[1,3,"t","bcast",2]"#);
    it.fans_out();
    let mut said = it.receives(key);
    said.sort();
    assert_eq!(said, [relayed("2"), news("t", "2")]);
}

/// Its effects for a broadcast on a further topic follow the earlier broadcasts of its own topic.
#[test]
fn relayed_broadcast_ends_a_channel_that_panics() {
    let (mut it, [key]) = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::Broadcast(it) if it.event() == "stop" => {
            assert_eq!((it.topic(), it.payload()), ("u", &Payload::NULL));
            ctx.push("pushed", Payload::NULL);
            Outcome::Stop(Stop::Normal)
        }
        other => standard(ctx, other),
    }))
    .members();
    it.sends(key, r#"[1,2,"t","subscribe","u"]"#);
    it.broadcasts("u", "stop", "null");
    it.broadcasts("u", "news", "1");
    it.delivers("t", "news", "2");
    let pushed = r#"[1,null,"t","pushed",null]"#.to_owned();
    assert_eq!(it.receives(key), [news("t", "2"), pushed, CLOSED.into(), BYE.into()]);
    assert_eq!((it.node.charged(0), it.core.metrics().topics.value()), (0, 0));
    let asked = Callback::HandleBroadcast;
    assert_eq!(it.node.log().callbacks.iter().filter(|it| **it == asked).count(), 1);
}

#[test]
fn further_topics_and_ids_are_not_channels() {
    let user_socket = UserSocket { channels_max: 1, ..scripted(standard).user_socket() };
    let mut it = TestShard::of(user_socket);
    let key = it.opens_as(Wire::V2, "id");
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    it.sends(key, r#"[1,2,"t","subscribe","u"]"#);
    it.sends(key, r#"[1,3,"id","phx_leave",{}]"#);
    it.sends(key, r#"[1,4,"u","phx_leave",{}]"#);
    let answers = [ok(1, 1, "t", "{}"), ok(1, 3, "id", "{}"), ok(1, 4, "u", "{}")];
    assert_eq!(it.receives(key), answers, "those topics are not joined");
    let socket = it.out.socket(key).unwrap();
    let topics: Vec<_> = it.core.topics_of(socket).map(|it| it.to_string()).collect();
    assert_eq!((topics, socket.channels()), (vec!["t".to_owned()], 1));
    assert_eq!(it.core.registry().channels_of(socket.list).len(), 1);
    it.disconnects(key);
    assert_eq!(it.core.metrics().subscriptions.value(), 0);
}
