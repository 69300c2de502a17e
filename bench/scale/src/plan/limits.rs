//! Which assumption breaks first: each limit, the plan's distance from it, and what would help.

use super::Plan;
use simurgh_text::format::{bytes, time};

use super::domains::Storm;
use crate::figures::{bits, count, rate, share};
use crate::prices::Prices;

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The limited quantity.
    pub name: &'static str,
    /// The plan's need.
    pub is: String,
    /// The available amount.
    pub may: String,
    /// Available ÷ needed: below 1 it breaks.
    pub headroom: f64,
    /// The basis: measured or assumed prices, or a bound that is a choice.
    pub basis: Basis,
    /// The necessary change.
    pub then: &'static str,
}

/// The basis of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Measured prices, or constants of this repository.
    Measured,
    /// Documentation of others.
    Documented,
    /// Includes prices that were not measured.
    Assumed,
    /// The bound seems reasonable.
    Choice,
}

impl Basis {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Documented => "documented",
            Self::Assumed => "assumed",
            Self::Choice => "choice",
        }
    }
}

impl Limit {
    fn new(name: &'static str, is: f64, may: f64, show: fn(f64) -> String) -> Self {
        let headroom = if is > 0.0 { may / is } else { f64::INFINITY };
        Self { name, is: show(is), may: show(may), headroom, basis: Basis::Measured, then: "" }
    }

    fn then(self, then: &'static str) -> Self {
        Self { then, ..self }
    }

    fn by(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }
}

/// All limits, the tightest first.
pub fn limits(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let mut all = of_nodes(plan, prices);
    all.extend(of_cluster(plan, prices));
    all.extend(of_brokers(plan, prices));
    if plan.load.kept > 0.0 {
        all.extend(of_history(plan, prices));
    }
    if plan.load.presence > 0.0 {
        all.extend(of_presence(plan, prices));
    }
    all.extend(of_storms(plan, prices));
    all.extend(of_the_way_in(plan, prices));
    all.extend(of_names(plan));
    all.sort_by(|one, other| one.headroom.total_cmp(&other.headroom));
    all
}

fn cores(value: f64) -> String {
    format!("{} cores", count(value))
}

fn of_nodes(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let machines = &plan.machines;
    let (of_clients, link) = plan.node.bits;
    vec![
        Limit::new(
            "memory of a node",
            plan.memory(),
            machines.node_memory * machines.memory_fill,
            bytes,
        )
        .then("more nodes"),
        Limit::new("CPU of a node", plan.cores(), machines.node_cores * machines.fill, cores)
            .then("more nodes, as far as it is clients' work; what all nodes hear is not")
            .by(Basis::Assumed),
        Limit::new(
            "network card of a node",
            of_clients + link,
            machines.node_bits * machines.fill,
            bits,
        )
        .then("more nodes; compression at the proxy"),
        Limit::new(
            "clients on a server, as measured",
            plan.node.clients,
            prices.get("clients_measured"),
            count,
        )
        .then("measure larger ones, or more nodes"),
        Limit::new(
            "descriptors of a shard",
            plan.node.clients / machines.node_cores,
            machines.descriptors,
            count,
        )
        .then("more shards (`max_connections` starts them)"),
    ]
}

fn of_cluster(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let nodes = plan.cell.nodes;
    let thread = plan.node.thread;
    let beats = plan.node.flows.beats.0 * prices.get("receive_thread_cpu");
    vec![
        Limit::new("the cluster's one thread", thread, plan.machines.fill, cores)
            .then("cells; of several threads there is no design")
            .by(Basis::Assumed),
        Limit::new("beats, n² of nodes", beats, plan.machines.fill / 10.0, |it| {
            format!("{} % of a core", count(it * 100.0))
        })
        .then("cells; beats through a tree")
        .by(Basis::Choice),
        Limit::new("nodes of a cluster", nodes, prices.get("nodes_max"), count).then("cells"),
        unwanted(plan),
    ]
}

/// Buckets are received whole, and most of their messages have no receiver on the node.
fn unwanted(plan: &Plan) -> Limit {
    let flows = &plan.node.flows;
    let wanted = flows.wanted_share();
    Limit::new("4,096 buckets: what a node hears in vain", 1.0 - wanted, 0.5, share)
        .then("cells, or rooms whose members share nodes; more buckets do not help")
        .by(Basis::Choice)
}

