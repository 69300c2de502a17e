//! Rows 126–136 of PROTOCOL §14: channels as Supabase has them, byte for byte. Tokens, and what
//! Supabase's own clients make of it, are in `e2e/phoenix-js/supabase.test.mjs`.

use serde_json::{Value, json};
use wire_tests::{Client, Head, Raw, Response, Server, Vsn, both, unique};

/// A member's broadcast, as it stands in a frame behind the refs and the topic.
#[derive(Clone, Copy)]
struct Said<'a> {
    event: &'a str,
    metadata: &'a str,
    /// 1: the data is JSON.
    encoding: u8,
    data: &'a [u8],
}

const CURSOR: Said<'_> =
    Said { event: "cursor", metadata: "", encoding: 1, data: b"{\"x\":1,\"s\":\"\xc3\xbc\"}" };

fn length(field: &str) -> u8 {
    u8::try_from(field.len()).unwrap()
}

/// Kind 3: a member says it.
fn user_push(join_ref: &str, msg_ref: &str, topic: &str, said: Said<'_>) -> Vec<u8> {
    let fields = [join_ref, msg_ref, topic, said.event, said.metadata];
    let mut out = vec![3];
    out.extend(fields.iter().map(|field| length(field)));
    out.push(said.encoding);
    fields.iter().for_each(|field| out.extend_from_slice(field.as_bytes()));
    out.extend_from_slice(said.data);
    out
}

/// Kind 4: a member hears it, without the metadata of its sender.
fn user_broadcast(topic: &str, said: Said<'_>) -> Vec<u8> {
    let mut out = vec![4, length(topic), length(said.event), 0, said.encoding];
    [topic, said.event].iter().for_each(|field| out.extend_from_slice(field.as_bytes()));
    out.extend_from_slice(said.data);
    out
}

fn open(server: &Server, vsn: Vsn) -> Client {
    Client::connect(server, &format!("/realtime/v1/websocket?apikey=anon&vsn={}", vsn.param()))
}

/// Joins; the answer of a channel without changes.
#[track_caller]
fn join(client: &mut Client, topic: &str, config: Value) -> String {
    let join_ref = client.fresh_ref();
    client.send(&*join_ref, &*join_ref, topic, "phx_join", json!({ "config": config }));
    let none = json!({"postgres_changes": []});
    client.recv().expect_reply(&*join_ref, &*join_ref, topic, "ok", none);
    client.remember_join(topic, &join_ref);
    join_ref
}

/// A member of a topic of its own; the topic and the join_ref.
#[track_caller]
fn joined(server: &Server, vsn: Vsn, config: Value) -> (Client, String, String) {
    let mut client = open(server, vsn);
    let topic = unique("realtime:room");
    let join_ref = join(&mut client, &topic, config);
    (client, topic, join_ref)
}

#[track_caller]
fn expect_system(client: &mut Client, join_ref: &str, topic: &str, message: &str) {
    let channel = topic.strip_prefix("realtime:").unwrap();
    let said = json!({"extension": "system", "status": "error", "message": message,
        "channel": channel});
    client.recv().expect(join_ref, (), topic, "system", said);
    client.recv().expect_channel_close(join_ref, topic);
}

