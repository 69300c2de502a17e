//! Topics with histories: a client that moves to another node receives the messages it has missed,
//! and a notice of a gap only if it has missed some.

use std::process::Command;

use serde_json::{Value, json};

use super::{TOKEN, node_with};
use crate::support::engine::Engine;
use crate::support::{Client, Server};

fn node(name: &str, engine: &Engine) -> Server {
    node_with(name, engine, "", "[[channel]]\ntopic = \"room:*\"\nhistory = true\n")
}

/// Broadcasts to a topic, and checks that it is stored.
fn broadcast(server: &Server, topic: &str, n: u64) {
    let body = json!({"topic": topic, "event": "said", "payload": {"n": n}}).to_string();
    let url = format!("http://{}/api/broadcast", server.addresses[0]);
    let token = format!("authorization: Bearer {}", TOKEN.1);
    let ran = Command::new("curl").args(["-sS", "-H", &token, &url, "-d", &body]).output().unwrap();
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(answer["accepted"], 1, "{answer}");
    assert!(answer["positions"][0].is_string(), "{answer}");
}

/// Joins from a position; returns the client, the notice, and the new position.
fn join(server: &Server, topic: &str, since: Option<&str>) -> (Client, Value, String) {
    let mut client = server.client();
    let sent = client.send(topic, "phx_join", json!({"simurgh": {"since": since}}));
    let (msg_ref, .., reply) = client.receive();
    assert_eq!((msg_ref, &reply["status"]), (sent, &json!("ok")), "{reply}");
    let (position, _, event, resumed) = client.receive();
    assert_eq!(event, "simurgh:resumed", "{resumed}");
    (client, resumed, position.as_str().unwrap().to_owned())
}

/// On a node that did not follow the topic, and on a new one; other topics have messages meanwhile.
#[test]
#[ignore = "needs nats-server"]
fn move_to_a_node_that_did_not_follow_a_quiet_topic_is_no_gap() {
    let engine = Engine::start("jetstream { store_dir: \"store\" }");
    let (one, two) = (node("one", &engine), node("two", &engine));
    for n in 0..3 {
        broadcast(&one, "room:busy", n);
    }
    let (quiet, _, from) = join(&one, "room:quiet", None);
    let (silent, _, silent_from) = join(&one, "room:silent", None);
    drop((quiet, silent));
    for n in 3..6 {
        broadcast(&one, "room:busy", n);
    }
    broadcast(&one, "room:quiet", 7);
    broadcast(&two, "room:busy", 8);
    let goes_to = |server: &Server| {
        let (mut client, resumed, _) = join(server, "room:quiet", Some(&from));
        assert_eq!((&resumed["recovered"], &resumed["count"]), (&json!(true), &json!(1)));
        let (_, _, event, payload) = client.receive();
        assert_eq!((&*event, payload), ("said", json!({"n": 7})));
        let (_, resumed, _) = join(server, "room:silent", Some(&silent_from));
        assert_eq!((&resumed["recovered"], &resumed["count"]), (&json!(true), &json!(0)));
    };
    goes_to(&two);
    let three = node("three", &engine);
    goes_to(&three);
    drop(two);
    goes_to(&three);
}
