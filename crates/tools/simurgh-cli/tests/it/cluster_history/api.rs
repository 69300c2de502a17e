//! The HTTP API of back ends on any node: publish once, read a history, purge it; and errors if
//! that is impossible.

use std::sync::Barrier;
use std::time::Duration;

use serde_json::{Value, json};

use super::back_end::{
    TOPIC, channels, histories, keeps, messages_of, nodes, page, plan, publish, publish_to, texts,
};
use super::member::Member;
use super::operator::{STREAM, Spy};
use crate::support::engine::{Engine, STORE};
use crate::support::engine::{until, within};
use crate::support::node::{Node, Plan};

#[test]
#[ignore = "needs nats-server"]
fn the_same_id_on_two_nodes_at_once_is_stored_and_delivered_once() {
    const TIMES: usize = 30;
    let engine = Engine::start(STORE);
    let nodes = nodes(&engine.address(), ["one", "two"]);
    let members = [("at-one", &nodes[0]), ("at-two", &nodes[1])]
        .map(|(name, node)| Member::joins(name, node, TOPIC));
    let starts = Barrier::new(nodes.len());
    let publish_all = |node: &Node| -> Vec<(String, u64)> {
        let publish = |n: usize| {
            let (text, id) = (format!("by {}", node.name), format!("order {n}"));
            starts.wait();
            let (status, body) = publish_to(node, TOPIC, &text, Some(&id));
            assert_eq!(status, 202, "{body}");
            let position = body["positions"][0].as_str().unwrap().to_owned();
            (position, body["duplicates"].as_u64().unwrap())
        };
        (0..TIMES).map(publish).collect()
    };
    let [one, two] = std::thread::scope(|scope| {
        let threads = nodes.each_ref().map(|node| scope.spawn(|| publish_all(node)));
        threads.map(|it| it.join().unwrap())
    });
    for (n, ((at, doubles), (other_at, other_doubles))) in one.iter().zip(&two).enumerate() {
        assert_eq!((at, doubles + other_doubles), (other_at, 1), "order {n}");
    }
    let history = histories(&nodes);
    let positions: Vec<&String> = history.iter().map(|it| &it.0).collect();
    assert_eq!(positions, one.iter().map(|it| &it.0).collect::<Vec<_>>());
    // Ids are per topic.
    let (_, other) = publish_to(&nodes[0], "kept:b", "other", Some("order 0"));
    assert_eq!(other["duplicates"], 0);
    for member in &members {
        member.has_received_all_of(&history);
        member.has_no_gap();
    }
}

/// Nodes with this history, and a member that left before the last five of six broadcasts.
fn what_is_left(history: &str) -> (Engine, [Node; 2], Member) {
    let engine = Engine::start(STORE);
    let start = |name| {
        let plan = plan(name, &engine.address());
        Plan { channels: channels(history), ..plan }.start()
    };
    let nodes = ["one", "two"].map(start);
    nodes.iter().for_each(keeps);
    let gone = Member::joins("gone", &nodes[0], TOPIC);
    publish(&nodes[0], "first");
    gone.receives(0, &["first"]);
    gone.disconnects();
    for n in 0..5 {
        publish(&nodes[n % 2], &format!("{n}"));
    }
    (engine, nodes, gone)
}

#[test]
#[ignore = "needs nats-server"]
fn oldest_messages_above_the_count_are_overwritten_on_every_node() {
    let few = "count = 3, age = \"5m\", bytes = \"1MiB\"";
    let (engine, nodes, gone) = what_is_left(few);
    assert_eq!(texts(&histories(&nodes)), ["2", "3", "4"]);
    let notice = gone.resumes_at(&nodes[1]);
    let expected = json!({"recovered": false, "reason": "overwritten", "count": 3});
    assert_eq!(notice.payload, expected);
    gone.receives(1, &["2", "3", "4"]);
    // The engine has none either.
    let late = plan("late", &engine.address());
    let late = Plan { channels: channels(few), ..late }.start();
    keeps(&late);
    assert_eq!(histories([&nodes[0], &late]).len(), 3);
}

#[test]
#[ignore = "needs nats-server"]
fn messages_past_their_age_expire_on_every_node() {
    let short = "count = 100, age = \"3s\", bytes = \"1MiB\"";
    let (engine, nodes, gone) = what_is_left(short);
    for node in &nodes {
        let is_empty = || messages_of(&page(node, TOPIC, "")).is_empty().then_some(());
        within(Duration::from_secs(15), "all is too old", is_empty);
    }
    let notice = gone.resumes_at(&nodes[1]);
    assert_eq!(notice.payload, json!({"recovered": false, "reason": "expired", "count": 0}));
    // A node without a copy of the history finds the same in the engine.
    let late = plan("late", &engine.address());
    let late = Plan { channels: channels(short), ..late }.start();
    keeps(&late);
    until("nothing is left at the engine", || {
        messages_of(&page(&late, TOPIC, "")).is_empty().then_some(())
    });
}