/// Row 126. V2; a member's broadcast: kind 3 becomes kind 4, to others, and back with `self`.
#[test]
fn row_126_kind_3_broadcast_reaches_members_as_kind_4() {
    let server = Server::shared_conformance();
    let config = json!({"broadcast": {"self": true, "ack": true}});
    let (mut sender, topic, join_ref) = joined(&server, Vsn::V2, config);
    let mut other = open(&server, Vsn::V2);
    let other_ref = join(&mut other, &topic, json!({"broadcast": {"ack": false}}));
    let long = format!("[\"{}\"]", "x".repeat(100_000));
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 251) as u8).collect();
    for said in [
        CURSOR,
        Said { data: b"null", ..CURSOR },
        Said { event: "", encoding: 0, data: b"", ..CURSOR },
        Said { encoding: 0, data: &[0, 159, 146, 150], ..CURSOR },
        Said { metadata: "{\"id\":\"forged\"}", ..CURSOR },
        Said { data: long.as_bytes(), ..CURSOR },
        Said { encoding: 0, data: &bytes, ..CURSOR },
    ] {
        let msg_ref = sender.fresh_ref();
        sender.send_binary(&user_push(&join_ref, &msg_ref, &topic, said));
        let expected = user_broadcast(&topic, said);
        assert!(sender.recv_binary() == expected, "{} bytes", said.data.len());
        sender.recv().expect_reply(&*join_ref, &*msg_ref, &topic, "ok", json!({}));
        assert!(other.recv_binary() == expected, "{} bytes", said.data.len());
    }
    // Without `self` only the others get it, without `ack` it is not answered.
    other.send_binary(&user_push(&other_ref, "9", &topic, CURSOR));
    assert_eq!(sender.recv_binary(), user_broadcast(&topic, CURSOR));
    other.expect_quiet();
    // Once by hand, so that this test does not share a mistake with its helpers.
    let mut client = open(&server, Vsn::V2);
    client.send(
        "12",
        "12",
        "realtime:by-hand",
        "phx_join",
        json!({"config":
        {"broadcast": {"self": true}}}),
    );
    let none = json!({"postgres_changes": []});
    client.recv().expect_reply("12", "12", "realtime:by-hand", "ok", none);
    client.send_binary(b"\x03\x02\x01\x10\x02\x00\x0112\x37realtime:by-handev[1]");
    assert_eq!(client.recv_binary(), b"\x04\x10\x02\x00\x01realtime:by-handev[1]");
}

/// Row 127. V1 members hear what JSON there is as the event `broadcast`, and V2 hears theirs as
/// text; raw bytes have no form in V1.
#[test]
fn row_127_v1_members_receive_the_json_payload() {
    let server = Server::shared_conformance();
    let (mut sender, topic, join_ref) = joined(&server, Vsn::V2, json!({}));
    let mut old = open(&server, Vsn::V1);
    join(&mut old, &topic, json!({}));
    let long = format!("\"{}\"", "y".repeat(100_000));
    for data in ["{\"x\":[1,2.50]}", "7", &long] {
        let said = Said { event: "e\"v", data: data.as_bytes(), ..CURSOR };
        sender.send_binary(&user_push(&join_ref, "7", &topic, said));
        let data: Value = serde_json::from_str(data).unwrap();
        let payload = json!({"type": "broadcast", "event": "e\"v", "payload": data});
        old.recv().expect_broadcast(&topic, "broadcast", payload);
    }
    let raw = Said { encoding: 0, data: &[1, 2], ..CURSOR };
    sender.send_binary(&user_push(&join_ref, "8", &topic, raw));
    let payload = json!({"type": "broadcast", "event": "n", "payload": {"n": 1}, "more": [1]});
    old.push(&topic, "broadcast", payload.clone());
    sender.recv().expect_broadcast(&topic, "broadcast", payload);
    old.expect_quiet();
}

/// Row 128. Truth values may be texts; what has another shape says nothing.
#[test]
fn row_128_join_config_of_any_shape_is_accepted() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let config = json!({"broadcast": {"self": "true", "ack": "True"}, "private": "false"});
        let (mut client, topic, join_ref) = joined(&server, vsn, config);
        let said = json!({"type": "broadcast", "event": "e", "payload": {}});
        let msg_ref = client.push(&topic, "broadcast", said.clone());
        client.recv().expect_broadcast(&topic, "broadcast", said.clone());
        client.recv().expect_reply(&*join_ref, &*msg_ref, &topic, "ok", json!({}));
        for payload in [
            json!(null),
            json!([]),
            json!("config"),
            json!({"config": 7}),
            json!({"config": {"broadcast": [], "presence": "x", "postgres_changes": {}}}),
            json!({"config": {"broadcast": {"self": 1, "ack": {}}, "private": []}}),
            json!({"config": {"presence": {"key": {}, "enabled": "yes"}}, "access_token": 7}),
        ] {
            let topic = unique("realtime:odd");
            let join_ref = client.fresh_ref();
            client.send(&*join_ref, &*join_ref, &topic, "phx_join", payload);
            let none = json!({"postgres_changes": []});
            client.recv().expect_reply(&*join_ref, &*join_ref, &topic, "ok", none);
            client.push(&topic, "broadcast", said.clone());
            client.expect_quiet();
        }
    });
}

