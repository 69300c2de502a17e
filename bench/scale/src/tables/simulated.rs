//! The simulations, beside the formulas.

use simurgh_text::format::time;

use super::{Plans, table};
use crate::figures::{count, rate, share};
use crate::load::Machines;
use crate::plan::Plan;
use crate::plan::domains;
use crate::plan::node::{envelope, line};
use crate::simulate::beats;
use crate::simulate::envelopes::{copies, weigh};
use crate::simulate::interests;
use crate::simulate::storm::{Backoff, Notice, Outcome, Storm};

/// Beats are simulated for at most this many nodes.
const BEATING: usize = 400;
/// An assumed CPU time of a join in an application that checks tokens and reads its storage.
const SLOW_JOIN_S: f64 = 0.001;

pub(super) fn interests(plans: &Plans<'_>, seed: u64) -> String {
    let mut rows = Vec::new();
    let mut row = |plan: &Plan, what: &str, worked_out: String, played: String| {
        rows.push(vec![plan.load.name.clone(), what.to_owned(), worked_out, played]);
    };
    for plan in &plans.all {
        let heard = interests::run(&plan.load, &plan.machines, plans.prices, plan.left, seed);
        let cell = &plan.cell;
        let (wanted, all) = cell.heard();
        let vain = if all > 0.0 { 1.0 - wanted / all } else { 0.0 };
        let (looked, of) = heard.nodes;
        let nodes = format!("topics on a node ({looked} of {of} were looked at)");
        row(plan, &nodes, count(cell.wants.topics), count(heard.topics));
        row(
            plan,
            "exact interests; whole buckets",
            format!("{}; {}", count(cell.wants.exact), count(cell.wants.whole)),
            format!("{}; {}", count(heard.exact), count(heard.whole)),
        );
        row(plan, "a message is heard by a node", share(cell.hears()), share(heard.hears));
        row(plan, "of what a node hears in vain", share(vain), share(heard.unwanted));
        let copies = copies(&heard, &plan.brokers);
        let nodes = (cell.nodes - 1.0) * cell.hears();
        row(
            plan,
            "copies of a message to nodes, with members",
            format!("{}, {}", count(nodes), count(nodes * (1.0 - vain))),
            format!("{}, {}", count(copies.nodes), count(copies.wanted)),
        );
        row(
            plan,
            "copies of it over routes, to regions",
            "–".to_owned(),
            format!("{}, {}", count(copies.routes), count(copies.regions)),
        );
        if let Some(weight) = weigh(plan.load.payload as usize) {
            let own = envelope(plan.load.payload);
            row(
                plan,
                "bytes of an envelope, with a broker's line",
                format!("{}, {}", count(own), count(own + line(own))),
                format!("{}, {}", count(weight.envelope), count(weight.envelope + weight.line)),
            );
        }
    }
    table(&["load", "what", "worked out", "played through"], rows)
}

pub(super) fn beats(plans: &Plans<'_>, seed: u64) -> String {
    let mut rows = Vec::new();
    let mut sizes: Vec<usize> = plans.all.iter().map(|it| it.cell.nodes as usize).collect();
    sizes.extend([10, 100, BEATING]);
    sizes.sort_unstable();
    sizes.dedup();
    for nodes in sizes.into_iter().filter(|it| (2..=BEATING).contains(it)) {
        let said = beats::run(nodes, seed);
        let others = nodes as f64 - 1.0;
        let price = plans.prices.get("broker_copy_cpu");
        rows.push(vec![
            count(nodes as f64),
            rate(others / 2.0),
            rate(said.calm),
            rate(said.calm * nodes as f64),
            count(said.back as f64),
            rate(said.burst_copies()),
            format!("{} cores", count(said.burst_copies() * price)),
        ]);
    }
    let head = [
        "nodes",
        "a node hears, worked out",
        "played through",
        "copies of all, calm",
        "hellos and beats in 10 s after all links were gone",
        "copies in the busiest 200 ms",
        "brokers' CPU of these",
    ];
    table(&head, rows)
}

pub(super) fn storms(plans: &Plans<'_>, seed: u64) -> String {
    let mut rows = Vec::new();
    let several = || plans.all.iter().filter(|it| it.machines.regions > 1.0);
    let busiest = several().map(Plan::cores).fold(0.0, f64::max);
    for plan in several() {
        let ways = ways(domains::Storm::of_region(plan, plans.prices));
        // All ways for one load only: they differ in the same way for the others.
        let shown = if plan.cores() >= busiest { ways.len() } else { 2 };
        rows.extend(ways.into_iter().take(shown).map(|way| storm(plans, plan, way, seed)));
    }
    let head = [
        "load",
        "clients lose the region by",
        "and come back with",
        "worked out",
        "half are back",
        "99 %",
        "all",
        "a second and node, at most",
        "SYNs dropped, each",
        "joins timed out",
        "joins done, each",
        "a node is behind by",
    ];
    table(&head, rows)
}

