//! Brokers: a NATS cluster in each region for each cell, its regions joined by gateways.
//!
//! A message comes in once, goes to each local node that receives it, to each other server of the
//! region with such a node by its route, and once to each other region by a gateway. Every copy is
//! charged with the price of a message in *and* out, which overestimates.

use super::cell::Cell;
use super::node::{Flows, between};
use crate::load::{Load, Machines};
use crate::prices::Prices;

/// The most servers that a region of a cell may have; with more, routes would dominate.
const SERVERS_MAX: f64 = 100.0;
/// The smallest cluster that survives the loss of a server.
const SERVERS_MIN: f64 = 3.0;

/// The brokers of one cell in one region.
#[derive(Clone, Debug)]
pub struct Brokers {
    /// Servers; `None` if no number of them is enough.
    pub servers: Option<f64>,
    /// Regions that a cell is in.
    pub regions: f64,
    /// Nodes of the cell in the region.
    pub nodes: f64,
    /// Incoming messages a second: of the region's nodes, and of other regions.
    pub comes_in: (f64, f64),
    /// Copies a second: to nodes, to other servers, to other regions.
    pub copies: [f64; 3],
    /// Cores in use, of all servers of the region.
    pub cores: f64,
    /// Of that, the cores for storage.
    pub stored_cores: f64,
    /// Cores that the busiest single connection needs of one server: each is read by one goroutine,
    /// which also forwards what it reads.
    pub connection: f64,
    /// Interests that one server keeps: of its own nodes, of others.
    pub interests: (f64, f64),
    /// Bytes of these interests.
    pub interest_bytes: f64,
    /// Interests that are sent over one connection between servers when it begins: those of a
    /// server's own nodes by a route, those of a region by a gateway.
    pub exchanged: f64,
    /// Bits a second of one server, both ways.
    pub bits: f64,
    /// Bits a second from this region to each other.
    pub to_region: f64,
    /// Messages a second that are stored, in the whole cell.
    pub stored: f64,
}

/// The flows of one region, as its brokers see them.
struct Site<'a> {
    prices: &'a Prices,
    cell: &'a Cell,
    flows: &'a Flows,
    regions: f64,
    nodes: f64,
}

impl Site<'_> {
    /// Messages a second of one node for all or some nodes; then those for one node alone.
    fn said(&self) -> (f64, f64) {
        let flows = self.flows;
        (flows.said + flows.deltas.0 + flows.asks.0 + flows.beats.1, flows.states)
    }

    /// The probability that one of this many nodes receives a message.
    fn any_of(&self, nodes: f64) -> f64 {
        1.0 - (1.0 - self.cell.hears().min(1.0)).powf(nodes.max(1.0))
    }

    fn comes_in(&self) -> (f64, f64) {
        let (to_all, to_one) = self.said();
        let share = self.any_of(self.nodes);
        let others = (self.regions - 1.0) * self.nodes;
        (self.nodes * (to_all + to_one), others * (to_all * share + to_one / self.regions))
    }

    fn copies(&self, servers: f64) -> [f64; 3] {
        let (own, foreign) = self.comes_in();
        let (to_all, to_one) = self.said();
        let share = self.any_of(self.nodes / servers);
        // A message for one node takes at most one route.
        let unicast = self.nodes * to_one;
        let routed = (own + foreign - unicast).max(0.0) * (servers - 1.0) * share
            + unicast * (servers - 1.0) / servers;
        let abroad = (self.regions - 1.0) * self.any_of(self.nodes);
        [
            self.nodes * self.flows.all().0,
            routed,
            self.nodes * (to_all * abroad + to_one * (self.regions - 1.0) / self.regions),
        ]
    }

    /// The load of the busiest connection: a node's, a route, or a gateway.
    fn connection(&self, servers: f64) -> f64 {
        let (to_all, to_one) = self.said();
        let each = self.nodes / servers;
        let to_nodes = each * self.cell.hears();
        let routes = (servers - 1.0) * self.any_of(each);
        let abroad = self.regions - 1.0;
        let node = to_all * (to_nodes + routes + abroad) + to_one;
        let route = each * to_all * to_nodes.max(1.0) + each * to_one / servers;
        let gateway = match abroad > 0.0 {
            true => each * to_all * (to_nodes + routes) + each * to_one / self.regions,
            false => 0.0,
        };
        node.max(route).max(gateway) * self.prices.get("broker_copy_cpu")
            / self.prices.get("cores_efficiency")
            / self.prices.get("route_connections")
    }

    /// Buckets are the same subjects on all nodes, so each is sent once.
    fn exchanged(&self, servers: f64) -> f64 {
        let wants = &self.cell.wants;
        let nodes = if self.regions > 1.0 { self.nodes } else { self.nodes / servers };
        wants.whole + nodes * wants.exact
    }

    fn interests(&self, servers: f64) -> (f64, f64) {
        let wants = &self.cell.wants;
        let each = self.nodes / servers;
        let own = each * (wants.exact + wants.whole);
        // Other servers forward each subject once: buckets are the same subjects everywhere.
        let other = wants.whole + each * wants.exact;
        (own, (servers * self.regions - 1.0) * other)
    }
}

