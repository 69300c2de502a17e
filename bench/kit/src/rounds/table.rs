//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::{Options, Sample, Suite};
use crate::{report, stats};

/// One line of the table. `cargo xtask bench` reads its fields as in the program's other tables.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the row of the suite.
    pub row: &'static str,
    /// The measured quantity.
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

/// The limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The highest permitted value.
    AtMost(f64),
    /// The lowest permitted value.
    AtLeast(f64),
    /// The highest permitted absolute value.
    Within(f64),
}

impl Limit {
    /// Reads `≥ 5`, `± 5`, `≤ 5` or just `5`, which is an upper limit.
    fn read(text: &str) -> Option<Self> {
        let (kind, number): (fn(f64) -> Self, &str) = match text.split_once(' ') {
            Some(("≥", number)) => (Self::AtLeast, number),
            Some(("±", number)) => (Self::Within, number),
            Some(("≤", number)) => (Self::AtMost, number),
            _ => (Self::AtMost, text),
        };
        number.parse().ok().map(kind)
    }

    /// Whether a value keeps the limit.
    pub fn reached(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Within(limit) => value.abs() <= limit,
        }
    }

    /// The limit as tables show it.
    pub fn text(self, unit: &str) -> String {
        let (sign, limit) = match self {
            Self::AtMost(limit) => ("≤", limit),
            Self::AtLeast(limit) => ("≥", limit),
            Self::Within(limit) => ("±", limit),
        };
        format!("{sign} {limit} {unit}").trim_end().to_owned()
    }
}

/// How a line of the table is made.
pub struct Recipe {
    /// Name of the row of the suite.
    pub row: &'static str,
    /// Name of the figure in a [`Sample`].
    pub figure: String,
    /// Name of the figure it is compared with, if that has another name.
    pub others: Option<String>,
    /// The measured quantity.
    pub measure: String,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Digits shown behind the point.
    pub digits: usize,
    /// The limit.
    pub limit: Option<Limit>,
}

/// Reads recipes from lines of `row | figure | measure | unit | digits | limit | others`; the limit
/// may be empty and `others` missing. Lines that begin with `#` are comments. Names of `values` are
/// replaced.
pub fn read(text: &'static str, values: &[(&str, String)]) -> Result<Vec<Recipe>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = |line| recipe(line, values).with_context(|| format!("not a recipe: {line}"));
    lines.map(read).collect()
}

fn recipe(line: &'static str, values: &[(&str, String)]) -> Option<Recipe> {
    let mut fields = line.split('|').map(str::trim);
    let mut next = || fields.next();
    let filled = |text: &str| {
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    let (row, figure, measure, unit) = (next()?, filled(next()?), filled(next()?), next()?);
    let digits = next()?.parse().ok()?;
    let limit = match filled(next()?).as_str() {
        "" => None,
        limit => Some(Limit::read(limit)?),
    };
    Some(Recipe { row, figure, others: next().map(str::to_owned), measure, unit, digits, limit })
}

/// The lines of all rows that were run.
pub fn rows(suite: &Suite, options: &Options, samples: &[Sample]) -> Result<Vec<Row>> {
    let line = |recipe: Recipe| {
        let Recipe { row, figure, measure, unit, digits, limit, .. } = recipe;
        let of_row = samples.iter().filter(|sample| sample.row == row);
        let simurgh: Vec<f64> =
            of_row.filter_map(|sample| sample.figures.get(&figure).copied()).collect();
        let at_most = match limit {
            Some(Limit::AtMost(limit)) => Some(limit),
            _ => None,
        };
        let judged = match at_most {
            Some(limit) if suite.is_each_judged || limit <= 0.0 => stats::quantile(&simurgh, 1.0),
            _ => stats::median(&simurgh),
        };
        let reached = judged.zip(at_most).map(|(value, limit)| value <= limit);
        Row { row, measure, unit, simurgh, at_most, reached, digits }
    };
    let rows = (suite.recipes)(options)?.into_iter().map(line);
    Ok(rows.filter(|row| options.wants(row.row)).collect())
}

/// The table in Markdown: medians, with the lowest and highest round behind them.
pub fn text(suite: &Suite, rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let Row { unit, digits, .. } = row;
        let value = match row.simurgh.as_slice() {
            [one] if suite.is_each_judged => format!("{one:.digits$} {unit}"),
            values => report::cell(values, *digits, unit),
        };
        let limit = row.at_most.map_or("–".to_owned(), |limit| match limit.fract() == 0.0 {
            // The limit follows from sizes.
            false if suite.is_each_judged => format!("≤ {limit:.1} {unit}"),
            _ => format!("≤ {limit} {unit}"),
        });
        let reached = report::verdict(row.reached, row.at_most.is_some(), "**MISSED**");
        let (value, limit) = (value.trim_end(), limit.trim_end());
        [row.row, &row.measure, value, limit, reached].map(str::to_owned).to_vec()
    };
    let head = ["row", "measure", "Simurgh", "must reach", "ok?"];
    report::table(&head, rows.iter().map(cells))
}

/// Explanations of figures, and reasons why they are invalid.
fn remarks(samples: &[Sample]) -> String {
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

pub(super) fn publish(suite: &Suite, options: &Options, samples: &[Sample]) -> Result<()> {
    let rows = rows(suite, options, samples)?;
    let fields = [
        ("command", json!(command(suite, options))),
        ("order", json!(suite.order)),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    let text = text(suite, &rows) + &remarks(samples);
    report::publish(options.paths.out.as_deref(), suite.name, fields, &text)
}

/// The command line without paths: committed files name no machine's directories.
fn command(suite: &Suite, options: &Options) -> String {
    let short = if options.short { " --short" } else { "" };
    let only = options.only.join(",");
    let runs = options.runs.unwrap_or(suite.runs);
    let seconds =
        options.seconds.map_or_else(String::new, |seconds| format!(" --seconds {seconds}"));
    format!("simurgh-bench {} --only {only} --runs {runs}{short}{seconds}", suite.name)
}