fn of_brokers(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let (machines, brokers) = (&plan.machines, &plan.brokers);
    let room = machines.broker_cores * machines.fill;
    let copy = prices.get("broker_copy_cpu") / prices.get("cores_efficiency");
    let reads = (brokers.comes_in.0 + brokers.comes_in.1) * copy;
    let interests = brokers.interests.0 + brokers.interests.1;
    let first = brokers.servers.unwrap_or(f64::INFINITY);
    vec![
        Limit::new("brokers of a cell's region", first, 16.0, count)
            .then("cells: each server more reads all that the others do")
            .by(Basis::Choice),
        Limit::new("what every broker has to read", reads, room, cores)
            .then("cells; no number of brokers helps")
            .by(Basis::Assumed),
        Limit::new("one connection of a broker", brokers.connection, machines.fill, cores)
            .then("an account and a cell each: routes are pooled by account")
            .by(Basis::Assumed),
        Limit::new(
            "network card of a broker",
            brokers.bits,
            machines.broker_bits * machines.fill * 2.0,
            bits,
        )
        .then("cells; larger cards"),
        Limit::new(
            "interests that one connection between brokers brings",
            brokers.exchanged,
            prices.get("exchange_max"),
            count,
        )
        .then("a smaller `exact_max`; cells")
        .by(Basis::Documented),
        Limit::new(
            "memory of interests",
            brokers.interest_bytes,
            machines.broker_memory * machines.memory_fill,
            bytes,
        )
        .then("a smaller `exact_max`; cells"),
        Limit::new(
            "a server is back with all interests",
            interests * prices.get("route_interest_cpu") / prices.get("cores_efficiency"),
            10.0,
            time,
        )
        .then("a smaller `exact_max`; cells")
        .by(Basis::Choice),
    ]
}

fn of_history(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let brokers = &plan.brokers;
    let kept = plan.cell.wants.topics * plan.load.kept;
    let streams = prices.get("stream_rate") * prices.get("streams");
    let rings = prices.get("history_bytes");
    let topics = kept * prices.get("kept_topic_bytes");
    let checked = kept * plan.brokers.nodes * prices.get("last_of_cpu");
    let filled = kept * prices.get("fetch_cpu");
    let room = plan.machines.broker_cores * plan.machines.fill;
    let servers = brokers.servers.unwrap_or(1.0);
    vec![
        Limit::new("messages stored in a cell's streams", brokers.stored, streams, rate)
            .then("cells; keep fewer topics")
            .by(Basis::Assumed),
        Limit::new("kept messages in a node's rings", plan.node.rings, rings, bytes)
            .then("`history_bytes_max`, a smaller `count`; what is evicted is fetched or a gap"),
        Limit::new("kept topics in a node's memory", topics, rings, bytes)
            .then("`history_bytes_max`; cells"),
        Limit::new(
            "kept topics that a node looks after each 30 s",
            kept,
            prices.get("checks_per_s") * 30.0,
            count,
        )
        .then("cells; a longer round, and a lost last message found later"),
        Limit::new("all kept topics asked after an outage", checked / (servers * room), 30.0, time)
            .then("cells; asked over minutes, and joins told `unavailable` meanwhile")
            .by(Basis::Choice),
        Limit::new("a new node has filled its kept topics", filled / room, 60.0, time)
            .then("cells; clients sent to a new node bit by bit")
            .by(Basis::Choice),
    ]
}

fn of_presence(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let (load, cell) = (&plan.load, &plan.cell);
    let flows = &plan.node.flows;
    let storm = Storm::of_region(plan, prices);
    // Clients whose room has no other member on their node ask all nodes, which all answer.
    let empty = |it: &super::cell::Class| it.topics * it.size * (-it.members()).exp();
    let members: f64 = cell.classes.iter().map(|it| it.topics * it.size).sum();
    let begins = cell.classes.iter().map(empty).sum::<f64>() / members;
    let states = storm.clients * load.presence * begins * (cell.nodes - 1.0);
    let each = prices.get("receive_thread_cpu") + prices.get("publish_cpu");
    let each = each / prices.get("cores_efficiency");
    let thread = states * each;
    let (states_now, room) = (flows.states * each, plan.machines.fill / 2.0);
    let topics = cell.wants.topics * load.presence;
    let again = prices.get("asks_again_per_s");
    // Every node asks, and answers the requests of the others.
    let again_thread = again.min(topics) * (cell.nodes - 1.0) * each;
    let presence = prices.get("presence_bytes") + prices.get("presence_meta_bytes");
    let memory = plan.machines.node_memory * plan.machines.memory_fill / 2.0;
    vec![
        Limit::new("states of presences asked for: the thread", states_now, room, cores)
            .then("cells; ask the nodes that have members, not all")
            .by(Basis::Assumed),
        Limit::new("presences of all nodes on each", plan.node.entries * presence, memory, bytes)
            .then("cells; rooms whose members share nodes")
            .by(Basis::Choice),
        Limit::new("presences asked for again after an outage", topics / again, 60.0, time)
            .then("cells; ask nodes, not topics: what has changed since then")
            .by(Basis::Choice),
        Limit::new("the thread of a node meanwhile", again_thread, plan.machines.fill, cores)
            .then("cells; ask the nodes that have members, not all")
            .by(Basis::Assumed),
        Limit::new(
            "topics that can wait to be asked for again",
            topics,
            prices.get("asks_waiting"),
            count,
        )
        .then("cells; a longer list"),
        Limit::new("presence storm: the thread of a node", thread, 30.0, time)
            .then("cells; a slower way back for clients; ask fewer nodes")
            .by(Basis::Assumed),
    ]
}

