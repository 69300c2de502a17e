//! Orders of back ends to sockets: push, kick and disconnect, by user and by id, on every node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use simurgh::token::jwt::SigningKey;
use simurgh::token::{JwtSettings, KeySource, Settings, Signer, TokenPolicy};
use simurgh::{Builder, Endpoint, Outcome, Payload, ShardContext, UserSocket};

use crate::support::nodes::Engine;
use crate::support::raw::ask;
use crate::support::{Client, handled, start};

pub(crate) const SECRET: &[u8] = b"a secret of thirty-two bytes or more";

pub(crate) fn silent(_: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
    Outcome::NoReply
}

pub(crate) fn policy() -> TokenPolicy {
    let settings = JwtSettings::new(KeySource::Secret(SECRET.to_vec()));
    TokenPolicy::new(Settings::Jwt(settings)).unwrap().optional(true)
}

pub(crate) fn builder() -> Builder {
    let user_socket = UserSocket::new("/socket").tokens(policy()).channel(handled("*", silent));
    Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = 2;
        config.api_token = Some("s3cret".to_owned());
    })
}

pub(crate) fn client(endpoint: &Endpoint, user: &str) -> Client {
    let signer = Signer::Jwt(SigningKey::from_secret(SECRET).unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let token = signer.mint(&json!({"sub": user}), now, Some(Duration::from_secs(600))).unwrap();
    let path = format!("/socket/websocket?vsn=2.0.0&token={token}");
    let mut client = Client::connect(endpoint.addresses()[0], &path);
    // It is open then.
    client.heartbeat();
    client
}

pub(crate) fn order(endpoint: &Endpoint, verb: &str, body: &Value) -> (u16, Value) {
    let header = "authorization: Bearer s3cret\r\n";
    let line = format!("POST /api/{verb}");
    let answer = ask(endpoint.addresses()[0], &line, header, &body.to_string());
    (answer.status, answer.json())
}

#[test]
fn push_kick_and_disconnect_concern_the_sockets_of_one_user() {
    let endpoint = start(builder());
    let (mut desk, mut phone) = (client(&endpoint, "ann"), client(&endpoint, "ann"));
    let mut seven = client(&endpoint, "7");
    let nobody = Client::v2(&endpoint);
    desk.join("rooms:a");
    phone.join("rooms:b");
    seven.join("rooms:a");

    let mut push = json!({"user": "ann", "topic": "rooms:a", "event": "e", "payload": {"n": 1}});
    let pushed = order(&endpoint, "push", &push);
    assert_eq!(pushed, (200, json!({"confirmed": [], "missing": [], "delivered": 1})));
    assert_eq!(desk.recv(), json!(["1", null, "rooms:a", "e", {"n": 1}]));
    push["user"] = json!(7);
    assert_eq!(order(&endpoint, "push", &push).1["delivered"], 1, "a user may be a number");
    assert_eq!(seven.recv()[3], "e");
    push["user"] = json!("nobody");
    assert_eq!(order(&endpoint, "push", &push).1["delivered"], 0);

    let kick = json!({"user": "ann", "topic": "rooms:a", "rejoin": true});
    assert_eq!(order(&endpoint, "kick", &kick).1["closed"], 1);
    assert_eq!(desk.recv()[3], "phx_error", "its client joins again");
    desk.join("rooms:a");
    let kick = json!({"user": "ann", "topic": "rooms:a"});
    assert_eq!(order(&endpoint, "kick", &kick).1["closed"], 1);
    assert_eq!(desk.recv()[3], "phx_close");
    assert_eq!(order(&endpoint, "kick", &kick).1["closed"], 0, "it has left");

    let closed = order(&endpoint, "disconnect", &json!({"user": "ann"}));
    assert_eq!(closed, (200, json!({"confirmed": [], "missing": [], "closed": 2})));
    assert_eq!([desk.recv_close(), phone.recv_close()], [1001, 1001]);
    for mut other in [seven, nobody] {
        other.heartbeat();
    }
}

#[test]
fn disconnect_of_an_id_with_many_sockets_closes_and_counts_all() {
    const MANY: usize = 600;
    let endpoint = start(builder());
    let mut clients: Vec<Client> = (0..MANY).map(|_| client(&endpoint, "crowd")).collect();
    let mut other = client(&endpoint, "other");
    // A member of a topic with the name of the id is not meant.
    other.join("user_socket:crowd");
    let push = json!({"id": "user_socket:crowd", "topic": "a", "event": "e", "payload": {}});
    clients[9].join("a");
    assert_eq!(order(&endpoint, "push", &push).1["delivered"], 1);
    let (status, answer) = order(&endpoint, "disconnect", &json!({"id": "user_socket:crowd"}));
    assert_eq!((status, &answer["closed"]), (200, &json!(MANY)));
    for client in &mut clients {
        assert_eq!(client.recv_close(), 1001);
    }
    other.heartbeat();
    let (_, answer) = order(&endpoint, "disconnect", &json!({"id": "user_socket:other"}));
    assert_eq!(answer["closed"], 1);
    assert_eq!(other.recv_close(), 1001);
}

#[test]
fn orders_at_the_same_time_reach_their_own_users() {
    const USERS: usize = 40;
    let endpoint = start(builder());
    let mut clients: Vec<Client> =
        (0..USERS).map(|user| client(&endpoint, &user.to_string())).collect();
    std::thread::scope(|scope| {
        for user in 0..USERS {
            let endpoint = &endpoint;
            scope.spawn(move || {
                let body = json!({"user": user});
                assert_eq!(order(endpoint, "disconnect", &body).1["closed"], 1, "{user}");
            });
        }
    });
    for client in &mut clients {
        assert_eq!(client.recv_close(), 1001);
    }
}

#[test]
fn malformed_orders_are_400() {
    let endpoint = start(builder());
    let topic = json!({"user": "ann", "topic": "a"});
    let event = |event: &str| json!({"user": "ann", "topic": "a", "event": event, "payload": {}});
    for (verb, body, says) in [
        ("disconnect", json!({}), "one of"),
        ("disconnect", json!([]), "not a JSON object"),
        ("disconnect", json!({"user": "a", "id": "b"}), "one of"),
        ("disconnect", json!({"id": ""}), "must not be empty"),
        ("disconnect", json!({"user": {}}), "a string or a number"),
        ("disconnect", json!({"user": "a", "colour": "red"}), "unknown field `colour`"),
        ("disconnect", json!({"connection": "0.17.2"}), "connection: the id of a connection"),
        ("disconnect", json!({"user": "a", "except": ["x"]}), "except: the id of a connection"),
        ("kick", json!({"user": "ann"}), "missing field `topic`"),
        ("push", topic, "missing field `event`"),
        ("push", event("phx_close"), "reserved"),
        ("push", event(""), "must not be empty"),
    ] {
        let (status, answer) = order(&endpoint, verb, &body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["code"], "invalid", "{body}");
        assert!(answer["error"].as_str().unwrap().contains(says), "{body}: {answer}");
    }
}

#[test]
fn order_is_carried_out_on_every_node() {
    let engine = Engine::start();
    let one = start(engine.node(builder(), "one"));
    let two = start(engine.node(builder(), "two"));
    let (mut here, mut there) = (client(&one, "ann"), client(&two, "ann"));
    here.join("rooms:a");
    there.join("rooms:a");
    crate::api_lists::know_each_other(&one, &two);
    let push = json!({"user": "ann", "topic": "rooms:a", "event": "e", "payload": {"n": 1}});
    let (status, answer) = order(&one, "push", &push);
    assert_eq!((status, &answer["delivered"]), (200, &json!(2)), "{answer}");
    assert_eq!(answer["confirmed"][0]["name"], "two");
    for client in [&mut here, &mut there] {
        assert_eq!(client.recv()[3], "e");
        client.heartbeat();
    }
    let (status, answer) = order(&two, "disconnect", &json!({"id": "user_socket:ann"}));
    assert_eq!((status, &answer["closed"]), (200, &json!(2)), "{answer}");
    assert_eq!(answer["confirmed"][0]["name"], "one");
    assert_eq!([here.recv_close(), there.recv_close()], [1001, 1001]);
}
