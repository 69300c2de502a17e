//! What the members of a room receive.

use chat::{ANNOUNCE_JOINS_UP_TO, user_socket};
use simurgh::json;
use simurgh_testing::*;

#[test]
fn all_members_hear_who_enters_and_the_newcomer_too() {
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
fn what_is_said_is_passed_on_as_it_came_and_its_body_is_answered() {
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
fn a_message_without_a_body_is_refused_and_nobody_hears_it() {
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
fn an_unknown_event_ends_the_channel_for_who_sent_it() {
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
fn large_rooms_announce_nobody() {
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
fn who_joins_with_a_name_for_it_is_present_until_it_leaves() {
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