impl Brokers {
    /// The brokers of one cell in one region.
    pub fn new(
        load: &Load,
        machines: &Machines,
        prices: &Prices,
        cell: &Cell,
        flows: &Flows,
    ) -> Self {
        let regions = if machines.cells_are_regional(load) { 1.0 } else { machines.regions_left() };
        let site = Site { prices, cell, flows, regions, nodes: cell.nodes / regions };
        let stored = cell.published() * load.kept;
        let checked = (cell.wants.topics * load.kept / 30.0).min(prices.get("checks_per_s"));
        let kept = stored * prices.get("stored_cpu") * machines.replicas / regions
            + site.nodes * checked * prices.get("last_of_cpu");
        let kept = kept / prices.get("cores_efficiency");
        let copy = prices.get("broker_copy_cpu") / prices.get("cores_efficiency");
        let cores = |servers: f64| site.copies(servers).iter().sum::<f64>() * copy + kept;
        let bytes = between(load.payload);
        let room = machines.broker_cores * machines.fill;
        let bits = |servers: f64| {
            let (own, foreign) = site.comes_in();
            (site.copies(servers).iter().sum::<f64>() + own + foreign) * bytes * 8.0 / servers
        };
        let fits = |servers: &f64| {
            cores(*servers) <= room * servers
                && bits(*servers) <= machines.broker_bits * machines.fill * 2.0
        };
        let all = || {
            let all = std::iter::successors(Some(SERVERS_MIN), |it| Some(it + 1.0));
            all.take_while(|it| *it <= SERVERS_MAX)
        };
        // Adds servers while that makes the busiest connection less busy.
        let calm = |it: &f64| fits(it) && site.connection(*it) <= machines.fill;
        let found = all().find(calm).or_else(|| all().find(fits));
        let servers = found.unwrap_or(SERVERS_MAX);
        let interests = site.interests(servers);
        Self {
            servers: found,
            regions,
            nodes: site.nodes,
            comes_in: site.comes_in(),
            copies: site.copies(servers),
            cores: cores(servers),
            stored_cores: kept,
            connection: site.connection(servers),
            interests,
            interest_bytes: interests.0 * prices.get("broker_interest_bytes")
                + interests.1 * prices.get("route_interest_bytes"),
            exchanged: site.exchanged(servers),
            bits: bits(servers),
            to_region: match regions > 1.0 {
                true => site.copies(servers)[2] / (regions - 1.0) * bytes * 8.0,
                false => 0.0,
            },
            stored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::node::Node;

    fn brokers(nodes: f64, cells: f64) -> Brokers {
        let load = Load::all(None).unwrap().remove(1);
        let machines = Machines { cells, ..Machines::default() };
        let prices = Prices::read(None).unwrap();
        let cell = Cell::new(&load, &machines, &prices, nodes);
        let node = Node::new(&load, &prices, &cell);
        Brokers::new(&load, &machines, &prices, &cell, &node.flows)
    }

    #[test]
    fn every_copy_that_a_node_hears_is_one_that_a_broker_makes() {
        let load = Load::all(None).unwrap().remove(1);
        let (machines, prices) = (Machines::default(), Prices::read(None).unwrap());
        let cell = Cell::new(&load, &machines, &prices, 100.0);
        let node = Node::new(&load, &prices, &cell);
        let it = Brokers::new(&load, &machines, &prices, &cell, &node.flows);
        let heard = 100.0 * node.flows.all().0;
        assert!((it.copies[0] * it.regions - heard).abs() < 1e-6 * heard);
        // Two regions are left, and half of the messages for one node stay in its region.
        let states = 50.0 * node.flows.states;
        let (own, foreign) = it.comes_in;
        assert!((own - states / 2.0 - foreign).abs() < 0.01 * own, "{it:?}");
    }

    /// A bucket that all nodes receive is one subject, whatever the number of nodes.
    #[test]
    fn nodes_that_hear_buckets_bring_no_more_interests_by_being_more() {
        let (few, many) = (brokers(50.0, 1.0), brokers(500.0, 1.0));
        assert!((few.exchanged - many.exchanged).abs() < 0.01 * few.exchanged, "{few:?} {many:?}");
        assert!(few.exchanged > 8000.0 && few.exchanged < 8200.0, "{few:?}");
    }

    #[test]
    fn ten_cells_make_a_tenth_of_the_copies() {
        let (one, ten) = (brokers(100.0, 1.0), brokers(100.0, 10.0));
        let copies = |it: &Brokers| it.copies[0] * it.regions;
        // All cells together.
        assert!(copies(&ten) * 10.0 < copies(&one) / 5.0, "{one:?} {ten:?}");
    }

    #[test]
    fn a_load_that_each_server_must_read_whole_is_not_helped_by_servers() {
        let mut load = Load::all(None).unwrap().remove(1);
        load.rate = 100.0;
        let (machines, prices) = (Machines::default(), Prices::read(None).unwrap());
        let cell = Cell::new(&load, &machines, &prices, 100.0);
        let node = Node::new(&load, &prices, &cell);
        let it = Brokers::new(&load, &machines, &prices, &cell, &node.flows);
        assert_eq!(it.servers, None);
    }
}
