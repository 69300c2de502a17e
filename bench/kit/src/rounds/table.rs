//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::{Options, Sample, Suite};
use crate::{report, stats};

/// One line of the table, as the raw file has it.
#[derive(Debug, Serialize)]
pub struct Row {
    /// How it is made.
    #[serde(flatten)]
    pub recipe: Recipe,
    /// The baseline's figures.
    floor: Vec<f64>,
    simurgh: Vec<f64>,
    /// Each figure ÷ that of the baseline in the same sample.
    pub ratio: Vec<f64>,
    /// Whether the limit holds; `None` without one, or where nothing was measured.
    pub reached: Option<bool>,
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
        // A limit that follows from sizes has digits that say nothing.
        let limit = (limit * 1e3).round() / 1e3;
        format!("{sign} {limit} {unit}").trim_end().to_owned()
    }
}

/// How a line of the table is made.
#[derive(Debug, Serialize)]
pub struct Recipe {
    /// Name of the row of the suite.
    pub row: &'static str,
    /// Name of the figure in a [`Sample`].
    pub figure: String,
    /// Name of the baseline's figure, if there is a baseline.
    pub base: Option<String>,
    /// The measured quantity.
    pub measure: String,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Digits shown behind the point.
    pub digits: usize,
    /// The limit.
    pub limit: Option<Limit>,
    /// Whether that is a limit of the ratio to the baseline.
    pub is_of_ratio: bool,
}

/// Reads recipes from lines of `row | figure | measure | unit | digits | limit | base`. The limit
/// may be empty, and is one of the ratio to the baseline if it begins with `÷`. The base may be
/// missing; a `*` in it stands for the figure's name. Lines that begin with `#` are comments. Names
/// of `values` are replaced.
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
    let limit = filled(next()?);
    let is_of_ratio = limit.starts_with('÷');
    let limit = match limit.trim_start_matches('÷').trim_start() {
        "" => None,
        limit => Some(Limit::read(limit)?),
    };
    let base = next().map(|base| filled(base).replace('*', &figure));
    Some(Recipe { row, figure, base, measure, unit, digits, limit, is_of_ratio })
}

/// The lines of all rows that were run.
pub fn rows(suite: &Suite, options: &Options, samples: &[Sample]) -> Result<Vec<Row>> {
    let recipes = (suite.recipes)(options)?.into_iter();
    let wanted = recipes.filter(|recipe| options.wants(recipe.row));
    Ok(wanted.map(|recipe| row(suite, recipe, samples)).collect())
}

fn row(suite: &Suite, recipe: Recipe, samples: &[Sample]) -> Row {
    let (mut floor, mut simurgh, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    let Recipe { limit, is_of_ratio, .. } = recipe;
    // A sample without a row has the figures of all rows.
    for sample in samples.iter().filter(|it| it.row == recipe.row || it.row.is_empty()) {
        let value = sample.figures.get(&recipe.figure).copied();
        let by = recipe.base.as_ref().and_then(|base| sample.figures.get(base)).copied();
        simurgh.extend(value);
        floor.extend(by);
        // If the figure itself has a limit, its ratio does not show whether it meets that limit.
        let pair = value.zip(by).filter(|(_, by)| *by > 0.0 && (is_of_ratio || limit.is_none()));
        ratio.extend(pair.map(|(value, by)| value / by));
    }
    let judged = if is_of_ratio { &ratio } else { &simurgh };
    let is_each = suite.is_each_judged || matches!(limit, Some(Limit::AtMost(..=0.0)));
    let reached = limit.zip(stats::median(judged)).map(|(limit, median)| match is_each {
        true => judged.iter().all(|value| limit.reached(*value)),
        false => limit.reached(median),
    });
    Row { recipe, floor, simurgh, ratio, reached }
}

/// The table in Markdown: medians, with the lowest and highest round behind them. Without baselines
/// it has no columns for them.
pub fn text(suite: &Suite, rows: &[Row]) -> String {
    let has_floor = rows.iter().any(|row| !row.floor.is_empty());
    let cells = |row: &Row| {
        let Recipe { digits, unit, limit, .. } = row.recipe;
        let cell = |values: &[f64]| match values {
            [one] if suite.is_each_judged => format!("{one:.digits$} {unit}"),
            values => report::cell(values, digits, unit),
        };
        let mut cells = vec![row.recipe.row.to_owned(), row.recipe.measure.clone()];
        cells.extend(has_floor.then(|| cell(&row.floor)));
        cells.push(cell(&row.simurgh));
        cells.extend(has_floor.then(|| report::cell(&row.ratio, 3, "")));
        cells.push(limit.map_or("–".to_owned(), |limit| match row.recipe.is_of_ratio {
            true => format!("÷ {}", limit.text("")),
            false => limit.text(unit),
        }));
        cells.push(report::verdict(row.reached, limit.is_some(), "**MISSED**").to_owned());
        cells.iter().map(|cell| cell.trim_end().to_owned()).collect()
    };
    let mut head = vec!["row", "measure"];
    head.extend(has_floor.then_some("baseline"));
    head.push("Simurgh");
    head.extend(has_floor.then_some("÷ baseline"));
    head.extend(["must reach", "ok?"]);
    report::table(&head, rows.iter().map(cells))
}

/// Explanations of figures, and reasons why they are invalid.
fn remarks(samples: &[Sample]) -> String {
    let mut text = String::new();
    let loads = samples.iter().map(|sample| sample.load_average).collect::<Vec<_>>();
    if let Some(load) = stats::quantile(&loads, 1.0).filter(|load| load.is_finite()) {
        let _ = writeln!(text, "\nLoad average before a row: up to {load:.1}.\n");
    }
    for Sample { round, row, notes, faults, .. } in samples {
        let row = if row.is_empty() { "all" } else { row };
        for note in notes {
            let _ = writeln!(text, "* {row}, round {round}: {note}");
        }
        for fault in faults {
            let _ = writeln!(text, "* FAULT, {row}, round {round}: {fault}");
        }
    }
    text
}

/// Prints the table, and keeps it with the raw figures.
pub fn publish(suite: &Suite, options: &Options, samples: &[Sample]) -> Result<()> {
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
