//! From the figures of the floor and the server to the table, and to the raw file that is kept.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::measure::{Figures, Run};
use simurgh_bench_kit::report::{self, cell, verdict};
use simurgh_bench_kit::stats;

/// Which number of a row must stay below the limit.
#[derive(Clone, Copy, PartialEq)]
enum Judged {
    Ratio,
    Value,
    Nothing,
}

#[derive(Serialize)]
struct Row {
    measure: &'static str,
    unit: &'static str,
    floor: Vec<f64>,
    simurgh: Vec<f64>,
    ratio: Vec<f64>,
    at_most: Option<f64>,
    reached: Option<bool>,
    #[serde(skip)]
    judged: Judged,
    #[serde(skip)]
    digits: usize,
}

type Figure = fn(&Figures) -> Option<f64>;

/// How a row is made: from which figures, divided by what.
struct Recipe {
    measure: &'static str,
    unit: &'static str,
    digits: usize,
    figure: Figure,
    /// The floor's figure it is divided by; `None`: no ratio.
    base: Option<Figure>,
    judged: Judged,
    at_most: f64,
}

const RECIPES: [Recipe; 16] = [
    value("user-space bytes per idle joined client", "B", 0, |f| f.user_bytes, 350.0),
    ratio("kernel + user per connection ÷ bare", "B", total_bytes, total_bytes, 1.10),
    ratio(
        "server CPU per delivered 64-byte broadcast ÷ bare send loop",
        "ns",
        |f| f.spaced_ns,
        |f| f.spaced_ns,
        1.12,
    ),
    ratio(
        "the same, 20 published at once ÷ bare send loop (spaced)",
        "ns",
        |f| f.burst_ns,
        |f| f.spaced_ns,
        0.2,
    ),
    ratio(
        "server CPU per connect+upgrade+join ÷ bare",
        "ns",
        |f| f.connect_ns,
        |f| f.connect_ns,
        1.4,
    ),
    value("a join during a fan-out, p99", "ms", 2, |f| f.join_p99_ms, 20.0),
    value("longest turn of the shard, CPU time counted inside", "ms", 2, |f| f.turn_max_ms, 2.0),
    info("longest turn by the clock, preemption included", "ms", 2, |f| f.turn_wall_max_ms),
    info("socket, file and epoll slabs alone, per connection", "B", 0, |f| f.socket_caches_bytes),
    info("server CPU per delivery of the median broadcast", "ns", 0, |f| f.spaced_median_ns),
    info("user-space bytes per client after all traffic", "B", 0, |f| f.user_bytes_after_traffic),
    info("last client has the broadcast after", "ms", 1, |f| f.spaced_last_ms),
    info("last client has all 20 after", "ms", 1, |f| f.burst_last_ms),
    info("server CPU per heartbeat, one at a time", "µs", 1, |f| f.heartbeat_alone_us),
    info("heartbeat round trip, median", "µs", 1, |f| f.heartbeat_p50_us),
    info("server CPU per heartbeat, all clients at once", "µs", 1, |f| f.heartbeat_batched_us),
];

/// A figure that is shown beside the floor's, without a limit.
const fn info(measure: &'static str, unit: &'static str, digits: usize, figure: Figure) -> Recipe {
    let base = Some(figure);
    Recipe { measure, unit, digits, figure, base, judged: Judged::Nothing, at_most: 0.0 }
}

/// A figure with a limit.
const fn value(
    measure: &'static str,
    unit: &'static str,
    digits: usize,
    figure: Figure,
    at_most: f64,
) -> Recipe {
    Recipe { base: None, judged: Judged::Value, at_most, ..info(measure, unit, digits, figure) }
}

/// A figure whose ratio to the floor's has a limit.
const fn ratio(
    measure: &'static str,
    unit: &'static str,
    figure: Figure,
    base: Figure,
    at_most: f64,
) -> Recipe {
    let base = Some(base);
    Recipe { base, judged: Judged::Ratio, at_most, ..info(measure, unit, 0, figure) }
}

fn total_bytes(figures: &Figures) -> Option<f64> {
    Some(figures.user_bytes? + figures.kernel_bytes?)
}

/// The rows of all measures that were taken. `floors` surround `runs`: run `n` is between floors
/// `n` and `n + 1` and is divided by the mean of the two, because the machine drifts.
fn rows(floors: &[Figures], runs: &[Figures]) -> Vec<Row> {
    let row = |recipe: &Recipe| {
        let simurgh: Vec<f64> = runs.iter().filter_map(recipe.figure).collect();
        let ratio: Vec<f64> = runs
            .iter()
            .enumerate()
            .filter_map(|(at, run)| {
                let near: Vec<f64> =
                    floors.iter().skip(at).take(2).filter_map(recipe.base?).collect();
                let mean = near.iter().sum::<f64>() / stats::per(near.len(), 1);
                (recipe.figure)(run).filter(|_| !near.is_empty()).map(|value| value / mean)
            })
            .collect();
        let judged = match recipe.judged {
            Judged::Ratio => stats::median(&ratio),
            Judged::Value => stats::median(&simurgh),
            Judged::Nothing => None,
        };
        Row {
            measure: recipe.measure,
            unit: recipe.unit,
            floor: floors.iter().filter_map(recipe.figure).collect(),
            simurgh,
            ratio,
            at_most: (recipe.judged != Judged::Nothing).then_some(recipe.at_most),
            reached: judged.map(|value| value <= recipe.at_most),
            judged: recipe.judged,
            digits: recipe.digits,
        }
    };
    RECIPES.iter().map(row).filter(|row| !row.simurgh.is_empty() || !row.floor.is_empty()).collect()
}

