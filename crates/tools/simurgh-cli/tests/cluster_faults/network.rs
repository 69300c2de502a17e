//! Three hosts whose ways to the engine are cut, in one direction or both, for long and often.

use std::thread::sleep;
use std::time::Duration;

use crate::engine::Engine;
use crate::hosts::{HUB, Host, Way, are_here, on_a_bridge};
use crate::node::{DOWN, Node, Plan, SETTLES, know_each_other};
use crate::room::{ROOM, Room};
use crate::{until, within};

/// An engine and nodes, each on a host of its own, and members on all of them.
struct World {
    hosts: Vec<Host>,
    engine: Engine,
    nodes: Vec<Node>,
    room: Room,
}

impl World {
    fn new() -> Option<Self> {
        let hosts = on_a_bridge(3);
        let engine = Engine::start_at(HUB, "")?;
        let start = |host: &Host| {
            let plan = Plan::new(&host.by()[3], &engine.address());
            Plan { by: host.by(), host: host.address.clone(), ..plan }.start()
        };
        let nodes: Vec<Node> = hosts.iter().map(start).collect();
        know_each_other(&nodes);
        let room = Room::of(&nodes, 2);
        Some(Self { hosts, engine, nodes, room })
    }

    fn cut(&self, host: usize, ways: &[Way]) {
        let address = self.engine.address();
        self.hosts[host].loses(address.rsplit_once(':').unwrap().1, ways);
    }

    /// How many members each member has in its list.
    fn lists(&self, node: usize) -> Vec<usize> {
        let members = self.room.members[node].iter();
        members.map(|it| it.of(ROOM, |topic| topic.present.len())).collect()
    }

    /// Cut off for longer than nodes are waited for, then healed.
    fn is_cut_for_long(&self, ways: &[Way]) {
        self.room.pushes_every(Duration::from_millis(50), 0);
        let before = self.room.members[0][0].of(ROOM, |it| it.present.clone());
        self.cut(2, ways);
        // It notices, and serves its own members all the while.
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
fn a_host_that_is_cut_off_for_long_comes_back_whole() {
    if !are_here("network::a_host_that_is_cut_off_for_long_comes_back_whole") {
        return;
    }
    let Some(world) = World::new() else { return };
    sleep(SETTLES);
    for ways in [&[Way::In, Way::Out][..], &[Way::Out], &[Way::In]] {
        world.is_cut_for_long(ways);
        // Links are young again.
        sleep(SETTLES);
    }
}

#[test]
fn a_way_that_flaps_loses_nobody_and_nothing_comes_twice() {
    if !are_here("network::a_way_that_flaps_loses_nobody_and_nothing_comes_twice") {
        return;
    }
    let Some(world) = World::new() else { return };
    world.room.pushes_every(Duration::from_millis(20), 0);
    // Shorter than a link needs to be given up, and longer.
    for (times, cut, whole) in [(8, 300, 300), (2, 2500, 500)] {
        for n in 0..times {
            let ways = [&[Way::In][..], &[Way::Out], &[Way::In, Way::Out]][n % 3];
            world.cut(n % 2, ways);
            sleep(Duration::from_millis(cut));
            world.hosts[n % 2].heals();
            sleep(Duration::from_millis(whole));
        }
    }
    world.room.has_healed(&world.nodes);
    world.room.nobody_left();
}

#[test]
fn all_hosts_are_cut_off_from_the_engine_and_nobody_leaves() {
    if !are_here("network::all_hosts_are_cut_off_from_the_engine_and_nobody_leaves") {
        return;
    }
    let Some(world) = World::new() else { return };
    sleep(SETTLES);
    (0..3).for_each(|host| world.cut(host, &[Way::In, Way::Out]));
    for node in &world.nodes {
        until("it knows", || (node.health() == "away").then_some(()));
    }
    sleep(DOWN + Duration::from_secs(3));
    world.hosts.iter().for_each(Host::heals);
    world.room.has_healed(&world.nodes);
    world.room.nobody_left();
}
