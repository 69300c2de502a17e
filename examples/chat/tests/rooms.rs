//! What the members of a room receive.

use chat::{ANNOUNCE_JOINS_UP_TO, user_socket};
use simurgh::json;
use simurgh_testing::*;

#[test]
fn new_member_is_announced_to_all_members_and_itself() {
    let server = TestServer::start(user_socket());
    let (ann, bob) = (server.connect(()), server.connect(()));
    ann.join("rooms:1", json!({"user": "ann"}));
    assert_push!(ann, "user:entered", == json!({"user": "ann"}));
    // A member without a name is announced without one.
    bob.join("rooms:1", json!([]));
    assert_push!(ann, "user:entered", == json!({"user": null}));
    assert_push!(bob, "user:entered", {"user": null});
}

#[test]
fn message_is_broadcast_unchanged_and_its_body_is_the_reply() {
    let server = TestServer::start(user_socket());
    let (ann, bob, eve) = (server.connect(()), server.connect(()), server.connect(()));
    let room = ann.join("rooms:1", json!({}));
    bob.join("rooms:1", json!({}));
    let elsewhere = eve.join("rooms:2", json!({}));
    let said = json!({"user": "ann", "body": "hi", "colour": [1, 2]});
    assert_reply!(room.push("new:msg", said.clone()), "ok", == json!({"msg": "hi"}));
    assert_push!(ann, "new:msg", == &said);
    assert_push!(bob, "new:msg", == &said);
    refute_push!(elsewhere, "new:msg");
}

#[test]
fn message_without_a_body_is_refused_and_not_broadcast() {
    let room =
        TestServer::start(user_socket()).connect(()).subscribe_and_join("rooms:1", json!({}));
    assert_broadcast!(room, "user:entered");
    for wrong in [json!({"text": "hi"}), json!("hi"), json!(null)] {
        assert_reply!(room.push("new:msg", wrong), "error", {"reason": "a message has a body"});
    }
    assert_reply!(room.push("new:msg", vec![1, 2]), "error");
    refute_broadcast!(room);
}

#[test]
fn unknown_event_ends_only_the_channel_of_its_sender() {
    let server = TestServer::start(user_socket());
    let (ann, bob) = (server.connect(()), server.connect(()));
    let (here, there) = (ann.join("rooms:1", json!({})), bob.join("rooms:1", json!({})));
    let shouted = here.push("shout", json!({}));
    assert_crashed!(here);
    refute_reply!(shouted);
    assert_reply!(there.push("new:msg", json!({"body": "still here"})), "ok");
    // The client may join again at once.
    ann.join("rooms:1", json!({}));
}

#[test]
fn large_rooms_do_not_announce_joins() {
    let server = TestServer::start(user_socket());
    let (first, last) = (server.connect(()), server.connect(()));
    first.join("rooms:1", json!({}));
    for _ in 1..ANNOUNCE_JOINS_UP_TO {
        server.connect(()).join("rooms:1", json!({}));
    }
    server.settle();
    assert_eq!(first.flush().len(), ANNOUNCE_JOINS_UP_TO as usize);
    last.join("rooms:1", json!({"user": "late"}));
    refute_push!(first);
    refute_push!(last);
}

#[test]
fn member_that_joins_with_a_presence_name_is_listed_until_it_leaves() {
    let server = TestServer::start(user_socket());
    let (ann, bob, eve) = (server.connect(()), server.connect(()), server.connect(()));
    ann.join("rooms:1", json!({"user": "ann", "presence": "ann"}));
    assert_push!(ann, "presence_diff", {"joins": {"ann": {"metas": [_]}}, "leaves": {}});
    assert_push!(ann, "presence_state", {"ann": {"metas": [{"phx_ref": _}]}});
    // A member without a name receives the others' announcements, and is not listed.
    for other in [json!({"user": "eve"}), json!({"presence": 7}), json!([])] {
        let room = eve.join("rooms:1", other);
        refute_push!(eve, "presence_state");
        assert_reply!(room.leave(), "ok");
    }
    let room = bob.join("rooms:1", json!({"presence": "bob"}));
    assert_push!(ann, "presence_diff", {"joins": {"bob": _}});
    assert_push!(bob, "presence_state", {"ann": _, "bob": _});
    room.leave();
    assert_push!(ann, "presence_diff", {"joins": {}, "leaves": {"bob": {"metas": [_]}}});
    let refused = eve.try_join("rooms:1", json!({"presence": "x".repeat(300)}));
    assert!(format!("{refused:?}").contains("of 300 bytes is too long"), "{refused:?}");
}
