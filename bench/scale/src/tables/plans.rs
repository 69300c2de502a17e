//! How many machines, and the load of each of them.

use simurgh_text::format::{bytes, time};

use super::{Plans, by_load, table};
use crate::figures::{bits, count, rate, share};
use crate::plan::Plan;
use crate::plan::domains;
use crate::plan::node::{Part, delivered, sum};

pub(super) fn loads(plans: &Plans<'_>) -> String {
    let sent = |plan: &Plan| plan.load.delivered() * delivered(plan.load.payload) * 8.0;
    by_load(
        plans,
        "asked",
        &[
            ("what", &|it| it.load.what.clone()),
            ("clients", &|it| count(it.load.clients)),
            ("topics × members", &|it| {
                format!("{} × {}", count(it.load.rooms), count(it.load.room_size))
            }),
            ("published", &|it| rate(it.load.published())),
            ("bytes of a message", &|it| count(it.load.payload)),
            ("to clients", &|it| rate(it.load.delivered())),
            ("changes of presence to clients", &|it| rate(it.load.presence_delivered())),
            ("stored", &|it| rate(it.brokers.stored * it.machines.cells)),
            ("a client stays", &|it| time(it.load.session)),
            ("connects", &|it| rate(it.load.clients / it.load.session)),
            ("messages on the clients' lines, packets included", &|it| bits(sent(it))),
        ],
    )
}

fn enough(plan: &Plan, value: f64) -> String {
    if plan.is_enough { count(value) } else { format!("{} are not enough", count(value)) }
}

pub(super) fn machines(plans: &Plans<'_>) -> String {
    let regions = plans.machines.regions;
    let machines = &plans.machines;
    let network = |plan: &Plan, clients: bool| {
        bits(if clients { plan.node.bits.0 } else { plan.node.bits.1 })
    };
    let text = by_load(
        plans,
        "with one region lost",
        &[
            ("nodes, all regions", &|it| enough(it, it.nodes)),
            ("nodes that have to be enough", &|it| enough(it, it.left)),
            ("decided by", &|it| it.because.to_owned()),
            ("clients a node, before and after", &|it| {
                format!("{}, {}", count(it.calm.clients), count(it.node.clients))
            }),
            ("memory of a node", &|it| bytes(it.memory())),
            ("cores busy on a node, before and after", &|it| {
                format!("{}, {}", count(sum(&it.calm.cpu)), count(it.cores()))
            }),
            ("network of a node, clients", &|it| network(it, true)),
            ("network of a node, brokers", &|it| network(it, false)),
            ("brokers, all regions", &|it| {
                it.servers.map_or_else(|| "no number is enough".to_owned(), count)
            }),
            ("TLS proxies, all regions (**assumed**)", &|it| {
                it.proxies.as_ref().map_or_else(|| "–".to_owned(), |it| count(it.all))
            }),
        ],
    );
    format!(
        "\nNodes and proxies: {} cores, {}, {}. Brokers: {} cores, {}. Regions: {}; cells: {}. CPU \
         and network up to {}, memory up to {}, once a region is lost.\n{text}",
        count(machines.node_cores),
        bytes(machines.node_memory),
        bits(machines.node_bits),
        count(machines.broker_cores),
        bytes(machines.broker_memory),
        count(regions),
        count(machines.cells),
        share(machines.fill),
        share(machines.memory_fill),
    )
}

