//! The bytes of a message on the links, by the code that writes it, and how often it crosses them.

use simurgh_cluster::{Draft, Item, ItemPayload, NodeId, Prefix, Space};

use super::interests::Receivers;
use crate::plan::broker::Brokers;
use crate::plan::node::{EVENT, PREFIX, TOPIC};

/// The bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// Bytes of the envelope.
    pub envelope: f64,
    /// Bytes of the line that a broker puts before it, and of the line ends.
    pub line: f64,
}

/// Writes one message; `None` if the plan's names cannot be written, which a test excludes.
pub fn weigh(payload: usize) -> Option<Weight> {
    let text = format!("\"{}\"", "x".repeat(payload.saturating_sub(2)));
    let item = Item::new(EVENT, ItemPayload::Json(&text));
    let bytes = Draft::broadcast(NodeId(7), TOPIC, &item).ok()?.numbered(1);
    let subject = Prefix::new(PREFIX).ok()?.topic(Space::Broadcast, TOPIC);
    // A node has up to some ten thousand subscriptions, so their numbers have five digits.
    let head = format!("MSG {subject} 12345 {}\r\n", bytes.len());
    Some(Weight { envelope: bytes.len() as f64, line: (head.len() + 2) as f64 })
}

/// The copies of one message of a typical topic, by the simulated interests.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// Nodes that receive it.
    pub nodes: f64,
    /// Of these, nodes with members.
    pub wanted: f64,
    /// Other servers, over all regions of the cell.
    pub routes: f64,
    /// Other regions.
    pub regions: f64,
}

/// Counts them from the simulated interests.
pub fn copies(receivers: &Receivers, brokers: &Brokers) -> Copies {
    let others = receivers.nodes.1 as f64 - 1.0;
    let servers = brokers.servers.unwrap_or(1.0);
    let on = |nodes: f64| 1.0 - (1.0 - receivers.hears.min(1.0)).powf(nodes.max(1.0));
    Copies {
        nodes: others * receivers.hears,
        wanted: others * receivers.hears * (1.0 - receivers.unwanted),
        routes: brokers.regions * (servers - 1.0) * on(brokers.nodes / servers),
        regions: (brokers.regions - 1.0) * on(brokers.nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, Machines};
    use crate::plan::Plan;
    use crate::plan::node::{envelope, line};
    use crate::prices::Prices;
    use crate::simulate::interests;

    #[test]
    fn the_formula_of_a_message_is_its_bytes() {
        for payload in [2, 64, 200, 1500, 100_000] {
            let weight = weigh(payload).unwrap();
            assert!((weight.envelope - envelope(payload as f64)).abs() < 1e-9, "{payload}");
            assert!((weight.line - line(weight.envelope)).abs() < 1e-9, "{payload}");
        }
    }

    #[test]
    fn copies_counted_from_what_nodes_hear_are_those_of_the_plan() {
        let prices = Prices::read(None).unwrap();
        let mut load = Load::all(None).unwrap().remove(1);
        // A hundredth of the load, so that it is quick.
        (load.clients, load.rooms, load.presence) = (1e6, 20_000.0, 0.0);
        let machines = Machines { node_clients: 2e4, ..Machines::default() };
        let plan = Plan::new(&load, &machines, &prices);
        let receivers = interests::run(&load, &machines, &prices, plan.left, 5);
        let copies = copies(&receivers, &plan.brokers);
        let per_message = |copies: f64| copies * plan.brokers.regions / load.published();
        let beats = plan.node.flows.beats.0 * plan.left;
        let expected = per_message(plan.brokers.copies[0]) - beats / load.published();
        assert!((copies.nodes - expected).abs() < 0.05 * expected, "{copies:?} {expected}");
    }
}
