//! Nodes are killed with messages that no other node has, and clients return to nodes that do not
//! have what they missed.

use std::fs;

use serde_json::json;

use super::back_end::{
    TOPIC, histories, keeps, nodes, page, plan, publish, publish_surely, publish_to, texts,
};
use super::member::Member;
use crate::support::engine::until;
use crate::support::engine::{Engine, STORE};
use crate::support::node::{Node, Plan};

#[test]
#[ignore = "needs nats-server"]
fn messages_undelivered_by_a_killed_node_are_delivered_on_another() {
    let engine = Engine::start(STORE);
    let [mut one, two, three] = nodes(&engine.address(), ["one", "two", "three"]);
    let members = ["to-two", "to-three"].map(|name| Member::joins(name, &one, TOPIC));
    assert_eq!(members[0].is_answered("first"), "ok");
    members[1].receives(0, &["first"]);
    // Neither of the other nodes has a member, so they have no copy.
    one.signal("STOP");
    for (n, node) in [&two, &three, &two].into_iter().enumerate() {
        publish(node, &format!("missed {n}"));
    }
    one.kill();
    for (member, node) in members.iter().zip([&two, &three]) {
        let notice = member.resumes_at(node);
        assert_eq!(notice.payload, json!({"recovered": true, "count": 3}), "{}", member.name);
        member.receives(0, &["first", "missed 0", "missed 1", "missed 2"]);
    }
    assert_eq!(members[0].is_answered("after"), "ok");
    let history = histories([&two, &three]);
    members.iter().for_each(|it| it.has_received_all_of(&history));
}

/// Unread bytes of the engine at this port, on the fullest connection.
fn unread(port: u16) -> usize {
    let connections = fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let of_engine = connections.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (at, queues) = (fields.get(1)?, fields.get(4)?);
        let bytes = usize::from_str_radix(queues.split_once(':')?.1, 16).ok()?;
        at.ends_with(&local).then_some(bytes)
    });
    of_engine.max().unwrap_or(0)
}

#[test]
#[ignore = "needs nats-server"]
fn message_stored_but_not_confirmed_is_delivered_once() {
    let engine = Engine::start(STORE);
    let [mut one, two] = nodes(&engine.address(), ["one", "two"]);
    let [speaks, receiver] =
        [("speaks", &one), ("hears", &two)].map(|(name, node)| Member::joins(name, node, TOPIC));
    assert_eq!(speaks.is_answered("first"), "ok");
    let long = "x".repeat(20_000);
    engine.freeze();
    speaks.pushes(&long);
    until("it is on its way", || (unread(engine.port()) > long.len()).then_some(()));
    one.kill();
    engine.thaw();
    receiver.receives(0, &["first", &long]);
    let notice = speaks.resumes_at(&two);
    assert_eq!(notice.payload, json!({"recovered": true, "count": 1}));
    speaks.receives(0, &["first", &long]);
    let outcome = speaks.received().pushed[&long].clone();
    assert_eq!(outcome.as_deref(), Some("the connection has ended"));
    assert_eq!(texts(&histories([&two])), ["first", &long]);
}

#[test]
#[ignore = "needs nats-server"]
fn clients_that_resume_without_a_broker_are_notified_and_node_recovers() {
    let mut engine = Engine::start(STORE);
    let [one, two] = nodes(&engine.address(), ["one", "two"]);
    let stays = Member::joins("stays", &one, TOPIC);
    // Both were on the node with the topic; one returns there, one to the other node.
    let come_back = ["to-one", "to-two"].map(|name| Member::joins(name, &one, TOPIC));
    publish(&two, "first");
    for member in &come_back {
        member.receives(0, &["first"]);
        member.disconnects();
    }
    publish(&two, "missed");
    stays.receives(0, &["first", "missed"]);
    engine.kill();
    for node in [&one, &two] {
        until("the link is away", || (node.health() == "away").then_some(()));
    }
    for (member, node) in come_back.iter().zip([&one, &two]) {
        let notice = member.resumes_at(node);
        let (recovered, reason) = (&notice.payload["recovered"], &notice.payload["reason"]);
        assert_eq!((recovered, reason), (&json!(false), &json!("unavailable")), "{}", node.name);
    }
    engine.restart();
    // The node without a copy sends the position after it has learnt it.
    assert_eq!(come_back[1].is_notified(3).event, "simurgh:gap");
    publish_surely(&one, "after");
    for member in [&stays, &come_back[0], &come_back[1]] {
        until(&format!("{} hears what is new", member.name), || {
            (member.texts().last()? == "after").then_some(())
        });
        let texts = member.texts();
        let all = ["first", "missed", "after"];
        assert!(texts == all || texts == ["first", "after"], "{}: {texts:?}", member.name);
    }
    stays.has_no_gap();
    stays.has_received_all_of(&histories([&one, &two]));
    // Clients that return now have no gap either.
    for (member, node) in come_back.iter().zip([&two, &one]) {
        let received = member.texts().len();
        member.disconnects();
        publish(node, &format!("at last {}", member.name));
        let notice = member.resumes_at(node);
        assert_eq!(notice.payload["recovered"], true, "{}: {notice:?}", member.name);
        member.receives(received + notice.payload["count"].as_u64().unwrap() as usize, &[]);
        assert_eq!(member.texts().last(), Some(&format!("at last {}", member.name)));
    }
}

