//! Bugs that were found by reading, each with the test that showed it.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::raw::Raw;
use crate::support::{Client, WAIT_MAX, metric, start, until};
use serde_json::{Value, json};
use simurgh::{
    Builder, ChannelRoute, Connect, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext,
    ShardHandleInfo, UserSocket,
};
use tungstenite::Message;

struct Room;

/// Its drop, which is application code, panics.
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        panic!("drop");
    }
}

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "all" => ctx.broadcast("news", &payload),
            "two" => {
                ctx.broadcast("intercepted", &payload);
                ctx.broadcast("second", &payload);
            }
            "count" => ctx.broadcast("count", &payload),
            "tick" => ctx.broadcast("tick", &payload),
            "late_info" => {
                let handle = ctx.handle::<Self>();
                ctx.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    handle.send(Mine);
                });
            }
            "disconnect" => ctx.disconnect("me"),
            _ => return Outcome::ok(&payload),
        }
        Outcome::NoReply
    }
}

impl ShardHandleInfo<Mine> for Room {
    fn handle_info(&mut self, _: &mut ShardContext<'_>, message: Mine) -> Outcome {
        std::mem::forget(message);
        Outcome::NoReply
    }
}

struct Interceptor;

impl ShardChannel for Interceptor {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        Room.handle_in(ctx, event, payload)
    }

    fn intercept(&self) -> &'static [&'static str] {
        &["intercepted", "count", "tick"]
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        let Payload::Json(text) = payload else { return Outcome::NoReply };
        let n = serde_json::from_str::<Value>(text).unwrap()["n"].as_u64().unwrap_or(0);
        if event == "intercepted" {
            ctx.broadcast("third", payload);
        } else if n > 0 {
            ctx.broadcast(event, json!({"n": n - 1}));
        }
        match event {
            "tick" => std::thread::sleep(Duration::from_micros(200)),
            _ => ctx.push(event, payload),
        }
        Outcome::NoReply
    }
}

struct Undecided;

impl ShardChannel for Undecided {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        Outcome::ok(&payload)
    }

    fn intercept(&self) -> &'static [&'static str] {
        panic!("intercept")
    }
}

struct Fragile(#[allow(dead_code, reason = "only its drop matters")] Mine);

impl ShardChannel for Fragile {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

fn join(ctx: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    match ctx.subtopic() {
        "intercepts" => Join::ok(Interceptor),
        "undecided" => Join::ok(Undecided),
        "later" => Join::later(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Join::ok(Fragile(Mine))
        }),
        "refused" => {
            ctx.broadcast_to("rooms:a", "news", json!({"refused": true}));
            Join::error(json!({"reason": "no"}))
        }
        _ => Join::ok(Room),
    }
}

fn builder() -> Builder {
    let user_socket = UserSocket::new("/socket")
        .connect_on_shard(|info| match info.param("slow") {
            Some(_) => Connect::later(async {
                tokio::time::sleep(WAIT_MAX).await;
                Connect::ok()
            }),
            None => Connect::ok().maybe_id(info.param("id")),
        })
        .channel(ChannelRoute::on_shard("rooms:*", join));
    Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1)
}

/// The cached bytes of a fan-out were found by topic and numbers. A topic in the slot of a closed
/// one began with the same numbers, and its members received the other's messages.
#[test]
fn reused_topic_slot_sends_no_old_broadcasts() {
    let endpoint = start(builder());
    let mut busy = Client::v2(&endpoint);
    busy.join("rooms:intercepts");
    let mut client = Client::v2(&endpoint);
    client.join("rooms:hub");
    busy.push("2", "rooms:intercepts", "tick", json!({"n": 3000}));
    for n in 0..20 {
        let topic = format!("rooms:{n}");
        client.join(&topic);
        client.push("2", &topic, "all", json!({"secret of": n}));
        let expected = json!([null, null, topic, "news", {"secret of": n}]);
        assert_eq!(client.recv(), expected);
        client.push("3", &topic, "phx_leave", json!({}));
        assert_eq!(client.recv()[3], "phx_reply");
        assert_eq!(client.recv()[3], "phx_close");
    }
}

/// Each push in `handle_out` called `handle_out` recursively for what had been broadcast meanwhile,
/// until the shard's stack overflowed and the process ended.
#[test]
fn interceptor_that_broadcasts_does_not_nest() {
    const ROUNDS: u64 = 20_000;
    let endpoint = start(builder());
    let mut client = Client::v2(&endpoint);
    client.join("rooms:intercepts");
    client.push("2", "rooms:intercepts", "count", json!({"n": ROUNDS}));
    for n in (0..=ROUNDS).rev() {
        assert_eq!(client.recv()[4]["n"], n);
    }
}

