//! Blocks and revocations of back ends (B1, B74, B80), on every node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use simurgh::token::Signer;
use simurgh::token::jwt::SigningKey;
use simurgh::{ChannelRoute, Endpoint, Join, UserSocket};

use crate::api_orders::{SECRET, builder, order, policy, silent};
use crate::support::nodes::Engine;
use crate::support::raw::Raw;

use crate::support::{Client, Handles, metrics, start};
use wire_tests::Head;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The path of a client with a token that was issued some seconds ago.
fn path(claims: &Value, age_s: u64) -> String {
    let signer = Signer::Jwt(SigningKey::from_secret(SECRET).unwrap());
    let issued = Duration::from_secs(now_s() - age_s);
    let token = signer.mint(claims, issued, Some(Duration::from_secs(600))).unwrap();
    format!("/socket/websocket?vsn=2.0.0&token={token}")
}

pub(crate) fn user(name: &str) -> String {
    path(&json!({"sub": name}), 60)
}

fn client(endpoint: &Endpoint, path: &str) -> Client {
    let mut client = Client::connect(endpoint.addresses()[0], path);
    // It is open then.
    client.heartbeat();
    client
}

/// The body of the refusal of a client; `None` if it is let in.
pub(crate) fn refusal(endpoint: &Endpoint, path: &str) -> Option<String> {
    let answer = Raw::connect(endpoint.addresses()[0]).request(&Head::upgrade(path));
    assert!([101, 403].contains(&answer.status), "{answer:?}");
    (answer.status == 403).then(|| answer.text().trim().to_owned())
}

fn try_join(client: &mut Client, topic: &str, payload: &Value) -> Value {
    client.send(json!(["2", "2", topic, "phx_join", payload]));
    client.recv()[4].clone()
}

#[test]
fn blocked_user_is_closed_and_does_not_return_until_unblocked() {
    let endpoint = start(builder());
    let mut ann = client(&endpoint, &user("ann"));
    let mut bob = client(&endpoint, &user("bob"));
    let blocked = order(&endpoint, "block", &json!({"user": "ann"}));
    assert_eq!(blocked, (200, json!({"confirmed": [], "missing": [], "closed": 1})));
    assert_eq!(ann.recv_close(), 1001);
    bob.heartbeat();
    assert_eq!(refusal(&endpoint, &user("ann")), Some("blocked".to_owned()));
    assert!(metrics(&endpoint).contains("simurgh_blocked_total{why=\"blocked\"} 1\n"));

    assert_eq!(order(&endpoint, "unblock", &json!({"user": "ann", "topic": "a"})).0, 200);
    assert!(refusal(&endpoint, &user("ann")).is_some(), "that is another block");
    let lifted = order(&endpoint, "unblock", &json!({"user": "ann"}));
    assert_eq!(lifted, (200, json!({"confirmed": [], "missing": [], "closed": 0})));
    client(&endpoint, &user("ann"));
}

#[test]
fn block_of_topics_refuses_their_joins() {
    let endpoint = start(builder());
    let mut ann = client(&endpoint, &user("ann"));
    ann.join("rooms:1");
    let closed = order(&endpoint, "block", &json!({"user": "ann", "topic": "rooms:*"})).1;
    assert_eq!((&closed["closed"], ann.recv_close()), (&json!(1), 1001));
    let mut ann = client(&endpoint, &user("ann"));
    ann.join("lobby");
    let refused = try_join(&mut ann, "rooms:1", &json!({}));
    assert_eq!(refused, json!({"status": "error", "response": {"reason": "blocked"}}));
    client(&endpoint, &user("bob")).join("rooms:1");
}

#[test]
fn join_with_a_token_of_its_own_is_refused_for_a_blocked_user() {
    let judge = policy();
    let room = ChannelRoute::on_shard("rooms:*", move |ctx, payload| {
        let token = payload.parse::<Value>().unwrap()["token"].as_str().map(str::to_owned);
        judge.join(ctx, token.as_deref(), |_, _| Join::ok(Handles(silent)))
    });
    let user_socket = UserSocket::new("/socket").channel(room);
    let builder = Endpoint::builder().socket(user_socket);
    let endpoint = start(builder.configure(|config| config.api_token = Some("s3cret".to_owned())));
    assert_eq!(order(&endpoint, "block", &json!({"user": "ann"})).0, 200);
    let path = user("ann");
    let token = path.rsplit('=').next().unwrap();
    let refused = try_join(&mut Client::v2(&endpoint), "rooms:1", &json!({ "token": token }));
    assert_eq!(refused["response"], json!({"reason": "blocked"}));
}