/// A row for each part, a column for each plan, and the sum.
fn parts(
    plans: &Plans<'_>,
    head: &str,
    of: impl Fn(&Plan) -> &[Part],
    show: impl Fn(f64) -> String,
) -> String {
    let names = plans.all.iter().map(|it| it.load.name.as_str());
    let head: Vec<&str> = std::iter::once(head).chain(names).collect();
    let Some(first) = plans.all.first() else { return String::new() };
    let row = |(at, (name, _)): (usize, &Part)| {
        let value = |plan: &Plan| of(plan).get(at).map_or(0.0, |it| it.1);
        let cells = plans.all.iter().map(|plan| match value(plan) {
            it if it >= 0.0005 => show(it),
            _ => "–".to_owned(),
        });
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = of(first).iter().enumerate().map(row).collect();
    let all = plans.all.iter().map(|plan| show(sum(of(plan))));
    rows.push(std::iter::once("all".to_owned()).chain(all).collect());
    table(&head, rows)
}

pub(super) fn memory(plans: &Plans<'_>) -> String {
    parts(plans, "memory of a node", |it| &it.node.memory, bytes)
}

pub(super) fn cpu(plans: &Plans<'_>) -> String {
    parts(plans, "cores of a node", |it| &it.node.cpu, count)
}

pub(super) fn links(plans: &Plans<'_>) -> String {
    let per_server = |plan: &Plan, value: f64| plan.brokers.servers.map_or(value, |it| value / it);
    by_load(
        plans,
        "of a cell, with one region lost",
        &[
            ("topics on a node", &|it| count(it.cell.wants.topics)),
            ("its interests: exact, whole buckets", &|it| {
                format!("{}, {}", count(it.cell.wants.exact), count(it.cell.wants.whole))
            }),
            ("broadcasts that a node hears", &|it| rate(it.node.flows.heard)),
            ("of these in vain", &|it| share(1.0 - it.node.flows.wanted_share())),
            ("presences: changes, asks, states that a node hears", &|it| {
                let flows = &it.node.flows;
                format!("{}, {}, {}", rate(flows.deltas.1), rate(flows.asks.1), rate(flows.states))
            }),
            ("beats that a node hears", &|it| rate(it.node.flows.beats.0)),
            ("CPU of its link's thread", &|it| format!("{} cores", count(it.node.thread))),
            ("brokers of a region: in, from others", &|it| {
                format!("{}, {}", rate(it.brokers.comes_in.0), rate(it.brokers.comes_in.1))
            }),
            ("copies to nodes, routes, regions", &|it| {
                let [nodes, routes, regions] = it.brokers.copies;
                format!("{}, {}, {}", rate(nodes), rate(routes), rate(regions))
            }),
            ("cores of a broker; of these for what is stored", &|it| {
                let of = |value| count(per_server(it, value));
                format!("{}; {}", of(it.brokers.cores), of(it.brokers.stored_cores))
            }),
            ("network of a broker", &|it| bits(it.brokers.bits)),
            ("from a region to another", &|it| bits(it.brokers.to_region)),
            ("interests that a broker knows: own, others'", &|it| {
                format!("{}, {}", count(it.brokers.interests.0), count(it.brokers.interests.1))
            }),
            ("memory of these", &|it| bytes(it.brokers.interest_bytes)),
        ],
    )
}

pub(super) fn domains(plans: &Plans<'_>) -> String {
    let mut rows = Vec::new();
    for plan in &plans.all {
        for domain in domains::domains(plan, plans.prices) {
            let or_none = |value: f64, show: fn(f64) -> String| match value > 0.0 {
                true => show(value),
                false => "–".to_owned(),
            };
            rows.push(vec![
                plan.load.name.clone(),
                domain.name.to_owned(),
                or_none(domain.nodes, count),
                or_none(domain.clients, count),
                or_none(domain.more, share),
                or_none(domain.seconds, time),
            ]);
        }
    }
    let head = [
        "load",
        "what fails",
        "nodes",
        "clients",
        "more for each that is left",
        "work to have them back",
    ];
    table(&head, rows)
}

pub(super) fn deploys(plans: &Plans<'_>) -> String {
    let mut rows = Vec::new();
    for plan in &plans.all {
        for it in domains::deploys(plan, plans.prices) {
            let cut = plan.calm.clients * it.at_once / it.drain;
            rows.push(vec![
                plan.load.name.clone(),
                count(it.at_once),
                time(it.drain),
                rate(cut),
                time(it.all),
            ]);
        }
    }
    let head = ["load", "nodes at a time", "`drain_time`", "clients that come back", "all nodes"];
    table(&head, rows)
}
