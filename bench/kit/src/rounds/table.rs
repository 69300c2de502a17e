//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::{Options, Sample, Suite};
use crate::{report, stats};

/// One line of the table. Its names are those of the other tables of this program, which
/// `cargo xtask bench` reads.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the row of the suite.
    pub row: &'static str,
    /// What was measured.
    pub measure: String,
    unit: &'static str,
    simurgh: Vec<f64>,
    /// The limit.
    pub at_most: Option<f64>,
    /// Whether the limit holds; `None` without one, or where nothing was measured.
    pub reached: Option<bool>,
    #[serde(skip)]
    digits: usize,
}

/// How a line of the table is made.
pub struct Recipe {
    /// Name of the row of the suite.
    pub row: &'static str,
    /// Name of the figure in a [`Sample`].
    pub figure: &'static str,
    /// What is measured.
    pub measure: String,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Digits shown behind the point.
    pub digits: usize,
    /// The limit.
    pub at_most: Option<f64>,
}

/// Reads recipes from lines of `row | figure | measure | unit | digits | limit`, where the limit
/// may be missing; a line that begins with `#` is a comment. Measure and limit may hold names of
/// `values`.
pub fn read(text: &'static str, values: &[(&str, String)]) -> Result<Vec<Recipe>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| recipe(line, values).with_context(|| format!("not a recipe: {line}")))
        .collect()
}

fn recipe(line: &'static str, values: &[(&str, String)]) -> Option<Recipe> {
    let mut fields = line.split('|').map(str::trim);
    let mut next = || fields.next();
    let filled = |text: &str| {
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    let (row, figure, measure, unit) = (next()?, next()?, filled(next()?), next()?);
    let digits = next()?.parse().ok()?;
    let at_most = match filled(next()?).as_str() {
        "" => None,
        limit => Some(limit.parse().ok()?),
    };
    Some(Recipe { row, figure, measure, unit, digits, at_most })
}

/// The lines of all rows that were run.
pub fn rows(suite: &Suite, options: &Options, samples: &[Sample]) -> Result<Vec<Row>> {
    let line = |recipe: Recipe| {
        let Recipe { row, figure, measure, unit, digits, at_most } = recipe;
        let of_row = samples.iter().filter(|sample| sample.row == row);
        let simurgh: Vec<f64> =
            of_row.filter_map(|sample| sample.figures.get(figure).copied()).collect();
        let judged = match at_most {
            Some(limit) if suite.is_each_judged || limit <= 0.0 => stats::quantile(&simurgh, 1.0),
            _ => stats::median(&simurgh),
        };
        let reached = judged.zip(at_most).map(|(value, limit)| value <= limit);
        Row { row, measure, unit, simurgh, at_most, reached, digits }
    };
    let rows = (suite.recipes)(options)?.into_iter().map(line);
    Ok(rows.filter(|row| options.only.iter().any(|only| only == row.row)).collect())
}

/// The table in Markdown: medians, with the lowest and highest round behind them.
pub fn text(suite: &Suite, rows: &[Row]) -> String {
    let mut text =
        String::from("| row | measure | Simurgh | must reach | ok? |\n|---|---|---|---|---|\n");
    for row in rows {
        let Row { row: name, measure, unit, simurgh, digits, .. } = row;
        let value = match simurgh.as_slice() {
            [one] if suite.is_each_judged => format!("{one:.digits$} {unit}"),
            values => report::cell(values, *digits, unit),
        };
        let limit = row.at_most.map_or("–".to_owned(), |limit| match limit.fract() == 0.0 {
            // A limit that follows from sizes.
            false if suite.is_each_judged => format!("≤ {limit:.1} {unit}"),
            _ => format!("≤ {limit} {unit}"),
        });
        let reached = report::verdict(row.reached, row.at_most.is_some(), "**MISSED**");
        let (value, limit) = (value.trim_end(), limit.trim_end());
        // Writing to a text does not fail.
        let _ = writeln!(text, "| {name} | {measure} | {value} | {limit} | {reached} |");
    }
    text
}

/// What explains figures, and what makes them invalid.
pub fn remarks(samples: &[Sample]) -> String {
    let mut text = String::new();
    let loads = samples.iter().map(|sample| sample.load_average).collect::<Vec<_>>();
    if let Some(load) = stats::quantile(&loads, 1.0) {
        let _ = writeln!(text, "\nLoad average before a row: up to {load:.1}.\n");
    }
    for Sample { round, row, notes, faults, .. } in samples {
        for note in notes {
            let _ = writeln!(text, "* {row}, round {round}: {note}");
        }
        for fault in faults {
            let _ = writeln!(text, "* FAULT, {row}, round {round}: {fault}");
        }
    }
    text
}

/// Keeps it; the raw file's path. Never over an older one.
pub fn write(
    out: &Path,
    suite: &Suite,
    options: &Options,
    samples: &[Sample],
    rows: &[Row],
) -> Result<PathBuf> {
    let fields = [
        ("command", json!(command(suite, options))),
        ("order", json!(suite.order)),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::keep(out, suite.name, fields, &format!("{}{}", text(suite, rows), remarks(samples)))
}

/// The command line without paths: what is committed names no machine's directories.
fn command(suite: &Suite, options: &Options) -> String {
    let short = if options.short { " --short" } else { "" };
    let only = options.only.join(",");
    format!("simurgh-bench {} --only {only} --runs {}{short}", suite.name, options.runs)
}
