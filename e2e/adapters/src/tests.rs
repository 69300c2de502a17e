//! The contract on the loopback: each case by itself, then all on networks of many kinds.

use std::time::Duration;

use proptest::prelude::*;

use super::cluster::{TestCluster, TestMessage, exact, no, once, whole, yes};
use super::{CASES, Fault, Harness, Tried, Unsupported, run};
use simurgh_cluster::{Adapter, Prefix, Space};
use simurgh_loopback::{Direction, Network, NetworkConfig, RestartData, StreamLimits};

struct InProcess {
    network: Network,
    config: NetworkConfig,
}

impl InProcess {
    fn new(seed: u64, config: NetworkConfig) -> Self {
        Self { network: Network::new(seed, config.clone()), config }
    }
}

impl Harness for InProcess {
    fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter> {
        Box::new(self.network.adapter(prefix))
    }

    fn pass(&mut self, time: Duration) {
        self.network.advance(self.network.now_ns() + time.as_nanos() as u64);
    }

    fn inject(&mut self, fault: Fault) -> Tried {
        match fault {
            Fault::Cut(node) => self.network.cut(node, Direction::Both),
            Fault::Mend(node) => self.network.mend(node),
            Fault::Reset(node) => self.network.reset(node),
            Fault::Freeze => self.network.set_frozen(true),
            Fault::Thaw => self.network.set_frozen(false),
            Fault::Kill => self.network.kill(),
            Fault::Restart => self.network.restart(RestartData::Stays),
            Fault::RestartEmpty => self.network.restart(RestartData::Lost),
        }
        Ok(())
    }

    fn overrun(&self) -> Result<usize, Unsupported> {
        Ok(self.config.inbox_max + 1_000)
    }

    fn keeps(&self) -> bool {
        self.config.kept.is_some()
    }

    fn kept_max(&self) -> usize {
        self.config.kept.as_ref().map_or(0, |it| it.count)
    }
}

crate::contract_tests!(InProcess::new(1, NetworkConfig::default()));

/// Near and far networks, with constant and varying delays.
fn configs() -> Vec<NetworkConfig> {
    let base = NetworkConfig { inbox_max: 30_000, ..NetworkConfig::default() };
    vec![
        NetworkConfig { delay_ns: 0..=0, ..base.clone() },
        NetworkConfig { delay_ns: 1..=20_000_000, ..base.clone() },
        NetworkConfig {
            delay_ns: 10_000..=500_000,
            reorder_per_million: 300_000,
            dead_after_ns: 2_000_000_000..=6_000_000_000,
            ..base.clone()
        },
        NetworkConfig {
            delay_ns: 5_000_000..=30_000_000,
            reorder_per_million: 900_000,
            kept: Some(StreamLimits { count: 130, ..StreamLimits::default() }),
            ..base
        },
    ]
}

#[test]
fn in_process_network_fulfils_the_contract_in_every_configuration() {
    for (number, config) in configs().into_iter().enumerate() {
        for seed in 0..3 {
            for (name, case) in CASES {
                let _named = Named(format!("network {number}, seed {seed}: {name}"));
                let mut harness = InProcess::new(seed, config.clone());
                assert_eq!(run(name, *case, &mut harness), Ok(()), "{name} was skipped");
            }
        }
    }
}

/// Names what failed.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}

#[test]
fn contract_has_at_least_24_cases_with_unique_names() {
    assert!(CASES.len() >= 24, "{}", CASES.len());
    let mut names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
}

/// A harness without faults: cases that need one are skipped, none passes silently.
struct Limited(InProcess);

impl Harness for Limited {
    fn adapter(&mut self, prefix: &Prefix) -> Box<dyn Adapter> {
        self.0.adapter(prefix)
    }

    fn pass(&mut self, time: Duration) {
        self.0.pass(time);
    }
}

#[test]
fn unsupported_cases_are_reported_as_skipped() {
    let mut skipped = 0;
    for (name, case) in CASES {
        let network = NetworkConfig { kept: None, ..NetworkConfig::default() };
        let mut harness = Limited(InProcess::new(1, network));
        if let Err(Unsupported(why)) = run(name, *case, &mut harness) {
            assert!(!why.is_empty(), "{name}");
            skipped += 1;
        }
    }
    // All of `kept` (19) and `link` (12 of 13), and of `flow` those that freeze (4 of 5).
    assert_eq!(skipped, 36);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Publish { node: usize, count: usize },
    Switch { node: usize, to_whole: bool },
    Cut { node: usize, direction: Direction },
    Mend(usize),
    Reset(usize),
    Freeze,
    Thaw,
    Kill,
    Restart,
    Pass { ms: u64 },
}