#[test]
fn revoked_token_is_refused_and_its_socket_closed() {
    let endpoint = start(builder());
    let of = |id: &str| path(&json!({"sub": "ann", "jti": id}), 60);
    let (mut phone, mut desk) = (client(&endpoint, &of("phone")), client(&endpoint, &of("desk")));
    let revoked = order(&endpoint, "revoke", &json!({"jti": "phone"}));
    assert_eq!((revoked.0, &revoked.1["closed"]), (200, &json!(1)));
    assert_eq!(phone.recv_close(), 1001);
    desk.heartbeat();
    assert_eq!(refusal(&endpoint, &of("phone")), Some("revoked".to_owned()));
    assert!(metrics(&endpoint).contains("simurgh_blocked_total{why=\"revoked\"} 1\n"));
}

#[test]
fn tokens_of_a_user_from_before_a_time_are_revoked() {
    let endpoint = start(builder());
    let of = |age_s| path(&json!({"sub": "ann"}), age_s);
    let (mut old, mut new) = (client(&endpoint, &of(100)), client(&endpoint, &of(10)));
    let body = json!({"user": "ann", "issued_before": now_s() - 50});
    assert_eq!(order(&endpoint, "revoke", &body).1["closed"], 1);
    assert_eq!(old.recv_close(), 1001);
    new.heartbeat();
    assert_eq!(refusal(&endpoint, &of(100)), Some("revoked".to_owned()));
    assert_eq!(order(&endpoint, "revoke", &json!({"user": "ann"})).1["closed"], 1);
    assert_eq!(new.recv_close(), 1001);
    assert!(refusal(&endpoint, &of(10)).is_some());
    // A token that is issued after the revocation counts, even in the same second.
    client(&endpoint, &of(0));
}

#[test]
fn malformed_blocks_and_revocations_are_400() {
    let endpoint = start(builder());
    let month = now_s() + 31 * 24 * 3600;
    for (verb, body, says) in [
        ("block", json!({}), "missing field `user`"),
        ("block", json!({"user": ""}), "1 to 1000 bytes"),
        ("block", json!({"user": "a", "topic": "a*b"}), "only at its end"),
        ("block", json!({"user": "a", "until": month}), "30 days"),
        ("block", json!({"user": "a", "until": 1}), "30 days"),
        ("revoke", json!({}), "expected \"user\""),
        ("revoke", json!({"user": "a", "jti": "b"}), "expected \"user\""),
        ("revoke", json!({"jti": "b", "issued_before": 1}), "expected \"user\""),
    ] {
        let (status, answer) = order(&endpoint, verb, &body);
        assert_eq!((status, &answer["code"]), (400, &json!("invalid")), "{body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(says), "{body}: {answer}");
    }
}

#[test]
fn block_and_revocation_hold_on_every_node() {
    let engine = Engine::start();
    let one = start(engine.node(builder(), "one"));
    let two = start(engine.node(builder(), "two"));
    let mut ann = client(&two, &user("ann"));
    let mut bob = client(&two, &user("bob"));
    crate::api_lists::know_each_other(&one, &two);
    let (status, answer) = order(&one, "block", &json!({"user": "ann"}));
    assert_eq!((status, &answer["closed"]), (200, &json!(1)), "{answer}");
    assert_eq!((ann.recv_close(), &answer["confirmed"][0]["name"]), (1001, &json!("two")));
    assert_eq!(order(&one, "revoke", &json!({"user": "bob"})).1["closed"], 1);
    assert_eq!(bob.recv_close(), 1001);
    assert_eq!(refusal(&two, &user("ann")), Some("blocked".to_owned()));
    assert_eq!(refusal(&two, &user("bob")), Some("revoked".to_owned()));
    assert_eq!(order(&two, "unblock", &json!({"user": "ann"})).0, 200);
    for node in [&one, &two] {
        client(node, &user("ann"));
    }
}
