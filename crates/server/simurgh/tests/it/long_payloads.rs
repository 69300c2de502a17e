//! Long payloads, which are not copied into their frames, arrive like short ones.

use crate::support::{Client, Handles, start};
use serde_json::{Value, json};
use simurgh::declared::{self, ChannelSpec, Defaults};
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
};

/// Empty, the longest that are copied, longer, and much longer.
const LENGTHS: [usize; 5] = [0, 65_534, 65_535, 65_536, 3_000_000];

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    let payload = payload.into_owned();
    match event {
        "all" => ctx.broadcast("news", &payload),
        "me" => ctx.push("news", &payload),
        "text" | "binary" => ctx.push(event, &payload),
        _ => return Outcome::ok(payload),
    }
    Outcome::NoReply
}

/// Receives each broadcast in `handle_out`.
struct Interceptor;

impl ShardChannel for Interceptor {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }

    fn intercept(&self) -> &'static [&'static str] {
        &["seen"]
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        ctx.push(event, payload);
        Outcome::NoReply
    }
}

fn server() -> Endpoint {
    let join = |ctx: &mut ShardContext<'_>, payload: Payload<'_>| {
        if payload.json() == Some(r#"{"intercept":true}"#) {
            return Join::ok(Interceptor);
        }
        ctx.push("joined", &payload);
        Join::ok(Handles(room)).reply(payload.into_owned())
    };
    let plain = UserSocket::plain("/plain", "echo", |_, _| Join::ok(Handles(room)));
    start(
        Endpoint::builder()
            .socket(UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", join)))
            .socket(plain),
    )
}

fn v1(endpoint: &Endpoint) -> Client {
    Client::connect(endpoint.addresses()[0], "/socket/websocket")
}

fn v1_message(client: &mut Client, event: &str, payload: &Value) {
    client.send(json!({
        "topic": "rooms:a", "event": event, "payload": payload, "ref": "2", "join_ref": "1"
    }));
}

#[test]
fn long_payloads_arrive_in_every_serializer() {
    let endpoint = server();
    for bytes in LENGTHS {
        // Not ASCII: must not be split within a character.
        let body = json!({"body": "é".repeat(bytes / 2)});
        let mut v2 = Client::v2(&endpoint);
        v2.send(json!(["1", "1", "rooms:a", "phx_join", body]));
        let joined = json!({"status": "ok", "response": body});
        assert_eq!(v2.recv(), json!(["1", "1", "rooms:a", "phx_reply", joined]));
        assert_eq!(v2.recv(), json!(["1", null, "rooms:a", "joined", body]));
        let mut seer = Client::v2(&endpoint);
        seer.send(json!(["1", "1", "rooms:a", "phx_join", {"intercept": true}]));
        seer.recv();
        let mut old = v1(&endpoint);
        v1_message(&mut old, "phx_join", &body);
        assert_eq!(old.recv()["payload"], joined);
        assert_eq!(old.recv()["payload"], body);

        v1_message(&mut old, "all", &body);
        let news = json!({"topic": "rooms:a", "event": "news", "payload": body, "ref": null});
        assert_eq!(old.recv(), news);
        for client in [&mut v2, &mut seer] {
            assert_eq!(client.recv(), json!([null, null, "rooms:a", "news", body]));
        }
        v2.push("7", "rooms:a", "echo", body.clone());
        assert_eq!(v2.recv(), json!(["1", "7", "rooms:a", "phx_reply", joined]));
        v2.push("8", "rooms:a", "me", body.clone());
        assert_eq!(v2.recv(), json!(["1", null, "rooms:a", "news", body]));
        for seen in ["seen", "other"] {
            endpoint.broadcast("rooms:a", seen, body.clone()).unwrap();
            let join_ref = if seen == "seen" { json!("1") } else { json!(null) };
            assert_eq!(seer.recv(), json!([join_ref, null, "rooms:a", seen, body]));
            assert_eq!(v2.recv(), json!([null, null, "rooms:a", seen, body]));
            assert_eq!(old.recv()["payload"], body);
        }
        v2.heartbeat();
        seer.heartbeat();
    }
}

#[test]
fn declared_channels_select_fields_of_long_payloads() {
    let spec = json!({
        "topic": "rooms:*",
        "message_bytes_max": 10_000_000,
        "join_reply": {"you": "$user", "none": "$none"},
        "event": [{
            "name": "new:msg",
            "broadcast": "all",
            "payload": {"text": "$body", "by": "$user"},
            "reply": {"msg": "$body"},
        }],
    });
    let spec: ChannelSpec = serde_json::from_value(spec).unwrap();
    let user_socket = declared::user_socket("/socket", &[spec], Defaults::default()).unwrap();
    let endpoint = start(Endpoint::builder().socket(user_socket));
    for bytes in LENGTHS {
        let body = "\\\"[{".repeat(bytes / 4);
        let mut client = Client::v2(&endpoint);
        client.send(json!(["1", "1", "rooms:a", "phx_join", {"body": body, "user": [body, 1]}]));
        let joined = json!({"status": "ok", "response": {"you": [body, 1], "none": null}});
        assert_eq!(client.recv(), json!(["1", "1", "rooms:a", "phx_reply", joined]));
        client.push("2", "rooms:a", "new:msg", json!({"x": [body], "body": body}));
        let reply = json!({"status": "ok", "response": {"msg": body}});
        let news = json!([null, null, "rooms:a", "new:msg", {"text": body, "by": null}]);
        assert_eq!(client.recv(), news);
        assert_eq!(client.recv(), json!(["1", "2", "rooms:a", "phx_reply", reply]));
    }
}