/// The newest membership of a plain connection was taken for its channel. After a subscription that
/// was the relay, and every message of the client was lost silently.
#[test]
fn subscribed_plain_channel_still_receives_its_client() {
    struct Subscriber;
    impl ShardChannel for Subscriber {
        fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
            ctx.subscribe("rooms:a");
        }
        fn handle_in(
            &mut self,
            _: &mut ShardContext<'_>,
            _: &str,
            payload: Payload<'_>,
        ) -> Outcome {
            Outcome::ok(&payload)
        }
    }
    let user_socket = UserSocket::plain("/chat", "chat", |_, _| Join::ok(Subscriber));
    let endpoint = start(Endpoint::builder().socket(user_socket));
    let mut client = Client::connect(endpoint.addresses()[0], "/chat");
    client.0.send(Message::text("hello")).unwrap();
    assert_eq!(client.0.read().unwrap(), Message::text("hello"));
}

/// Results that come too late for their channel or socket are dropped on the shard: the drop is
/// application code, and its panic ended the server.
#[test]
fn late_values_are_dropped_under_guard() {
    let endpoint = start(builder());
    let mut witness = Client::v2(&endpoint);
    witness.heartbeat();
    let mut client = Client::v2(&endpoint);
    client.join("rooms:a");
    client.push("2", "rooms:a", "late_info", json!({}));
    client.heartbeat();
    drop(client);
    let mut client = Client::connect(endpoint.addresses()[0], "/socket/websocket?vsn=2.0.0&id=me");
    client.join("rooms:a");
    client.send(json!(["1", "1", "rooms:later", "phx_join", {}]));
    endpoint.disconnect("me").unwrap();
    assert_eq!(client.recv_close(), 1001);
    std::thread::sleep(Duration::from_millis(500));
    witness.heartbeat();
}

/// A socket that was closed while its join was pending never released what it had been charged for
/// the messages behind the join; once the budget was used up, no client could send a long message.
#[test]
fn socket_closed_during_a_pending_join_frees_its_bytes() {
    let endpoint = start(builder());
    let mut client = Client::connect(endpoint.addresses()[0], "/socket/websocket?vsn=2.0.0&id=me");
    client.heartbeat();
    let text = json!(["1", "1", "rooms:later", "phx_join", {}]).to_string();
    client.0.write(Message::text(text)).unwrap();
    let text = json!(["1", "2", "rooms:a", "e", {"x": "x".repeat(5000)}]).to_string();
    client.0.write(Message::text(text)).unwrap();
    client.0.flush().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    endpoint.disconnect("me").unwrap();
    assert_eq!(client.recv_close(), 1001);
    drop(client);
    until("its bytes are free", || metric(&endpoint, "simurgh_inbound_bytes") == 0);
}

/// A drain sent a WebSocket close frame to a client before its upgrade was answered.
#[test]
fn a_drain_answers_a_pending_connect_in_http() {
    let endpoint = start(builder());
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    let request = "GET /socket/websocket?vsn=2.0.0&slow=1 HTTP/1.1\r\nhost: x\r\n\
        upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    raw.send(request);
    std::thread::sleep(Duration::from_secs(1));
    endpoint.handle().drain();
    assert_eq!(raw.answer().status, 503);
}

/// Broadcasts of a join function were lost when it then refused, for example "this name was tried
/// again" to the members.
#[test]
fn broadcast_of_a_refused_join_is_delivered() {
    let endpoint = start(builder());
    let mut member = Client::v2(&endpoint);
    member.join("rooms:a");
    let mut client = Client::v2(&endpoint);
    assert_eq!(client.join("rooms:refused")[4]["status"], "error");
    assert_eq!(member.recv(), json!([null, null, "rooms:a", "news", {"refused": true}]));
}

/// The body of an API request was read before its token was checked: any client could make the
/// server buffer 8 MB per connection for any time.
#[test]
fn an_api_request_without_the_token_is_refused_before_its_body() {
    let endpoint = start(builder().configure(|config| config.api_token = Some("secret".into())));
    let head = "POST /api/broadcast HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{";
    assert_eq!(Raw::connect(endpoint.addresses()[0]).send(head).answer().status, 401);
}

/// Broadcasts of channels whose sockets time out were delayed until another event.
#[test]
fn last_broadcast_of_an_idle_socket_is_sent_at_once() {
    struct Leaver(mpsc::Sender<std::time::Instant>);
    impl ShardChannel for Leaver {
        fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
            Outcome::NoReply
        }
        fn terminate(&mut self, ctx: &mut ShardContext<'_>, _: &simurgh::Reason) {
            ctx.broadcast_from("left", json!({}));
            let _ = self.0.send(std::time::Instant::now());
        }
    }
    let (sender, ended) = mpsc::channel();
    let leaver = move |_: &mut ShardContext<'_>, _: Payload<'_>| Join::ok(Leaver(sender.clone()));
    let short = UserSocket::new("/short")
        .idle_timeout(Some(Duration::from_secs(4)))
        .channel(ChannelRoute::on_shard("rooms:*", leaver));
    let endpoint = start(builder().socket(short).configure(|config| {
        config.handshake_timeout = Duration::from_secs(20);
        config.close_timeout = Duration::from_secs(20);
    }));
    let mut member = Client::v2(&endpoint);
    member.join("rooms:a");
    let mut idle = Client::connect(endpoint.addresses()[0], "/short/websocket?vsn=2.0.0");
    idle.join("rooms:a");
    assert_eq!(member.recv()[3], "left");
    let took = ended.recv().unwrap().elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}
