//! What the members of a room receive, and which posts are kept.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use posts::{Db, user_socket};
use simurgh::json;
use simurgh_testing::*;
use tempfile::TempDir;

fn start() -> (TestServer, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), ["lobby", "garden"]).unwrap();
    (TestServer::start(user_socket(db)), folder)
}

#[test]
fn post_is_stored_answered_and_sent_to_all_members_of_its_room() {
    let (server, folder) = start();
    let (ann, bob, eve) = (server.connect(()), server.connect(()), server.connect(()));
    let room = ann.join("room:lobby", json!({}));
    bob.join("room:lobby", json!({}));
    let garden = eve.join("room:garden", json!({}));
    assert_reply!(room.push("new_msg", json!({"body": "hi"})), "ok", == json!({"id": 0}));
    assert_push!(ann, "new_msg", == json!({"id": 0, "body": "hi"}));
    assert_push!(bob, "new_msg", {"body": "hi"});
    assert_reply!(room.push("new_msg", json!({"body": "ho"})), "ok", {"id": 21});
    refute_push!(garden);
    let kept = fs::read_to_string(folder.path().join("lobby.jsonl")).unwrap();
    assert_eq!(kept, "{\"id\":0,\"body\":\"hi\"}\n{\"id\":21,\"body\":\"ho\"}\n");
}

#[test]
fn message_of_wrong_shape_gets_the_reason_and_is_not_stored() {
    let (server, folder) = start();
    let room = server.connect(()).subscribe_and_join("room:lobby", json!({}));
    let wrong = json!({"reason": "wrong payload: missing field `body` at line 1 column 13"});
    assert_reply!(room.push("new_msg", json!({"text": "hi"})), "error", == wrong);
    assert_reply!(room.push("new_msg", json!({"body": 7})), "error");
    assert_reply!(room.push("new_msg", vec![1, 2]), "error");
    refute_broadcast!(room);
    assert_eq!(fs::read_to_string(folder.path().join("lobby.jsonl")).unwrap(), "");
}

#[test]
fn only_existing_rooms_can_be_joined() {
    let (server, folder) = start();
    fs::write(folder.path().with_extension("jsonl"), "not a room").unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let socket = server.connect(());
    for room in ["cellar", "", "Lobby", "lobby.jsonl", &format!("../{name}")] {
        let refused = socket.try_join(&format!("room:{room}"), json!({})).unwrap_err();
        assert_eq!(refused.response, json!({"reason": "no such room"}).into(), "{room}");
    }
    fs::remove_file(folder.path().with_extension("jsonl")).unwrap();
}

#[test]
fn database_error_is_not_shown_to_the_client() {
    let (server, folder) = start();
    let room = server.connect(()).subscribe_and_join("room:lobby", json!({}));
    fs::remove_file(folder.path().join("lobby.jsonl")).unwrap();
    let failed = room.push("new_msg", json!({"body": "hi"}));
    assert_reply!(failed, "error", == json!({"reason": "internal error"}));
    refute_broadcast!(room);
}

#[test]
fn an_unknown_event_ends_the_channel() {
    let (server, _folder) = start();
    let room = server.connect(()).join("room:lobby", json!({}));
    room.push("shout", json!({}));
    assert_crashed!(room);
}

/// `docs/CHANNELS.md` shows this program unchanged.
#[test]
fn channels_document_contains_this_program_unchanged() {
    let document = include_str!("../../../docs/CHANNELS.md");
    let shown = format!("```rust,ignore\n{}```\n", include_str!("../src/lib.rs"));
    assert!(document.contains(&shown), "docs/CHANNELS.md is to have src/lib.rs word for word");
}
