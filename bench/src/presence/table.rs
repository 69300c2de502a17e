//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::{Options, Sample};
use crate::{report, stats};

/// One line of the table. Its names are those of the other tables of this program, which
/// `cargo xtask bench` reads.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    row: &'static str,
    measure: &'static str,
    unit: &'static str,
    simurgh: Vec<f64>,
    at_most: Option<f64>,
    reached: Option<bool>,
    #[serde(skip)]
    digits: usize,
}

/// Row, figure, what it is, unit, digits shown, and what its median must not pass.
type Recipe = (&'static str, &'static str, &'static str, &'static str, usize, Option<f64>);

const RECIPES: &[Recipe] = &[
    ("crowd", "crowd_states_wrong", "members without exactly one list", "", 0, Some(0.0)),
    (
        "crowd",
        "crowd_diffs_per_interval",
        "diffs that the first member got in an interval",
        "",
        3,
        Some(1.0),
    ),
    (
        "crowd",
        "crowd_encodings_per_interval",
        "lists and diffs encoded for each diff",
        "",
        3,
        Some(2.0),
    ),
    (
        "crowd",
        "crowd_bytes_ratio",
        "bytes sent ÷ one list each and one diff an interval",
        "",
        3,
        Some(1.2),
    ),
    (
        "crowd",
        "crowd_cpu_ratio",
        "server CPU beyond joins without presence ÷ bare loop",
        "",
        3,
        Some(2.0),
    ),
    ("crowd", "crowd_cpu_ratio_whole", "the same with the joins", "", 3, None),
    ("crowd", "crowd_cpu_ms", "server CPU", "ms", 0, None),
    (
        "crowd",
        "crowd_cpu_without_ms",
        "server CPU of the same joins without presence",
        "ms",
        0,
        None,
    ),
    ("crowd", "crowd_floor_ms", "CPU of the bare loop", "ms", 0, None),
    ("crowd", "crowd_mb", "sent to all of the crowd", "MB", 1, None),
    (
        "leave",
        "leave_ratio",
        "a leave ÷ a broadcast as long as its diff, server CPU",
        "",
        3,
        Some(1.1),
    ),
    ("leave", "leave_us", "server CPU of a leave", "µs", 0, None),
    ("leave", "leave_broadcast_us", "server CPU of such a broadcast", "µs", 0, None),
    (
        "summary",
        "summary_ratio",
        "connect, upgrade and join ÷ the same without presence, server CPU",
        "",
        3,
        Some(1.3),
    ),
    (
        "summary",
        "summary_joins_ratio",
        "joins alone ÷ the same without presence, server CPU",
        "",
        3,
        None,
    ),
    ("summary", "summary_us", "server CPU per connect, upgrade and join", "µs", 1, None),
    ("summary", "summary_without_us", "the same without presence", "µs", 1, None),
    ("summary", "summary_joins_us", "server CPU per join alone", "µs", 1, None),
    (
        "summary",
        "summary_joins_without_us",
        "server CPU per join alone without presence",
        "µs",
        1,
        None,
    ),
    ("summary", "summary_presences_missing", "members that are not tracked", "", 0, Some(0.0)),
    (
        "memory",
        "memory_member_bytes",
        "memory per tracked member beside its meta",
        "B",
        0,
        Some(250.0),
    ),
    (
        "memory",
        "memory_left_percent",
        "what is left of its rise when all have left",
        "%",
        1,
        Some(5.0),
    ),
    ("memory", "memory_presences_left", "presences left", "", 0, Some(0.0)),
    (
        "memory",
        "memory_untracked",
        "members of 1,500 topics that are not tracked",
        "",
        0,
        Some(0.0),
    ),
    ("memory", "memory_rise_with_mb", "memory of the crowd with presence", "MB", 2, None),
    ("memory", "memory_rise_without_mb", "memory of the crowd without presence", "MB", 2, None),
    ("memory", "memory_left_with_mb", "left of that with presence", "MB", 2, None),
    ("memory", "memory_left_without_mb", "left of that without presence", "MB", 2, None),
    (
        "million",
        "million_member_bytes",
        "memory per tracked member of a million beside its meta",
        "B",
        0,
        Some(400.0),
    ),
    (
        "million",
        "million_left_percent",
        "what is left of a million's rise when all have left",
        "%",
        1,
        Some(5.0),
    ),
    (
        "million",
        "million_presences_missing",
        "members of a million that are not tracked",
        "",
        0,
        Some(0.0),
    ),
    ("million", "million_presences_left", "presences left of a million", "", 0, Some(0.0)),
    (
        "million",
        "million_leave_p99_ms",
        "a leave reaches its topic while 1,000/s come and go, p99",
        "ms",
        1,
        Some(50.0),
    ),
    ("million", "million_leave_p50_ms", "the same, p50", "ms", 1, None),
    ("million", "million_leave_max_ms", "the same, longest", "ms", 1, None),
    ("million", "million_rate", "members that came, and as many that went", "1/s", 0, None),
];

