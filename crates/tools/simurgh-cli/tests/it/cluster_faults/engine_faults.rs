//! The engine is killed, frozen, and restarted with and without its store.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::room::{ROOM, Room};
use crate::support::engine::until;
use crate::support::engine::{Engine, STORE};
use crate::support::node::{Node, SETTLES};

const EVERY: Duration = Duration::from_millis(25);

/// The number of broadcasts from members of the same node.
fn of_own_node(room: &Room) -> Vec<u64> {
    let all = room.members.iter().flat_map(|members| {
        members.iter().map(|to| members.iter().map(|from| to.count(ROOM, &from.name)).sum())
    });
    all.collect()
}

/// Killed while all push, and restarted later; presences stay, and each node works alone.
fn is_killed_and_comes_back(loses_its_store: bool) {
    let mut engine = Engine::start(STORE);
    let nodes = Node::three(&engine.address());
    let room = Room::of(&nodes, 2);
    room.pushes_every(EVERY, 0);
    sleep(Duration::from_secs(1));
    for times in 1..=2 {
        engine.kill();
        for node in &nodes {
            until("the link is away", || (node.health() == "away").then_some(()));
            assert_eq!(node.ask("GET /healthz?strict", "").0, 503);
        }
        let before = of_own_node(&room);
        // Long enough for some messages to become too old to be sent.
        sleep(Duration::from_millis(2500));
        for (now, before) in of_own_node(&room).iter().zip(before) {
            assert!(now - before > 50, "{} in 2.5 s without an engine", now - before);
        }
        if loses_its_store {
            engine.lose_store();
        }
        engine.restart();
        room.has_healed(&nodes);
        room.nobody_left();
        for node in &nodes {
            assert_eq!(node.metric("simurgh_cluster_reconnects_total"), times, "{}", node.log());
        }
        room.pushes_every(EVERY, 0);
    }
    // A new link does not detect missing nodes, so an expiry would come only now.
    room.stops_pushing();
    sleep(SETTLES);
    room.nobody_left();
    let (confirmed, missing) = nodes[0].disconnect("user:1");
    assert_eq!((confirmed, missing), (vec!["three".to_owned(), "two".to_owned()], vec![]));
}

#[test]
fn broker_killed_under_load_returns_and_no_presence_left() {
    is_killed_and_comes_back(false);
}

#[test]
fn broker_restarted_without_its_store_changes_no_presence() {
    is_killed_and_comes_back(true);
}

/// Padding of each broadcast: too much for nodes to keep all.
const PAD: usize = 8 << 10;
const OUTBOX_MAX: u64 = 8 << 20;
/// The additional memory of an unoptimised node while it sends its outbox.
const MEMORY_MORE: u64 = 48 << 20;
const FROZEN: Duration = Duration::from_secs(8);
/// The longest pause of a node on a busy machine.
const LOCAL_MS_MAX: u64 = 4000;

#[test]
#[ignore = "needs nats-server"]
fn members_of_one_node_receive_messages_while_broker_is_frozen() {
    let engine = Engine::start("");
    let nodes = Node::three(&engine.address());
    let room = Room::of(&nodes, 2);
    // A new link does not detect missing nodes.
    sleep(SETTLES);
    room.pushes_every(EVERY, PAD);
    sleep(Duration::from_secs(2));
    let memory: Vec<u64> = nodes.iter().map(Node::memory).collect();
    room.all().for_each(|it| it.of(ROOM, |topic| topic.longest_ms.clear()));
    let before = of_own_node(&room);
    engine.freeze();
    let frozen = Instant::now();
    let (mut outbox_max, mut grown_max) = (0, 0);
    let mut is_away = vec![false; nodes.len()];
    while frozen.elapsed() < FROZEN || is_away.contains(&false) {
        for (n, node) in nodes.iter().enumerate() {
            outbox_max = outbox_max.max(node.metric("simurgh_cluster_outbox_bytes"));
            grown_max = grown_max.max(node.memory().saturating_sub(memory[n]));
            is_away[n] |= node.health() == "away";
        }
        // Three unanswered pings, two seconds apart, and the delays of a busy machine.
        assert!(frozen.elapsed() < FROZEN * 2, "not noticed: {is_away:?}");
    }
    for members in &room.members {
        for (to, from) in [(0, 1), (1, 0)] {
            let longest = members[to].of(ROOM, |it| it.longest_ms[&members[from].name]);
            assert!(longest < LOCAL_MS_MAX, "{longest} ms on one node");
        }
    }
    let received = of_own_node(&room).iter().zip(before).map(|(now, before)| now - before).min();
    assert!(received.unwrap() > 200, "{received:?} in {:?}", frozen.elapsed());
    assert!(outbox_max <= OUTBOX_MAX, "{outbox_max} bytes wait");
    assert!(grown_max < MEMORY_MORE, "{grown_max} bytes more");
    engine.thaw();
    room.has_healed(&nodes);
    room.nobody_left();
}
