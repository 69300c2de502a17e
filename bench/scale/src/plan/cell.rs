//! The topics of one cell, and the subscriptions that its nodes therefore need.
//!
//! A cell is a cluster without connections to the others. With one cell it is all nodes. Topics are
//! split over cells by name, or by region where members are regional; a topic with members in
//! several cells would need a bridge, and is then in each of them.

use crate::load::{Load, Machines, Spread};
use crate::prices::Prices;

/// Buckets of topics (`simurgh_cluster::BUCKETS`).
const BUCKETS: f64 = simurgh_cluster::BUCKETS as f64;
/// With more topics per bucket than this, nearly all buckets are whole.
const MANY: f64 = 500.0;

/// Topics of one kind in a cell.
#[derive(Clone, Debug)]
pub struct Class {
    /// Topics of the class in a cell.
    pub topics: f64,
    /// Members of each topic in the cell.
    pub size: f64,
    /// Nodes that these members may be on.
    pub nodes: f64,
    /// The share of the cell's nodes that are among those, for a topic of any region.
    pub near: f64,
    /// Messages a second in each.
    pub rate: f64,
    /// Copies of the topic in other cells, which need a bridge.
    pub bridges: f64,
}

impl Class {
    /// The probability that a given node of the cell has a member of a topic.
    pub fn touches(&self) -> f64 {
        self.near * touches(self.nodes, self.size)
    }

    /// Members of a topic on a node that may have some.
    pub fn members(&self) -> f64 {
        self.size / self.nodes
    }
}

/// The probability that a given one of `nodes` nodes has one of a topic's `size` members.
pub fn touches(nodes: f64, size: f64) -> f64 {
    if nodes <= 1.0 {
        return 1.0;
    }
    1.0 - (size * (-1.0 / nodes).ln_1p()).exp()
}

/// The subscriptions of a node.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    /// Topics with members on the node.
    pub topics: f64,
    /// Subscriptions to one topic.
    pub exact: f64,
    /// Subscriptions to a bucket.
    pub whole: f64,
    /// The share of buckets that are subscribed whole.
    pub share: f64,
}

/// A cell and the subscriptions of each of its nodes.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How many cells there are.
    pub cells: f64,
    /// Nodes of each.
    pub nodes: f64,
    /// Its topics.
    pub classes: Vec<Class>,
    /// The subscriptions of one of its nodes.
    pub wants: Wants,
}

impl Cell {
    /// A cell of this many nodes in all.
    pub fn new(load: &Load, machines: &Machines, prices: &Prices, nodes: f64) -> Self {
        let cells = machines.cells.max(1.0);
        let of_cell = nodes / cells;
        let mut classes = Vec::new();
        let mut add = |topics: f64, size: f64, rate: f64, regional: bool| {
            if topics <= 0.0 || size <= 0.0 {
                return;
            }
            // A topic larger than a cell, or with members in all regions, is in all cells.
            let in_all = cells > 1.0
                && (size > load.clients / cells
                    || (!regional && machines.cells_are_regional(load)));
            let near = if regional && !machines.cells_are_regional(load) {
                1.0 / machines.regions_left()
            } else {
                1.0
            };
            classes.push(Class {
                topics: if in_all { topics } else { topics / cells },
                size: if in_all { size / cells } else { size },
                nodes: of_cell * near,
                near,
                rate,
                bridges: if in_all { cells - 1.0 } else { 0.0 },
            });
        };
        match load.spread {
            Spread::Random => add(load.rooms, load.room_size, load.rate, false),
            Spread::Regional => {
                add(load.rooms * (1.0 - load.mixed), load.room_size, load.rate, true);
                add(load.rooms * load.mixed, load.room_size, load.rate, false);
            }
        }
        add(f64::from(load.hot_size > 0.0), load.hot_size, load.hot_rate, false);
        let topics = classes.iter().map(|it| it.topics * it.touches()).sum();
        let wants = wants(topics, load.presence, prices.get("exact_max"));
        Self { cells, nodes: of_cell, classes, wants }
    }

    /// Messages a second that are published in the cell, with those from bridges.
    pub fn published(&self) -> f64 {
        self.classes.iter().map(|it| it.topics * it.rate).sum()
    }

    /// Messages a second that a node has members for, and all that it receives, its own included.
    pub fn heard(&self) -> (f64, f64) {
        self.classes.iter().fold((0.0, 0.0), |(wanted, all), it| {
            let rate = it.topics * it.rate;
            let touches = it.touches();
            (wanted + rate * touches, all + rate * (touches + (1.0 - touches) * self.wants.share))
        })
    }

    /// The probability that a node receives a message, whether it has members for it or not.
    pub fn hears(&self) -> f64 {
        let published = self.published();
        if published > 0.0 { self.heard().1 / published } else { 1.0 }
    }

    /// Presence entries of a node: all members of each topic that has a member on it.
    pub fn entries(&self, presence: f64) -> f64 {
        self.classes.iter().map(|it| it.topics * it.touches() * it.size * presence).sum()
    }

    /// How often in a second a topic with presence begins on a node. Members join and leave
    /// independently, so a topic is empty on a node for a share of e^-members of the time.
    pub fn begins(&self, load: &Load) -> f64 {
        let each = |it: &Class| {
            let members = it.members();
            it.topics * it.near * load.presence * members / load.session * (-members).exp()
        };
        self.classes.iter().map(each).sum()
    }

    /// Presence changes sent to the cell's members in a second.
    pub fn changes(&self, load: &Load) -> f64 {
        let each = |it: &Class| 2.0 * it.topics * it.size * load.presence / load.session;
        self.classes.iter().map(each).sum()
    }

