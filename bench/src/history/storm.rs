//! Rows `storm` and `topics`: everybody comes back, and has missed twenty messages of one topic, or
//! of a topic each.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::server::{self, CALM, QUIET, TOPIC};
use super::{Pair, order};
use simurgh_bench_kit::members::Clients;
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::{stats, sys};

/// What each has missed.
const MISSED: usize = 20;

/// What everybody missed, on which topics.
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

/// What coming back cost.
struct Came {
    cpu_ns: u64,
    /// From the first connect to the last message of the last client.
    took_ms: f64,
    /// The most that the server's memory rose meanwhile.
    rise: u64,
    /// Calls of the server's.
    writes: f64,
}

/// All of one topic.
pub(super) fn one_topic(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let storm = Storm::new(bench, true);
    measured(bench, &storm, "storm", sample)?;
    // Alone: with a connection before it a join is a smaller part.
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

/// A topic each.
pub(super) fn topics(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    measured(bench, &Storm::new(bench, false), "topics", sample)
}

/// Connects, upgrades and joins, with what was missed and without history.
fn measured(bench: &Bench<'_>, storm: &Storm, name: &str, sample: &mut Sample) -> Result<()> {
    let [mut cpu, mut took, mut rise]: [Pair; 3] = Default::default();
    for with in order(sample.round) {
        let came = comes_back(bench, storm, with, false)?;
        cpu.push(with, stats::per(came.cpu_ns, 1_000) / stats::per(storm.count, 1));
        took.push(with, came.took_ms);
        rise.push(with, stats::per(came.rise, 1_000_000));
    }
    let (with, without) = cpu.medians()?;
    sample.put(format!("{name}_us"), with);
    sample.put(format!("{name}_without_us"), without);
    sample.put(format!("{name}_ratio"), with / without);
    let (with, without) = took.medians()?;
    sample.put(format!("{name}_last_ms"), with);
    sample.put(format!("{name}_last_without_ms"), without);
    sample.put(format!("{name}_last_ratio"), with / without);
    let (with, without) = rise.medians()?;
    sample.put(format!("{name}_rise_mb"), with);
    sample.put(format!("{name}_above_mb"), with - without);
    Ok(())
}

fn comes_back(bench: &Bench<'_>, storm: &Storm, with: bool, is_alone: bool) -> Result<Came> {
    let served = server::serve_with(bench, with, 1)?;
    let mut clients = served.clients()?;
    if with {
        let since = missed(&served, &storm.topics)?;
        let topic = storm.topic();
        server::resume(&mut clients, move |index| since.get(&topic(index)).cloned());
    }
    if is_alone {
        clients.open(storm.count)?;
    }
    clients.rest(CALM)?;
    sys::forget_peak(served.running.pid())?;
    let (resident, _) = sys::resident_quickly(served.running.pid())?;
    let writes = served.sum("simurgh_writes_total")?;
    // Asking for a metric is a write, too.
    let asking = served.sum("simurgh_writes_total")? - writes;
    let (before, began) = (served.cpu()?, Instant::now());
    match is_alone {
        true => clients.join_all(storm.topic())?,
        false => clients.open_and_join(storm.count, storm.topic())?,
    }
    let messages = if with { storm.count * MISSED } else { 0 };
    let all = u64::try_from(messages)?;
    clients.until(|it| it.total.messages >= all)?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    clients.rest(QUIET)?;
    let cpu_ns = served.spent(&before)?;
    let (_, most) = sys::resident_quickly(served.running.pid())?;
    let writes = served.sum("simurgh_writes_total")? - writes - 2.0 * asking;
    check(&served, &clients, storm.count, with)?;
    Ok(Came { cpu_ns, took_ms, rise: most.saturating_sub(resident), writes })
}

/// Publishes what will have been missed, and says behind which position it is on each topic.
fn missed(served: &Served, topics: &[String]) -> Result<HashMap<String, String>> {
    let mut since = HashMap::new();
    for (topic, position) in
        topics.iter().zip(server::publish(served, topics.iter().map(String::as_str))?)
    {
        since.insert(topic.clone(), position.context("a message is not kept")?);
    }
    for _ in 0..MISSED {
        let kept = server::publish(served, topics.iter().map(String::as_str))?;
        ensure!(kept.iter().all(Option::is_some), "a message is not kept");
    }
    Ok(since)
}

/// Each has got what it missed, neither more nor less.
fn check(served: &Served, clients: &Clients, count: usize, with: bool) -> Result<()> {
    let each = if with { u32::try_from(MISSED)? } else { 0 };
    let wrong = clients.members().filter(|it| it.messages != each || it.replies != 1).count();
    ensure!(wrong == 0, "{wrong} of {count} have not got what they missed");
    let resumed = if with { u64::try_from(count)? } else { 0 };
    ensure!(clients.total.resumed == resumed, "{} of {resumed} resumed", clients.total.resumed);
    match with {
        true => server::check_resumed(served, count, count * MISSED),
        false => Ok(()),
    }
}
