//! The messages that nodes receive, by the code that decides it: members are put on nodes at
//! random, and some nodes are examined with `simurgh_cluster::Interests`.

use std::collections::HashSet;

use simurgh_cluster::{Bucket, Interest, Interests, InterestsConfig, Space, SplitMix64, Wanted};

use super::random::Random;
use crate::load::{Load, Machines};
use crate::plan::cell::{Cell, Class};
use crate::prices::Prices;

/// Topics that are sampled.
const ASKED: usize = 50_000;
/// At most this many topics are placed; a larger load is simulated in a cell with proportionally
/// fewer topics on each node, and the output says so.
const PLACED_MAX: f64 = 2.0e8;

/// Means of the examined nodes; topics are drawn in proportion to their messages.
#[derive(Clone, Debug, Default)]
pub struct Receivers {
    /// Examined nodes, and all nodes of the cell.
    pub nodes: (usize, usize),
    /// Topics with members on a node.
    pub topics: f64,
    /// Subscriptions to a topic.
    pub exact: f64,
    /// Subscriptions to a bucket.
    pub whole: f64,
    /// The largest number of subscriptions of a node.
    pub most: usize,
    /// The probability that a node receives a message.
    pub hears: f64,
    /// The share of the received messages that the node has no members for.
    pub unwanted: f64,
}

/// Examines a tenth of the nodes, at least three.
pub fn run(load: &Load, machines: &Machines, prices: &Prices, nodes: f64, seed: u64) -> Receivers {
    let cell = Cell::new(load, machines, prices, nodes);
    let all = (cell.nodes.round() as usize).max(1);
    let looked = all.div_ceil(10).max(3).min(all);
    let mut random = SplitMix64::new(seed);
    let topics = place(&cell, all, looked, &mut random);
    let asked = asked(&cell, &mut random);
    let mut receivers = Receivers { nodes: (looked, all), ..Receivers::default() };
    let (mut hears, mut wanted) = (0.0, 0.0);
    for (at, topics) in topics.iter().enumerate() {
        let node = View::new(topics, load.presence, prices, seed ^ at as u64);
        receivers.topics += topics.len() as f64 / looked as f64;
        receivers.exact += node.exact as f64 / looked as f64;
        receivers.whole += node.whole as f64 / looked as f64;
        receivers.most = receivers.most.max(node.exact + node.whole);
        for (topic, weight) in &asked {
            // They were placed in order.
            let is_wanted = topics.binary_search(topic).is_ok();
            wanted += if is_wanted { *weight } else { 0.0 };
            hears += if is_wanted || node.hears_bucket(*topic) { *weight } else { 0.0 };
        }
    }
    let weight: f64 = asked.iter().map(|it| it.1).sum::<f64>() * looked as f64;
    receivers.hears = hears / weight;
    receivers.unwanted = if hears > 0.0 { 1.0 - wanted / hears } else { 0.0 };
    receivers
}

struct View {
    exact: usize,
    whole: usize,
    buckets: HashSet<Bucket>,
}

impl View {
    fn new(topics: &[u32], presence: f64, prices: &Prices, seed: u64) -> Self {
        let exact_max = prices.get("exact_max") as usize;
        let config = InterestsConfig { exact_max, ..InterestsConfig::default() };
        let mut interests = Interests::new(&config, seed);
        let mut random = SplitMix64::new(seed);
        let mut buckets = HashSet::new();
        for topic in topics {
            let name = name(*topic);
            interests.begin(&name, 0, 0);
            if random.share() < presence {
                interests.begin_presence(&name, 0);
            }
        }
        for (interest, wanted) in interests.take_changes().into_iter().flatten() {
            if let Interest::Whole(Space::Broadcast, bucket) = interest {
                match wanted {
                    Wanted::Yes => buckets.insert(bucket),
                    Wanted::No => buckets.remove(&bucket),
                };
            }
        }
        let counts = interests.counts();
        Self { exact: counts.exact, whole: counts.whole, buckets }
    }

    fn hears_bucket(&self, topic: u32) -> bool {
        !self.buckets.is_empty() && self.buckets.contains(&Bucket::of(&name(topic)))
    }
}

fn name(topic: u32) -> String {
    format!("rooms:{topic}")
}

fn topics_of(class: &Class) -> u32 {
    class.topics.round().clamp(1.0, f64::from(u32::MAX / 2)) as u32
}