    /// Envelopes of a change: itself, and its version again after 1, 5 and 25 s unless the node has
    /// another change of that topic by then.
    pub fn repeats(&self, load: &Load) -> f64 {
        let all: f64 = self.classes.iter().map(|it| it.topics * it.size).sum();
        let each = |it: &Class| {
            // Changes of the node that makes the change: one member, and others by chance.
            let rate = 2.0 * it.members().max(1.0) / load.session;
            let again: f64 = [1.0, 5.0, 25.0].iter().map(|after: &f64| (-rate * after).exp()).sum();
            it.topics * it.size * (1.0 + again)
        };
        self.classes.iter().map(each).sum::<f64>() / all
    }
}

/// Subscriptions of a node with this many topics. The fullest buckets are subscribed whole until at
/// most `exact_max` subscriptions are to single topics, and at most twice as many, or two to a
/// bucket, in all. So the emptiest buckets are left (Poisson), which simplifies: in the server a
/// bucket that was once the fullest stays whole.
pub fn wants(topics: f64, presence: f64, exact_max: f64) -> Wants {
    let each = 1.0 + presence;
    if topics * each <= exact_max {
        return Wants { topics, exact: topics * each, whole: 0.0, share: 0.0 };
    }
    // A bucket is subscribed in each space that any of its topics needs.
    let spaces = 1.0 + f64::from(presence > 0.0);
    let held_max = (2.0 * exact_max).max(2.0 * BUCKETS);
    let mean = topics / BUCKETS;
    if mean > MANY {
        let exact = exact_max.min(held_max - spaces * BUCKETS).max(0.0);
        let whole = BUCKETS - exact / (mean * each);
        return Wants { topics, exact, whole: whole * spaces, share: whole / BUCKETS };
    }
    let mut chance = (-mean).exp();
    // A bucket without topics is not subscribed.
    let (mut whole, mut exact) = (BUCKETS * (1.0 - chance), 0.0);
    for count in 1..4096_u32 {
        chance *= mean / f64::from(count);
        let subscriptions = f64::from(count) * each;
        let grows = (subscriptions - spaces).max(f64::MIN_POSITIVE);
        let room = (exact_max - exact) / subscriptions;
        let room = room.min((held_max - exact - whole * spaces) / grows).max(0.0);
        let buckets = (BUCKETS * chance).min(room);
        (whole, exact) = (whole - buckets, exact + buckets * subscriptions);
        if room <= BUCKETS * chance {
            break;
        }
    }
    let whole = whole.max(0.0);
    Wants { topics, exact, whole: whole * spaces, share: whole / BUCKETS }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64, share: f64) -> bool {
        (one - other).abs() <= share * other.abs()
    }

    #[test]
    fn a_hundred_thousand_topics_make_the_interests_that_were_measured() {
        // bench/runs, row `topics`: 7,993 interests, 3,914 of them whole buckets.
        let it = wants(100_000.0, 0.0, 4096.0);
        assert!(near(it.whole, 3914.0, 0.03), "{it:?}");
        assert!(near(it.whole + it.exact, 7993.0, 0.02), "{it:?}");
    }

    #[test]
    fn few_topics_are_heard_one_by_one() {
        let it = wants(4000.0, 0.0, 4096.0);
        assert!((it.exact - 4000.0).abs() < 1e-9 && it.whole < 0.5 && it.share < 1e-9);
        // Presence needs its own subscription.
        assert!(wants(4000.0, 1.0, 4096.0).share > 0.1);
    }

    #[test]
    fn many_topics_make_every_bucket_whole() {
        for topics in [1e6, 3e6, 1e8] {
            let it = wants(topics, 0.0, 4096.0);
            assert!(it.share > 0.99 && it.share <= 1.0, "{it:?}");
        }
    }

    #[test]
    fn a_room_of_fifty_is_on_two_of_five_of_a_hundred_nodes() {
        assert!(near(touches(100.0, 50.0), 0.395, 0.001));
        assert!((touches(1.0, 1.0) - 1.0).abs() < 1e-12);
        assert!((touches(7.0, 1.0) - 1.0 / 7.0).abs() < 1e-12);
    }

    #[test]
    fn cells_split_topics_and_a_topic_larger_than_a_cell_is_in_all() {
        let prices = Prices::read(None).unwrap();
        let loads = Load::all(None).unwrap();
        let machines = Machines { cells: 10.0, ..Machines::default() };
        let chat = Cell::new(&loads[1], &machines, &prices, 100.0);
        assert!((chat.nodes - 10.0).abs() < 1e-9 && (chat.published() - 20_000.0).abs() < 1e-6);
        let lobby = Cell::new(&loads[0], &machines, &prices, 100.0);
        assert!((lobby.published() - 0.1).abs() < 1e-9, "{lobby:?}");
        assert!((lobby.classes[0].bridges - 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_regional_room_touches_nodes_of_its_region_alone() {
        let prices = Prices::read(None).unwrap();
        let mut chat = Load::all(None).unwrap().remove(1);
        let random = Cell::new(&chat, &Machines::default(), &prices, 90.0).wants.topics;
        chat.spread = Spread::Regional;
        let regional = Cell::new(&chat, &Machines::default(), &prices, 90.0).wants.topics;
        assert!(regional < random, "{regional} {random}");
        // Two of three regions are left: half of the rooms belong to the other one.
        let expected = 2e6 / 2.0 * touches(45.0, 50.0);
        assert!(near(regional, expected, 1e-9), "{regional} {expected}");
    }
}