#[test]
#[ignore = "needs nats-server"]
fn a_purge_on_one_node_applies_to_all() {
    let engine = Engine::start(STORE);
    let nodes = nodes(&engine.address(), ["one", "two"]);
    let stays = Member::joins("stays", &nodes[1], TOPIC);
    let gone = Member::joins("gone", &nodes[0], TOPIC);
    let first = publish(&nodes[0], "first");
    gone.receives(0, &["first"]);
    gone.disconnects();
    publish(&nodes[1], "forgotten");
    stays.receives(0, &["first", "forgotten"]);
    let (status, body) = nodes[0].ask(&format!("DELETE /api/history?topic={TOPIC}"), "");
    assert_eq!(status, 200, "{body}");
    for node in &nodes {
        until(&format!("{} has forgotten it", node.name), || {
            messages_of(&page(node, TOPIC, "")).is_empty().then_some(())
        });
        let page = page(node, TOPIC, &format!("&since={first}"));
        assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("purged")));
    }
    publish(&nodes[0], "new");
    let notice = gone.resumes_at(&nodes[1]);
    assert_eq!(notice.payload, json!({"recovered": false, "reason": "purged", "count": 1}));
    gone.receives(1, &["new"]);
    // Members receive none of it, and a new node finds the same in the engine.
    stays.receives(0, &["first", "forgotten", "new"]);
    stays.has_no_gap();
    let late = plan("late", &engine.address()).start();
    keeps(&late);
    assert_eq!(texts(&histories([&nodes[0], &nodes[1], &late])), ["new"]);
    let page = page(&late, TOPIC, &format!("&since={first}"));
    assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("purged")));
}

#[test]
#[ignore = "needs nats-server"]
fn many_requests_to_a_node_without_members_need_one_broker_request() {
    const MANY: usize = 40;
    let engine = Engine::start(STORE);
    let [one, two] = nodes(&engine.address(), ["one", "two"]);
    for n in 0..10 {
        publish(&one, &format!("{n}"));
    }
    let asked = Spy::on(engine.port(), &format!("$JS.API.DIRECT.GET.{STREAM}"));
    let pages = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| page(&two, TOPIC, ""));
        let threads: Vec<_> = (0..MANY).map(|_| ask()).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect::<Vec<Value>>()
    });
    for page in &pages {
        assert_eq!(page["recovered"], true, "{page}");
        assert_eq!(messages_of(page), messages_of(&pages[0]));
    }
    assert_eq!(messages_of(&pages[0]).len(), 10);
    // Later both pages are complete.
    assert_eq!(histories([&one, &two]), messages_of(&pages[0]));
    let count = asked.received();
    assert!((1..=4).contains(&count), "{count} questions for {MANY} answers");
}

#[test]
#[ignore = "needs nats-server"]
fn a_back_end_learns_which_broadcasts_are_unconfirmed_or_not_stored() {
    let engine = Engine::start(STORE);
    let [node] = nodes(&engine.address(), ["one"]);
    let member = Member::joins("pushes", &node, TOPIC);
    engine.freeze();
    // The engine may have stored these two, or not.
    member.pushes("unconfirmed push");
    std::thread::scope(|scope| {
        let unconfirmed = scope.spawn(|| publish_to(&node, "kept:b", "posted", Some("id 1")));
        // Messages that are never sent are not stored.
        until("the link is away", || (node.health() == "away").then_some(()));
        let message = json!({"topic": "kept:c", "event": "say", "payload": {"text": "refused"}});
        let line = "POST /api/broadcast";
        let (status, head, body) = node.whole_answer(line, &message.to_string()).unwrap();
        assert!(status == 503 && head.contains("\r\nretry-after: "), "{status} {head} {body}");
        let (status, body) = unconfirmed.join().unwrap();
        assert_eq!(status, 504, "{body}");
        assert!(body["error"].as_str().unwrap().starts_with("unconfirmed: "), "{body}");
    });
    let outcome = until("the push is answered", || {
        let pushed = &member.received().pushed;
        pushed.get("unconfirmed push").cloned().flatten()
    });
    assert_eq!(outcome, "unconfirmed");
    engine.thaw();
    keeps(&node);
    let (status, body) = publish_to(&node, "kept:b", "posted", Some("id 1"));
    assert_eq!(status, 202, "{body}");
    for (topic, most) in [(TOPIC, 1), ("kept:b", 1), ("kept:c", 0)] {
        let found = page(&node, topic, "");
        assert_eq!(found["recovered"], true, "{found}");
        assert!(found["messages"].as_array().unwrap().len() <= most, "{topic}: {found}");
    }
    assert_eq!(page(&node, "kept:b", "")["messages"].as_array().unwrap().len(), 1);
    // Members have received the messages that were stored.
    assert_eq!(member.is_answered("after"), "ok");
    member.has_received_all_of(&histories([&node]));
}