/// A way in which a region's clients are lost and reconnect.
#[derive(Clone, Copy)]
struct Way {
    of: domains::Storm,
    notice: Notice,
    by: &'static str,
    backoff: Backoff,
    with: &'static str,
    /// A factor for the length of accept queues.
    queues: f64,
}

fn ways(own: domains::Storm) -> [Way; 8] {
    let plain = Way {
        of: own,
        notice: Notice::Reset,
        by: "all reset at once",
        backoff: Backoff::Plain,
        with: "phoenix.js as it is",
        queues: 1.0,
    };
    let spread = |way: Way| {
        let over = way.of.spread().max(1.0);
        Way { backoff: Backoff::Spread(over), with: "first try spread", ..way }
    };
    let bare = domains::Storm { proxy_cores: None, ..own };
    let bare = Way { of: bare, by: "all reset at once; no TLS", ..plain };
    let slow = domains::Storm { join: SLOW_JOIN_S, ..bare.of };
    let slow = Way { of: slow, by: "the same, and joins of 1 ms", ..bare };
    [
        plain,
        spread(plain),
        Way { backoff: Backoff::Jitter, with: "its waits × 0.5–1.5", ..plain },
        Way { notice: Notice::Silence, by: "silence", ..plain },
        bare,
        slow,
        Way { by: "the same, accept queues × 10", queues: 10.0, ..slow },
        spread(slow),
    ]
}

fn storm(
    plans: &Plans<'_>,
    plan: &Plan,
    Way { of, notice, by, backoff, with, queues }: Way,
    seed: u64,
) -> Vec<String> {
    let Machines { node_cores, redirect, .. } = plan.machines;
    // A tenth of the remaining nodes, at least three.
    let nodes = (plan.left / 10.0).ceil().max(3.0) as usize;
    let it = Storm {
        queue: plans.prices.get("accept_queue") * node_cores * queues,
        redirect,
        notice,
        backoff,
        ..Storm::new(of, plans.prices, nodes)
    };
    let Outcome { back, timed_out, dropped, joins, behind, peak } = it.run(seed);
    let when = |at: usize| back[at].map_or_else(|| "not in 20 min".to_owned(), time);
    let with = match backoff {
        Backoff::Spread(over) => format!("{with} over {}", time(over)),
        _ => with.to_owned(),
    };
    let first = match notice {
        Notice::Reset => redirect,
        Notice::Silence => 1.5 + it.heartbeat,
    };
    let over = match (notice, backoff) {
        (Notice::Silence, _) => it.heartbeat,
        (_, Backoff::Spread(over)) => (over - redirect).max(0.0),
        _ => 0.0,
    };
    vec![
        plan.load.name.clone(),
        by.to_owned(),
        with,
        time(first + of.seconds().max(over)),
        when(0),
        when(1),
        when(2),
        count(peak),
        count(dropped),
        share(timed_out),
        count(joins),
        time(behind),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Costs;
    use crate::load::Load;
    use crate::plan::cell::Cell;
    use crate::prices::Prices;

    #[test]
    fn a_small_load_is_played_through_in_all_tables() {
        let mut load = Load::all(None).unwrap().remove(1);
        (load.clients, load.rooms) = (1e5, 2000.0);
        let machines = Machines { node_clients: 1e4, ..Machines::default() };
        let prices = Prices::read(None).unwrap();
        let plans = Plans::new(&[load], &machines, &prices, Costs::default(), Some(3));
        let tables = plans.tables();
        assert_eq!(tables.len(), 15);
        for (name, lines) in [("interests", 9), ("beats", 5), ("storms", 10)] {
            let (_, text) = tables.iter().find(|it| it.0 == name).unwrap();
            let rows = text.lines().filter(|it| it.starts_with('|')).count();
            assert!(rows >= lines && !text.contains("NaN"), "{name}: {text}");
        }
        let cell = Cell::new(&plans.all[0].load, &machines, &prices, plans.all[0].left);
        assert!((cell.nodes - plans.all[0].cell.nodes).abs() < 1e-9);
    }
}
