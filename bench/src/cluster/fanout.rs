//! Row `fanout`: a broadcast to 30,000 members on three nodes, compared with one node.

use anyhow::{Context, Result, ensure};

use super::broker::Broker;
use super::crowd;
use super::helper::{Helper, number};
use super::nodes::{self, NodeSettings};
use simurgh_bench_kit::rounds::{Bench, Sample, turn};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::sys::Cpu;
use simurgh_bench_kit::target::Server;

/// Nodes; also the shards of the single one, and the crowds of either.
const PARTS: u32 = 3;
/// Broadcasts, in turn on the nodes and on the single one, and those of each that only warm up.
const BROADCASTS: usize = 24;
const WARM_UP: usize = 2;
/// Time for servers to become idle, ms.
const REST: &str = "rest 200";

/// Servers with a crowd for each part.
struct Side {
    servers: Vec<Server>,
    crowds: Vec<Helper>,
    /// Members of each crowd.
    count: usize,
    published: usize,
    cpu_us: Vec<f64>,
}

impl Side {
    fn new(servers: Vec<Server>, count: usize) -> Result<Self> {
        let at = |nth: usize| servers.get(nth).or(servers.first()).map(|it| it.address);
        let parts = 0..usize::try_from(PARTS)?;
        let crowds = parts.map(|nth| crowd::start(at(nth).context("no server")?));
        let mut crowds: Vec<Helper> = crowds.collect::<Result<_>>()?;
        crowd::all(crowds.iter_mut(), |nth| format!("join {count} 1 {}", nth * count))?;
        Ok(Self { servers, crowds, count, published: 0, cpu_us: Vec::new() })
    }

    fn cpu(&self) -> Result<Vec<Cpu>> {
        self.servers.iter().map(Server::cpu).collect()
    }

    /// One member publishes, and all receive it.
    fn broadcast(&mut self) -> Result<()> {
        let before = self.cpu()?;
        self.published += 1;
        let all = self.published * self.count;
        let (first, others) = self.crowds.split_first_mut().context("no crowd")?;
        first.ask("publish")?;
        for crowd in others.iter_mut() {
            crowd.send(&format!("until {all}"))?;
        }
        first.ask(&format!("until {all}"))?;
        for crowd in others {
            crowd.answer()?;
        }
        crowd::all(self.crowds.iter_mut(), |_| REST.to_owned())?;
        let spent = self.servers.iter().zip(&before).map(|(it, before)| it.spent(before));
        let spent: u64 = spent.sum::<Result<u64>>()?;
        if self.published > WARM_UP {
            self.cpu_us.push(stats::per(spent, 1_000));
        }
        Ok(())
    }

    /// Checks that each member has received each broadcast once; returns the median cost.
    fn cost(&mut self) -> Result<f64> {
        let published = stats::per(self.published, 1);
        for got in crowd::all(self.crowds.iter_mut(), |_| REST.to_owned())? {
            let (least, most) = (number(&got, "messages_least")?, number(&got, "messages_most")?);
            let is_all = (least - published).abs() < 0.5 && (most - published).abs() < 0.5;
            ensure!(is_all, "{least} to {most} of {published} were received");
        }
        stats::middle(&self.cpu_us)
    }
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(10_000, 1_000);
    let broker = Broker::start(bench)?;
    let start = |name| NodeSettings::new(Some(&broker), name).start(bench);
    let nodes = vec![start("one")?, start("two")?, start("three")?];
    nodes::together(&nodes.iter().collect::<Vec<_>>())?;
    // Otherwise the same: a thread and a descriptor table for each 10,000.
    let one = NodeSettings { shards: PARTS, ..NodeSettings::new(None, "alone") }.start(bench)?;
    let mut sides = [Side::new(nodes, count)?, Side::new(vec![one], count)?];
    for nth in 0..BROADCASTS {
        let side = sides.get_mut(turn(nth + sample.round));
        side.context("there are two")?.broadcast()?;
    }
    let [nodes, one] = sides.each_mut().map(Side::cost);
    let (nodes, one) = (nodes?, one?);
    sample.put("fanout_ms", nodes / 1e3);
    sample.put("fanout_one_ms", one / 1e3);
    sample.put("fanout_ratio", nodes / one);
    Ok(())
}