/// Row 129. A frame of kind 3 that is cut short, or whose JSON is none: 1011; so is every such
/// frame on another user socket, and every other kind.
#[test]
fn row_129_malformed_frames_are_closed_with_1011() {
    let server = Server::shared_conformance();
    let said = Said { metadata: "{\"a\":1}", ..CURSOR };
    let whole = user_push("1", "2", "realtime:a", said);
    let fields = whole.len() - said.data.len();
    let mut bad: Vec<Vec<u8>> = (0..fields).map(|end| whole[..end].to_vec()).collect();
    // JSON that is cut short is none.
    bad.extend((fields..whole.len()).map(|end| whole[..end].to_vec()));
    for kind in [1, 2, 4, 5, 255] {
        bad.push(whole.clone());
        *bad.last_mut().unwrap().first_mut().unwrap() = kind;
    }
    for said in [
        Said { metadata: "[]", ..CURSOR },
        Said { metadata: "{", ..CURSOR },
        Said { data: b"{}{}", ..CURSOR },
        Said { data: b"\xff", ..CURSOR },
        Said { data: b"", ..CURSOR },
    ] {
        bad.push(user_push("1", "2", "realtime:a", said));
    }
    let mut long = user_push("1", "2", "realtime:a", CURSOR);
    long.extend_from_slice(&[b' '; 100_000]);
    long.push(b'x');
    bad.push(long);
    for frame in bad {
        let mut client = open(&server, Vsn::V2);
        client.send_binary(&frame);
        assert_eq!(client.expect_close(), 1011, "{} bytes", frame.len());
    }
    let mut client = Client::open(&server, Vsn::V2);
    client.send_binary(&whole);
    assert_eq!(client.expect_close(), 1011, "on a user socket of Phoenix");
    // A whole one for a topic that is not joined is answered.
    let mut client = open(&server, Vsn::V2);
    client.send_binary(&whole);
    client.recv().expect_unmatched("2", "realtime:a");
}

/// Row 130. `realtime:` names no topic; others than `realtime:…` are not served.
#[test]
fn row_130_empty_or_private_topic_name_is_refused() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = open(&server, vsn);
        client.send("1", "1", "realtime:", "phx_join", json!({"config": {}}));
        let why = json!({"reason": "TopicNameRequired: You must provide a topic name"});
        client.recv().expect_reply("1", "1", "realtime:", "error", why);
        client.send("2", "2", "rooms:lobby", "phx_join", json!({}));
        client.recv().expect_unmatched("2", "rooms:lobby");
        // Where nothing says by which tokens, nothing is private.
        client.send("3", "3", "realtime:a", "phx_join", json!({"config": {"private": true}}));
        let why = json!({"reason":
            "Unauthorized: You do not have permissions to read from this Channel topic: a"});
        client.recv().expect_reply("3", "3", "realtime:a", "error", why);
    });
}

/// Row 131. `postgres_changes`: answered in their order with ids, and told; `[]` without.
#[test]
fn row_131_postgres_changes_are_answered_with_ids() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = open(&server, vsn);
        let topic = unique("realtime:changes");
        let one = json!({"event": "*", "schema": "public", "table": "a"});
        let two = json!({"event": "INSERT", "schema": "public", "filter": "id=eq.1"});
        let config = json!({"postgres_changes": [one, null, two, one]});
        client.send("4", "4", &topic, "phx_join", json!({ "config": config }));
        let reply = client.recv();
        let changes = reply.payload["response"]["postgres_changes"].as_array().unwrap();
        let with = |filter: &Value, id: &Value| {
            let mut filter = filter.clone();
            filter["id"] = id.clone();
            filter
        };
        let [first, second, third] = changes.as_slice() else { panic!("{}", reply.raw) };
        assert!(first["id"].is_u64() && second["id"].is_u64() && first["id"] != second["id"]);
        assert_eq!(*first, with(&one, &first["id"]));
        assert_eq!(*second, with(&two, &second["id"]));
        assert_eq!(third, first);
        let system = json!({"extension": "postgres_changes", "status": "ok",
            "message": "Subscribed to PostgreSQL", "channel": topic.replace("realtime:", "")});
        client.recv().expect("4", (), &topic, "system", system);
        let config = json!({"postgres_changes": [7]});
        client.send("5", "5", "realtime:x", "phx_join", json!({ "config": config }));
        let why = json!({"reason": "InvalidJoinPayload: postgres_changes: expected objects"});
        client.recv().expect_reply("5", "5", "realtime:x", "error", why);
        let long = json!({"access_token": "x".repeat(70_000)});
        client.send("6", "6", "realtime:x", "phx_join", long);
        let why = json!({"reason": "InvalidJoinPayload: a join must have at most 65536 bytes"});
        client.recv().expect_reply("6", "6", "realtime:x", "error", why);
    });
}