const NODES: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..NODES;
    let direction =
        prop_oneof![Just(Direction::Both), Just(Direction::Sending), Just(Direction::Hearing),];
    prop_oneof![
        8 => (node(), 1..100_usize).prop_map(|(node, count)| Op::Publish { node, count }),
        3 => (node(), any::<bool>()).prop_map(|(node, to_whole)| Op::Switch { node, to_whole }),
        2 => (node(), direction).prop_map(|(node, direction)| Op::Cut { node, direction }),
        2 => node().prop_map(Op::Mend),
        1 => node().prop_map(Op::Reset),
        1 => Just(Op::Freeze),
        1 => Just(Op::Thaw),
        1 => Just(Op::Kill),
        1 => Just(Op::Restart),
        8 => prop_oneof![Just(1), 1..300_u64, 1_000..9_000_u64].prop_map(|ms| Op::Pass { ms }),
    ]
}

/// Does it; a broker that was killed is neither frozen nor thawed.
fn apply(it: &mut TestCluster<'_>, network: &Network, op: Op) {
    match op {
        Op::Publish { node, count } => {
            for _ in 0..count {
                let _ = it.try_publish(node, Space::Broadcast, "a", "x");
            }
        }
        Op::Switch { node, to_whole } => {
            let (begun, ended) =
                if to_whole { (whole("a"), exact("a")) } else { (exact("a"), whole("a")) };
            it.nodes[node].change(&[no(ended), yes(begun)]);
        }
        Op::Cut { node, direction } => network.cut(node, direction),
        Op::Mend(node) => network.mend(node),
        Op::Reset(node) => network.reset(node),
        Op::Freeze => network.set_frozen(true),
        Op::Thaw => network.set_frozen(false),
        Op::Kill => network.kill(),
        Op::Restart => network.restart(RestartData::Stays),
        Op::Pass { ms } => it.pass(Duration::from_millis(ms)),
    }
}

/// All links work again, and no message is in flight.
fn heal(it: &mut TestCluster<'_>, network: &Network, was_killed: bool) {
    network.set_frozen(false);
    if was_killed {
        network.restart(RestartData::Stays);
    }
    (0..NODES).for_each(|node| network.mend(node));
    it.pass(Duration::from_secs(10));
    it.wait("all up", |it| it.nodes.iter().all(|node| node.is_up));
    it.wait("nothing under way", |it| it.nodes.iter().all(|node| node.in_flight() == 0));
    it.quiet();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any faults messages are in order, and complete for nodes that were not notified.
    /// (Other conditions, such as alternating up and down, are checked at every event.)
    #[test]
    fn every_message_loss_after_any_faults_is_reported(
        seed: u64,
        far: bool,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let delay_ns = if far { 1_000_000..=30_000_000 } else { 10_000..=100_000 };
        let config =
            NetworkConfig { delay_ns, reorder_per_million: 200_000, ..NetworkConfig::default() };
        let mut harness = InProcess::new(seed, config);
        let network = harness.network.clone();
        let mut it = TestCluster::new(&mut harness, NODES);
        (0..NODES).for_each(|node| it.want(node, &[yes(exact("a"))]));
        for op in &ops {
            apply(&mut it, &network, *op);
        }
        let killed = ops.iter().rfind(|op| matches!(op, Op::Kill | Op::Restart));
        heal(&mut it, &network, matches!(killed, Some(Op::Kill)));
        let last = [0, 1, 2].map(|node| it.publish(node, "a", "last"));
        it.quiet();
        for (node, from) in (0..NODES).flat_map(|node| (0..NODES).map(move |from| (node, from))) {
            let received = it.numbers(node, from, "a");
            if node == from {
                prop_assert!(received.is_empty());
                continue;
            }
            let links = it.nodes[from].ups - 1;
            let steps = received.windows(2).filter(|pair| pair[1] <= pair[0]).count();
            prop_assert!(steps <= links, "{} steps back, {} links", steps, links);
            let is_marked = it.nodes[node].received.iter().any(TestMessage::is_marked);
            prop_assert!(!is_marked || it.nodes.iter().any(|node| node.downs > 0));
            let new = once(&received);
            prop_assert_eq!(new.last(), Some(&last[from]));
            if !it.nodes[node].was_warned() {
                prop_assert_eq!(new, (1..=last[from]).collect::<Vec<_>>());
            }
        }
    }
}
