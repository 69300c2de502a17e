//! Links that break, a broker that is frozen and killed, nodes that end: what each node receives
//! of every publisher and topic is in order, and nothing twice.

use super::*;

const TOPICS: [&str; 4] = ["a", "b", "c", "rooms:lobby"];

/// Checks what every node has received on every topic; each payload is `[publisher,number]`.
fn check(it: &Simulation, last: &mut BTreeMap<(usize, String, u64), u64>, seed: u64) -> usize {
    let mut count = 0;
    for (at, node) in it.nodes.iter().enumerate() {
        for (topic, json, _) in node.iter().flat_map(|it| &it.heard.broadcasts) {
            let numbers = json.trim_matches(['[', ']']).split_once(',').unwrap();
            let (publisher, number): (u64, u64) =
                (numbers.0.parse().unwrap(), numbers.1.parse().unwrap());
            let before = last.entry((at, topic.clone(), publisher)).or_default();
            assert!(
                number > *before,
                "seed {seed}: node {at} hears {number} of {publisher} on {topic} after {before}"
            );
            *before = number;
            count += 1;
        }
    }
    count
}

fn faulty(it: &mut Simulation, random: &mut Random) {
    let at = random.below(it.nodes.len() as u64) as usize;
    match random.below(12) {
        0 => it.network.cut(at, Direction::Both),
        1 => it.network.cut(at, Direction::Sending),
        2 => it.network.cut(at, Direction::Hearing),
        3..=5 => it.network.mend(at),
        6 => it.network.reset(at),
        7 => it.network.freeze(),
        8..=9 => it.network.thaw(),
        10 => it.network.restart(RestartData::Stays),
        _ => it.network.lossy(at, 100_000),
    }
}

fn run(seed: u64) {
    let (mut it, mut random) = (Simulation::new(3, seed), Random(seed));
    let (mut numbers, mut last) = (0, BTreeMap::new());
    for at in 0..3 {
        TOPICS.iter().for_each(|topic| it.begin(at, topic, 0));
    }
    it.advance(50 * MILLISECOND);
    for _ in 0..60 {
        if random.below(3) == 0 {
            faulty(&mut it, &mut random);
        }
        for _ in 0..random.below(40) {
            let at = random.below(3) as usize;
            let topic = TOPICS[random.below(4) as usize];
            numbers += 1;
            it.broadcast(at, topic, &format!("[{at},{numbers}]"));
        }
        it.advance((1 + random.below(400)) * MILLISECOND);
    }
    check(&it, &mut last, seed);
    it.nodes.iter_mut().flatten().for_each(|it| it.heard.broadcasts.clear());
    for at in 0..3 {
        it.network.mend(at);
        it.network.lossy(at, 0);
    }
    it.network.thaw();
    it.advance(30 * SECOND);
    check(&it, &mut last, seed);
    it.nodes.iter_mut().flatten().for_each(|it| it.heard.broadcasts.clear());
    for at in 0..3 {
        assert_eq!(it.node(at).cluster.state().0, LinkState::Up, "seed {seed}: node {at}");
        assert_eq!(it.node(at).cluster.peers().live().count(), 2, "seed {seed}: node {at}");
        for topic in TOPICS {
            numbers += 1;
            it.broadcast(at, topic, &format!("[{at},{numbers}]"));
        }
    }
    it.advance(50 * MILLISECOND);
    assert_eq!(check(&it, &mut last, seed), 3 * 2 * TOPICS.len(), "seed {seed}");
}

/// At most once, and each publisher's in order, whatever happens to links and broker.
#[test]
fn each_publishers_messages_arrive_in_order_and_at_most_once() {
    (0..60).for_each(run);
}

#[test]
fn frozen_broker_costs_at_most_the_outbox_and_two_seconds_of_messages() {
    let mut it = Simulation::with_member(2, 1, 1);
    it.network.freeze();
    let payload = format!("\"{}\"", "x".repeat(200));
    let bound = OutboxConfig::default();
    let most = bound.control_bytes + bound.presence_bytes + bound.plain_bytes;
    for _ in 0..1000 {
        for _ in 0..100 {
            it.broadcast(0, "t", &payload);
        }
        assert!(it.advance(10 * MILLISECOND).node(0).cluster.outbox().bytes() <= most);
    }
    let counts = it.node(0).cluster.counts().clone();
    assert!(counts.dropped.by_age + counts.dropped.by_bytes > 70_000, "{counts:?}");
    it.network.thaw();
    it.advance(20 * SECOND);
    it.node(1).heard.broadcasts.clear();
    it.delivers(0, 1, "1", 20 * MILLISECOND);
}
