//! Row `broadcast`: a broadcast to members who opted in, compared with one without history.

use anyhow::{Context, Result, ensure};

use super::server::{self, QUIET, TOPIC};
use super::{Pair, order};
use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::rounds::{Bench, Sample, in_turn, turn};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

/// Broadcasts to a crowd, and those that only warm up.
const BROADCASTS: usize = 20;
const WARM_UP: usize = 3;
/// Blocks of broadcasts to one member, half of them with history, and broadcasts of each.
const BLOCKS: usize = 24;
const BLOCK: usize = 400;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut crowd = Pair::default();
    for with in order(sample.round) {
        let cost = to_crowd(bench, with)?;
        crowd.push(with, cost / 1e3);
    }
    sample.put_both("broadcast", "us", crowd.medians()?);
    to_one(bench, sample)
}

/// A crowd of a topic; all opt in if there is a history.
fn crowd(server: &Server, count: usize, with: bool) -> Result<Clients> {
    let mut clients = server.clients()?;
    if with {
        server::opt_in(&mut clients);
    }
    clients.open(count)?;
    clients.join_all(|_| TOPIC.to_owned())?;
    clients.rest(QUIET * 4)?;
    let resumed = if with { u64::try_from(count)? } else { 0 };
    ensure!(clients.total().resumed == resumed, "{} opted in", clients.total().resumed);
    Ok(clients)
}

/// The median time of broadcasts one after the other, each awaited by all, ns.
fn to_crowd(bench: &Bench<'_>, with: bool) -> Result<f64> {
    let server = server::serve_with(bench, with, 1)?;
    let mut clients = crowd(&server, bench.many_clients(), with)?;
    let mut costs = Vec::new();
    for nth in 0..WARM_UP + BROADCASTS {
        let before = server.cpu()?;
        publish(&mut clients)?;
        clients.rest(QUIET)?;
        if nth >= WARM_UP {
            costs.push(stats::per(server.spent(&before)?, 1));
        }
    }
    let each = u64::try_from(WARM_UP + BROADCASTS)?;
    let wrong = clients.members().iter().filter(|it| it.messages != each).count();
    ensure!(wrong == 0, "{wrong} have not received each broadcast once");
    stats::middle(&costs)
}

fn publish(clients: &mut Clients) -> Result<()> {
    let was = clients.total();
    let all = u64::try_from(clients.members().len())?;
    clients.push(0, "3", TOPIC, "new:msg", &server::payload())?;
    clients.until(|it| it.messages >= was.messages + all && it.replies > was.replies)
}

/// One member that receives its own messages, with history and without, in turn.
fn to_one(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let serve = |with| {
        let server = server::serve_with(bench, with, 1)?;
        let clients = crowd(&server, 1, with)?;
        Ok::<_, anyhow::Error>((server, clients))
    };
    let mut both = [serve(false)?, serve(true)?];
    let [[without], [with]] = in_turn(BLOCKS, turn, |with| {
        let (server, clients) = both.get_mut(with).context("there are two")?;
        let before = server.cpu()?;
        for _ in 0..BLOCK {
            publish(clients)?;
        }
        Ok([stats::ratio(server.spent(&before)?, BLOCK as u64) / 1e3])
    })?;
    sample.put_both("broadcast_one", "us", (with, without));
    Ok(())
}
