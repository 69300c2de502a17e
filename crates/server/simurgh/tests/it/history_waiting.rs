//! A back end waits for confirmations from a blocked shard, or leaves.

use std::future::poll_fn;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::support::raw::{Answer, Raw, request};
use crate::support::{Client, start};
use serde_json::{Value, json};
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
    history::History,
};

const TOKEN: &str = "history-token";
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

/// Blocks its shard between two barriers, as no channel should.
struct Holds(Arc<Barrier>);

impl ShardChannel for Holds {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        self.0.wait();
        self.0.wait();
        Outcome::NoReply
    }
}

struct Release(Arc<Barrier>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.wait();
    }
}

fn while_held<const N: usize>(
    confirm_timeout: Duration,
    then: impl FnOnce(&Endpoint, [Raw; N]),
) -> Endpoint {
    let meets = Arc::new(Barrier::new(2));
    let of_channel = Arc::clone(&meets);
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("holds", move |_, _| {
            Join::ok(Holds(Arc::clone(&of_channel)))
        }))
        .channel(
            ChannelRoute::on_shard("kept:*", |_, _| Join::error(json!({})))
                .history(History::default()),
        );
    let server = start(Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = 1;
        config.api_token = Some(TOKEN.to_owned());
        config.history.confirm_timeout = confirm_timeout;
    }));
    // Connections are accepted while the shard is idle.
    let lines = std::array::from_fn(|_| {
        let mut raw = Raw::connect(server.addresses()[0]);
        assert_eq!(ask(&mut raw, "GET", "/api/history/topics", "").status, 200);
        raw
    });
    let mut member = Client::v2(&server);
    member.join("holds");
    member.push("2", "holds", "hold", json!({}));
    meets.wait();
    let release = Release(meets);
    then(&server, lines);
    drop(release);
    server
}

fn send(raw: &mut Raw, method: &str, target: &str, body: &str) {
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    raw.send(request(&format!("{method} {target}"), &bearer, body));
}

fn ask(raw: &mut Raw, method: &str, target: &str, body: &str) -> Answer {
    send(raw, method, target, body);
    raw.answer()
}

fn messages(count: usize) -> String {
    let message = |n| {
        let topic = format!("kept:{}", n % 7);
        json!({"topic": topic, "event": "said", "payload": {"n": n}, "id": format!("id {n}")})
    };
    json!({"messages": (0..count).map(message).collect::<Vec<_>>()}).to_string()
}

fn get(server: &Endpoint, target: &str) -> Value {
    ask(&mut Raw::connect(server.addresses()[0]), "GET", target, "").json()
}

fn metric(raw: &mut Raw, name: &str) -> usize {
    let answer = ask(raw, "GET", "/metrics", "");
    let line = answer.text().lines().find(|line| line.starts_with(name)).expect(name);
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn until(raw: &mut Raw, name: &str, is_so: impl Fn(usize) -> bool) {
    crate::support::until(name, || is_so(metric(raw, name)));
}

#[test]
fn messages_of_a_request_share_one_deadline() {
    const MANY: usize = 40;
    let body = messages(MANY);
    let server = while_held(SHORT, |_, [mut raw]| {
        let began = Instant::now();
        let answer = ask(&mut raw, "POST", "/api/broadcast", &body);
        let waited = began.elapsed();
        assert_eq!(answer.status, 504, "{}", answer.text());
        let error = "unconfirmed: not known to be stored after 300ms, repeat it with the same id";
        assert_eq!(answer.json(), json!({"error": error, "code": "unconfirmed", "taken": MANY}));
        assert!(waited >= SHORT && waited < 10 * SHORT, "{waited:?}");
        let unconfirmed = "simurgh_publish_unconfirmed_total";
        assert_eq!(metric(&mut raw, unconfirmed), MANY);
    });
    // All of them had been sent to the shard.
    let mut raw = Raw::connect(server.addresses()[0]);
    let again = ask(&mut raw, "POST", "/api/broadcast", &body).json();
    assert_eq!((&again["accepted"], &again["duplicates"]), (&json!(MANY), &json!(MANY)));
    assert_eq!(metric(&mut raw, "simurgh_publish_unconfirmed_total"), MANY, "each once");
}

#[test]
fn message_of_a_disconnected_publisher_is_stored() {
    const MANY: usize = 10;
    let server = while_held(LONG, |_, [mut gone, mut watch]| {
        send(&mut gone, "POST", "/api/broadcast", &messages(MANY));
        until(&mut watch, "simurgh_mailbox_mails", |mails| mails >= MANY);
        assert_eq!(metric(&mut watch, "simurgh_http_connections"), 2);
        gone.reset();
        // Its request was dropped with it.
        until(&mut watch, "simurgh_http_connections", |connections| connections == 1);
    });
    let topics = get(&server, "/api/history/topics");
    let count = |it: &Value| it["messages"].as_u64().unwrap();
    let kept: u64 = topics["topics"].as_array().unwrap().iter().map(count).sum();
    assert_eq!(kept, MANY as u64, "{topics}");
    let mut raw = Raw::connect(server.addresses()[0]);
    let again = ask(&mut raw, "POST", "/api/broadcast", &messages(MANY)).json();
    assert_eq!(again["duplicates"], MANY, "{again}");
    assert_eq!(metric(&mut raw, "simurgh_publish_unconfirmed_total"), 0);
}

#[test]
fn broadcast_is_stored_although_its_future_is_dropped() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let server = while_held(LONG, |server, []| {
        let pubsub = server.pubsub();
        let mut kept = Box::pin(pubsub.broadcast_kept("kept:0", "said", json!({"n": 1})));
        let polled = poll_fn(|context| Poll::Ready(kept.as_mut().poll(context)));
        assert!(runtime.block_on(polled).is_pending());
    });
    let pubsub = server.pubsub();
    let page = runtime.block_on(async { pubsub.history("kept:0").await.unwrap() });
    assert_eq!(page.messages.len(), 1);
}
