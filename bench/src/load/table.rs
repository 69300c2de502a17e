//! From the figures of all runs to the table, and to the raw file that is kept.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::tools::Tool;
use super::{Options, Sample, timing};
use simurgh_bench_kit::rounds::table::{Limit, Recipe, read};
use simurgh_bench_kit::{report, stats};

/// Tsung's published starting time, for where it cannot be measured (12 nodes).
const PUBLISHED_START_S: f64 = 3.0;

fn recipes(options: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for block in include_str!("table.txt").split("\n\n") {
        let rates = if block.contains("{rate}") { timing::rates(options) } else { &[0] };
        for rate in rates {
            all.extend(read(block, &[("{rate}", rate.to_string())])?);
        }
    }
    Ok(all)
}

#[derive(Debug, Serialize)]
struct Row {
    measure: String,
    unit: &'static str,
    bare: Vec<f64>,
    tsung: Vec<f64>,
    simurgh: Vec<f64>,
    /// Simurgh's figure ÷ that of the bare client in the same round.
    to_bare: Vec<f64>,
    /// Simurgh's figure ÷ that of Tsung in the same round.
    to_tsung: Vec<f64>,
    limit: Option<Limit>,
    reached: Option<bool>,
    /// Whether Tsung's figure is from a publication.
    published: bool,
    #[serde(skip)]
    digits: usize,
}

fn rows(options: &Options, samples: &[Sample]) -> Result<Vec<Row>> {
    let wanted = recipes(options)?.into_iter().filter(|recipe| options.wants(recipe.row));
    let rows = wanted.map(|recipe| row(&recipe, samples));
    Ok(rows.filter(|row| !(row.bare.is_empty() && row.simurgh.is_empty())).collect())
}

fn row(recipe: &Recipe, samples: &[Sample]) -> Row {
    let of = |tool: Tool| -> Vec<(usize, f64)> {
        let others = recipe.others.as_ref().filter(|_| tool != Tool::Simurgh);
        let name = others.unwrap_or(&recipe.figure);
        let mine = samples.iter().filter(|sample| sample.tool == tool);
        mine.filter_map(|sample| Some((sample.round, *sample.figures.get(name)?))).collect()
    };
    let (bare, mut tsung, simurgh) = (of(Tool::Bare), of(Tool::Tsung), of(Tool::Simurgh));
    let published = recipe.row == "start" && tsung.is_empty();
    if published {
        tsung = simurgh.iter().map(|(round, _)| (*round, PUBLISHED_START_S)).collect();
    }
    // Ratios of values near zero, or of different things, have no meaning.
    let comparable = recipe.others.is_none() && !recipe.figure.starts_with("arrivals");
    let to = |others: &[(usize, f64)]| -> Vec<f64> {
        let same = |round: usize| others.iter().find(|(other, _)| *other == round);
        let ratio = |(round, value): &(usize, f64)| {
            same(*round).filter(|(_, by)| comparable && *by > 0.0).map(|(_, by)| value / by)
        };
        simurgh.iter().filter_map(ratio).collect()
    };
    let values = |all: &[(usize, f64)]| all.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    let judged = stats::median(&values(&simurgh));
    Row {
        measure: recipe.measure.clone(),
        unit: recipe.unit,
        to_bare: to(&bare),
        to_tsung: to(&tsung),
        bare: values(&bare),
        tsung: values(&tsung),
        simurgh: values(&simurgh),
        limit: recipe.limit,
        reached: judged.and_then(|value| Some(recipe.limit?.reached(value))),
        published,
        digits: recipe.digits,
    }
}

fn text(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let cell = |values: &[f64]| report::cell(values, row.digits, row.unit);
        let ratio = |values: &[f64]| stats::median(values).map_or("–".to_owned(), short);
        let tsung = match row.published {
            true => format!("{PUBLISHED_START_S} s (published)"),
            false => cell(&row.tsung),
        };
        vec![
            row.measure.clone(),
            cell(&row.bare),
            tsung,
            cell(&row.simurgh),
            ratio(&row.to_bare),
            ratio(&row.to_tsung),
            row.limit.map_or("–".to_owned(), |limit| limit.text(row.unit)),
            report::verdict(row.reached, row.limit.is_some(), "**NO**").to_owned(),
        ]
    };
    let head = ["measure", "bare", "Tsung", "Simurgh", "÷ bare", "÷ Tsung", "must reach", "ok?"];
    report::table(&head, rows.iter().map(cells))
}

