//! Nodes die with what they have not told anybody yet, and clients come back to nodes that cannot
//! know what they have missed.

use std::fs;

use serde_json::json;

use crate::back_end::{TOPIC, histories, nodes, publish, publish_surely, texts};
use crate::engine::{Engine, STORE};
use crate::member::Member;
use crate::until;

#[test]
fn what_a_killed_node_has_not_delivered_is_heard_on_another() {
    let Some(engine) = Engine::start(STORE) else { return };
    let [mut one, two, three] = nodes(&engine.address(), ["one", "two", "three"]);
    let members = ["to-two", "to-three"].map(|name| Member::joins(name, &one, TOPIC));
    assert_eq!(members[0].is_answered("first"), "ok");
    members[1].hears(0, &["first"]);
    // Neither of the others has a member, so nothing of it is there.
    one.signal("STOP");
    for (n, node) in [&two, &three, &two].into_iter().enumerate() {
        publish(node, &format!("missed {n}"));
    }
    one.kill();
    for (member, node) in members.iter().zip([&two, &three]) {
        let told = member.comes_to(node);
        assert_eq!(told.payload, json!({"recovered": true, "count": 3}), "{}", member.name);
        member.hears(0, &["first", "missed 0", "missed 1", "missed 2"]);
    }
    assert_eq!(members[0].is_answered("after"), "ok");
    let history = histories([&two, &three]);
    members.iter().for_each(|it| it.has_heard_all_of(&history));
}

/// Bytes that the engine at this port has not read, of the connection that has most.
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
fn what_a_node_had_stored_and_could_not_confirm_is_heard_once() {
    let Some(engine) = Engine::start(STORE) else { return };
    let [mut one, two] = nodes(&engine.address(), ["one", "two"]);
    let [speaks, hears] =
        [("speaks", &one), ("hears", &two)].map(|(name, node)| Member::joins(name, node, TOPIC));
    assert_eq!(speaks.is_answered("first"), "ok");
    let long = "x".repeat(20_000);
    engine.freeze();
    speaks.says(&long);
    until("it is on its way", || (unread(engine.port()) > long.len()).then_some(()));
    one.kill();
    engine.thaw();
    hears.hears(0, &["first", &long]);
    let told = speaks.comes_to(&two);
    assert_eq!(told.payload, json!({"recovered": true, "count": 1}));
    speaks.hears(0, &["first", &long]);
    assert_eq!(speaks.heard().pushed[&long], None, "nobody has confirmed it");
    assert_eq!(texts(&histories([&two])), ["first", &long]);
}

#[test]
fn who_comes_back_while_the_engine_is_away_is_told_so_and_it_heals() {
    let Some(mut engine) = Engine::start(STORE) else { return };
    let [one, two] = nodes(&engine.address(), ["one", "two"]);
    let stays = Member::joins("stays", &one, TOPIC);
    // Both were at the node that knows the topic; one comes back there, one to the other.
    let come_back = ["to-one", "to-two"].map(|name| Member::joins(name, &one, TOPIC));
    publish(&two, "first");
    for member in &come_back {
        member.hears(0, &["first"]);
        member.goes();
    }
    publish(&two, "missed");
    stays.hears(0, &["first", "missed"]);
    engine.kill();
    for node in [&one, &two] {
        until("the link is away", || (node.health() == "away").then_some(()));
    }
    for (member, node) in come_back.iter().zip([&one, &two]) {
        let told = member.comes_to(node);
        let (recovered, reason) = (&told.payload["recovered"], &told.payload["reason"]);
        assert_eq!((recovered, reason), (&json!(false), &json!("unavailable")), "{}", node.name);
    }
    engine.restart();
    // The node that knew nothing of the topic says where it stands, as soon as it knows that.
    assert_eq!(come_back[1].is_told(3).event, "simurgh:gap");
    publish_surely(&one, "after");
    for member in [&stays, &come_back[0], &come_back[1]] {
        until(&format!("{} hears what is new", member.name), || {
            (member.texts().last()? == "after").then_some(())
        });
        let texts = member.texts();
        let all = ["first", "missed", "after"];
        assert!(texts == all || texts == ["first", "after"], "{}: {texts:?}", member.name);
    }
    // The one who stayed has missed nothing, and is told nothing.
    stays.has_no_gap();
    stays.has_heard_all_of(&histories([&one, &two]));
    // It has healed: who comes back now misses nothing either.
    for (member, node) in come_back.iter().zip([&two, &one]) {
        let heard = member.texts().len();
        member.goes();
        publish(node, &format!("at last {}", member.name));
        let told = member.comes_to(node);
        assert_eq!(told.payload["recovered"], true, "{}: {told:?}", member.name);
        member.hears(heard + told.payload["count"].as_u64().unwrap() as usize, &[]);
        assert_eq!(member.texts().last(), Some(&format!("at last {}", member.name)));
    }
}
