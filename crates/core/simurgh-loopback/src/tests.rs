//! Tests of the loopback alone; `contract` tests what every adapter must do.

use std::task::Waker;

use simurgh_cluster::adapter::{Down, NotStored};
use simurgh_cluster::{Received, Space};

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

fn storm(seed: u64) -> Vec<String> {
    let config = NetworkConfig {
        delay_ns: 0..=20 * MS,
        loss_per_million: 50_000,
        reorder_per_million: 300_000,
        ..NetworkConfig::default()
    };
    let (network, mut nodes) = cluster(seed, config, 4);
    let mut told = Vec::new();
    for round in 0..200_usize {
        match round % 20 {
            3 => network.cut(round % 4, Direction::Both),
            9 => network.mend((round - 6) % 4),
            12 => network.reset(round % 3),
            15 => network.freeze(),
            16 => network.thaw(),
            19 => network.restart(RestartData::Stays),
            _ => {}
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            let to = prefix().topic(Space::Broadcast, "a");
            let _ = node.publish(&to, Bytes::from(format!("{round} of {at}")));
            told.extend(events(node).iter().map(|it| format!("{at}: {}", text(it))));
        }
        pass(&network, 600 * MS);
    }
    told
}

#[test]
fn the_same_seed_is_the_same_storm() {
    let first = storm(1);
    assert!(first.len() > 1_000, "{}", first.len());
    assert!(first.iter().any(|it| it.contains("Lost")));
    assert_eq!(first, storm(1));
    assert_ne!(first, storm(2));
}

#[test]
fn a_cut_that_is_mended_in_time_delays_and_loses_nothing() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 2);
    network.cut(1, Direction::Both);
    publish(&mut nodes[0], "one");
    publish(&mut nodes[1], "two");
    pass(&network, 3 * S);
    assert_eq!((texts(&mut nodes[0]), texts(&mut nodes[1])), (vec![], vec![]));
    network.mend(1);
    pass(&network, 10 * MS);
    assert_eq!(
        (texts(&mut nodes[0]), texts(&mut nodes[1])),
        (vec!["two".into()], vec!["one".into()])
    );
    assert_eq!((nodes[0].in_flight(), nodes[1].in_flight()), (0, 0));
}

#[test]
fn a_cut_is_noticed_late_and_what_came_meanwhile_is_lost() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 2);
    network.cut(1, Direction::Both);
    publish(&mut nodes[0], "lost");
    pass(&network, 4 * S - MS);
    assert_eq!(texts(&mut nodes[1]), [""; 0], "not noticed");
    publish(&mut nodes[0], "lost");
    pass(&network, 2 * S + MS);
    assert_eq!(texts(&mut nodes[1]), ["down: it is silent"]);
    publish(&mut nodes[0], "lost");
    network.mend(1);
    pass(&network, 8 * S);
    publish(&mut nodes[0], "heard");
    pass(&network, S);
    assert_eq!(texts(&mut nodes[1]), ["up 2", "heard"]);
    assert_eq!(texts(&mut nodes[0]), [""; 0]);
}

#[test]
fn who_cannot_send_hears_until_it_is_noticed() {
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
fn who_cannot_hear_sends_and_sends_again() {
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
fn parts_of_an_engine_do_not_hear_each_other_and_one_keeps() {
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
    network.heal();
    publish(&mut nodes[0], "all");
    pass(&network, S);
    for node in &mut nodes[1..] {
        assert_eq!(texts(node), ["all"]);
    }
}

#[test]
fn losses_are_told_and_name_the_interest() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 3);
    network.lossy(1, 300_000);
    for n in 0..100 {
        publish(&mut nodes[0], &format!("{n}"));
    }
    pass(&network, S);
    let told = events(&mut nodes[1]);
    let heard = told.iter().filter(|it| matches!(it, Event::Received(_))).count();
    assert!((40..=95).contains(&heard), "{heard}");
    let lost = Event::Lost(vec![Interest::Exact(Space::Broadcast, "a".into())]);
    assert_eq!(told.len(), heard + 1, "said once until it is polled");
    assert!(told.contains(&lost));
    assert_eq!(events(&mut nodes[2]).len(), 100);
}

#[test]
fn publishers_overtake_each_other_and_none_himself() {
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
fn a_node_that_falls_too_far_behind_loses_its_link() {
    let config = NetworkConfig { pending_max: 50, ..NetworkConfig::default() };
    let (network, mut nodes) = cluster(1, config, 2);
    network.cut(1, Direction::Hearing);
    for n in 0..60 {
        publish(&mut nodes[0], &format!("{n}"));
    }
    pass(&network, S);
    assert_eq!(texts(&mut nodes[1]), ["down: it is silent"]);
    network.mend(1);
    pass(&network, 8 * S);
    publish(&mut nodes[0], "heard");
    pass(&network, S);
    assert_eq!(texts(&mut nodes[1]), ["up 2", "heard"]);
}

#[test]
fn who_never_polls_has_little_to_poll() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 1);
    for _ in 0..1_000 {
        network.reset(0);
        pass(&network, 2 * S);
    }
    assert_eq!(texts(&mut nodes[0]), ["down: it was reset", "up 1001"]);
}

#[test]
fn interests_that_come_and_go_take_no_room_at_the_engine() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 1);
    for n in 0..2_000 {
        let interest = Interest::Exact(Space::Broadcast, format!("t{}", n / 2 % 9).into());
        nodes[0].interest(&[(interest, [Wanted::Yes, Wanted::No][n % 2])]);
        pass(&network, MS);
    }
    let subscriptions = with(&network.state, |state| {
        state.engine.links.iter().flatten().map(|it| it.subscriptions.len()).sum::<usize>()
    });
    assert!(subscriptions < 200, "{subscriptions}");
}

#[test]
fn the_clock_can_be_turned_from_one_thing_to_the_next() {
    let (network, mut nodes) = cluster(1, NetworkConfig::default(), 2);
    assert_eq!(network.next_at_ns(), None, "nothing is under way");
    publish(&mut nodes[0], "x");
    let mut steps = 0;
    while let Some(at_ns) = network.next_at_ns() {
        assert!(at_ns >= network.now_ns());
        network.advance(at_ns);
        steps += 1;
    }
    // The message and the ping to the engine, the message to the node, the pong.
    assert_eq!((steps, texts(&mut nodes[1])), (4, vec!["x".into()]));
    network.advance(0);
    assert!(network.now_ns() > 0, "it does not go back");
}

#[test]
fn a_copy_may_lag_behind_and_says_so_and_the_leader_does_not() {
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
    with(&network.state, |state| {
        let to = state.subjects.of(subject.as_str());
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
