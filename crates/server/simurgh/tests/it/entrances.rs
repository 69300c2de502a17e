//! What a socket may not send, no other entrance passes on either (PROTOCOL §6.3): the publish API,
//! Supabase's, handles in Rust, and channels that pass on what clients send.

use crate::support::raw::{Answer, ask};
use crate::support::{Client, Handles, handled, metric, start};
use serde_json::json;
use simurgh::supabase::Settings;
use simurgh::{
    BroadcastError, ChannelRoute, Endpoint, Join, Outcome, Payload, ShardContext, UserSocket,
    history::History,
};

/// Broadcasts all that it receives, as a careless application does.
fn echo(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    ctx.broadcast(event, payload.into_owned());
    Outcome::ok(json!({}))
}

fn server() -> Endpoint {
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::supabase("realtime:*", Settings::default()))
        .channel(handled("kept:*", echo).history(History::default()))
        .channel(handled("rooms:*", echo));
    let plain = UserSocket::plain("/plain", "plain", |_, _| Join::ok(Handles(echo)));
    let builder = Endpoint::builder().socket(user_socket).socket(plain);
    start(builder.configure(|config| config.api_token = Some("s3cret".into())))
}

fn post(endpoint: &Endpoint, path: &str, body: &str) -> Answer {
    let headers = "authorization: Bearer s3cret\r\ncontent-type: application/json\r\n";
    ask(endpoint.addresses()[0], &format!("POST {path}"), headers, body)
}