fn of_storms(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let storm = Storm::of_region(plan, prices);
    let queue = prices.get("accept_queue") * plan.machines.node_cores;
    let (size, hot_rate) = plan.load.hottest();
    let members = (size / plan.left).min(plan.node.clients);
    let card = prices.get("card_cpu") / prices.get("cores_efficiency");
    let delivery = prices.at("delivery_cpu", plan.node.clients) * card;
    let busy = members * delivery / plan.machines.node_cores;
    let mut all = vec![
        Limit::new("reconnect storm: a region is back", storm.seconds(), 60.0, time)
            .then("more proxies and nodes; clients that spread their return")
            .by(Basis::Assumed),
        Limit::new("reconnect storm: all at once ÷ accept queues", storm.clients, queue, count)
            .then("clients that spread their return (`reconnectAfterMs`)")
            // Those of the proxies, if there are any: they last as long as the nodes' would.
            .by(if plan.proxies.is_some() { Basis::Assumed } else { Basis::Measured }),
    ];
    if hot_rate > 0.0 {
        all.push(
            Limit::new("hottest topic: its message on a node", busy, 1.0 / hot_rate, time)
                .then("fewer members a node; say less, or what has changed since")
                .by(Basis::Assumed),
        );
    }
    all
}

fn of_the_way_in(plan: &Plan, prices: &Prices) -> Vec<Limit> {
    let Some(proxies) = &plan.proxies else { return Vec::new() };
    let pairs = plan.node.clients / proxies.left;
    vec![
        Limit::new("ports from a proxy to a node", pairs, prices.get("ports"), count)
            .then("more addresses of proxies, or more ports of nodes"),
        Limit::new(
            "CPU of a proxy",
            proxies.busy,
            plan.machines.node_cores * plan.machines.fill,
            cores,
        )
        .then("more proxies; measure one")
        .by(Basis::Assumed),
    ]
}

/// The probability of equal names: each phx_ref has 24 bits of a node's id.
fn of_names(plan: &Plan) -> Vec<Limit> {
    let nodes = plan.nodes;
    let same = nodes * (nodes - 1.0) / 2.0 / f64::from(1 << 24);
    vec![
        Limit::new("two nodes alike in 24 bits of a phx_ref", same, 1.0, |it| {
            format!("1 in {}", count(1.0 / it))
        })
        .then("more bits; they would have to join in the same µs, too"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, Machines};

    fn of(load: usize, machines: &Machines) -> Vec<Limit> {
        let prices = Prices::read(None).unwrap();
        let load = Load::all(None).unwrap().remove(load);
        limits(&Plan::new(&load, machines, &prices), &prices)
    }

    fn headroom(all: &[Limit], name: &str) -> f64 {
        all.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no {name}")).headroom
    }

    #[test]
    fn the_tightest_limit_is_first_and_none_is_without_a_word() {
        for load in 0..4 {
            let all = of(load, &Machines::default());
            assert!(all.is_sorted_by(|one, other| one.headroom <= other.headroom));
            assert!(all.iter().all(|it| !it.then.is_empty() && !it.headroom.is_nan()), "{all:?}");
        }
    }

    #[test]
    fn what_a_plan_is_sized_by_is_not_what_breaks() {
        for load in 0..4 {
            let all = of(load, &Machines::default());
            for name in ["memory of a node", "CPU of a node", "network card of a node"] {
                assert!(headroom(&all, name) >= 1.0, "{load}: {name}");
            }
        }
    }

    #[test]
    fn cells_help_where_the_table_says_so() {
        let cells = Machines { cells: 20.0, ..Machines::default() };
        let (one, many) = (of(1, &Machines::default()), of(1, &cells));
        for name in [
            "the cluster's one thread",
            "what every broker has to read",
            "states of presences asked for: the thread",
            "presence storm: the thread of a node",
            "presences asked for again after an outage",
            "presences of all nodes on each",
            "messages stored in a cell's streams",
        ] {
            assert!(headroom(&many, name) > 2.0 * headroom(&one, name), "{name}");
        }
    }

    #[test]
    fn limits_of_what_a_load_does_not_do_are_not_there() {
        let lobby = of(0, &Machines::default());
        assert!(lobby.iter().all(|it| !it.name.contains("presence") && !it.name.contains("kept")));
        let bare = of(0, &Machines { proxies: false, ..Machines::default() });
        assert!(bare.iter().all(|it| !it.name.contains("proxy")));
    }
}