fn table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let limit = match (row.judged, row.at_most) {
            (Judged::Ratio, Some(limit)) => format!("≤ {limit:.2}"),
            (_, Some(limit)) => format!("≤ {limit} {}", row.unit),
            (_, None) => "–".to_owned(),
        };
        vec![
            row.measure.to_owned(),
            cell(&row.floor, row.digits, row.unit),
            cell(&row.simurgh, row.digits, row.unit),
            cell(&row.ratio, 3, ""),
            limit,
            verdict(row.reached, row.at_most.is_some(), "**NO**").to_owned(),
        ]
    };
    let head = ["measure", "floor", "Simurgh", "ratio", "must reach", "ok?"];
    report::table(&head, rows.iter().map(cells))
}

/// Remarks beside the table: verification, the probe's priority, noise, faults.
fn remarks(floors: &[Figures], runs: &[Figures]) -> String {
    let mut text = String::new();
    let all = || floors.iter().chain(runs);
    let delivered: u64 = all().map(|run| run.tally.delivered).sum();
    let _ = writeln!(
        text,
        "\n{delivered} deliveries checked one by one: {} missed, {} repeated, {} of wrong form.",
        all().map(|run| run.tally.missed).sum::<u64>(),
        all().map(|run| run.tally.repeated).sum::<u64>(),
        all().map(|run| run.tally.odd).sum::<u64>(),
    );
    if let Some(priority) = runs.iter().find_map(|run| run.probe_priority) {
        let joins: usize = runs.iter().map(|run| run.joins).sum();
        let strays: u64 = runs.iter().map(|run| run.join_strays).sum();
        let _ = writeln!(
            text,
            "{joins} joins during fan-outs, timed by a thread at {priority}; {strays} of the \
             broadcasts under way reached a newcomer."
        );
    }
    let _ = writeln!(
        text,
        "Heap allocations of a heartbeat: counted by a test of the library, not here."
    );
    let noise: Vec<f64> = all().map(|run| run.others_cpu_s + run.stolen_s).collect();
    if let Some(noise) = stats::median(&noise) {
        let _ =
            writeln!(text, "Other processes and the host used {noise:.1} CPU s of a run (median).");
    }
    let listing: Vec<f64> = all().filter_map(|run| run.listing_bytes).collect();
    if let Some(bytes) = stats::quantile(&listing, 1.0).filter(|bytes| *bytes > 20.0) {
        let _ = writeln!(
            text,
            "Something on this machine lists /proc/PID/fd: up to {bytes:.0} B per socket of that \
             were taken off the kernel memory."
        );
    }
    if let Some(run) = runs.last() {
        for line in run.metrics.iter().filter(|line| !line.contains("_total")) {
            let _ = writeln!(text, "    {line}");
        }
    }
    for (run, line) in all().flat_map(|run| run.faults.iter().map(move |fault| (run, fault))) {
        let _ = writeln!(text, "FAULT in a run of {}: {line}", run.target);
    }
    for (run, line) in all().flat_map(|run| run.notes.iter().map(move |note| (run, note))) {
        let _ = writeln!(text, "note on a run of {}: {line}", run.target);
    }
    text
}

pub(crate) fn publish(options: &Run, floors: &[Figures], runs: &[Figures]) -> Result<()> {
    let rows = rows(floors, runs);
    let order = "floor, simurgh, floor, …, floor; each simurgh run ÷ mean of its two floors";
    let fields = [
        ("command", json!(command(options))),
        ("clients", json!(options.clients)),
        ("order", json!(order)),
        ("table", json!(rows)),
        ("floor_runs", json!(floors)),
        ("simurgh_runs", json!(runs)),
    ];
    let text = table(&rows) + &remarks(floors, runs);
    report::publish(options.paths.out.as_deref(), "issue2", fields, &text)
}

/// The command line without paths: committed files name no machine's directories.
fn command(options: &Run) -> String {
    let mut text = format!("simurgh-bench --clients {} --runs {}", options.clients, options.runs);
    if let Some(only) = &options.only {
        let _ = write!(text, " --only {only}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(spaced: f64, burst: f64) -> Figures {
        Figures { spaced_ns: Some(spaced), burst_ns: Some(burst), ..Figures::default() }
    }

    #[test]
    fn each_run_is_divided_by_its_own_floors() {
        // The second run is slower by half than the first; the ratio is not.
        let floors = [figures(90.0, 0.0), figures(110.0, 0.0), figures(190.0, 0.0)];
        let runs = [figures(110.0, 20.0), figures(165.0, 15.0)];
        let rows = rows(&floors, &runs);
        let spaced = rows.iter().find(|row| row.measure.contains("delivered")).unwrap();
        assert_eq!(spaced.ratio, [1.1, 1.1]);
        assert_eq!(spaced.reached, Some(true));
        let burst = rows.iter().find(|row| row.measure.contains("at once ÷")).unwrap();
        assert_eq!(burst.ratio, [0.2, 0.1], "divided by the spaced floor");
        assert!(table(&rows).contains("| 138 ns (110–165) | 1.100 (1.100–1.100) | ≤ 1.12 | yes |"));
        assert!(!table(&rows).contains("join"), "what was not measured has no row");
    }

    #[test]
    fn a_missed_limit_is_said() {
        let runs = [figures(100.0, 30.0)];
        let text = table(&rows(&[figures(100.0, 1.0)], &runs));
        assert!(text.contains("| 0.300 (0.300–0.300) | ≤ 0.20 | **NO** |"), "{text}");
    }
}
