//! Tests of the loopback alone; `contract` tests what every adapter must do.

use std::task::Waker;

use simurgh_cluster::Received;
use simurgh_cluster::adapter::{Down, NotStored};

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

fn prefix() -> Prefix {
    Prefix::new("c").unwrap()
}

fn cluster(seed: u64, config: NetworkConfig, count: usize) -> (Network, Vec<Loopback>) {
    let network = Network::new(seed, config);
    let mut nodes: Vec<Loopback> = (0..count).map(|_| network.adapter(&prefix())).collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        node.start(NodeId(at as u64));
        node.interest(&[(Interest::Exact(Space::Broadcast, "a".into()), Wanted::Yes)]);
    }
    pass(&network, 100 * MS);
    nodes.iter_mut().for_each(|node| drop(events(node)));
    (network, nodes)
}

fn pass(network: &Network, ns: u64) {
    network.advance(network.now_ns() + ns);
}

fn events(node: &mut Loopback) -> Vec<Event> {
    let mut context = Context::from_waker(Waker::noop());
    let next = || match node.poll_event(&mut context) {
        Poll::Ready(event) => Some(event),
        Poll::Pending => None,
    };
    std::iter::from_fn(next).collect()
}

fn publish(node: &mut Loopback, text: &str) {
    let to = prefix().topic(Space::Broadcast, "a");
    assert_eq!(node.publish(&to, Bytes::copy_from_slice(text.as_bytes())), Ok(()));
}

fn text(event: &Event) -> String {
    match event {
        Event::Received(Received { envelope, .. }) => String::from_utf8(envelope.to_vec()).unwrap(),
        Event::Up { session, .. } => format!("up {}", session.0),
        Event::Down(Down::Broken(why)) => format!("down: {why}"),
        other => format!("{other:?}"),
    }
}

fn texts(node: &mut Loopback) -> Vec<String> {
    events(node).iter().map(text).collect()
}

#[test]
fn node_that_cannot_send_receives_until_its_link_is_dead() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 2);
    network.cut(1, Direction::Sending);
    publish(&mut nodes[0], "to");
    publish(&mut nodes[1], "fro");
    pass(&network, S);
    assert_eq!(texts(&mut nodes[1]), ["to"]);
    assert_eq!((texts(&mut nodes[0]), nodes[1].in_flight()), (vec![], 1));
    pass(&network, 6 * S);
    assert_eq!(texts(&mut nodes[1]), ["down: it is silent"]);
    network.mend(1);
    pass(&network, 8 * S);
    assert_eq!(texts(&mut nodes[1]), ["up 2"]);
    assert_eq!(texts(&mut nodes[0]), ["fro"], "sent again, and never arrived before");
}

#[test]
fn node_that_cannot_receive_sends_its_messages_again() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 2);
    network.cut(1, Direction::Hearing);
    publish(&mut nodes[0], "to");
    publish(&mut nodes[1], "fro");
    publish(&mut nodes[1], "again");
    pass(&network, S);
    assert_eq!(texts(&mut nodes[0]), ["fro", "again"]);
    assert_eq!(nodes[1].in_flight(), 2, "it cannot know");
    pass(&network, 6 * S);
    network.mend(1);
    pass(&network, 8 * S);
    assert_eq!(texts(&mut nodes[1]), ["down: it is silent", "up 2"]);
    assert_eq!(texts(&mut nodes[0]), ["fro", "again"]);
    assert_eq!(nodes[1].in_flight(), 0);
}

#[test]
fn partitioned_broker_delivers_within_groups_and_stores_in_one() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 4);
    network.partition(&[&[0, 1], &[2, 3]]);
    publish(&mut nodes[0], "zero");
    publish(&mut nodes[2], "two");
    pass(&network, S);
    assert_eq!(texts(&mut nodes[1]), ["zero"]);
    assert_eq!(texts(&mut nodes[3]), ["two"]);
    let to = prefix().topic(Space::Store, "a");
    for (node, id) in [(1, "one"), (3, "three")] {
        let ticket = Ticket(node as u64);
        assert_eq!(nodes[node].store(&to, id, None, Bytes::from_static(b"kept"), ticket), Ok(()));
    }
    pass(&network, 9 * S);
    assert_eq!(
        events(&mut nodes[3]),
        [Event::NotStored { ticket: Ticket(3), why: NotStored::Unconfirmed }]
    );
    assert_eq!(events(&mut nodes[1]).len(), 2, "kept, and heard");
    assert_eq!((texts(&mut nodes[0]), texts(&mut nodes[2])), (vec!["kept".into()], vec![]));
    network.partition(&[]);
    publish(&mut nodes[0], "all");
    pass(&network, S);
    for node in &mut nodes[1..] {
        assert_eq!(texts(node), ["all"]);
    }
}

#[test]
fn messages_keep_order_within_but_not_across_publishers() {
    let config = NetworkConfig { reorder_per_million: 500_000, ..NetworkConfig::default() };
    let (network, mut nodes) = cluster(1, config, 4);
    for n in 0..200 {
        publish(&mut nodes[0], &format!("0 {n:03}"));
        publish(&mut nodes[1], &format!("1 {n:03}"));
    }
    pass(&network, S);
    let heard = [texts(&mut nodes[2]), texts(&mut nodes[3])];
    assert_ne!(heard[0], heard[1], "two nodes see two orders");
    for of in heard.iter().flat_map(|heard| ["0", "1"].map(|it| (heard, it))) {
        let own: Vec<&String> = of.0.iter().filter(|it| it.starts_with(of.1)).collect();
        assert_eq!(own.len(), 200);
        assert!(own.is_sorted());
    }
}

#[test]
fn replica_lags_behind_the_leader() {
    let lag_ns = 200 * MS..=400 * MS;
    let (network, mut nodes) = cluster(1, NetworkConfig { lag_ns, ..NetworkConfig::default() }, 1);
    let subject = prefix().topic(Space::Store, "a");
    let mut fetch = |from_leader: bool, ticket: u64| {
        let (subject, count, bytes) = (subject.clone(), 9, 1_000);
        let what = Fetch::After { subject, seq: 0, count, bytes, from_leader };
        nodes[0].fetch(what, Ticket(ticket)).unwrap();
        pass(&network, MS);
        let fetched = events(&mut nodes[0]).into_iter().find_map(|event| match event {
            Event::Fetched { kept, .. } => kept,
            _ => None,
        });
        fetched.map(|it| (it.messages.len(), it.head, it.is_all)).unwrap()
    };
    assert_eq!(fetch(false, 1), (0, 0, true));
    network
        .with(|state| {
            let to = subject.as_str().into();
            let what = Request::Store { to, id: "x".into(), age: None, envelope: Bytes::new() };
            state.ask(0, what, Ticket(2))
        })
        .unwrap();
    pass(&network, 10 * MS);
    assert_eq!(fetch(false, 3), (0, 0, true), "it has not heard of it");
    assert_eq!(fetch(true, 4), (1, 1, true));
    pass(&network, 400 * MS);
    assert_eq!(fetch(false, 5), (1, 1, true));
}
