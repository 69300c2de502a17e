//! Nodes are killed, frozen, and restarted one after the other.

use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::client::{Addresses, Client};
use super::room::{ROOM, Room};
use crate::support::engine::Engine;
use crate::support::engine::{until, within};
use crate::support::node::{DOWN, Node, Plan, SETTLES, know_each_other};

/// The delays of a busy machine.
const SLACK: Duration = Duration::from_secs(10);

#[test]
#[ignore = "needs nats-server"]
fn presences_of_a_killed_node_leave_once_and_spread_over_time() {
    const TOPICS: usize = 20;
    const MEMBERS: usize = 5;
    let engine = Engine::start("");
    let mut nodes = Node::three(&engine.address());
    let topics: Vec<String> = (0..TOPICS).map(|n| format!("room:{n}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let watchers: Vec<Client> =
        nodes[..2].iter().map(|it| Client::joins(&it.name, it, &topics)).collect();
    let members: Vec<Client> =
        (0..MEMBERS).map(|n| Client::joins(&format!("member-{n}"), &nodes[2], &topics)).collect();
    let are_present = |watcher: &Client, count| {
        topics.iter().all(|topic| watcher.of(topic, |it| it.present.len() == count))
    };
    for watcher in &watchers {
        until("all are present", || are_present(watcher, MEMBERS + 2).then_some(()));
    }
    // A new link does not detect missing nodes.
    sleep(SETTLES);
    nodes[2].kill();
    let killed = Instant::now();
    let asked = {
        let node = nodes.remove(0);
        spawn(move || (node.disconnect("user:1"), node))
    };
    for watcher in &watchers {
        within(DOWN + SLACK, "all presences of the node have left", || {
            are_present(watcher, 2).then_some(())
        });
        let mut left: Vec<Duration> = Vec::new();
        for topic in &topics {
            watcher.of(topic, |it| {
                assert_eq!((it.left.len(), it.diffs_of_leaves), (MEMBERS, 1), "{topic}");
                left.extend(it.left.iter().map(|it| it.1.duration_since(killed)));
            });
        }
        let (first, last) = (left.iter().min().unwrap(), left.iter().max().unwrap());
        // The last beat may have been up to 2.4 s before.
        assert!(*first > DOWN - Duration::from_secs(3), "{first:?}");
        assert!(*last - *first < Duration::from_secs(1) + SLACK, "{first:?} to {last:?}");
        assert!(watcher.received().wrong.is_empty(), "{:?}", watcher.received().wrong);
    }
    // A disconnect reports that one node has not confirmed it.
    let ((confirmed, missing), first) = asked.join().unwrap();
    assert_eq!((confirmed, missing), (vec!["two".to_owned()], vec!["three".to_owned()]));
    // New members are shown no presences of the killed node.
    let late = Client::joins("late", &first, &topics[..1]);
    until("the list of who is there", || {
        late.of(topics[0], |it| it.present.len() == 3).then_some(())
    });
    drop(members);
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_that_was_frozen_for_a_short_time_has_missed_nothing() {
    let engine = Engine::start("");
    let nodes = Node::three(&engine.address());
    let room = Room::of(&nodes, 2);
    sleep(SETTLES);
    for member in room.members[..2].iter().flatten() {
        member.pushes_every(ROOM, Duration::from_millis(50), 0);
    }
    nodes[2].signal("STOP");
    let asked = Instant::now();
    std::thread::scope(|scope| {
        let disconnected = scope.spawn(|| nodes[0].disconnect("user:1"));
        sleep(DOWN / 2);
        nodes[2].signal("CONT");
        let (confirmed, missing) = disconnected.join().unwrap();
        assert_eq!((confirmed, missing), (vec!["three".to_owned(), "two".to_owned()], vec![]));
    });
    assert!(asked.elapsed() >= DOWN / 2, "confirmed by a node that stood still");
    room.has_healed(&nodes);
    room.nobody_left();
    room.nothing_is_missing();
}

#[test]
#[ignore = "needs nats-server"]
fn node_frozen_for_long_expires_and_returns_with_its_presences() {
    let engine = Engine::start("");
    let nodes = Node::three(&engine.address());
    let room = Room::of(&nodes, 2);
    let refs = |member: &Client| member.of(ROOM, |it| it.present.clone());
    let before = refs(&room.members[0][0]);
    assert_eq!(before.len(), 6);
    sleep(SETTLES);
    nodes[2].signal("STOP");
    for member in room.members[..2].iter().flatten() {
        within(DOWN + SLACK, "the frozen node's presences leave", || {
            (refs(member).len() == 4).then_some(())
        });
    }
    sleep(Duration::from_secs(2));
    nodes[2].signal("CONT");
    know_each_other(&nodes);
    room.has_healed(&nodes);
    for member in room.all() {
        assert_eq!(refs(member), before, "{}", member.name);
    }
    // The frozen node expires no other: it detects that it did not listen itself.
    room.members[2].iter().for_each(|it| it.has_seen_nobody_leave(ROOM));
}

#[test]
#[ignore = "needs nats-server"]
fn rolling_restart_of_three_nodes_moves_their_clients() {
    const CLIENTS: usize = 9;
    let engine = Engine::start("");
    let address = engine.address();
    // Longer than a client takes to reach another node.
    let plan =
        |name: &str| Plan { top: "presence_leave_delay = \"5s\"", ..Plan::new(name, &address) };
    let mut nodes: Vec<Node> = ["one", "two", "three"].map(|name| plan(name).start()).into();
    know_each_other(&nodes);
    let addresses: Addresses =
        Arc::new(Mutex::new(nodes.iter().map(|it| it.address.clone()).collect()));
    let join = |n: usize| {
        let mut own = addresses.lock().unwrap().clone();
        own.rotate_left(n % 3);
        let own = Arc::new(Mutex::new(own));
        (Client::joins_at(&format!("client-{n}"), Arc::clone(&own), &[ROOM]), own)
    };
    let (clients, lists): (Vec<Client>, Vec<Addresses>) = (0..CLIENTS).map(join).unzip();
    let room = Room { members: vec![clients] };
    room.is_whole();
    room.pushes_every(Duration::from_millis(100), 0);
    for n in 0..nodes.len() {
        let old = nodes[n].address.clone();
        let began = Instant::now();
        assert!(nodes[n].drain().success(), "{}", nodes[n].log());
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        nodes[n] = plan(&nodes[n].name.clone()).start();
        for addresses in &lists {
            for at in addresses.lock().unwrap().iter_mut().filter(|at| **at == old) {
                at.clone_from(&nodes[n].address);
            }
        }
        know_each_other(&nodes);
        room.is_whole();
    }
    room.stops_pushing();
    room.all_receive_all();
    room.is_whole();
    room.nothing_is_wrong();
    let mut names: Vec<String> = room.all().map(|it| it.name.clone()).collect();
    names.sort();
    for node in &nodes {
        // The HTTP API lists presences only of topics with members on the node.
        if node.metric("simurgh_channels") > 0 {
            assert_eq!(node.presences(ROOM), names, "{}", node.name);
        }
        assert_eq!(node.metric("simurgh_cluster_dropped_total"), 0, "{}", node.name);
    }
    for client in room.all() {
        let connections = client.received().connections;
        assert!((2..=6).contains(&connections), "{}: {connections}", client.name);
    }
    // Every client was always connected to some node.
    room.nobody_left();
    room.nothing_is_missing();
}
