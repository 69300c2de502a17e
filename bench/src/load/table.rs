//! From the figures of all runs to the table, and to the raw file that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::tools::Tool;
use super::{Options, Sample, timing};
use simurgh_bench_kit::{report, stats};

/// What Tsung was measured to take once where it could not be measured (12 nodes).
const PUBLISHED_START_S: f64 = 3.0;

/// What has to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
    /// Of the absolute value.
    Within(f64),
}

impl Limit {
    fn reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Within(limit) => value.abs() <= limit,
        }
    }

    fn text(self, unit: &str) -> String {
        let text = match self {
            Self::AtLeast(limit) => format!("≥ {limit} {unit}"),
            Self::AtMost(limit) => format!("≤ {limit} {unit}"),
            Self::Within(limit) => format!("± {limit} {unit}"),
        };
        text.trim_end().to_owned()
    }
}

/// How a row is made.
struct Recipe {
    row: &'static str,
    measure: String,
    /// Name of Simurgh's figure.
    figure: String,
    /// Name of the others' figure, if it is not the same.
    others: Option<String>,
    unit: &'static str,
    digits: usize,
    limit: Option<Limit>,
}

fn recipe(row: &'static str, measure: &str, figure: &str, unit: &'static str) -> Recipe {
    let (measure, figure) = (measure.to_owned(), figure.to_owned());
    Recipe { row, measure, figure, others: None, unit, digits: 0, limit: None }
}

impl Recipe {
    fn limit(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    fn digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    fn others(self, figure: &str) -> Self {
        Self { others: Some(figure.to_owned()), ..self }
    }
}

fn recipes(options: &Options) -> Vec<Recipe> {
    use Limit::AtMost;
    let mut all = costs();
    for rate in timing::rates(options) {
        all.extend(rates(*rate));
    }
    all.extend(times());
    all.extend([
        recipe("idle", "idle CPU per 65 s, 15,000 with 30 s think times", "idle CPU s", "s")
            .digits(3)
            .limit(AtMost(0.1)),
        recipe("start", "start to first connection, 100 workers (Tsung: 12)", "start s", "s")
            .digits(3)
            .limit(AtMost(0.3)),
    ]);
    all
}

/// What users and frames cost.
fn costs() -> Vec<Recipe> {
    use Limit::{AtLeast, AtMost};
    vec![
        recipe("connect", "connect+upgrade+join per client CPU second", "connect per CPU s", "/s")
            .limit(AtLeast(20_000.0)),
        recipe("connect", "users that came per second meanwhile", "connect per s", "/s"),
        recipe(
            "memory",
            "user-space bytes per held client (Simurgh: 100,000, others: 15,000)",
            "memory bytes per client",
            "B",
        )
        .limit(AtMost(128.0)),
        recipe("memory", "base: resident without users", "memory base MB", "MB")
            .digits(1)
            .limit(AtMost(20.0)),
        recipe(
            "memory",
            "base in use: all but clients x their bytes",
            "memory base in use MB",
            "MB",
        )
        .digits(1)
        .limit(AtMost(20.0)),
        recipe("memory", "resident with all held", "memory held MB", "MB").digits(1),
        recipe("memory", "clients held", "memory clients", ""),
        recipe(
            "broadcast",
            "broadcast frames received, stamped, recorded per CPU second",
            "broadcast frames per CPU s",
            "/s",
        )
        .limit(AtLeast(150_000.0)),
        recipe("broadcast", "frames per second meanwhile", "broadcast frames per s", "/s"),
    ]
}

/// Arrivals at one rate.
fn rates(rate: u32) -> [Recipe; 5] {
    use Limit::{AtMost, Within};
    let even = |what: &str| format!("arrivals even {rate}/s {what}");
    let poisson = |what: &str| format!("arrivals poisson {rate}/s {what}");
    let measure = |what: &str| format!("{rate}/s for 10 s{what}");
    [
        recipe("arrivals", &measure(", even: off by"), &even("off %"), "%")
            .digits(2)
            .limit(Within(0.5)),
        recipe("arrivals", &measure(", even: late by > 10 ms"), &even("late %"), "%")
            .digits(3)
            .limit(AtMost(0.5)),
        recipe("arrivals", &measure(", Poisson: off by"), &poisson("off σ"), "σ")
            .digits(2)
            .limit(Within(3.0)),
        recipe("arrivals", &measure(", Poisson: late by > 10 ms"), &poisson("late %"), "%")
            .digits(3)
            .limit(AtMost(0.5)),
        recipe("arrivals", &measure(", Poisson: off by"), &poisson("off %"), "%").digits(2),
    ]
}

/// How right the times are that are shown.
fn times() -> Vec<Recipe> {
    use Limit::{AtLeast, AtMost};
    let mut all = Vec::new();
    // No limit for bursts: what waits in line there is the other frames of the burst.
    for (shape, words, limit) in [
        ("rooms", "5,000 messages/s × 10", Some(AtMost(100.0))),
        ("room", "in bursts: 50 messages/s × 1,000", None),
    ] {
        let name = |value: &str| format!("stamp {shape} {value} µs");
        let p99 = recipe("stamp", &format!("stamp error p99, {words}"), &name("p99"), "µs");
        all.push(Recipe { limit, ..p99 });
        all.push(recipe("stamp", "its median", &name("p50"), "µs"));
    }
    for (shape, words) in [("asks", "one user, 50 requests/s"), ("requests", "50 users/s")] {
        let name = |value: &str| format!("stall {shape} {value} s");
        all.extend([
            recipe("stall", &format!("server stalls 5 s, {words}: max"), &name("max"), "s")
                .digits(2)
                .limit(AtLeast(4.9)),
            recipe("stall", "its p90; of Tsung, that has none, the mean", &name("p90"), "s")
                .others(&name("mean"))
                .digits(2)
                .limit(AtLeast(4.0)),
        ]);
    }
    all
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    measure: String,
    unit: &'static str,
    bare: Vec<f64>,
    tsung: Vec<f64>,
    simurgh: Vec<f64>,
    /// Simurgh's figure ÷ that of the bare client in the same round.
    to_bare: Vec<f64>,
    /// The same to Tsung.
    to_tsung: Vec<f64>,
    limit: Option<Limit>,
    reached: Option<bool>,
    /// Tsung's figure stands in a publication.
    published: bool,
    #[serde(skip)]
    digits: usize,
}

/// The rows that were asked for.
pub(super) fn rows(options: &Options, samples: &[Sample]) -> Vec<Row> {
    let wanted = recipes(options).into_iter().filter(|recipe| options.wants(recipe.row));
    wanted.map(|recipe| row(&recipe, samples)).filter(Row::has_any).collect()
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
    // Ratios of what is near zero, or of different things, say nothing.
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

impl Row {
    fn has_any(&self) -> bool {
        !(self.bare.is_empty() && self.simurgh.is_empty())
    }
}

/// The table in Markdown: medians, with the lowest and the highest run behind them.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text = String::from(
        "| measure | bare | Tsung | Simurgh | ÷ bare | ÷ Tsung | must reach | ok? |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let cell = |values: &[f64]| report::cell(values, row.digits, row.unit);
        let ratio = |values: &[f64]| stats::median(values).map_or("–".to_owned(), short);
        let reached = report::verdict(row.reached, row.limit.is_some(), "**NO**");
        let tsung = match row.published {
            true => format!("{PUBLISHED_START_S} s (published)"),
            false => cell(&row.tsung),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {tsung} | {} | {} | {} | {} | {reached} |",
            row.measure,
            cell(&row.bare),
            cell(&row.simurgh),
            ratio(&row.to_bare),
            ratio(&row.to_tsung),
            row.limit.map_or("–".to_owned(), |limit| limit.text(row.unit)),
        );
    }
    text
}

