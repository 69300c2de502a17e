//! The failure domains: what fails together, and how long its clients take to reconnect.

use super::Plan;
use super::node::sum;
use crate::prices::Prices;

/// Clients that reconnect together.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Reconnecting clients for each remaining node.
    pub clients: f64,
    /// Cores that such a node has for them.
    pub node_cores: f64,
    /// Cores that proxies have for them, for each such node; `None` without proxies.
    pub proxy_cores: Option<f64>,
    /// CPU of a proxy for each handshake, in core seconds.
    pub handshake: f64,
    /// CPU of a node for each connection and join.
    pub connect: f64,
    /// CPU of a node for the join.
    pub join: f64,
}

impl Storm {
    /// The clients of a lost region, on the remaining nodes.
    pub fn of_region(plan: &Plan, prices: &Prices) -> Self {
        Self::new(plan, prices, plan.load.clients / plan.machines.regions / plan.left)
    }

    /// `clients` reconnecting clients for each remaining node.
    pub fn new(plan: &Plan, prices: &Prices, clients: f64) -> Self {
        let machines = &plan.machines;
        let card = prices.get("card_cpu") / prices.get("cores_efficiency");
        let joins = plan.load.topics_each().max(1.0);
        let join = match plan.load.kept > 0.0 {
            true => prices.get("resume_cpu"),
            false => prices.get("join_cpu"),
        };
        let all = prices.at("connect_cpu", plan.node.clients);
        // The load of the connected clients continues meanwhile.
        let busy = sum(&plan.calm.cpu);
        let proxies = plan.proxies.as_ref();
        let proxy_cores = proxies.map(|it| {
            let free = machines.node_cores - it.busy * it.left / it.all;
            free.max(0.0) * it.all * machines.regions_left() / machines.regions / plan.left
        });
        Self {
            clients,
            node_cores: (machines.node_cores - busy).max(0.0),
            proxy_cores,
            handshake: match proxies {
                Some(_) => prices.get("tls_handshake_cpu") / prices.get("cores_efficiency"),
                None => 0.0,
            },
            connect: (all - prices.get("join_cpu")) * card,
            join: joins * join * card,
        }
    }

    /// Clients a second that a node and its proxies accept at most.
    pub fn rate(&self) -> f64 {
        let node = self.node_cores / (self.connect + self.join);
        let proxy = self.proxy_cores.map_or(f64::INFINITY, |cores| cores / self.handshake);
        node.min(proxy)
    }

    /// Seconds from the first client until the last one is served, if no attempt fails.
    pub fn seconds(&self) -> f64 {
        if self.clients <= 0.0 { 0.0 } else { self.clients / self.rate() }
    }

    /// Over how many seconds they should come, to use half of the machines' spare capacity.
    pub fn spread(&self) -> f64 {
        2.0 * self.seconds()
    }
}

/// Something that fails as a whole.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its name.
    pub name: &'static str,
    /// Nodes that fail with it or lose their link.
    pub nodes: f64,
    /// Clients that have to reconnect.
    pub clients: f64,
    /// The permanent extra load of each remaining node.
    pub more: f64,
    /// Seconds until these are served, from when they come.
    pub seconds: f64,
}

/// The failure domains.
pub fn domains(plan: &Plan, prices: &Prices) -> Vec<Domain> {
    let machines = &plan.machines;
    let of = |name, nodes: f64| {
        let left = plan.nodes - nodes;
        let clients = plan.load.clients * nodes / plan.nodes;
        let seconds = Storm::new(plan, prices, clients / left).seconds();
        Domain { name, nodes, clients, more: nodes / left, seconds }
    };
    let mut all = vec![of("a node", 1.0), of("a rack", machines.rack.min(plan.nodes - 1.0))];
    if machines.regions > 1.0 {
        all.push(of("a region", plan.nodes / machines.regions));
    }
    // Clients do not notice it; its nodes connect to the other brokers of their region.
    all.push(Domain {
        name: "a broker",
        nodes: plan.nodes / plan.servers.unwrap_or(f64::NAN),
        clients: 0.0,
        more: 1.0 / (plan.brokers.servers.unwrap_or(f64::NAN) - 1.0),
        seconds: 0.0,
    });
    all
}

/// A restart of all nodes, some at a time.
#[derive(Clone, Copy, Debug)]
pub struct Deploy {
    /// Nodes at a time.
    pub at_once: f64,
    /// Seconds over which each closes its clients (`drain_time`).
    pub drain: f64,
    /// Seconds until the last node has been started.
    pub all: f64,
}

/// The share of the machines' spare capacity for clients that reconnect in a deploy.
const DEPLOY_SHARE: f64 = 0.1;
/// Time from a node's end until the next ones are stopped: it starts and takes clients.
const DEPLOY_PAUSE_S: f64 = 30.0;

/// Deploys of one node, a fiftieth, and a tenth at a time.
pub fn deploys(plan: &Plan, prices: &Prices) -> Vec<Deploy> {
    let mut all: Vec<Deploy> = Vec::new();
    for share in [0.0, 0.02, 0.1] {
        let at_once = (plan.nodes * share).ceil().max(1.0);
        if all.last().is_some_and(|it| it.at_once >= at_once) {
            continue;
        }
        let left = plan.nodes - at_once;
        let clients = plan.load.clients * at_once / plan.nodes / left.max(1.0);
        let drain = Storm::new(plan, prices, clients).seconds() / DEPLOY_SHARE;
        let drain = drain.max(10.0);
        let rounds = (plan.nodes / at_once).ceil();
        all.push(Deploy { at_once, drain, all: rounds * (drain + DEPLOY_PAUSE_S) });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, Machines};

    fn plan() -> (Plan, Prices) {
        let prices = Prices::read(None).unwrap();
        let chat = Load::all(None).unwrap().remove(1);
        (Plan::new(&chat, &Machines::default(), &prices), prices)
    }

    #[test]
    fn a_lost_region_is_a_third_of_all_clients_on_the_nodes_of_two() {
        let (plan, prices) = plan();
        let storm = Storm::of_region(&plan, &prices);
        assert!((storm.clients * plan.left - 1e8 / 3.0).abs() < 1.0);
        assert!(storm.seconds() > 1.0 && storm.seconds() < 600.0, "{storm:?}");
    }

    #[test]
    fn the_larger_the_domain_the_longer_it_takes() {
        let (plan, prices) = plan();
        let all = domains(&plan, &prices);
        let seconds: Vec<f64> = all.iter().take(3).map(|it| it.seconds).collect();
        assert!(seconds.is_sorted() && seconds[0] > 0.0, "{seconds:?}");
        let region = &all[2];
        assert!((region.clients - 1e8 / 3.0).abs() < 1.0 && (region.more - 0.5).abs() < 1e-9);
    }

    #[test]
    fn more_nodes_at_a_time_drain_longer_and_are_done_sooner() {
        let (plan, prices) = plan();
        let all = deploys(&plan, &prices);
        assert_eq!(all.len(), 3);
        assert!(all.is_sorted_by(|one, other| one.drain <= other.drain), "{all:?}");
        assert!(all.is_sorted_by(|one, other| one.all > other.all), "{all:?}");
    }

    #[test]
    fn without_proxies_nodes_alone_say_how_fast_it_goes() {
        let (mut plan, prices) = plan();
        let with = Storm::of_region(&plan, &prices).seconds();
        plan.proxies = None;
        let storm = Storm::of_region(&plan, &prices);
        assert!(storm.seconds() <= with);
        let own = storm.clients * (storm.connect + storm.join) / storm.node_cores;
        assert!((storm.seconds() - own).abs() < 1e-9);
    }
}