/// Puts the members of each topic on nodes; returns the topics of each of the first nodes.
fn place(cell: &Cell, all: usize, looked: usize, random: &mut SplitMix64) -> Vec<Vec<u32>> {
    let mut nodes = vec![Vec::new(); looked];
    let mut first = 0_u32;
    for class in &cell.classes {
        let topics = topics_of(class);
        // Regional topics are each on one of this many parts of the nodes.
        let parts = (1.0 / class.near).round().max(1.0) as usize;
        let part = (all / parts).max(1);
        let draws = f64::from(topics) * class.size;
        let whole = class.size.floor() as u64;
        let is_large = class.size > 64.0 * all as f64 || draws > PLACED_MAX;
        for topic in first..first.saturating_add(topics) {
            let start = random.below(parts as u64) as usize * part;
            let mut add = |at: usize| {
                if let Some(node) = nodes.get_mut(at)
                    && node.last() != Some(&topic)
                {
                    node.push(topic);
                }
            };
            if is_large {
                // Each node is drawn separately, with its probability of having a member.
                let touches = crate::plan::cell::touches(part as f64, class.size);
                (start..start + part).filter(|_| random.share() < touches).for_each(&mut add);
                continue;
            }
            let more = u64::from(class.size.fract() > 0.0 && random.share() < class.size.fract());
            for _ in 0..whole + more {
                add(start + random.below(part as u64) as usize);
            }
        }
        first = first.saturating_add(topics);
    }
    nodes
}

/// Sampled topics of messages, with their weights.
fn asked(cell: &Cell, random: &mut SplitMix64) -> Vec<(u32, f64)> {
    let rate: f64 = cell.published();
    let mut all = Vec::new();
    let mut first = 0_u32;
    for class in &cell.classes {
        let topics = topics_of(class);
        let said = if rate > 0.0 { class.topics * class.rate / rate } else { 1.0 };
        let draws = ((ASKED as f64 * said).ceil() as usize).clamp(1, topics as usize);
        for _ in 0..draws {
            let topic = first + random.below(u64::from(topics)) as u32;
            all.push((topic, said / draws as f64));
        }
        first = first.saturating_add(topics);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Spread;

    /// The permitted difference of formulas and code: relative for interests, absolute for the
    /// rest.
    const SHARE: f64 = 0.03;
    const CHANCE: f64 = 0.02;

    fn agrees(load: &Load, machines: &Machines, nodes: f64) {
        let prices = Prices::read(None).unwrap();
        let receivers = run(load, machines, &prices, nodes, 11);
        let cell = Cell::new(load, machines, &prices, nodes);
        let wants = &cell.wants;
        let near = |one: f64, other: f64| (one - other).abs() <= SHARE * other + 1.0;
        assert!(near(receivers.topics, wants.topics), "{receivers:?} {wants:?}");
        assert!(
            near(receivers.exact + receivers.whole, wants.exact + wants.whole),
            "{receivers:?} {wants:?}"
        );
        assert!((receivers.hears - cell.hears()).abs() < CHANCE, "{receivers:?} {}", cell.hears());
        let (wanted, all) = cell.heard();
        let unwanted = if all > 0.0 { 1.0 - wanted / all } else { 0.0 };
        assert!((receivers.unwanted - unwanted).abs() < 2.0 * CHANCE, "{receivers:?} {unwanted}");
        assert!(receivers.most <= 8192);
    }

    fn rooms(rooms: f64, size: f64) -> Load {
        let mut load = Load::all(None).unwrap().remove(1);
        (load.rooms, load.room_size, load.clients) = (rooms, size, rooms * size);
        load
    }

    #[test]
    fn formulas_and_code_agree_while_topics_are_few_some_and_many() {
        let machines = Machines::default();
        for presence in [0.0, 1.0] {
            for count in [500.0, 8_000.0, 40_000.0, 400_000.0] {
                let load = Load { presence, ..rooms(count, 10.0) };
                agrees(&load, &machines, 30.0);
            }
        }
    }

    #[test]
    fn they_agree_for_rooms_of_one_region_and_for_cells() {
        let regional =
            Load { spread: Spread::Regional, mixed: 0.1, presence: 0.0, ..rooms(100_000.0, 20.0) };
        agrees(&regional, &Machines::default(), 30.0);
        agrees(&regional, &Machines { cells: 3.0, ..Machines::default() }, 30.0);
        agrees(&rooms(100_000.0, 20.0), &Machines { cells: 5.0, ..Machines::default() }, 50.0);
    }

    #[test]
    fn a_topic_with_everybody_is_heard_by_all_and_wanted_by_all() {
        let lobby = rooms(1.0, 1e6);
        let receivers = run(&lobby, &Machines::default(), &Prices::read(None).unwrap(), 20.0, 1);
        assert!(
            (receivers.hears - 1.0).abs() < 1e-9 && receivers.unwanted.abs() < 1e-9,
            "{receivers:?}"
        );
    }
}