/// Row 132. Presence: the state of a newcomer that wants it; track, track again, untrack.
#[test]
fn row_132_presence_is_tracked_by_key() {
    let server = Server::shared_conformance();
    both(|vsn| {
        for key in ["ann", "__proto__", "é \u{1f426}"] {
            let config = json!({"presence": {"key": key, "enabled": true}});
            let (mut client, topic, join_ref) = joined(&server, vsn, config);
            client.recv().expect(&*join_ref, (), &topic, "presence_state", json!({}));
            let track =
                |meta: Value| json!({"type": "presence", "event": "track", "payload": meta});
            client.ask(&topic, "presence", track(json!({"n": 1})), "ok", json!({}));
            let diff = client.recv();
            assert_eq!(diff.event, "presence_diff");
            assert_eq!(diff.payload["joins"][key]["metas"][0]["n"], 1, "{}", diff.raw);
            client.ask(&topic, "presence", track(json!({"n": 2})), "ok", json!({}));
            let diff = client.recv();
            let (joins, leaves) = (&diff.payload["joins"][key], &diff.payload["leaves"][key]);
            assert_eq!([&joins["metas"][0]["n"], &leaves["metas"][0]["n"]], [2, 1], "{}", diff.raw);
            let mut other = open(&server, vsn);
            let other_ref = join(&mut other, &topic, json!({"presence": {"enabled": "true"}}));
            let state = other.recv();
            assert_eq!(state.event, "presence_state");
            if vsn == Vsn::V2 {
                assert_eq!(state.join_ref, json!(other_ref), "it is a push");
            }
            assert_eq!(state.payload[key]["metas"][0]["n"], 2, "{}", state.raw);
            client.ask(&topic, "presence", json!({"event": "UNTRACK"}), "ok", json!({}));
            assert_eq!(client.recv().payload["leaves"][key]["metas"][0]["n"], 2);
        }
        // A member that does not want the list is not sent it, and gets a key of its own.
        let config = json!({"presence": {"key": ""}});
        let (mut client, topic, _) = joined(&server, vsn, config);
        client.ask(&topic, "presence", json!({"event": "track"}), "ok", json!({}));
        let diff = client.recv();
        let keys: Vec<&String> = diff.payload["joins"].as_object().unwrap().keys().collect();
        assert!(keys.len() == 1 && keys[0].len() == 36, "{}", diff.raw);
    });
}

/// Row 133. A payload that is not a presence is refused, and no member hears of it.
#[test]
fn row_133_invalid_presence_payloads_are_refused() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, join_ref) = joined(&server, vsn, json!({}));
        for meta in [json!(null), json!([]), json!("x"), json!(7)] {
            let track = json!({"event": "track", "payload": meta});
            let why = json!({"reason": "Presence track payload must be a map"});
            client.ask(&topic, "presence", track, "error", why);
        }
        for payload in [json!(null), json!([1]), json!({"event": 7})] {
            let why = json!({"reason": "Presence payload must be a map"});
            client.ask(&topic, "presence", payload, "error", why);
        }
        let why = json!({"reason": "Unknown presence event"});
        client.ask(&topic, "presence", json!({"event": "dance"}), "error", why);
        client.ask(&topic, "presence", json!({}), "ok", json!({}));
        client.ask(&topic, "presence", json!({"event": "untrack"}), "ok", json!({}));
        client.expect_quiet();
        let long = json!({"event": "track", "payload": {"x": "x".repeat(5_000)}});
        client.push(&topic, "presence", long);
        expect_system(&mut client, &join_ref, &topic, "Track message size exceeded");
    });
}

