//! Rows 51–59 of PROTOCOL §14: who gets a broadcast, in which form and order, and what an
//! intercept or a further subscription makes of it.

use serde_json::json;
use wire_tests::{Client, Server, Vsn, both, unique};

/// A client of this serializer that has joined `topic` under `name`.
#[track_caller]
fn member(server: &Server, vsn: Vsn, topic: &str, name: &str) -> Client {
    let mut client = Client::open(server, vsn);
    client.join(topic, json!({"name": name}));
    client
}

/// Row 51. both; two members; broadcast: both get [null,null,t,e,p].
#[test]
fn row_51_a_broadcast_reaches_all_members() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:room");
        let mut sender = member(&server, vsn, &topic, "a");
        let mut other = member(&server, vsn, &topic, "b");
        sender.push(&topic, "bcast", json!({"a": [1, "x"]}));
        for client in [&mut sender, &mut other] {
            let news = client.recv();
            news.expect_broadcast(&topic, "news", json!({"a": [1, "x"]}));
            if vsn == Vsn::V2 {
                let text = format!(r#"[null,null,"{topic}","news",{{"a":[1,"x"]}}]"#);
                assert_eq!(news.raw, text);
            }
            client.expect_quiet();
        }
    });
}

/// Row 52. broadcast_from: not to the sender.
#[test]
fn row_52_broadcast_from_excludes_the_sender() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut sender = member(&server, Vsn::V2, &topic, "a");
    let mut others = [Vsn::V2, Vsn::V1].map(|vsn| member(&server, vsn, &topic, "b"));
    sender.ask(&topic, "bcast_from", json!({"n": 1}), "ok", json!({}));
    for other in &mut others {
        other.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
    }
    sender.expect_quiet();
}

/// Row 53. Other topic / not joined / left; broadcast: nothing.
#[test]
fn row_53_only_members_receive_a_broadcast() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut sender = member(&server, Vsn::V2, &topic, "a");
    let mut elsewhere = member(&server, Vsn::V2, &format!("{topic}:more"), "b");
    let mut unjoined = Client::open(&server, Vsn::V2);
    let mut left = member(&server, Vsn::V2, &topic, "c");
    left.push(&topic, "phx_leave", json!({}));
    assert_eq!(left.recv().replied().status, "ok");
    assert_eq!(left.recv().event, "phx_close");
    left.heartbeat_except("you_left");
    let mut refused = Client::open(&server, Vsn::V2);
    refused.send("1", "1", "test:error", "phx_join", json!({"reason": "no"}));
    assert_eq!(refused.recv().replied().status, "error");

    sender.push(&topic, "bcast", json!({"n": 1}));
    sender.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
    for client in [&mut elsewhere, &mut unjoined, &mut left, &mut refused] {
        client.expect_quiet();
    }
}

/// Row 54. V1 + V2 members; broadcast each way: both hear.
#[test]
fn row_54_v1_and_v2_members_receive_each_others_broadcasts() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut v1 = member(&server, Vsn::V1, &topic, "one");
    let mut v2 = member(&server, Vsn::V2, &topic, "two");
    v1.push(&topic, "bcast", json!({"from": "v1 ü"}));
    for client in [&mut v1, &mut v2] {
        client.recv().expect_broadcast(&topic, "news", json!({"from": "v1 ü"}));
    }
    v2.push(&topic, "bcast", json!({"from": "v2"}));
    for client in [&mut v1, &mut v2] {
        client.recv().expect_broadcast(&topic, "news", json!({"from": "v2"}));
    }
}

/// Row 55. Intercept; broadcast: a payload per member, as push.
#[test]
fn row_55_interceptor_rewrites_the_payload_for_each_member() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut clients = [("ann", Vsn::V2), ("bob", Vsn::V2), ("cid", Vsn::V1)].map(|(name, vsn)| {
        let mut client = Client::open(&server, vsn);
        let join_ref = client.join(&topic, json!({"name": name}));
        (name, client, join_ref)
    });
    clients[0].1.push(&topic, "shout", json!({"text": "hey"}));
    for (name, client, join_ref) in &mut clients {
        let payload = json!({"text": "hey", "to": name});
        client.recv().expect(&**join_ref, (), &topic, "shout", payload);
        client.expect_quiet();
    }
}

/// Row 56. The intercept swallows; broadcast: nothing.
#[test]
fn row_56_interceptor_may_suppress_a_broadcast() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut sender = member(&server, Vsn::V2, &topic, "a");
    let mut other = member(&server, Vsn::V1, &topic, "b");
    sender.ask(&topic, "secret", json!({"text": "psst"}), "ok", json!({}));
    other.expect_quiet();
    sender.expect_quiet();
}

/// Row 57. 1000 broadcasts of one sender: in order everywhere.
#[test]
fn row_57_1000_broadcasts_arrive_in_order() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut sender = member(&server, Vsn::V2, &topic, "a");
    let others = [Vsn::V2, Vsn::V1, Vsn::V2].map(|vsn| member(&server, vsn, &topic, "b"));
    for n in 0..1000 {
        sender.push(&topic, "bcast", json!({"n": n}));
    }
    for mut client in std::iter::once(sender).chain(others) {
        for n in 0..1000 {
            client.recv().expect_broadcast(&topic, "news", json!({"n": n}));
        }
        client.expect_quiet();
    }
}

/// Row 58. A handler pushes, the next replies: the order is kept.
#[test]
fn row_58_pushes_broadcasts_and_replies_keep_their_order() {
    let server = Server::shared_conformance();
    let topic = unique("test:room");
    let mut client = Client::open(&server, Vsn::V2);
    let join_ref = client.join(&topic, json!({}));
    let mut refs = Vec::new();
    for n in 0..50 {
        client.push(&topic, "push_me", json!({"n": n}));
        client.push(&topic, "bcast", json!({"n": n}));
        refs.push(client.push(&topic, "echo", json!({"n": n})));
    }
    for (n, msg_ref) in refs.into_iter().enumerate() {
        client.recv().expect(&*join_ref, (), &topic, "pushed", json!({"n": n}));
        client.recv().expect_broadcast(&topic, "news", json!({"n": n}));
        client.recv().expect_reply(&*join_ref, msg_ref, &topic, "ok", json!({"n": n}));
    }
}

/// Row 59. A channel subscribed elsewhere; broadcast there: relayed on its own topic.
#[test]
fn row_59_broadcasts_of_a_further_topic_reach_the_client() {
    let server = Server::shared_conformance();
    let (own, elsewhere) = (unique("test:own"), unique("test:else"));
    let mut relay = Client::open(&server, Vsn::V2);
    let join_ref = relay.join(&own, json!({}));
    let mut probe = member(&server, Vsn::V2, &own, "by");
    relay.ask(&own, "subscribe", json!({"topic": elsewhere}), "ok", json!({}));
    let mut sender = member(&server, Vsn::V2, &elsewhere, "s");
    sender.push(&elsewhere, "bcast", json!({"n": 1}));
    sender.recv().expect_broadcast(&elsewhere, "news", json!({"n": 1}));
    relay.recv().expect(&*join_ref, (), &own, "news", json!({"n": 1}));
    relay.expect_quiet();
    probe.expect_quiet();
    // With the channel goes its subscription.
    relay.push(&own, "phx_leave", json!({}));
    assert_eq!(relay.recv().replied().status, "ok");
    assert_eq!(relay.recv().event, "phx_close");
    relay.heartbeat_except("you_left");
    sender.push(&elsewhere, "bcast", json!({"n": 2}));
    sender.recv().expect_broadcast(&elsewhere, "news", json!({"n": 2}));
    relay.expect_quiet();
}
