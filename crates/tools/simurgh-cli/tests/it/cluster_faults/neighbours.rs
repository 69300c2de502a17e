//! Two nodes with one name, two clusters on one engine, and an engine with minimal permissions.

use std::process::Command;

use super::client::Client;
use super::room::{ROOM, Room};
use crate::support::engine::Engine;
use crate::support::engine::until;
use crate::support::node::{Plan, know_each_other};

#[test]
#[ignore = "needs nats-server"]
fn two_nodes_with_one_name_work_and_report_the_conflict() {
    let engine = Engine::start("");
    let nodes = ["same", "same", "other"].map(|name| Plan::new(name, &engine.address()).start());
    know_each_other(&nodes);
    for (n, node) in nodes.iter().enumerate() {
        until(&format!("{n} knows of the name that two have"), || {
            (node.metric("simurgh_cluster_name_conflicts") > 0).then_some(())
        });
    }
    let members = nodes.iter().zip(["a", "b", "c"]);
    let members = members.map(|(node, name)| vec![Client::joins(name, node, &[ROOM])]).collect();
    let room = Room { members };
    room.has_healed(&nodes);
    room.nobody_left();
    let (confirmed, missing) = nodes[2].disconnect("user:1");
    assert_eq!((confirmed, missing), (vec!["same".to_owned(), "same".to_owned()], vec![]));
}

#[test]
#[ignore = "needs nats-server"]
fn clusters_with_similar_prefixes_are_isolated() {
    let engine = Engine::start("");
    let cluster = |prefix| {
        let plan = |name| Plan { prefix, ..Plan::new(name, &engine.address()) };
        let nodes = [plan("one").start(), plan("two").start()];
        know_each_other(&nodes);
        nodes
    };
    let (a, ab) = (cluster("a"), cluster("ab"));
    let (room_a, room_ab) = (Room::of(&a, 1), Room::of(&ab, 1));
    for from in room_a.all() {
        from.pushes(ROOM);
    }
    // The second message arrives; the other cluster's first would have arrived before it.
    for (room, nodes) in [(&room_a, &a), (&room_ab, &ab)] {
        room.all_receive_all();
        room.nobody_left();
        room.is_whole();
        for node in nodes {
            let sent: u64 = room.all().map(|it| it.count(ROOM, &it.name)).sum();
            assert!(node.metric("simurgh_cluster_received_total{kind=\"broadcast\"}") <= sent);
            assert_eq!(node.metric("simurgh_cluster_received_refused_total"), 0);
            assert_eq!(node.metric("simurgh_cluster_received_unwanted_total"), 0);
        }
        // Both clusters have members with the same names in the same room.
        let names = room.all().map(|it| it.of(ROOM, |topic| topic.present.len()));
        assert_eq!(names.collect::<Vec<_>>(), [2, 2]);
    }
    assert_eq!(a[0].disconnect("user:1").0, ["two"]);
}

#[test]
#[ignore = "needs nats-server"]
fn nodes_need_exactly_the_printed_permissions() {
    const PREFIX: &str = "allowed";
    let printed = Command::new(env!("CARGO_BIN_EXE_simurgh"))
        .args(["config", &format!("--nats-permissions={PREFIX}")])
        .output()
        .unwrap();
    let permissions = String::from_utf8(printed.stdout).unwrap();
    let users = format!(
        "authorization {{ users = [ {{ user: node, password: rosebud, {permissions} }} ] }}\n"
    );
    let engine = Engine::start(&users);
    let plan = |name| Plan {
        prefix: PREFIX,
        keys: "user = \"node\"\npassword_env = \"NATS_PASSWORD\"".to_owned(),
        env: vec![("NATS_PASSWORD", "rosebud".into())],
        ..Plan::new(name, &engine.address())
    };
    let nodes = ["one", "two", "three"].map(|name| plan(name).start());
    know_each_other(&nodes);
    let room = Room::of(&nodes, 2);
    assert_eq!(nodes[1].disconnect("user:1").0, ["one", "three"]);
    room.has_healed(&nodes);
    // A missing permission would be reported.
    for node in &nodes {
        assert!(!node.log().contains("ermission"), "{}", node.log());
        assert_eq!(node.metric("simurgh_cluster_reconnects_total"), 0);
    }
    // Another prefix is not allowed, and the node reports that.
    let stranger = Plan { prefix: "else", required: None, ..plan("stranger") }.start();
    until("it says what it may not", || {
        stranger.log().to_lowercase().contains("permissions violation").then_some(())
    });
    assert_eq!(stranger.health(), "away");
    room.all_receive_all();
}
