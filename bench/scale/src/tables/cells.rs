//! The same loads in more cells, and with rooms whose members are near each other.

use simurgh_text::format::bytes;

use super::{Plans, table};
use crate::figures::{count, rate, share};
use crate::load::{Load, Machines, Spread};
use crate::plan::Plan;
use crate::plan::limits::limits;

/// The share of regional rooms with members in all regions.
const MIXED: f64 = 0.05;

/// One cluster of nodes for all clients, and the alternatives to it.
fn ways(load: &Load, machines: &Machines) -> Vec<(String, Load, Machines)> {
    let with = |cells: f64| Machines { cells, ..machines.clone() };
    let regional = Load { spread: Spread::Regional, mixed: MIXED, ..load.clone() };
    let regions = machines.regions;
    let near = format!("members in one region, but for {}", share(MIXED));
    if load.spread == Spread::Regional {
        return vec![
            ("one cell".to_owned(), load.clone(), with(1.0)),
            ("a cell a region".to_owned(), load.clone(), with(regions)),
            (format!("{} cells", count(10.0 * regions)), load.clone(), with(10.0 * regions)),
        ];
    }
    let mut all = vec![
        ("one cell".to_owned(), load.clone(), with(1.0)),
        (format!("{} cells by topic", count(10.0)), load.clone(), with(10.0)),
        (format!("{} cells by topic", count(30.0)), load.clone(), with(30.0)),
    ];
    if load.room_size > 1.0 && load.rooms > 1.0 && regions > 1.0 {
        all.extend([
            (format!("{near}: one cell"), regional.clone(), with(1.0)),
            (format!("{near}: a cell a region"), regional.clone(), with(regions)),
            (format!("{near}: {} cells", count(10.0 * regions)), regional, with(10.0 * regions)),
        ]);
    }
    all
}

pub(super) fn cells(plans: &Plans<'_>) -> String {
    let mut rows = Vec::new();
    for plan in &plans.all {
        for (name, load, machines) in ways(&plan.load, &plans.machines) {
            let plan = Plan::new(&load, &machines, plans.prices);
            rows.push(row(plans, name, &plan));
        }
    }
    let head = [
        "load",
        "way",
        "nodes",
        "brokers",
        "a node hears in vain",
        "thread of the link",
        "memory of a node",
        "over a bridge",
        "breaks",
    ];
    table(&head, rows)
}

fn row(plans: &Plans<'_>, name: String, plan: &Plan) -> Vec<String> {
    let vain = 1.0 - plan.node.flows.wanted_share();
    let bridged: f64 = plan.cell.classes.iter().map(|it| it.topics * it.rate * it.bridges).sum();
    let broken: Vec<String> = limits(plan, plans.prices)
        .into_iter()
        .filter(|it| it.headroom < 1.0)
        .map(|it| format!("{} ({} ×)", it.name, count(it.headroom)))
        .collect();
    vec![
        plan.load.name.clone(),
        name,
        if plan.is_enough { count(plan.nodes) } else { "no number".to_owned() },
        plan.servers.map_or_else(|| "no number".to_owned(), count),
        share(vain),
        format!("{} cores", count(plan.node.thread)),
        bytes(plan.memory()),
        if bridged > 0.0 { rate(bridged) } else { "–".to_owned() },
        if broken.is_empty() { "nothing".to_owned() } else { broken.join("; ") },
    ]
}