/// A ratio with as many digits as say something.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

/// What does not fit into the table: the machine's load, notes, and what broke off.
pub(super) fn remarks(samples: &[Sample]) -> String {
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

/// Writes the raw file, and the table beside it; returns the raw file's path.
pub(super) fn write(
    out: &Path,
    options: &Options,
    samples: &[Sample],
    rows: &[Row],
) -> Result<PathBuf> {
    let fields = [
        ("command", json!(command(options))),
        ("order", json!("in each round: bare, tsung, simurgh; ratios within a round")),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::keep(out, "issue3", fields, &format!("{}{}", text(rows), remarks(samples)))
}

/// The command line without paths: what is committed names no machine's directories.
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
        let rows = rows(&options(), &samples);
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
            assert_eq!(rows(&options(), &samples)[0].reached, Some(ok), "{value}");
        }
    }

    #[test]
    fn what_tsung_was_said_to_take_is_marked() {
        let samples = [sample(Tool::Simurgh, 1, "start s", 0.2)];
        let text = text(&rows(&options(), &samples));
        assert!(text.contains("3 s (published)") && text.contains("| yes |"), "{text}");
    }

    #[test]
    fn all_rows_have_recipes() {
        let recipes = recipes(&options());
        for row in super::super::ROWS {
            assert!(recipes.iter().any(|recipe| recipe.row == row), "{row}");
        }
        assert!(recipes.iter().all(|recipe| super::super::ROWS.contains(&recipe.row)));
    }
}