fn deep(levels: usize) -> String {
    format!("{{\"a\":{}1{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
}

const RESERVED: [&str; 5] = ["phx_close", "phx_error", "phx_reply", "phx_x", "simurgh:gap"];

#[test]
fn publish_api_refuses_what_sockets_may_not_send() {
    let endpoint = server();
    let mut client = Client::v2(&endpoint);
    client.join("rooms:a");
    client.join("kept:a");
    let (too_deep, long) = (deep(1025), "e".repeat(256));
    let mut wrong: Vec<(&str, &str, &str)> = RESERVED.map(|event| (event, "{}", "reserved")).into();
    wrong.extend([
        ("e", &*too_deep, "nests too deep"),
        ("e", r#"{"a":"\ud800"}"#, "not JSON"),
        ("e", r#"{"a":"\udc00\ud800"}"#, "not JSON"),
        (&long, "{}", "an event of 256 bytes is too long"),
    ]);
    for topic in ["rooms:a", "kept:a"] {
        for (event, payload, says) in &wrong {
            let message =
                format!("{{\"topic\":\"{topic}\",\"event\":\"{event}\",\"payload\":{payload}}}");
            let good = format!("{{\"topic\":\"{topic}\",\"event\":\"e\",\"payload\":{{}}}}");
            let many = format!("{{\"messages\":[{good},{message}]}}");
            for (body, index) in [(&message, 0), (&many, 1)] {
                let answer = post(&endpoint, "/api/broadcast", body);
                assert_eq!(answer.status, 400, "{event}: {answer:?}");
                let said = answer.json();
                let said = said["error"].as_str().unwrap();
                assert!(said.starts_with(&format!("message {index}: ")), "{said}");
                assert!(said.contains(says), "{said}");
            }
        }
    }
    let topic = "t".repeat((16 << 10) + 1);
    let body = json!({"topic": topic, "event": "e", "payload": {}}).to_string();
    assert_eq!(post(&endpoint, "/api/broadcast", &body).status, 400);
    // Nothing of all that was sent or kept, the good messages beside included.
    client.heartbeat();
    let page = simurgh_runtime().block_on(async { endpoint.pubsub().history("kept:a").await });
    assert!(page.unwrap().messages.is_empty());
    let body = json!({"topic": "rooms:a", "event": "presence_diff", "payload": {}}).to_string();
    assert_eq!(post(&endpoint, "/api/broadcast", &body).status, 202);
    assert_eq!(client.recv()[3], "presence_diff", "an application may keep presences itself");
    let body = format!(r#"{{"topic":"rooms:a","event":"e","payload":{}}}"#, deep(1024));
    assert_eq!(post(&endpoint, "/api/broadcast", &body).status, 202);
}

fn simurgh_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn supabase_api_refuses_what_sockets_may_not_send() {
    let endpoint = server();
    for payload in [deep(1025), r#"{"a":"\ud800"}"#.to_owned()] {
        let one = "/realtime/v1/api/broadcast/a/events/e";
        assert_eq!(post(&endpoint, one, &payload).status, 400, "{payload:.20}");
        let message = format!("{{\"topic\":\"a\",\"event\":\"e\",\"payload\":{payload}}}");
        let many = format!("{{\"messages\":[{message}]}}");
        assert_eq!(post(&endpoint, "/realtime/v1/api/broadcast", &many).status, 400);
        assert_eq!(post(&endpoint, "/api/broadcast", &message).status, 400, "by its prefix");
    }
    let reserved = json!({"topic": "realtime:a", "event": "phx_close", "payload": {}});
    assert_eq!(post(&endpoint, "/api/broadcast", &reserved.to_string()).status, 400);
}

#[test]
fn handles_refuse_what_sockets_may_not_send() {
    let endpoint = server();
    let pubsub = endpoint.pubsub();
    for topic in ["rooms:a", "kept:a"] {
        for event in RESERVED {
            let sent = endpoint.broadcast(topic, event, json!({}));
            assert_eq!(sent, Err(BroadcastError::Reserved), "{event}");
            assert_eq!(pubsub.broadcast_local(topic, event, json!({})), sent);
            assert_eq!(pubsub.direct("simurgh", topic, event, json!({})), sent);
        }
        for json in [deep(1025), "{\"a\":\"\\ud800\"}".to_owned(), "nonsense".to_owned()] {
            let sent = pubsub.broadcast(topic, "e", Payload::from_json(json));
            assert!(matches!(sent, Err(BroadcastError::Payload(_))), "{sent:?}");
        }
        let sent = pubsub.broadcast(topic, &"e".repeat(256), json!({}));
        assert_eq!(sent, Err(BroadcastError::EventTooLong(256)));
        assert_eq!(pubsub.broadcast(topic, &"e".repeat(255), json!({})), Ok(()));
    }
    let (long, bytes) = ("t".repeat((16 << 10) + 1), (16 << 10) + 1);
    let sent = pubsub.broadcast(&long, "e", json!({}));
    assert_eq!(sent, Err(BroadcastError::TopicTooLong(bytes)));
    let kept = simurgh_runtime()
        .block_on(async { pubsub.broadcast_kept("kept:a", "phx_close", json!({})).await });
    assert!(kept.unwrap_err().to_string().contains("reserved"));
    assert_eq!(pubsub.broadcast("plain", "text", Payload::from_json("no JSON")), Ok(()));
}

#[test]
fn client_cannot_end_channels_of_others_by_forwarded_events() {
    let endpoint = server();
    let (mut ann, mut bob) = (Client::v2(&endpoint), Client::v2(&endpoint));
    for topic in ["rooms:a", "kept:a"] {
        ann.join(topic);
        bob.join(topic);
        for event in RESERVED {
            bob.push("2", topic, event, json!({}));
            assert_eq!(bob.recv()[3], "phx_reply", "and no broadcast: {event}");
        }
        bob.push("3", topic, "e", json!({}));
        assert_eq!(ann.recv()[3], "e", "the first that it receives");
        assert_eq!([bob.recv(), bob.recv()].map(|it| it[3].clone()), ["e", "phx_reply"]);
    }
    let refused = metric(&endpoint, "simurgh_errors_broadcast_too_big_total");
    assert_eq!(refused, 2 * RESERVED.len() as u64);
}
