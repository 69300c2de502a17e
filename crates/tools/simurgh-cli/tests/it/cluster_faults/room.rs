//! A room with members on several nodes, and the checks that must hold after each fault.

use std::time::Duration;

use super::client::Client;
use crate::support::engine::until;
use crate::support::node::{Node, are_up};

pub(crate) const ROOM: &str = "room:a";

pub(crate) struct Room {
    pub(crate) members: Vec<Vec<Client>>,
}

impl Room {
    /// Members receive each other's messages and see each other's presence.
    pub(crate) fn of(nodes: &[Node], each: usize) -> Self {
        let member =
            |node: &Node, n: usize| Client::joins(&format!("{}-{n}", node.name), node, &[ROOM]);
        let members = nodes.iter().map(|node| (0..each).map(|n| member(node, n)).collect());
        let room = Self { members: members.collect() };
        room.is_whole();
        room.all_receive_all();
        room
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Client> {
        self.members.iter().flatten()
    }

    pub(crate) fn pushes_every(&self, every: Duration, pad: usize) {
        self.all().for_each(|it| it.pushes_every(ROOM, every, pad));
    }

    pub(crate) fn stops_pushing(&self) {
        self.all().for_each(Client::stops_pushing);
    }

    /// Waits until each member has received a new message of each other. Repeats messages, since
    /// interests may still be in flight.
    #[track_caller]
    pub(crate) fn all_receive_all(&self) {
        for from in self.all() {
            let before: Vec<u64> = self.all().map(|to| to.count(ROOM, &from.name)).collect();
            let mut tries = 0;
            until(&format!("all hear {}", from.name), || {
                if tries % 10 == 0 {
                    from.pushes(ROOM);
                }
                tries += 1;
                let counts = self.all().map(|to| to.count(ROOM, &from.name));
                counts.zip(&before).all(|(now, before)| now > *before).then_some(())
            });
        }
    }

    /// Each member has all members in its list, once.
    #[track_caller]
    pub(crate) fn is_whole(&self) {
        let mut names: Vec<String> = self.all().map(|it| it.name.clone()).collect();
        names.sort();
        for member in self.all() {
            until(&format!("{} has all members in its list", member.name), || {
                let mut keys: Vec<String> =
                    member.of(ROOM, |it| it.present.values().cloned().collect());
                keys.sort();
                (keys == names).then_some(())
            });
        }
    }

    #[track_caller]
    pub(crate) fn nobody_left(&self) {
        self.all().for_each(|it| it.has_seen_nobody_leave(ROOM));
    }

    #[track_caller]
    pub(crate) fn nothing_is_wrong(&self) {
        for member in self.all() {
            let received = member.received();
            assert!(received.wrong.is_empty(), "{}: {:?}", member.name, received.wrong);
            assert!(received.other.is_empty(), "{}: {:?}", member.name, received.other);
        }
    }

    #[track_caller]
    pub(crate) fn nothing_is_missing(&self) {
        for member in self.all() {
            let missing: u64 = member.of(ROOM, |it| it.missing.values().sum());
            assert_eq!(missing, 0, "{}", member.name);
        }
    }

    /// Checks that messages of another node are missing only if one of the two has counted a loss,
    /// and none of the own node.
    #[track_caller]
    pub(crate) fn what_is_missing_is_known(&self, nodes: &[Node]) {
        let known: Vec<(u64, u64)> = nodes
            .iter()
            .map(|it| {
                let dropped = it.metric("simurgh_cluster_dropped_total");
                (it.metric("simurgh_cluster_lost_total"), dropped)
            })
            .collect();
        for (here, members) in self.members.iter().enumerate() {
            for member in members {
                for (there, others) in self.members.iter().enumerate() {
                    let missing: u64 = member.of(ROOM, |it| {
                        others.iter().filter_map(|from| it.missing.get(&from.name)).sum()
                    });
                    let is_known = here != there && (known[here].0 > 0 || known[there].1 > 0);
                    let (name, of) = (&member.name, &nodes[there].name);
                    assert!(missing == 0 || is_known, "{name} missed {missing} of {of}: {known:?}");
                }
            }
        }
    }

    /// All checks, after a fault.
    #[track_caller]
    pub(crate) fn has_healed(&self, nodes: &[Node]) {
        are_up(nodes);
        self.stops_pushing();
        self.all_receive_all();
        self.is_whole();
        self.nothing_is_wrong();
        self.what_is_missing_is_known(nodes);
        for node in nodes {
            assert!(!node.log().contains("ERROR"), "{}", node.log());
        }
    }
}