/// A ratio with its significant digits.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

/// Remarks beside the table: the machine's load, notes, and aborted runs.
fn remarks(samples: &[Sample]) -> String {
    let mut text = String::from("\n");
    let loads: Vec<f64> = samples.iter().map(|sample| sample.load_average).collect();
    if let Some(load) = stats::median(&loads) {
        let _ = writeln!(
            text,
            "Load average of the machine, the benchmark's own included: {load:.1} (median)."
        );
    }
    for sample in samples {
        let about = format!("{} in {} {}", sample.tool.name(), sample.job, sample.round);
        for note in &sample.notes {
            let _ = writeln!(text, "note on {about}: {note}");
        }
        if let Some(fault) = &sample.fault {
            let _ = writeln!(text, "FAULT of {about}: {fault}");
        }
    }
    text
}

pub(super) fn publish(options: &Options, samples: &[Sample]) -> Result<()> {
    let rows = rows(options, samples)?;
    let fields = [
        ("command", json!(command(options))),
        ("order", json!("in each round: bare, tsung, simurgh; ratios within a round")),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    let text = text(&rows) + &remarks(samples);
    report::publish(options.paths.out.as_deref(), "issue3", fields, &text)
}

/// The command line without paths: committed files name no machine's directories.
fn command(options: &Options) -> String {
    format!(
        "simurgh-bench load --only {} --runs {} --users {} --rate {}{}{}",
        options.only.join(","),
        options.runs,
        options.users,
        options.rate,
        if options.tsung == "off" { " --tsung off" } else { "" },
        if options.quick { " --quick" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sample(tool: Tool, round: usize, name: &str, value: f64) -> Sample {
        Sample {
            tool,
            round,
            job: "hold",
            figures: BTreeMap::from([(name.to_owned(), value)]),
            notes: Vec::new(),
            fault: None,
            load_average: 1.0,
            reports: Vec::new(),
        }
    }

    fn options() -> Options {
        let crate::args::Command::Load(options) =
            crate::args::parse(["load".into(), "--quick".into()]).unwrap()
        else {
            panic!("no load")
        };
        options
    }

    #[test]
    fn each_round_is_compared_with_itself() {
        let name = "connect per CPU s";
        let samples = [
            sample(Tool::Bare, 1, name, 40_000.0),
            sample(Tool::Tsung, 1, name, 2_000.0),
            sample(Tool::Simurgh, 1, name, 20_000.0),
            sample(Tool::Bare, 2, name, 20_000.0),
            sample(Tool::Simurgh, 2, name, 15_000.0),
        ];
        let rows = rows(&options(), &samples).unwrap();
        assert_eq!(rows[0].to_bare, [0.5, 0.75]);
        assert_eq!(rows[0].to_tsung, [10.0]);
        assert_eq!(rows[0].reached, Some(false), "the median is 17,500");
        let text = text(&rows);
        assert!(text.contains("| 0.625 | 10.0 | ≥ 20000 /s | **NO** |"), "{text}");
    }

    #[test]
    fn a_rate_may_be_missed_on_both_sides() {
        let name = "arrivals even 100/s off %";
        for (value, ok) in [(-0.6, false), (-0.4, true), (0.5, true), (0.51, false)] {
            let samples = [sample(Tool::Simurgh, 1, name, value)];
            assert_eq!(rows(&options(), &samples).unwrap()[0].reached, Some(ok), "{value}");
        }
    }

    #[test]
    fn what_tsung_was_said_to_take_is_marked() {
        let samples = [sample(Tool::Simurgh, 1, "start s", 0.2)];
        let text = text(&rows(&options(), &samples).unwrap());
        assert!(text.contains("3 s (published)") && text.contains("| yes |"), "{text}");
    }

    #[test]
    fn all_rows_have_recipes() {
        let recipes = recipes(&options()).unwrap();
        for row in super::super::ROWS {
            assert!(recipes.iter().any(|recipe| recipe.row == row), "{row}");
        }
        assert!(recipes.iter().all(|recipe| super::super::ROWS.contains(&recipe.row)));
    }
}
