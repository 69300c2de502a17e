//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::{Options, Sample, Suite};
use crate::{report, stats};

/// One line of the table. Its names are those of the other tables of this program, which
/// `cargo xtask bench` reads.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
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
pub(crate) type Recipe =
    (&'static str, &'static str, &'static str, &'static str, usize, Option<f64>);

/// The lines of all rows that were run.
pub(crate) fn rows(suite: &Suite, options: &Options, samples: &[Sample]) -> Vec<Row> {
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
    let rows = suite.recipes.iter().map(line);
    rows.filter(|row| options.only.iter().any(|only| only == row.row)).collect()
}

/// The table in Markdown: medians, with the lowest and highest round behind them.
pub(crate) fn text(rows: &[Row]) -> String {
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
pub(crate) fn remarks(samples: &[Sample]) -> String {
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
pub(crate) fn write(
    out: &Path,
    suite: &Suite,
    options: &Options,
    samples: &[Sample],
    rows: &[Row],
) -> Result<PathBuf> {
    let fields = [
        ("command", json!(command(suite, options))),
        (
            "order",
            json!("a fresh server for each part of each row; ratios within a row of a round"),
        ),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::keep(out, suite.name, fields, &format!("{}{}", text(rows), remarks(samples)))
}

/// The command line without paths: what is committed names no machine's directories.
fn command(suite: &Suite, options: &Options) -> String {
    let short = if options.short { " --short" } else { "" };
    let only = options.only.join(",");
    format!("simurgh-bench {} --only {only} --runs {}{short}", suite.name, options.runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster, history, presence};

    const SUITES: [&Suite; 3] = [&presence::SUITE, &history::SUITE, &cluster::SUITE];

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
        let suite = &presence::SUITE;
        let ratios = [0.9, 1.0, 1.3].map(|it| sample("leave", "leave_ratio", it));
        let all = rows(suite, &options(&["leave"]), &ratios);
        assert_eq!(all.first().map(|row| (row.row, row.reached)), Some(("leave", Some(true))));
        assert!(text(&all).contains("1.000 (0.900–1.300) | ≤ 1.1 | yes |"), "{}", text(&all));
        let counts = [0.0, 0.0, 1.0].map(|it| sample("crowd", "crowd_states_wrong", it));
        let all = rows(suite, &options(&["crowd"]), &counts);
        assert_eq!(all.first().map(|row| (row.row, row.reached)), Some(("crowd", Some(false))));
    }

    #[test]
    fn every_row_has_a_limit_and_every_measure_its_own_name() {
        for suite in SUITES {
            let jobs: Vec<&str> = suite.jobs.iter().map(|job| job.row).collect();
            assert!(suite.usual.iter().all(|row| jobs.contains(row)), "{:?}", suite.usual);
            let all = rows(suite, &options(&jobs), &[]);
            assert_eq!(all.len(), suite.recipes.len(), "each line is of a row");
            for row in jobs {
                assert!(all.iter().any(|line| line.row == row && line.at_most.is_some()), "{row}");
            }
            let mut names: Vec<&str> = all.iter().map(|row| row.measure).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "names tell measures apart from day to day");
        }
    }
}
