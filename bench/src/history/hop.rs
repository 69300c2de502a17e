//! Row `hop`: how much later a member hears itself, because what it says goes by way of another
//! shard.

use std::time::Instant;

use anyhow::{Context, Result};

use super::server;
use simurgh_bench_kit::members::Clients;
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::metric;

const SHARDS: u32 = 2;
/// Topics that are tried: all at home on one of two shards would be one case in 65,536.
const TOPICS: usize = 16;
/// Blocks of messages, in turn with history and without, and how many there are in each.
const BLOCKS: usize = 24;
const BLOCK: usize = 250;
/// Where a member is, and where its topic is at home.
const JOINS: &str = "simurgh_joins_total";
const KEPT: &str = "simurgh_history_kept_total";

/// A member of its own server.
struct Member {
    served: Served,
    clients: Clients,
    topic: String,
    took_ms: Vec<f64>,
}

impl Member {
    fn new(bench: &Bench<'_>, with: bool) -> Result<Self> {
        let served = server::serve_with(bench, with, SHARDS)?;
        let mut clients = served.clients()?;
        if with {
            server::opt_in(&mut clients);
        }
        clients.open(1)?;
        Ok(Self { served, clients, topic: String::new(), took_ms: Vec::new() })
    }

    fn join(&mut self, topic: &str) -> Result<()> {
        self.topic = topic.to_owned();
        let before = self.clients.total.replies;
        self.clients.join(0, topic)?;
        self.clients.until(|it| it.total.replies > before)
    }

    /// Until it has heard itself, ms.
    fn say(&mut self) -> Result<f64> {
        let was = self.clients.total;
        let began = Instant::now();
        self.clients.say(0, "3", &self.topic, "new:msg", &server::payload())?;
        self.clients.until(|it| it.total.messages > was.messages)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        self.clients.until(|it| it.total.replies > was.replies)?;
        Ok(took)
    }

    /// A metric of each shard.
    fn by_shard(&self, name: &str) -> Result<Vec<f64>> {
        let lines = self.served.running.metrics()?;
        let of = |shard| metric(&lines, &format!("{name}{{shard=\"{shard}\"}}"));
        (0..SHARDS).map(|shard| of(shard).with_context(|| format!("no {name}"))).collect()
    }

    /// Which shard's metric has risen since.
    fn risen(&self, name: &str, since: &[f64]) -> Result<usize> {
        let now = self.by_shard(name)?;
        let risen = now.iter().zip(since).position(|(now, then)| now > then);
        risen.with_context(|| format!("{name} has not risen"))
    }

    /// Joins a topic that is at home on the other shard.
    fn join_elsewhere(&mut self) -> Result<()> {
        for nth in 0..TOPICS {
            let (joins, kept) = (self.by_shard(JOINS)?, self.by_shard(KEPT)?);
            self.join(&format!("rooms:{nth}"))?;
            self.say()?;
            if self.risen(JOINS, &joins)? != self.risen(KEPT, &kept)? {
                return Ok(());
            }
        }
        anyhow::bail!("{TOPICS} topics are all at home where the member is")
    }
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let (mut without, mut with) = (Member::new(bench, false)?, Member::new(bench, true)?);
    with.join_elsewhere()?;
    without.join(&with.topic)?;
    let mut both = [without, with];
    let blocks = if bench.options.short { BLOCKS / 4 } else { BLOCKS };
    for block in 0..blocks {
        let turn = [0, 1, 1, 0].get(block % 4).copied().unwrap_or(0);
        let member = both.get_mut(turn).context("there are two")?;
        for _ in 0..BLOCK {
            let took = member.say()?;
            // The first of each warms up.
            if block > 1 {
                member.took_ms.push(took);
            }
        }
    }
    let [without, with] = both.map(|it| it.took_ms);
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let quantiles = stats::quantile(&with, share).zip(stats::quantile(&without, share));
        let (with, without) = quantiles.context("nothing measured")?;
        sample.put(format!("hop_{name}_ms"), with - without);
        sample.put(format!("hop_{name}_with_ms"), with);
        sample.put(format!("hop_{name}_without_ms"), without);
    }
    Ok(())
}
