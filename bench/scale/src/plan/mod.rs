//! The plan: how many machines a load takes, and the load of each of them.

pub mod broker;
pub mod cell;
pub mod domains;
pub mod limits;
pub mod node;

use crate::load::{Load, Machines};
use crate::prices::Prices;

use broker::Brokers;
use cell::Cell;
use node::{Node, Part, sum};

/// The search ends at this number of nodes.
const NODES_MAX: f64 = 20_000.0;

/// Proxies before the nodes, on machines like theirs.
#[derive(Clone, Debug)]
pub struct Proxies {
    /// How many are enough once a region is lost.
    pub left: f64,
    /// How many there are in all regions.
    pub all: f64,
    /// Busy cores of each, once a region is lost.
    pub busy: f64,
}

/// A load, and the machines for it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The load.
    pub load: Load,
    /// The machines.
    pub machines: Machines,
    /// Nodes of all regions.
    pub nodes: f64,
    /// Nodes that are left once a region is lost: these are enough.
    pub left: f64,
    /// The limit that requires this many.
    pub because: &'static str,
    /// Whether any number is enough.
    pub is_enough: bool,
    /// A cell of the remaining nodes.
    pub cell: Cell,
    /// One of the remaining nodes.
    pub node: Node,
    /// A node while all regions are up.
    pub calm: Node,
    /// Brokers of one cell in one region, once a region is lost.
    pub brokers: Brokers,
    /// Servers of all cells and regions; `None` if no number is enough.
    pub servers: Option<f64>,
    /// Proxies before the nodes.
    pub proxies: Option<Proxies>,
}

impl Plan {
    /// As many nodes as the load takes.
    pub fn new(load: &Load, machines: &Machines, prices: &Prices) -> Self {
        // Every cell has the same number of nodes.
        let whole = |nodes: f64| (nodes / machines.cells).ceil() * machines.cells;
        let mut left = whole(load.clients / machines.node_clients);
        let mut because = "clients a node";
        let fitting = loop {
            let cell = Cell::new(load, machines, prices, left);
            let node = Node::new(load, prices, &cell);
            match too_much(&node, machines) {
                Some(_) if left >= NODES_MAX => break (cell, node, false),
                Some(what) => because = what,
                None => break (cell, node, true),
            }
            left = whole((left * 1.02).max(left + 1.0));
        };
        let (cell, node, is_enough) = fitting;
        let each = (left / machines.regions_left()).ceil();
        let nodes = each * machines.regions;
        let calm_cell = Cell::new(load, &all_there(machines), prices, nodes);
        let calm = Node::new(load, prices, &calm_cell);
        let brokers = Brokers::new(load, machines, prices, &cell, &node.flows);
        let sites = match machines.cells_are_regional(load) {
            true => machines.cells,
            false => machines.cells * machines.regions,
        };
        let servers = brokers.servers.map(|it| it * sites);
        let proxies = machines.proxies.then(|| proxies(load, machines, prices));
        Self {
            load: load.clone(),
            machines: machines.clone(),
            nodes,
            left,
            because,
            is_enough,
            cell,
            node,
            calm,
            brokers,
            servers,
            proxies,
        }
    }

    /// Bytes in use on a node once a region is lost.
    pub fn memory(&self) -> f64 {
        sum(&self.node.memory)
    }

    /// Cores in use on a node once a region is lost.
    pub fn cores(&self) -> f64 {
        sum(&self.node.cpu)
    }
}

/// While all regions are up none is missing from those that regional topics are in.
fn all_there(machines: &Machines) -> Machines {
    Machines { regions: machines.regions + f64::from(machines.regions > 1.0), ..machines.clone() }
}

/// The first limit that a node exceeds, if any.
fn too_much(node: &Node, machines: &Machines) -> Option<&'static str> {
    let parts: [Part; 3] = [
        ("memory", sum(&node.memory) / (machines.node_memory * machines.memory_fill)),
        ("CPU", sum(&node.cpu) / (machines.node_cores * machines.fill)),
        ("network", (node.bits.0 + node.bits.1) / (machines.node_bits * machines.fill)),
    ];
    let worst = parts.into_iter().max_by(|one, other| one.1.total_cmp(&other.1));
    worst.filter(|it| it.1 > 1.0).map(|it| it.0)
}

/// Proxies by memory and by CPU, on machines like the nodes.
fn proxies(load: &Load, machines: &Machines, prices: &Prices) -> Proxies {
    let core = 1.0 / prices.get("cores_efficiency");
    let bytes = prices.get("tls_connection_bytes") + 2.0 * prices.get("client_kernel_bytes");
    let by_memory = load.clients * bytes / (machines.node_memory * machines.memory_fill);
    let messages = load.clients / prices.get("heartbeat_s") * 2.0
        + load.delivered()
        + load.presence_delivered()
        + load.published();
    let cpu = messages * prices.get("proxy_message_cpu")
        + load.clients / load.session * prices.get("tls_handshake_cpu");
    let cpu = cpu * core;
    let left = by_memory.max(cpu / (machines.node_cores * machines.fill)).ceil();
    let all = (left / machines.regions_left()).ceil() * machines.regions;
    Proxies { left, all, busy: cpu / left }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(machines: &Machines) -> Vec<Plan> {
        let prices = Prices::read(None).unwrap();
        let loads = Load::all(None).unwrap();
        loads.iter().map(|it| Plan::new(it, machines, &prices)).collect()
    }

    #[test]
    fn a_plan_is_enough_by_its_own_bounds_with_a_region_lost() {
        for plan in plans(&Machines::default()) {
            let machines = &plan.machines;
            assert!(plan.is_enough, "{}", plan.load.name);
            assert!(plan.memory() <= machines.node_memory * machines.memory_fill);
            assert!(plan.cores() <= machines.node_cores * machines.fill);
            assert!(plan.node.clients <= machines.node_clients * 1.000_001);
            // The nodes without the largest region are enough.
            assert!(plan.nodes * 2.0 / 3.0 >= plan.left, "{}", plan.load.name);
        }
    }

    #[test]
    fn one_region_needs_no_nodes_to_spare() {
        let prices = Prices::read(None).unwrap();
        let lobby = Load::all(None).unwrap().remove(0);
        let machines = Machines { regions: 1.0, ..Machines::default() };
        let plan = Plan::new(&lobby, &machines, &prices);
        assert!((plan.nodes - plan.left).abs() < 0.5);
    }

    #[test]
    fn each_cell_has_as_many_nodes_as_the_others() {
        for plan in plans(&Machines { cells: 30.0, ..Machines::default() }) {
            assert!((plan.left / 30.0).fract() < 1e-9 && plan.left >= 120.0, "{}", plan.left);
            assert!((plan.cell.nodes * 30.0 - plan.left).abs() < 1e-9);
        }
    }

    #[test]
    fn smaller_nodes_are_more_nodes() {
        let small = Machines { node_memory: 8e9, node_cores: 4.0, ..Machines::default() };
        for (one, other) in plans(&Machines::default()).iter().zip(plans(&small)) {
            assert!(other.nodes > one.nodes, "{}", one.load.name);
        }
    }

    #[test]
    fn a_plan_that_cannot_be_says_so() {
        let prices = Prices::read(None).unwrap();
        let mut chat = Load::all(None).unwrap().remove(1);
        // Each node has to receive all of it.
        chat.rate = 100.0;
        let plan = Plan::new(&chat, &Machines::default(), &prices);
        assert!(!plan.is_enough && plan.servers.is_none());
    }
}