/// The lines of all rows that were run.
pub(super) fn rows(options: &Options, samples: &[Sample]) -> Vec<Row> {
    let line = |&(row, figure, measure, unit, digits, at_most): &Recipe| {
        let of_row = samples.iter().filter(|sample| sample.row == row);
        let simurgh: Vec<f64> =
            of_row.filter_map(|sample| sample.figures.get(figure).copied()).collect();
        // Counts hold for each run, all else for the median.
        let judged = match at_most {
            Some(limit) if limit <= 0.0 => stats::quantile(&simurgh, 1.0),
            _ => stats::median(&simurgh),
        };
        let reached = judged.zip(at_most).map(|(value, limit)| value <= limit);
        Row { row, measure, unit, simurgh, at_most, reached, digits }
    };
    let rows = RECIPES.iter().map(line);
    rows.filter(|row| options.only.iter().any(|only| only == row.row)).collect()
}

/// The table in Markdown: medians, with the lowest and highest round behind them.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text =
        String::from("| row | measure | Simurgh | must reach | ok? |\n|---|---|---|---|---|\n");
    for row in rows {
        let Row { row: name, measure, unit, simurgh, digits, .. } = row;
        let value = report::cell(simurgh, *digits, unit);
        let limit = row.at_most.map_or("–".to_owned(), |limit| format!("≤ {limit} {unit}"));
        let reached = match row.reached {
            Some(true) => "yes",
            Some(false) => "**MISSED**",
            None if row.at_most.is_some() => "not measured",
            None => "",
        };
        let (value, limit) = (value.trim_end(), limit.trim_end());
        // Writing to a text does not fail.
        let _ = writeln!(text, "| {name} | {measure} | {value} | {limit} | {reached} |");
    }
    text
}

/// What makes figures doubtful or invalid.
pub(super) fn remarks(samples: &[Sample]) -> String {
    let mut text = String::new();
    let loads = samples.iter().map(|sample| sample.load_average).collect::<Vec<_>>();
    if let Some(load) = stats::quantile(&loads, 1.0) {
        let _ = writeln!(text, "\nLoad average before a row: up to {load:.1}.\n");
    }
    for Sample { round, row, faults, .. } in samples {
        for fault in faults {
            let _ = writeln!(text, "* FAULT, {row}, round {round}: {fault}");
        }
    }
    text
}

/// Keeps it; the raw file's path. Never over an older one.
pub(super) fn write(
    out: &Path,
    options: &Options,
    samples: &[Sample],
    rows: &[Row],
) -> Result<PathBuf> {
    let fields = [
        ("command", json!(command(options))),
        (
            "order",
            json!("a fresh server for each part of each row; ratios within a row of a round"),
        ),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::keep(out, "presence", fields, &format!("{}{}", text(rows), remarks(samples)))
}

/// The command line without paths: what is committed names no machine's directories.
fn command(options: &Options) -> String {
    let short = if options.short { " --short" } else { "" };
    let only = options.only.join(",");
    format!("simurgh-bench presence --only {only} --runs {}{short}", options.runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::ROWS;

    fn options(only: &[&str]) -> Options {
        let only = only.iter().map(|row| (*row).to_owned()).collect();
        Options { only, runs: 1, short: false, server_bin: None, out: None }
    }

    fn sample(row: &'static str, figure: &str, value: f64) -> Sample {
        let figures = [(figure.to_owned(), value)].into();
        Sample { row, figures, ..Sample::default() }
    }

    #[test]
    fn a_ratio_is_judged_by_its_median_and_a_count_by_each_run() {
        let ratios = [0.9, 1.0, 1.3].map(|it| sample("leave", "leave_ratio", it));
        let all = rows(&options(&["leave"]), &ratios);
        assert_eq!(all.first().map(|row| (row.row, row.reached)), Some(("leave", Some(true))));
        assert!(text(&all).contains("1.000 (0.900–1.300) | ≤ 1.1 | yes |"), "{}", text(&all));
        let counts = [0.0, 0.0, 1.0].map(|it| sample("crowd", "crowd_states_wrong", it));
        let all = rows(&options(&["crowd"]), &counts);
        assert_eq!(all.first().map(|row| (row.row, row.reached)), Some(("crowd", Some(false))));
    }

    #[test]
    fn every_row_has_a_limit_and_every_measure_its_own_name() {
        let all = rows(&options(&ROWS), &[]);
        for row in ROWS {
            assert!(all.iter().any(|line| line.row == row && line.at_most.is_some()), "{row}");
        }
        let mut names: Vec<&str> = all.iter().map(|row| row.measure).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "names tell measures apart from day to day");
    }
}
