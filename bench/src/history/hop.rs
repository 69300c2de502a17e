//! Row `hop`: how much later a member receives its own message if it goes by way of another shard.

use std::time::Instant;

use anyhow::{Context, Result};

use super::server;
use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::rounds::{Bench, Sample, turn};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::{Server, metric};

const SHARDS: u32 = 2;
/// Topics that are tried: all at home on one of two shards would be one case in 65,536.
const TOPICS: usize = 16;
/// Blocks of messages, in turn with history and without, and messages of each.
const BLOCKS: usize = 24;
const BLOCK: usize = 250;
/// Shows the shard of a member, and the home of its topic.
const JOINS: &str = "simurgh_joins_total";
const KEPT: &str = "simurgh_history_kept_total";

struct Member {
    server: Server,
    clients: Clients,
    topic: String,
    took_ms: Vec<f64>,
}

impl Member {
    fn new(bench: &Bench<'_>, with: bool) -> Result<Self> {
        let server = server::serve_with(bench, with, SHARDS)?;
        let mut clients = server.clients()?;
        if with {
            server::opt_in(&mut clients);
        }
        clients.open(1)?;
        Ok(Self { server, clients, topic: String::new(), took_ms: Vec::new() })
    }

    fn join(&mut self, topic: &str) -> Result<()> {
        self.topic = topic.to_owned();
        let before = self.clients.total().replies;
        self.clients.join(0, topic)?;
        self.clients.until(|it| it.replies > before)
    }

    /// Publishes; the time until it has received its own message, ms.
    fn publish(&mut self) -> Result<f64> {
        let was = self.clients.total();
        let began = Instant::now();
        self.clients.push(0, "3", &self.topic, "new:msg", &server::payload())?;
        self.clients.until(|it| it.messages > was.messages)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        self.clients.until(|it| it.replies > was.replies)?;
        Ok(took)
    }

    fn by_shard(&self, name: &str) -> Result<Vec<f64>> {
        let lines = self.server.metrics()?;
        let of = |shard| metric(&lines, &format!("{name}{{shard=\"{shard}\"}}"));
        (0..SHARDS).map(|shard| of(shard).with_context(|| format!("no {name}"))).collect()
    }

    /// The shard whose metric has risen since.
    fn risen(&self, name: &str, since: &[f64]) -> Result<usize> {
        let now = self.by_shard(name)?;
        let risen = now.iter().zip(since).position(|(now, then)| now > then);
        risen.with_context(|| format!("{name} has not risen"))
    }

    fn join_topic_of_other_shard(&mut self) -> Result<()> {
        for nth in 0..TOPICS {
            let (joins, kept) = (self.by_shard(JOINS)?, self.by_shard(KEPT)?);
            self.join(&format!("rooms:{nth}"))?;
            self.publish()?;
            if self.risen(JOINS, &joins)? != self.risen(KEPT, &kept)? {
                return Ok(());
            }
        }
        anyhow::bail!("{TOPICS} topics are all at home where the member is")
    }
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let (mut without, mut with) = (Member::new(bench, false)?, Member::new(bench, true)?);
    with.join_topic_of_other_shard()?;
    without.join(&with.topic)?;
    let mut both = [without, with];
    let blocks = bench.options.size(BLOCKS, BLOCKS / 4);
    for block in 0..blocks {
        let member = both.get_mut(turn(block)).context("there are two")?;
        for _ in 0..BLOCK {
            let took = member.publish()?;
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
