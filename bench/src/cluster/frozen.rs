//! Row `frozen`: the broker is stopped while a node publishes 10,000 broadcasts a second.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::broker::Broker;
use super::client::Client;
use super::nodes::{self, QUIET, is_up, until};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

const ROOM: &str = "rooms:talk";
/// Each millisecond.
const MESSAGES: u32 = 10;
/// So large that the outbox is full by bytes before the oldest expire.
const BODY: usize = 700;
const WARM_UP: Duration = Duration::from_secs(3);
/// The outbox's default bound: broadcasts, and bytes that the broker has not confirmed.
const BOUNDS_MB: f64 = 8.388_608 + 1.048_576;

struct Seen {
    p99_ms: f64,
    turn_ms: f64,
    growth_mb: f64,
    dropped: f64,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let seconds = Duration::from_secs(bench.options.size(10, 4));
    let frozen_first = sample.round.is_multiple_of(2);
    let mut both = Vec::new();
    for is_frozen in [frozen_first, !frozen_first] {
        both.push((is_frozen, measured(bench, seconds, is_frozen)?));
    }
    let of = |wanted| both.iter().find(|it| it.0 == wanted).map(|it| &it.1).context("not measured");
    let (frozen, without) = (of(true)?, of(false)?);
    sample.put("frozen_p99_ms", frozen.p99_ms);
    sample.put("frozen_without_p99_ms", without.p99_ms);
    sample.put("frozen_p99_above_ms", frozen.p99_ms - without.p99_ms);
    sample.put("frozen_turn_ms", frozen.turn_ms);
    sample.put("frozen_without_turn_ms", without.turn_ms);
    sample.put("frozen_turn_above_ms", frozen.turn_ms - without.turn_ms);
    sample.put("frozen_growth_mb", frozen.growth_mb);
    sample.put("frozen_growth_share", frozen.growth_mb / BOUNDS_MB);
    sample.put("frozen_without_growth_mb", without.growth_mb);
    sample.put("frozen_dropped", frozen.dropped);
    Ok(())
}

fn measured(bench: &Bench<'_>, seconds: Duration, is_frozen: bool) -> Result<Seen> {
    let broker = Broker::start(bench)?;
    let [one, two] = nodes::pair(bench, &broker, "")?;
    let there = Client::join(two.address, ROOM)?.listen()?;
    let here = Client::join(one.address, ROOM)?;
    let (publisher, here) = here.publish_steadily(MESSAGES, BODY)?;
    thread::sleep(WARM_UP);
    let rest = one.at_rest()?;
    if is_frozen {
        broker.signal(Signal::STOP)?;
    }
    let (first, began) = (here.count(), std::time::Instant::now());
    thread::sleep(seconds);
    let until_then = began + seconds;
    let growth_mb = one.peak_mb(rest).context("the node has ended")?;
    broker.signal(Signal::CONT)?;
    let published = publisher.end()?;
    thread::sleep(QUIET);
    let turn = one.metric("simurgh_shard_turn_cpu_max_seconds{shard=\"0\"}")?;
    until("the node is up again", || is_up(&one))?;
    // Time until the metrics show dropped messages.
    thread::sleep(Duration::from_secs(2));
    let dropped = one.sum("simurgh_cluster_dropped_total")?;
    let here = here.end()?;
    there.end()?;
    ensure!(here.len() == usize::try_from(published.count())?, "{} received here", here.len());
    let first = usize::try_from(first)?;
    let due = here.iter().skip(first).filter_map(|it| Some((it.at, published.due(it.number)?)));
    let meanwhile = due.filter(|(_, due)| *due >= began && *due < until_then);
    let waits: Vec<f64> =
        meanwhile.map(|(at, due)| at.duration_since(due).as_secs_f64() * 1e3).collect();
    ensure!(is_frozen || dropped < 0.5, "{dropped} dropped though the broker was there");
    Ok(Seen {
        p99_ms: stats::quantile(&waits, 0.99).context("nothing received")?,
        turn_ms: turn * 1e3,
        growth_mb,
        dropped,
    })
}
