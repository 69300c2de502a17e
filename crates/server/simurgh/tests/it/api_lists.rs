//! What back ends can list: users online, topics, connections and totals, on every node.

use serde_json::{Value, json};
use simurgh::Endpoint;

use crate::api_orders::{builder, client, order};
use crate::support::nodes::Engine;
use crate::support::raw::ask;
use crate::support::{Client, start, until};

/// Waits until two nodes have found each other.
pub(crate) fn know_each_other(one: &Endpoint, two: &Endpoint) {
    let sum = |it| get(it, "counts").1["connections"].clone();
    until("the nodes count the same connections", || sum(one) == 2 && sum(two) == 2);
}

fn get(endpoint: &Endpoint, target: &str) -> (u16, Value) {
    let header = "authorization: Bearer s3cret\r\n";
    let answer = ask(endpoint.addresses()[0], &format!("GET /api/{target}"), header, "");
    (answer.status, answer.json())
}

fn joined(endpoint: &Endpoint, user: &str, topics: &[&str]) -> Client {
    let mut client = client(endpoint, user);
    for topic in topics {
        client.join(topic);
    }
    client
}

#[test]
fn users_topics_and_connections_of_one_node_are_listed() {
    let endpoint = start(builder());
    let _desk = joined(&endpoint, "ann", &["rooms:a", "rooms:b"]);
    let mut phone = joined(&endpoint, "ann", &["rooms:a"]);
    let _bob = joined(&endpoint, "bob", &["rooms:c", "news"]);

    let users = json!({"users": ["ann", "bob", "nobody", 7]});
    let (status, online) = order(&endpoint, "users/online", &users);
    assert_eq!(status, 200, "{online}");
    assert_eq!(online["ann"]["connections"], 2);
    assert_eq!(online["bob"]["connections"], 1);
    assert!(online["bob"]["since"].as_str().unwrap().ends_with('Z'), "{online}");
    assert_eq!((&online["nobody"], &online["7"]), (&Value::Null, &Value::Null));

    let (_, topics) = get(&endpoint, "topics?prefix=rooms:&limit=2");
    let rows = json!([{"topic": "rooms:a", "members": 2}, {"topic": "rooms:b", "members": 1}]);
    assert_eq!(topics, json!({"topics": rows, "next": "rooms:b", "missing": []}));
    let (_, topics) = get(&endpoint, "topics?prefix=rooms:&limit=2&after=rooms:b");
    let rows = json!([{"topic": "rooms:c", "members": 1}]);
    assert_eq!(topics, json!({"topics": rows, "next": null, "missing": []}));

    let (_, counts) = get(&endpoint, "counts");
    assert_eq!(counts, json!({"connections": 3, "channels": 5, "missing": []}));

    let (_, of_ann) = get(&endpoint, "connections?user=ann&limit=1");
    let first = &of_ann["connections"][0];
    assert_eq!((&first["user"], &first["id"]), (&json!("ann"), &json!("user_socket:ann")));
    assert_eq!(
        (&first["path"], &first["peer"]),
        (&json!("/socket/websocket"), &json!("127.0.0.1"))
    );
    assert_eq!(of_ann["next"], first["connection"]);
    let target = format!("connections?user=ann&after={}", of_ann["next"].as_str().unwrap());
    let (_, second) = get(&endpoint, &target);
    assert_eq!(second["connections"].as_array().unwrap().len(), 1, "{second}");
    let (_, in_topic) = get(&endpoint, "connections?topic=rooms:b");
    let rows = in_topic["connections"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{in_topic}");
    let mut topics: Vec<&str> =
        rows[0]["topics"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    topics.sort_unstable();
    assert_eq!(topics, ["rooms:a", "rooms:b"]);

    // The desk is spared by its connection's id, then closed by it.
    let desk = &rows[0]["connection"];
    let spared = order(&endpoint, "disconnect", &json!({"user": "ann", "except": [desk]})).1;
    assert_eq!(spared["closed"], 1);
    assert_eq!(phone.recv_close(), 1001);
    let closed = order(&endpoint, "disconnect", &json!({"connection": desk})).1;
    assert_eq!(closed["closed"], 1);
    let again = order(&endpoint, "disconnect", &json!({"connection": desk})).1;
    assert_eq!(again["closed"], 0);
}

#[test]
fn lists_add_what_all_nodes_have() {
    let engine = Engine::start();
    let one = start(engine.node(builder(), "one"));
    let two = start(engine.node(builder(), "two"));
    let _here = joined(&one, "ann", &["rooms:a"]);
    let mut there = joined(&two, "ann", &["rooms:a", "rooms:b"]);
    know_each_other(&one, &two);
    let online = order(&one, "users/online", &json!({"users": ["ann"]})).1;
    assert_eq!(online["ann"]["connections"], 2);
    let (_, topics) = get(&two, "topics");
    let rows = json!([{"topic": "rooms:a", "members": 2}, {"topic": "rooms:b", "members": 1}]);
    assert_eq!(topics, json!({"topics": rows, "next": null, "missing": []}));
    let (_, of_ann) = get(&one, "connections?topic=rooms:b");
    let row = &of_ann["connections"][0];
    assert_eq!(row["node"], "two");
    // A connection of another node is closed by its id.
    let closed = order(&one, "disconnect", &json!({"connection": row["connection"]})).1;
    assert_eq!(closed["closed"], 1);
    assert_eq!(there.recv_close(), 1001);
}

#[test]
fn malformed_questions_are_400() {
    let endpoint = start(builder());
    for (target, says) in [
        ("topics?limit=0", "limit: expected 1 to 1000"),
        ("topics?limit=1001", "limit: expected 1 to 1000"),
        ("topics?colour=red", "expected ?prefix="),
        ("connections", "expected ?user="),
        ("connections?user=a&topic=b", "expected ?user="),
    ] {
        let (status, answer) = get(&endpoint, target);
        assert_eq!((status, &answer["code"]), (400, &json!("invalid")), "{target}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(says), "{target}: {answer}");
    }
    let many: Vec<u32> = (0..1_001).collect();
    for users in [json!([]), json!(many), json!([true])] {
        let (status, answer) = order(&endpoint, "users/online", &json!({"users": users}));
        assert_eq!((status, &answer["code"]), (400, &json!("invalid")), "{answer}");
    }
}
