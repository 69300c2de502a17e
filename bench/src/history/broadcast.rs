//! Row `broadcast`: what is said in a kept topic to members who opted in, beside the same in a
//! topic without history.

use anyhow::{Context, Result, ensure};

use super::server::{self, QUIET, TOPIC};
use super::{Pair, order};
use simurgh_bench_kit::members::Clients;
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Broadcasts to a crowd, and those that only warm up.
const BROADCASTS: usize = 20;
const WARM_UP: usize = 3;
/// Blocks of broadcasts to one member, half of them with history, and how many there are in each.
const BLOCKS: usize = 24;
const BLOCK: usize = 400;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut crowd = Pair::default();
    for with in order(sample.round) {
        let cost = to_crowd(bench, with)?;
        crowd.push(with, cost / 1e3);
    }
    let (with, without) = crowd.medians()?;
    sample.put("broadcast_us", with);
    sample.put("broadcast_without_us", without);
    sample.put("broadcast_ratio", with / without);
    to_one(bench, sample)
}

/// A crowd of a topic, all of whom opt in if there is a history.
fn crowd(served: &Served, count: usize, with: bool) -> Result<Clients> {
    let mut clients = served.clients()?;
    if with {
        server::opt_in(&mut clients);
    }
    clients.open(count)?;
    clients.join_all(|_| TOPIC.to_owned())?;
    clients.rest(QUIET * 4)?;
    let resumed = if with { u64::try_from(count)? } else { 0 };
    ensure!(clients.total.resumed == resumed, "{} opted in", clients.total.resumed);
    Ok(clients)
}

/// The median of broadcasts one after the other, each awaited by all, ns.
fn to_crowd(bench: &Bench<'_>, with: bool) -> Result<f64> {
    let served = server::serve_with(bench, with, 1)?;
    let mut clients = crowd(&served, bench.many_clients(), with)?;
    let mut costs = Vec::new();
    for nth in 0..WARM_UP + BROADCASTS {
        let before = served.cpu()?;
        say(&mut clients)?;
        clients.rest(QUIET)?;
        if nth >= WARM_UP {
            costs.push(stats::per(served.spent(&before)?, 1));
        }
    }
    let each = u32::try_from(WARM_UP + BROADCASTS)?;
    let wrong = clients.members().filter(|it| it.messages != each).count();
    ensure!(wrong == 0, "{wrong} have not heard each broadcast once");
    stats::median(&costs).context("nothing measured")
}

/// The first member says something, and all hear it.
fn say(clients: &mut Clients) -> Result<()> {
    let was = clients.total;
    let all = u64::try_from(clients.members().count())?;
    clients.say(0, "3", TOPIC, "new:msg", &server::payload())?;
    clients.until(|it| it.total.messages >= was.messages + all && it.total.replies > was.replies)
}

/// One member who hears itself, with history and without, in turn.
fn to_one(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let serve = |with| {
        let served = server::serve_with(bench, with, 1)?;
        let clients = crowd(&served, 1, with)?;
        Ok::<_, anyhow::Error>((with, served, clients))
    };
    let mut both = [serve(false)?, serve(true)?];
    let mut costs = Pair::default();
    for block in 0..BLOCKS {
        let turn = [0, 1, 1, 0].get(block % 4).copied().unwrap_or(0);
        let (with, served, clients) = both.get_mut(turn).context("there are two")?;
        let before = served.cpu()?;
        for _ in 0..BLOCK {
            say(clients)?;
        }
        let cost = stats::per(served.spent(&before)?, 1_000) / stats::per(BLOCK, 1);
        // The first of each warms up.
        if block > 1 {
            costs.push(*with, cost);
        }
    }
    let (with, without) = costs.medians()?;
    sample.put("broadcast_one_us", with);
    sample.put("broadcast_one_without_us", without);
    sample.put("broadcast_one_ratio", with / without);
    Ok(())
}
