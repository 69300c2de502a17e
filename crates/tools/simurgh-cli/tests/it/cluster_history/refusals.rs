//! Unsuitable engines and invalid positions: the problem is reported, plain topics work, and no
//! request hangs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::back_end::{TOPIC, keeps, messages_of, nodes, page, plan, publish, publish_to, texts};
use super::member::Member;
use super::operator::{self, STREAM};
use crate::support::engine::until;
use crate::support::engine::{Engine, STORE};
use crate::support::node::{Node, Plan, know_each_other};

/// Checks that a node without histories reports it in these words, and that plain topics work.
#[track_caller]
fn is_refused(node: &Node, words: &[&str]) {
    until(&format!("{words:?} are in the log"), || {
        let log = node.log();
        words.iter().all(|it| log.contains(it)).then_some(())
    });
    // Requests to histories fail at once: neither the join nor the page waits two seconds.
    let member = until("all are refused at once", || {
        let began = Instant::now();
        let member = refused_member(node);
        (began.elapsed() < Duration::from_secs(2)).then_some(member)
    });
    assert_eq!(member.texts(), [""; 0]);
    let plain = Member::joins_plain("plain", node, "plain:a");
    assert_eq!(plain.is_answered("heard"), "ok");
}

/// A member that is refused everything that needs a history.
fn refused_member(node: &Node) -> Member {
    let (status, body) = publish_to(node, TOPIC, "not kept", None);
    assert_eq!(status, 503, "{body}");
    let member = Member::joins("member", node, TOPIC);
    let notice = member.is_notified(1);
    assert_eq!(notice.payload["reason"], "unavailable", "{notice:?}");
    assert_eq!(member.is_answered("not kept"), "not stored");
    let page = page(node, TOPIC, "");
    assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("unavailable")));
    member
}

#[test]
#[ignore = "needs nats-server"]
fn broker_without_jetstream_is_reported_and_plain_topics_work() {
    let engine = Engine::start("");
    let nodes = ["one", "two"].map(|name| plan(name, &engine.address()).start());
    know_each_other(&nodes);
    let words =
        ["ERROR", "broadcasts to topics with a history are refused", "JetStream is not enabled"];
    nodes.iter().for_each(|node| is_refused(node, &words));
}

/// A proxy that reports an older version of the engine.
fn older(engine: &Engine, version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, address) = (listener.local_addr().unwrap().to_string(), engine.address());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(&address)) else {
                continue;
            };
            let (mut from_client, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_client, &mut to_server);
                let _ = to_server.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut body = String::new();
                let mut reader = BufReader::with_capacity(1, &mut server);
                let _ = reader.read_line(&mut body);
                let info: Value = serde_json::from_str(&body["INFO ".len()..]).unwrap();
                let info = json!({"version": version, "proto": 1, "headers": true,
                    "server_id": info["server_id"], "max_payload": info["max_payload"]});
                let _ = client.write_all(format!("INFO {info}\r\n").as_bytes());
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    own
}

#[test]
#[ignore = "needs nats-server"]
fn outdated_broker_is_reported_with_its_version() {
    let engine = Engine::start(STORE);
    let node = plan("one", &older(&engine, "2.10.29")).start();
    is_refused(&node, &["the broker is NATS 2.10.29, but histories need 2.11 or later"]);
}

#[test]
#[ignore = "needs nats-server"]
fn broker_with_too_little_storage_is_reported() {
    let little = "jetstream { store_dir: store, max_file_store: 10MB }\n";
    let engine = Engine::start(little);
    let keys = "history_engine_bytes = \"1GiB\"\n".to_owned();
    let node = Plan { keys, ..plan("one", &engine.address()) }.start();
    let words = [&format!("{STREAM} cannot be created: insufficient storage resources"), "ERROR"];
    is_refused(&node, &words.map(|it| it as &str));
}

#[test]
#[ignore = "needs nats-server"]
fn mismatched_stream_is_reported_with_differences_until_deleted() {
    let engine = Engine::start(STORE);
    let other = json!({"name": STREAM, "subjects": ["somebody.>"], "storage": "memory"});
    operator::must(engine.port(), &format!("STREAM.CREATE.{STREAM}"), &other);
    let node = plan("one", &engine.address()).start();
    let named = format!("the stream {STREAM} cannot be used: ");
    let words = [&*named, "subjects is", "somebody.>", "storage is", "memory", "metadata is"];
    is_refused(&node, &words);
    operator::must(engine.port(), &format!("STREAM.DELETE.{STREAM}"), &Value::Null);
    keeps(&node);
    publish(&node, "kept");
}

/// A stream that another cluster has created under our name is not changed.
#[test]
#[ignore = "needs nats-server"]
fn stream_of_another_cluster_is_reported_and_left_unchanged() {
    let engine = Engine::start(STORE);
    let [theirs] = nodes(&engine.address(), ["theirs"]);
    publish(&theirs, "theirs");
    let verb = |it: &str, stream: &str| format!("STREAM.{it}.{stream}");
    let mut config =
        operator::must(engine.port(), &verb("INFO", STREAM), &Value::Null)["config"].clone();
    config["name"] = "OURS_H0".into();
    config["subjects"] = json!(["theirs.h.>"]);
    config["republish"] = json!({"src": "theirs.h.>", "dest": "theirs.b.>"});
    operator::must(engine.port(), &verb("CREATE", "OURS_H0"), &config);
    let node = Plan { prefix: "ours", ..plan("one", &engine.address()) }.start();
    is_refused(&node, &["the stream OURS_H0 cannot be used: ", "theirs.h.>", "ours.h.>"]);
    let left = operator::must(engine.port(), &verb("INFO", "OURS_H0"), &Value::Null);
    assert_eq!(left["config"]["subjects"], json!(["theirs.h.>"]));
    // Clusters on the same engine do not affect each other.
    publish(&theirs, "still theirs");
    assert_eq!(texts(&messages_of(&page(&theirs, TOPIC, ""))), ["theirs", "still theirs"]);
}

#[test]
#[ignore = "needs nats-server"]
fn position_of_another_cluster_or_epoch_is_a_gap_not_an_error() {
    let engine = Engine::start(STORE);
    let [ours] = nodes(&engine.address(), ["ours"]);
    let theirs = Plan { prefix: "theirs", ..plan("theirs", &engine.address()) }.start();
    keeps(&theirs);
    let own = publish(&ours, "first");
    publish(&ours, "second");
    let other = publish(&theirs, "other");
    let epoch = own.split_once('.').unwrap().0;
    let later = format!("{epoch}.999999");
    for since in [&*other, "zzzzzz.1", &later, "a00000.0"] {
        let found = page(&ours, TOPIC, &format!("&since={since}"));
        assert_eq!((&found["recovered"], &found["reason"]), (&json!(false), &json!("epoch")));
        let member = Member::resumes("comes-back", &ours, TOPIC, Some(since));
        let notice = member.is_notified(1);
        assert_eq!(notice.payload["reason"], "epoch", "{since}: {notice:?}");
        member.receives(0, &["first", "second"]);
    }
    let found = page(&ours, TOPIC, &format!("&since={own}"));
    assert_eq!((&found["recovered"], texts(&messages_of(&found))), (&json!(true), vec!["second"]));
    for wrong in ["x", "k3f9a0", "k3f9a0.x", "K3F9A0.1", ""] {
        let (status, body) = ours.ask(&format!("GET /api/history?topic={TOPIC}&since={wrong}"), "");
        assert_eq!(status, 400, "{wrong}: {body}");
    }
}
