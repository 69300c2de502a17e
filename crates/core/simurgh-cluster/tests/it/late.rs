//! Messages that are missed, or arrive late, without a report: a partitioned broker, nodes that
//! return, repeated envelopes.

use simurgh_cluster::{Hello, stamped};

use super::*;

fn wants(it: &mut Simulation, at: usize) -> Vec<u64> {
    let heard = std::mem::take(&mut it.node(at).heard.presence);
    let asks = heard.iter().filter_map(|(_, what)| match what {
        FromPeers::StateWanted(owner) => Some(owner.0),
        _ => None,
    });
    asks.collect()
}

/// A node that receives nothing is gone for the others, and repeats what was not confirmed.
#[test]
fn message_resent_by_a_node_after_it_was_gone_arrives_once() {
    let mut it = Simulation::with_member(2, 30, 1);
    it.network.cut(0, Direction::Hearing);
    it.broadcast(0, "t", "1");
    assert_eq!(it.advance(45 * SECOND).node(1).heard.gone, ids(&[0]));
    it.network.mend(0);
    assert_eq!(it.advance(20 * SECOND).node(1).cluster.peers().live().count(), 1);
    assert_eq!(it.take_broadcasts(1, "t"), ["1"]);
    it.delivers(0, 1, "2", 10 * MILLISECOND);
}

#[test]
fn message_resent_by_a_node_that_left_arrives_once() {
    let mut it = Simulation::with_member(2, 31, 1);
    it.network.cut(0, Direction::Hearing);
    it.broadcast(0, "t", "1");
    it.bye(0);
    assert_eq!(it.advance(10 * MILLISECOND).node(1).heard.gone, ids(&[0]));
    it.network.reset(0);
    it.network.mend(0);
    assert_eq!(it.advance(5 * SECOND).take_broadcasts(1, "t"), ["1"]);
    assert!(it.node(1).cluster.counts().again > 0);
}

/// The state may be older than the request over the new link, and that request may be lost.
#[test]
fn state_from_before_a_new_link_is_requested_again() {
    for is_sent in [true, false] {
        let mut it = Simulation::new(2, 40);
        it.presence(0, "t", ToPeers::Begin);
        it.advance(12 * SECOND);
        assert_eq!(wants(&mut it, 1), [1000]);
        it.network.cut(1, if is_sent { Direction::Hearing } else { Direction::Both });
        let state = Snapshot { owner: Owner(1001), version: 1, entries: Vec::new() };
        if is_sent {
            it.presence(1, "t", ToPeers::State(Owner(1000), state.clone()));
        }
        it.advance(100 * MILLISECOND);
        it.network.reset(1);
        it.advance(100 * MILLISECOND);
        if !is_sent {
            it.presence(1, "t", ToPeers::State(Owner(1000), state));
        }
        it.network.mend(1);
        it.advance(5 * SECOND);
        assert_eq!(wants(&mut it, 1), [1000], "{is_sent}");
    }
}

#[test]
fn disconnect_does_not_wait_for_a_late_hello_of_a_node_that_has_ended() {
    let mut it = Simulation::new(3, 41);
    it.bye(2);
    it.advance(SECOND);
    it.stop(2);
    it.network.cut(1, Direction::Both);
    let number = it.disconnect(0, "user:1");
    let (prefix, mut adapter) = it.stranger(NodeId(80));
    let beat = Beat {
        id: NodeId(1002),
        name: "node-2".into(),
        version: "".into(),
        envelopes: (1, 1),
        sockets: 0,
        is_draining: false,
        unix_ms: 1,
    };
    let hello = Hello { beat, settings: Vec::new() }.draft().unwrap();
    adapter.publish(&prefix.nodes(), stamped(hello.unnumbered(), 1)).unwrap();
    it.advance(SECOND);
    it.network.mend(1);
    it.advance(20 * SECOND);
    assert_eq!(it.outcome(0, number), (ids(&[1]), vec![]));
}

fn forge(it: &mut Simulation, sender: NodeId, origin: NodeId, n: u64) {
    let (prefix, mut adapter) = it.stranger(sender);
    let draft = Draft::broadcast(origin, "t", &Item::new("e", ItemPayload::Json("0"))).unwrap();
    adapter.publish(&prefix.topic(Space::Broadcast, "t"), stamped(draft.unnumbered(), n)).unwrap();
    it.advance(SECOND);
}

#[test]
fn forged_number_mutes_a_node_until_its_next_heartbeat() {
    let mut it = Simulation::new(2, 37);
    it.begin(1, "t", 0);
    it.advance(SECOND);
    it.broadcast(0, "t", "1");
    it.advance(SECOND);
    for (n, sender) in [(1_000_000, NodeId(77)), (u64::MAX, NodeId(78)), (60, NodeId(79))] {
        forge(&mut it, sender, NodeId(1000), n);
        it.advance(3 * SECOND);
        it.broadcast(0, "t", "2");
        it.advance(SECOND);
        assert_eq!(it.take_broadcasts(1, "t").last().map(|it| &**it), Some("2"), "{n}");
    }
}

fn differences(it: &mut Simulation, at: usize) -> Vec<(NodeId, Box<str>)> {
    let cluster = &mut it.node(at).cluster;
    let notices = std::iter::from_fn(|| cluster.poll_notice());
    let differing = notices.filter_map(|notice| match notice {
        Notice::Peer(PeerEvent::SettingsDiffer { node, pattern }) => Some((node, pattern)),
        _ => None,
    });
    differing.collect()
}

#[test]
fn new_node_and_old_ones_all_report_different_settings_once() {
    let mut it = Simulation::new(1, 38);
    for hash in [1, 1, 2] {
        it.settings = vec![("rooms:*".into(), hash)];
        it.starts("a");
        it.advance(3 * SECOND);
    }
    it.advance(20 * SECOND);
    let of = |nodes: &[usize]| -> Vec<(NodeId, Box<str>)> {
        ids(nodes).into_iter().map(|node| (node, "rooms:*".into())).collect()
    };
    assert_eq!(differences(&mut it, 0), []);
    assert_eq!(differences(&mut it, 1), of(&[3]));
    assert_eq!(differences(&mut it, 2), of(&[3]));
    let mut of_new = differences(&mut it, 3);
    of_new.sort_unstable();
    assert_eq!(of_new, of(&[1, 2]));
}

#[test]
fn node_with_too_many_patterns_is_known_by_its_heartbeats() {
    let mut it = Simulation::new(1, 1);
    it.settings = (0..=1_000).map(|at| (format!("topic-{at}:*").into(), at)).collect();
    let late = it.starts("a");
    it.advance(5 * SECOND);
    assert_eq!(it.node(late).cluster.counts().refused_large, 1);
    let peers = [0, late].map(|at| it.node(at).cluster.peers().live().count());
    assert_eq!(peers, [1, 1]);
}
