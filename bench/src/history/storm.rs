//! Rows `storm` and `topics`: all reconnect and have missed twenty messages of one topic, or each
//! of its own.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::server::{self, CALM, QUIET, TOPIC};
use super::{Pair, order};
use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

const MISSED: usize = 20;

struct Storm {
    count: usize,
    topics: Rc<Vec<String>>,
}

impl Storm {
    fn new(bench: &Bench<'_>, has_one_topic: bool) -> Self {
        let count = bench.many_clients();
        let topics = match has_one_topic {
            true => vec![TOPIC.to_owned()],
            false => (0..count).map(|index| format!("rooms:{index}")).collect(),
        };
        Self { count, topics: Rc::new(topics) }
    }

    fn topic(&self) -> impl Fn(usize) -> String + use<> {
        let topics = Rc::clone(&self.topics);
        move |index| topics.get(index % topics.len()).cloned().unwrap_or_default()
    }
}

struct Came {
    cpu_ns: u64,
    /// From the first connect to the last message of the last client.
    took_ms: f64,
    rise_mb: f64,
    /// Write calls of the server.
    writes: f64,
}

pub(super) fn one_topic(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let storm = Storm::new(bench, true);
    measured(bench, &storm, "storm", sample)?;
    // Joins alone: with the connection before it a join is a smaller part.
    let mut cpu = Pair::default();
    for with in order(sample.round) {
        let came = comes_back(bench, &storm, with, true)?;
        cpu.push(with, stats::per(came.cpu_ns, 1_000) / stats::per(storm.count, 1));
        if with {
            sample.put("storm_writes", came.writes / stats::per(storm.count, 1));
        }
    }
    let (with, without) = cpu.medians()?;
    sample.put("storm_join_us", with);
    sample.put("storm_join_without_us", without);
    Ok(())
}

pub(super) fn topics(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    measured(bench, &Storm::new(bench, false), "topics", sample)
}

/// Connects, upgrades and joins, with missed messages and without history.
fn measured(bench: &Bench<'_>, storm: &Storm, name: &str, sample: &mut Sample) -> Result<()> {
    let [mut cpu, mut took, mut rise]: [Pair; 3] = Default::default();
    for with in order(sample.round) {
        let came = comes_back(bench, storm, with, false)?;
        cpu.push(with, stats::per(came.cpu_ns, 1_000) / stats::per(storm.count, 1));
        took.push(with, came.took_ms);
        rise.push(with, came.rise_mb);
    }
    sample.put_both(name, "us", cpu.medians()?);
    sample.put_both(&format!("{name}_last"), "ms", took.medians()?);
    let (with, without) = rise.medians()?;
    sample.put(format!("{name}_rise_mb"), with);
    sample.put(format!("{name}_above_mb"), with - without);
    Ok(())
}

fn comes_back(bench: &Bench<'_>, storm: &Storm, with: bool, is_alone: bool) -> Result<Came> {
    let server = server::serve_with(bench, with, 1)?;
    let mut clients = server.clients()?;
    if with {
        let since = missed(&server, &storm.topics)?;
        let topic = storm.topic();
        server::resume(&mut clients, move |index| since.get(&topic(index)).cloned());
    }
    if is_alone {
        clients.open(storm.count)?;
    }
    clients.rest(CALM)?;
    let rest = server.at_rest()?;
    let writes = server.sum("simurgh_writes_total")?;
    // The request for a metric is a write, too.
    let asking = server.sum("simurgh_writes_total")? - writes;
    let (before, began) = (server.cpu()?, Instant::now());
    match is_alone {
        true => clients.join_all(storm.topic())?,
        false => clients.open_and_join(storm.count, storm.topic())?,
    }
    let messages = if with { storm.count * MISSED } else { 0 };
    let all = u64::try_from(messages)?;
    clients.until(|it| it.messages >= all)?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    clients.rest(QUIET)?;
    let cpu_ns = server.spent(&before)?;
    let rise_mb = server.peak_mb(rest).context("the server has ended")?;
    let writes = server.sum("simurgh_writes_total")? - writes - 2.0 * asking;
    check(&server, &clients, storm.count, with)?;
    Ok(Came { cpu_ns, took_ms, rise_mb, writes })
}

/// Publishes the messages to miss; returns the positions before them by topic.
fn missed(server: &Server, topics: &[String]) -> Result<HashMap<String, String>> {
    let since = topics.iter().cloned().zip(server::publish(server, topics)?).collect();
    for _ in 0..MISSED {
        server::publish(server, topics)?;
    }
    Ok(since)
}

/// Checks that each has received exactly what it missed.
fn check(server: &Server, clients: &Clients, count: usize, with: bool) -> Result<()> {
    let each = if with { u64::try_from(MISSED)? } else { 0 };
    let wrong =
        clients.members().iter().filter(|it| it.messages != each || it.replies != 1).count();
    ensure!(wrong == 0, "{wrong} of {count} have not got what they missed");
    let resumed = if with { u64::try_from(count)? } else { 0 };
    ensure!(clients.total().resumed == resumed, "{} of {resumed} resumed", clients.total().resumed);
    match with {
        true => server::check_resumed(server, count, count * MISSED),
        false => Ok(()),
    }
}