#[test]
#[ignore = "needs nats-server"]
fn restarted_node_delivers_messages_it_never_received() {
    let engine = Engine::start(STORE);
    let [mut one, two] = nodes(&engine.address(), ["one", "two"]);
    let member = Member::joins("member", &one, TOPIC);
    assert_eq!(member.is_answered("first"), "ok");
    member.disconnects();
    assert!(one.drain().success(), "{}", one.log());
    publish(&two, "missed");
    let one = plan("one", &engine.address()).start();
    let notice = member.resumes_at(&one);
    assert_eq!(notice.payload, json!({"recovered": true, "count": 1}));
    member.receives(0, &["first", "missed"]);
    // The same without other clients.
    member.disconnects();
    publish(&one, "missed again");
    drop((one, two));
    let [last] = nodes(&engine.address(), ["last"]);
    assert_eq!(member.resumes_at(&last).payload, json!({"recovered": true, "count": 1}));
    member.receives(0, &["first", "missed", "missed again"]);
}

#[test]
#[ignore = "needs nats-server"]
fn node_started_without_its_broker_reports_it_and_recovers() {
    let mut engine = Engine::start(STORE);
    let [one] = nodes(&engine.address(), ["one"]);
    let resumes = Member::joins("comes-back", &one, TOPIC);
    publish(&one, "first");
    resumes.receives(0, &["first"]);
    resumes.disconnects();
    publish(&one, "missed");
    engine.kill();
    let two = Plan { required: None, ..plan("two", &engine.address()) }.start();
    let notice = resumes.resumes_at(&two);
    assert_eq!(notice.payload["reason"], "unavailable");
    let member = Member::joins("new", &two, TOPIC);
    assert_eq!(member.is_notified(1).payload["reason"], "unavailable");
    let page = page(&two, TOPIC, "");
    assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("unavailable")));
    let (status, body) = publish_to(&two, TOPIC, "refused", None);
    assert_eq!(status, 503, "{body}");
    engine.restart();
    keeps(&two);
    for it in [&resumes, &member] {
        assert_eq!(it.is_notified_of_gap("unavailable").payload["recovered"], false);
        until("it is told where it stands", || {
            (it.received().notices.last()?.event == "simurgh:gap").then_some(())
        });
    }
    keeps(&one);
    publish_surely(&one, "after");
    for (it, received) in [(&resumes, 1), (&member, 0)] {
        it.receives(received, &["after"]);
    }
    assert_eq!(texts(&histories([&one, &two])), ["first", "missed", "after"]);
}

#[test]
#[ignore = "needs nats-server"]
fn excluded_sender_is_excluded_on_every_node() {
    let engine = Engine::start(STORE);
    let [one, two] = nodes(&engine.address(), ["one", "two"]);
    let [sender, receiver] =
        [("tells", &one), ("hears", &two)].map(|(name, node)| Member::joins(name, node, TOPIC));
    sender.pushes_and_waits("told 0");
    receiver.receives(0, &["told 0"]);
    let since = sender.received().since.clone().unwrap();
    sender.pushes_and_waits("told 1");
    receiver.pushes_and_waits("told 2");
    sender.receives(0, &["told 2"]);
    sender.disconnects();
    publish(&two, "said");
    let notice = sender.resumes_at(&two);
    assert_eq!(notice.payload, json!({"recovered": true, "count": 1}));
    sender.receives(0, &["told 2", "said"]);
    // Even if it claims an older position; another client receives all of that.
    let again = Member::resumes("tells", &two, TOPIC, Some(&since));
    again.receives(0, &["told 2", "said"]);
    let other = Member::resumes("other", &one, TOPIC, Some(&since));
    other.receives(0, &["told 1", "told 2", "said"]);
    receiver.receives(0, &["told 0", "told 1", "said"]);
    assert_eq!(texts(&histories([&one, &two])), ["told 0", "told 1", "told 2", "said"]);
}

/// A client that claims a position from before its first join, on nodes with a shared secret or
/// without.
fn own(shares: bool) -> (Engine, [Node; 2], Member) {
    const OWN: &str = "own:a";
    let engine = Engine::start(STORE);
    let start = |name| {
        let keys = "secret_env = \"SIMURGH_SECRET\"\n".to_owned();
        let secret = "what all nodes of this test share, and nobody else";
        let env = vec![("SIMURGH_SECRET", secret.into())];
        let plan = plan(name, &engine.address());
        if shares { Plan { keys, env, ..plan } } else { plan }.start()
    };
    let nodes = ["one", "two"].map(start);
    nodes.iter().for_each(keeps);
    let publish = |node, text| assert_eq!(publish_to(node, OWN, text, None).0, 202);
    publish(&nodes[0], "before");
    let before = page(&nodes[0], OWN, "")["messages"][0]["position"].as_str().unwrap().to_owned();
    let member = Member::joins("member", &nodes[0], OWN);
    publish(&nodes[1], "heard");
    member.receives(0, &["heard"]);
    member.disconnects();
    publish(&nodes[0], "missed");
    member.received().since = Some(before.split_once('.').unwrap().0.to_owned() + ".1");
    (engine, nodes, member)
}

#[test]
#[ignore = "needs nats-server"]
fn first_join_position_is_valid_on_every_node_with_the_same_secret() {
    let (_engine, nodes, member) = own(true);
    let notice = member.resumes_at(&nodes[1]);
    let (recovered, count) = (&notice.payload["recovered"], &notice.payload["count"]);
    assert_eq!((recovered, count), (&json!(true), &json!(2)), "{notice:?}");
    member.receives(1, &["heard", "missed"]);
}

#[test]
#[ignore = "needs nats-server"]
fn unknown_first_join_position_is_a_gap_without_older_messages() {
    let (_engine, nodes, member) = own(false);
    let notice = member.resumes_at(&nodes[1]);
    assert_eq!(notice.payload["recovered"], false, "{notice:?}");
    assert_eq!(publish_to(&nodes[0], "own:a", "new", None).0, 202);
    member.receives(1, &["new"]);
}
