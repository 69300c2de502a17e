//! Row `fanout`: a broadcast to 30,000 members on three nodes, beside the same on one.

use anyhow::{Context, Result, ensure};

use super::crowd;
use super::engine::Engine;
use super::helper::{Helper, number};
use super::servers::{self, How};
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::sys::Cpu;

/// Nodes, shards of the one beside them, and crowds of either.
const PARTS: u32 = 3;
/// Broadcasts, in turn on the nodes and on the one, and those of each that only warm up.
const BROADCASTS: usize = 24;
const WARM_UP: usize = 2;
/// Until servers rest, ms.
const REST: &str = "rest 200";

/// Servers with a crowd each of their parts.
struct Side {
    servers: Vec<Served>,
    crowds: Vec<Helper>,
    /// Of each crowd.
    count: usize,
    said: usize,
    cpu_us: Vec<f64>,
}

impl Side {
    fn new(servers: Vec<Served>, count: usize) -> Result<Self> {
        let at = |nth: usize| servers.get(nth).or(servers.first()).map(|it| it.running.address);
        let parts = 0..usize::try_from(PARTS)?;
        let crowds = parts.map(|nth| crowd::start(at(nth).context("no server")?));
        let mut crowds: Vec<Helper> = crowds.collect::<Result<_>>()?;
        crowd::all(crowds.iter_mut(), |nth| format!("join {count} 1 {}", nth * count))?;
        Ok(Self { servers, crowds, count, said: 0, cpu_us: Vec::new() })
    }

    fn cpu(&self) -> Result<Vec<Cpu>> {
        self.servers.iter().map(Served::cpu).collect()
    }

    /// One of them says something, and all hear it.
    fn broadcast(&mut self) -> Result<()> {
        let before = self.cpu()?;
        self.said += 1;
        let all = self.said * self.count;
        let (first, others) = self.crowds.split_first_mut().context("no crowd")?;
        first.ask("say")?;
        for crowd in others.iter_mut() {
            crowd.tell(&format!("until {all}"))?;
        }
        first.ask(&format!("until {all}"))?;
        for crowd in others {
            crowd.answer()?;
        }
        crowd::all(self.crowds.iter_mut(), |_| REST.to_owned())?;
        let spent = self.servers.iter().zip(&before).map(|(it, before)| it.spent(before));
        let spent: u64 = spent.sum::<Result<u64>>()?;
        if self.said > WARM_UP {
            self.cpu_us.push(stats::per(spent, 1_000));
        }
        Ok(())
    }

    /// Each has heard each broadcast once; the median of what they cost.
    fn cost(&mut self) -> Result<f64> {
        let said = stats::per(self.said, 1);
        for heard in crowd::all(self.crowds.iter_mut(), |_| REST.to_owned())? {
            let (least, most) =
                (number(&heard, "messages_least")?, number(&heard, "messages_most")?);
            let is_all = (least - said).abs() < 0.5 && (most - said).abs() < 0.5;
            ensure!(is_all, "{least} to {most} of {said} were heard");
        }
        stats::median(&self.cpu_us).context("nothing measured")
    }
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = if bench.options.short { 1_000 } else { 10_000 };
    let engine = Engine::start(bench)?;
    let start = |name| How::new(Some(&engine), name).start(bench);
    let nodes = vec![start("one")?, start("two")?, start("three")?];
    servers::together(&nodes.iter().collect::<Vec<_>>())?;
    // Otherwise as they are: a thread and a descriptor table for each 10,000.
    let one = How { shards: PARTS, ..How::new(None, "alone") }.start(bench)?;
    let mut sides = [Side::new(nodes, count)?, Side::new(vec![one], count)?];
    for nth in 0..BROADCASTS {
        let turn = [0, 1, 1, 0].get((nth + sample.round) % 4).copied().unwrap_or(0);
        sides.get_mut(turn).context("there are two")?.broadcast()?;
    }
    let [nodes, one] = sides.each_mut().map(Side::cost);
    let (nodes, one) = (nodes?, one?);
    sample.put("fanout_ms", nodes / 1e3);
    sample.put("fanout_one_ms", one / 1e3);
    sample.put("fanout_ratio", nodes / one);
    Ok(())
}
