//! Sockets without a network (`simurgh drive`), by value and through serializer V2. They use no
//! kernel, so the baseline is a fixed piece of work without Simurgh code: it measures the machine's
//! current speed.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::rounds::table::read;
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL};
use simurgh_bench_kit::stats;

pub(crate) const SUITE: Suite = Suite {
    name: "driver",
    about: "`simurgh drive`, beside a fixed piece of work",
    jobs: || {
        vec![
            Job::on_all_cores("values", |bench, sample| run(bench, sample, "none")),
            Job::on_all_cores("v2", |bench, sample| run(bench, sample, "v2")),
        ]
    },
    runs: 5,
    clients: (0, 0),
    order: "the fixed piece of work, then the sockets",
    recipes: |_| read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// Words of a record; with the allocator's own it comes to the 160 bytes of a joined socket.
const WORDS: usize = 19;
const WALKS: u32 = 5;
const TIME_MAX: Duration = Duration::from_secs(300);

fn run(bench: &Bench<'_>, sample: &mut Sample, serializer: &str) -> Result<()> {
    let sockets: u32 = bench.options.size(500_000, 50_000);
    // The first of a series depends on the state of caches and free memory.
    black_box(work(sockets));
    let before = cpu();
    ensure!(black_box(work(sockets)) > 0, "every record counts");
    let spent = cpu().saturating_sub(before);
    sample.put("record_ns", stats::per(spent.as_nanos() as u64, sockets));
    let chat = bench.chat()?;
    let mut command = process::command(&bench.program, None, None)?;
    command.args(["drive", "--sockets", &sockets.to_string(), "--serializer", serializer]);
    let process = Process::with_output(command.arg("--config").arg(chat))?;
    let (status, text) = process.finish(TIME_MAX)?;
    ensure!(status.success(), "simurgh drive: {status}\n{text}");
    let sockets = f64::from(sockets);
    let created = quantities(&text, "created and joined")?;
    let cpu_ns = |start| {
        let all = quantities(&text, start)?;
        all.get(1).map(|ns| ns / sockets).with_context(|| format!("{start}: {text}"))
    };
    sample.put("created_ns", cpu_ns("created and joined")?);
    sample.put("pushed_ns", cpu_ns("pushed ")?);
    sample.put("broadcast_ns", cpu_ns("a broadcast to all")?);
    sample.put_some("bytes", created.last().copied());
    Ok(())
}

/// The times (ns) and sizes (bytes) of a line of the report: time, CPU time, CPU each, memory,
/// memory each.
fn quantities(text: &str, start: &str) -> Result<Vec<f64>> {
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.with_context(|| format!("no line \"{start}…\" in:\n{text}"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let quantity = |number: &str, unit: &str| {
        let units = [("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
        let sizes = [("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)];
        let (_, factor) = units.into_iter().chain(sizes).find(|(name, _)| *name == unit)?;
        Some(number.replace(',', "").parse::<f64>().ok()? * factor)
    };
    let pairs = words.iter().zip(words.iter().skip(1));
    Ok(pairs.filter_map(|(number, unit)| quantity(number, unit)).collect())
}

/// Similar work: many records of a socket's size are made one by one, put into a table, looked up
/// in another order, traversed, and freed.
fn work(records: u32) -> u64 {
    let mut made: Vec<Box<[u64; WORDS]>> = Vec::new();
    let mut by_key = HashMap::new();
    for number in 0..u64::from(records) {
        by_key.insert(key(number), made.len());
        made.push(Box::new([number + 1; WORDS]));
    }
    let mut sum = 0;
    // Backwards, so that neither order is the order in memory.
    for number in (0..u64::from(records)).rev() {
        let found = by_key.get(&key(number)).and_then(|at| made.get_mut(*at));
        sum += found.map_or(0, |record| {
            record[WORDS - 1] += 1;
            record[0]
        });
    }
    for _ in 0..WALKS {
        sum += black_box(&made).iter().map(|record| record[WORDS / 2]).sum::<u64>();
    }
    sum
}

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_created_found_and_visited() {
        // Numbers 1 to 100 once when found, and once in each walk.
        assert_eq!(work(100), 5050 * (1 + u64::from(WALKS)));
    }

    #[test]
    fn report_of_the_drive_tool_is_parsed() {
        let text = "created and joined  9.0 ms   16.2 ms   0.81 µs   2,231,955  25.8 MB  1,241 B\n";
        let found = quantities(text, "created").unwrap();
        assert_eq!(found, [9e6, 16.2e6, 810.0, 25.8e6, 1241.0]);
        assert!(quantities(text, "pushed").is_err());
    }
}
