//! Rows 106–108 of PROTOCOL §14: the chat of the 2015 Phoenix benchmark. Each test has a server of
//! its own, because the room's name is given.

use serde_json::json;
use wire_tests::{Client, Server, Vsn, both};

const LOBBY: &str = "rooms:lobby";

/// Row 106. Chat; join rooms:lobby: user:entered to others, push join.
#[test]
fn row_106_join_is_announced_and_newcomer_gets_a_welcome() {
    let server = Server::conformance().start();
    both(|vsn| {
        let mut first = Client::open(&server, vsn);
        let join_ref = first.join(LOBBY, json!({"user": "ann"}));
        // Broadcast before the push, and the newcomer is a member already.
        first.recv().expect_broadcast(LOBBY, "user:entered", json!({"user": "ann"}));
        first.recv().expect(join_ref, (), LOBBY, "join", json!({"status": "connected"}));
        let mut second = Client::open(&server, vsn);
        let join_ref = second.join(LOBBY, json!({"user": "bob"}));
        first.recv().expect_broadcast(LOBBY, "user:entered", json!({"user": "bob"}));
        second.recv().expect_broadcast(LOBBY, "user:entered", json!({"user": "bob"}));
        second.recv().expect(join_ref, (), LOBBY, "join", json!({"status": "connected"}));
        first.expect_quiet();
        second.expect_quiet();
        for client in [&mut first, &mut second] {
            client.push(LOBBY, "phx_leave", json!({}));
            assert_eq!(client.recv().replied().status, "ok");
        }
    });
}

/// Row 107. both; the literal V1 join text of that benchmark; new:msg: broadcast + reply {msg}.
#[test]
fn row_107_messages_of_the_2015_benchmark_are_accepted() {
    let server = Server::conformance().start();
    let mut listener = Client::open(&server, Vsn::V2);
    listener.join(LOBBY, json!({"user": "listener"}));
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        client.send_text(match vsn {
            Vsn::V1 => {
                "{\"topic\":\"rooms:lobby\", \"event\":\"phx_join\", \"payload\":\n\
                 {\"user\":\"1\"}, \"ref\":\"1\"}"
            }
            Vsn::V2 => "[null, \"1\", \"rooms:lobby\", \"phx_join\",\n{\"user\":\"1\"}]",
        });
        client.recv().expect_reply((), "1", LOBBY, "ok", json!({}));
        client.recv().expect_broadcast(LOBBY, "user:entered", json!({"user": "1"}));
        assert_eq!(client.recv().event, "join");

        let message = json!({"user": "1", "body": "Grüße, \"all\""});
        client.send((), "2", LOBBY, "new:msg", message.clone());
        client.recv().expect_broadcast(LOBBY, "new:msg", message.clone());
        let reply = client.recv();
        assert_eq!(reply.msg_ref, json!("2"));
        let replied = reply.replied();
        assert_eq!((&*replied.status, &replied.response["msg"]), ("ok", &message["body"]));
        assert_eq!(replied.response, json!({"msg": message["body"]}));
        let heard = loop {
            let heard = listener.recv();
            if heard.event == "new:msg" {
                break heard;
            }
        };
        heard.expect_broadcast(LOBBY, "new:msg", message);
    });
}

/// Row 108. Chat; join rooms:private1: error unauthorized.
#[test]
fn row_108_private_rooms_are_refused() {
    let server = Server::conformance().start();
    let mut client = Client::open(&server, Vsn::V2);
    for room in ["rooms:private1", "rooms:private", "rooms:private:a"] {
        let msg_ref = client.fresh_ref();
        client.send(&*msg_ref, &*msg_ref, room, "phx_join", json!({"user": "x"}));
        let reason = json!({"reason": "unauthorized"});
        client.recv().expect_reply(&*msg_ref, &*msg_ref, room, "error", reason);
    }
    client.expect_quiet();
}
