//! Three hosts whose connections to the engine fail in one direction or both, for a long time and
//! repeatedly.

use std::thread::sleep;
use std::time::Duration;

use super::room::{ROOM, Room};
use crate::support::engine::Engine;
use crate::support::engine::{until, within};
use crate::support::hosts::{Direction, HUB, Host, are_here, on_a_bridge};
use crate::support::node::{DOWN, Node, Plan, SETTLES, know_each_other};

/// An engine and nodes, each on its own host, and members on all of them.
struct Fixture {
    hosts: Vec<Host>,
    engine: Engine,
    nodes: Vec<Node>,
    room: Room,
}

impl Fixture {
    fn new() -> Self {
        let hosts = on_a_bridge(3);
        let engine = Engine::start_at(HUB, "");
        let start = |host: &Host| {
            let plan = Plan::new(&host.by()[3], &engine.address());
            Plan { by: host.by(), host: host.address.clone(), ..plan }.start()
        };
        let nodes: Vec<Node> = hosts.iter().map(start).collect();
        know_each_other(&nodes);
        let room = Room::of(&nodes, 2);
        Self { hosts, engine, nodes, room }
    }

    fn cut(&self, host: usize, directions: &[Direction]) {
        let address = self.engine.address();
        self.hosts[host].loses(address.rsplit_once(':').unwrap().1, directions);
    }

    /// The length of each member's presence list.
    fn lists(&self, node: usize) -> Vec<usize> {
        let members = self.room.members[node].iter();
        members.map(|it| it.of(ROOM, |topic| topic.present.len())).collect()
    }

    /// Cut off for longer than the expiry of nodes.
    fn is_cut_for_long(&self, directions: &[Direction]) {
        self.room.pushes_every(Duration::from_millis(50), 0);
        let before = self.room.members[0][0].of(ROOM, |it| it.present.clone());
        self.cut(2, directions);
        // The node notices, and serves its own members meanwhile.
        let node = &self.nodes[2];
        until("the node that is cut off knows", || (node.health() == "away").then_some(()));
        within(DOWN + Duration::from_secs(6), "its presences leave elsewhere", || {
            (self.lists(0) == [4, 4] && self.lists(1) == [4, 4]).then_some(())
        });
        let own = &self.room.members[2];
        let received = own[0].count(ROOM, &own[1].name);
        until("its members hear each other", || {
            (own[0].count(ROOM, &own[1].name) > received + 10).then_some(())
        });
        assert_eq!(self.lists(2), [6, 6], "who is cut off expires nobody");
        self.hosts[2].heals();
        know_each_other(&self.nodes);
        self.room.has_healed(&self.nodes);
        for member in self.room.all() {
            assert_eq!(member.of(ROOM, |it| it.present.clone()), before, "{}", member.name);
        }
        own.iter().for_each(|it| it.has_seen_nobody_leave(ROOM));
    }
}

#[test]
#[ignore = "needs nats-server and root"]
fn a_host_that_was_disconnected_for_long_recovers() {
    if !are_here(module_path!(), "a_host_that_was_disconnected_for_long_recovers") {
        return;
    }
    let fixture = Fixture::new();
    sleep(SETTLES);
    for directions in [&[Direction::In, Direction::Out][..], &[Direction::Out], &[Direction::In]] {
        fixture.is_cut_for_long(directions);
        // The links are new.
        sleep(SETTLES);
    }
}

#[test]
#[ignore = "needs nats-server and root"]
fn flapping_network_loses_no_presence_and_duplicates_no_message() {
    if !are_here(module_path!(), "flapping_network_loses_no_presence_and_duplicates_no_message") {
        return;
    }
    let fixture = Fixture::new();
    fixture.room.pushes_every(Duration::from_millis(20), 0);
    // Shorter and longer than the timeout of a link.
    for (times, cut, whole) in [(8, 300, 300), (2, 2500, 500)] {
        for n in 0..times {
            let directions =
                [&[Direction::In][..], &[Direction::Out], &[Direction::In, Direction::Out]][n % 3];
            fixture.cut(n % 2, directions);
            sleep(Duration::from_millis(cut));
            fixture.hosts[n % 2].heals();
            sleep(Duration::from_millis(whole));
        }
    }
    fixture.room.has_healed(&fixture.nodes);
    fixture.room.nobody_left();
}

#[test]
#[ignore = "needs nats-server and root"]
fn hosts_disconnected_from_the_broker_lose_no_presence() {
    if !are_here(module_path!(), "hosts_disconnected_from_the_broker_lose_no_presence") {
        return;
    }
    let fixture = Fixture::new();
    sleep(SETTLES);
    (0..3).for_each(|host| fixture.cut(host, &[Direction::In, Direction::Out]));
    for node in &fixture.nodes {
        until("it knows", || (node.health() == "away").then_some(()));
    }
    sleep(DOWN + Duration::from_secs(3));
    fixture.hosts.iter().for_each(Host::heals);
    fixture.room.has_healed(&fixture.nodes);
    fixture.room.nobody_left();
}