/// Row 134. `access_token`, and events that are not known: silence.
#[test]
fn row_134_access_token_and_unknown_events_get_no_reply() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn, json!({"broadcast": {"ack": true}}));
        for payload in [json!({"access_token": "x"}), json!({"access_token": null}), json!(null)] {
            client.push(&topic, "access_token", payload);
        }
        client.push(&topic, "new:msg", json!({}));
        client.push(&topic, "presence_diff", json!({}));
        client.heartbeat();
        let why = json!({"reason": "wrong_payload"});
        for payload in [json!(null), json!([1]), json!("x")] {
            client.ask(&topic, "broadcast", payload, "error", why.clone());
        }
        if vsn == Vsn::V2 {
            client.push_binary(&topic, "broadcast", b"{}");
            assert_eq!(client.recv().payload["response"], why);
        }
    });
}

/// Row 135. Limits say so: an error to who asked for `ack`, or a `system` message and the end.
#[test]
fn row_135_exceeded_limits_are_reported() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = open(&server, vsn);
        let topic = unique("realtime:small-");
        let join_ref = join(&mut client, &topic, json!({"broadcast": {"ack": true}}));
        let long = json!({"event": "e", "payload": "x".repeat(1_000)});
        let why = json!({"reason": "payload_size_exceeded"});
        client.ask(&topic, "broadcast", long, "error", why);
        for _ in 0..10 {
            client.push(&topic, "access_token", json!({}));
        }
        expect_system(&mut client, &join_ref, &topic, "Too many messages per second");
    });
}

/// Row 136. A back end broadcasts by HTTP, with topics without `realtime:`.
#[test]
fn row_136_back_end_broadcasts_by_http() {
    let server = Server::conformance().args("--api-token secret").start();
    let (mut new, topic, _) = joined(&server, Vsn::V2, json!({}));
    let mut old = open(&server, Vsn::V1);
    join(&mut old, &topic, json!({}));
    let name = topic.strip_prefix("realtime:").unwrap();
    let messages = json!({"messages": [
        {"topic": name, "event": "a", "payload": {"n": 1}, "private": false},
        {"topic": name, "event": "b", "payload": {"n": 2}},
    ]});
    for path in ["/realtime/v1/api/broadcast", "/api/broadcast"] {
        assert_eq!(post(&server, path, "application/json", messages.to_string()).status, 202);
        for client in [&mut new, &mut old] {
            for (event, n) in [("a", 1), ("b", 2)] {
                let payload = json!({"type": "broadcast", "event": event, "payload": {"n": n}});
                client.recv().expect_broadcast(&topic, "broadcast", payload);
            }
        }
        let one = format!("{path}/{name}/events/cursor");
        assert_eq!(post(&server, &one, "application/json", "[1, 2]").status, 202);
        let said = Said { data: b"[1,2]", ..CURSOR };
        assert_eq!(new.recv_binary(), user_broadcast(&topic, said));
        let payload = json!({"type": "broadcast", "event": "cursor", "payload": [1, 2]});
        old.recv().expect_broadcast(&topic, "broadcast", payload);
        let raw = Said { encoding: 0, data: &[0, 255], ..CURSOR };
        assert_eq!(post(&server, &one, "application/octet-stream", [0, 255]).status, 202);
        assert_eq!(new.recv_binary(), user_broadcast(&topic, raw));
        assert_eq!(post(&server, &one, "text/plain", "x").status, 415);
        assert_eq!(post(&server, &one, "application/json", "{").status, 400);
    }
    let path = "/realtime/v1/api/broadcast";
    for (body, status) in [
        ("{", 400),
        ("{}", 422),
        (r#"{"messages":[{"topic":"a","event":"e"}]}"#, 422),
        (r#"{"messages":[{"topic":"","event":"e","payload":{}}]}"#, 422),
        (r#"{"messages":[{"topic":"a","event":"e","payload":7}]}"#, 422),
    ] {
        assert_eq!(post(&server, path, "application/json", body).status, status, "{body}");
    }
    let head = Head::new("POST", path).set("connection", "close");
    assert_eq!(server.http(&head, "").status, 401);
    old.expect_quiet();
    new.expect_quiet();
}

fn post(server: &Server, path: &str, kind: &str, body: impl AsRef<[u8]>) -> Response {
    let body = body.as_ref();
    let head = Head::new("POST", path)
        .set("content-type", kind)
        .set("authorization", "Bearer secret")
        .set("content-length", &body.len().to_string())
        .set("connection", "close");
    let mut raw = Raw::connect(server.addr());
    raw.send(head.text().as_bytes());
    raw.send(body);
    raw.answer()
}
