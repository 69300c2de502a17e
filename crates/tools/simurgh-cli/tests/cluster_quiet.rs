//! Kept topics of servers with the table `[cluster]` on a real engine: a client that goes to
//! another node is told what it has missed, and of no gap where it has missed nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "a client outside of all descriptor tables")]

#[path = "support/engine.rs"]
mod engine;
mod support;

use std::process::Command;

use engine::Engine;
use serde_json::{Value, json};
use support::{Client, Server, directory, simurgh};

const TOKEN: (&str, &str) = ("SIMURGH_API_TOKEN", "a-token-of-no-importance");
const SECRET: (&str, &str) =
    ("SIMURGH_SECRET", "what all nodes of these tests share, and nobody else");

fn node(name: &str, engine: &Engine) -> Server {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[cluster]\nengine = \"nats\"\nname = \"{name}\"\n\
         servers = [\"nats://{}\"]\nrequired = \"20s\"\nsecret_env = \"SIMURGH_SECRET\"\n\
         [[channel]]\ntopic = \"room:*\"\nhistory = true\n",
        engine.address()
    );
    let dir = directory(&[("simurgh.toml", &text)]);
    Server::start_with_env(&simurgh(), dir, &["--shards", "2"], 1, &[TOKEN, SECRET])
}

/// Has something kept; says so when it is.
fn say(server: &Server, topic: &str, n: u64) {
    let body = json!({"topic": topic, "event": "said", "payload": {"n": n}}).to_string();
    let url = format!("http://{}/api/broadcast", server.addresses[0]);
    let token = format!("authorization: Bearer {}", TOKEN.1);
    let ran = Command::new("curl").args(["-sS", "-H", &token, &url, "-d", &body]).output().unwrap();
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(answer["accepted"], 1, "{answer}");
    assert!(answer["positions"][0].is_string(), "{answer}");
}

/// A client that joins from where it stood; what it is told of that, and where it stands then.
fn joins(server: &Server, topic: &str, since: Option<&str>) -> (Client, Value, String) {
    let mut client = server.client();
    let asked = client.send(topic, "phx_join", json!({"simurgh": {"since": since}}));
    let (msg_ref, .., reply) = client.receive();
    assert_eq!((msg_ref, &reply["status"]), (asked, &json!("ok")), "{reply}");
    let (position, _, event, resumed) = client.receive();
    assert_eq!(event, "simurgh:resumed", "{resumed}");
    (client, resumed, position.as_str().unwrap().to_owned())
}

/// Whether what it knows of the topic is all there is, however much is kept of others: on a node
/// that has not heard of the topic, and on one that has not heard of anything.
#[test]
fn who_goes_to_a_node_that_did_not_follow_its_quiet_topic_is_told_of_no_gap() {
    let Some(engine) = Engine::start("jetstream { store_dir: \"store\" }") else { return };
    let (one, two) = (node("one", &engine), node("two", &engine));
    for n in 0..3 {
        say(&one, "room:busy", n);
    }
    let (quiet, _, from) = joins(&one, "room:quiet", None);
    let (silent, _, silent_from) = joins(&one, "room:silent", None);
    drop((quiet, silent));
    for n in 3..6 {
        say(&one, "room:busy", n);
    }
    say(&one, "room:quiet", 7);
    say(&two, "room:busy", 8);
    let goes_to = |server: &Server| {
        let (mut client, resumed, _) = joins(server, "room:quiet", Some(&from));
        assert_eq!((&resumed["recovered"], &resumed["count"]), (&json!(true), &json!(1)));
        let (_, _, event, payload) = client.receive();
        assert_eq!((&*event, payload), ("said", json!({"n": 7})));
        let (_, resumed, _) = joins(server, "room:silent", Some(&silent_from));
        assert_eq!((&resumed["recovered"], &resumed["count"]), (&json!(true), &json!(0)));
    };
    goes_to(&two);
    let three = node("three", &engine);
    goes_to(&three);
    drop(two);
    goes_to(&three);
}
