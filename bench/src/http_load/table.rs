//! From the runs to the table, and to the raw file that is kept.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::tools::{Figures, Tool};
use super::{FILES, Options, Sample};
use simurgh_bench_kit::{report, stats};

/// One line: a figure of both tools for one file and one number of connections.
#[derive(Serialize)]
struct Row {
    file: &'static str,
    connections: usize,
    measure: &'static str,
    wrk: Vec<f64>,
    simurgh: Vec<f64>,
    /// `simurgh load http` ÷ wrk of the same round.
    ratio: Vec<f64>,
    must: Option<&'static str>,
    reached: Option<bool>,
}

type Figure = fn(&Sample) -> f64;
type Limit = (&'static str, fn(&Row) -> Option<bool>);

/// The figures of a row, and their limits.
const RECIPES: [(&str, Figure, Option<Limit>); 8] = [
    (
        "requests per client CPU second",
        |it| it.figures.requests / it.figures.cpu_s,
        Some(("≥ 0.8 × wrk", |row| Some(stats::median(&row.ratio)? >= 0.8))),
    ),
    (
        "p50, us",
        |it| it.figures.p50_us,
        Some(("within 10 % of wrk", |row| Some((0.9..=1.1).contains(&stats::median(&row.ratio)?)))),
    ),
    (
        "p99, us",
        |it| it.figures.p99_us,
        Some(("within wrk's own runs", |row| {
            let (least, most) = (stats::quantile(&row.wrk, 0.0), stats::quantile(&row.wrk, 1.0));
            Some((least?..=most?).contains(&stats::median(&row.simurgh)?))
        })),
    ),
    (
        "p99 as measured, us (wrk shows none)",
        |it| it.figures.measured_p99_us.unwrap_or(f64::NAN),
        None,
    ),
    ("p90, us", |it| it.figures.p90_us, None),
    ("mean, us", |it| it.figures.mean_us, None),
    ("requests per second", |it| per_second(&it.figures), None),
    ("server CPU per request, us", |it| it.server_cpu_s / it.figures.requests * 1e6, None),
];

fn per_second(figures: &Figures) -> f64 {
    figures.requests / figures.seconds
}

fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut jobs: Vec<(&'static str, usize)> = Vec::new();
    for sample in samples {
        if !jobs.contains(&(sample.file, sample.connections)) {
            jobs.push((sample.file, sample.connections));
        }
    }
    let mut rows = Vec::new();
    for (file, connections) in jobs {
        let of = |tool: Tool, figure: Figure| -> Vec<f64> {
            let of_job =
                |it: &&Sample| it.tool == tool && it.file == file && it.connections == connections;
            samples.iter().filter(of_job).map(figure).collect()
        };
        for (measure, figure, limit) in RECIPES {
            let (mut wrk, simurgh) = (of(Tool::Wrk, figure), of(Tool::Simurgh, figure));
            wrk.retain(|value| value.is_finite());
            let ratio = simurgh.iter().zip(&wrk).map(|(ours, theirs)| ours / theirs).collect();
            let must = limit.map(|(must, _)| must);
            let mut row =
                Row { file, connections, measure, wrk, simurgh, ratio, must, reached: None };
            row.reached = limit.and_then(|(_, reached)| reached(&row));
            rows.push(row);
        }
    }
    rows
}

fn text(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let bytes = FILES.iter().find(|(name, _)| *name == row.file).map_or(0, |file| file.1);
        vec![
            format!("{bytes} B"),
            row.connections.to_string(),
            row.measure.to_owned(),
            spread(&row.wrk, 1),
            spread(&row.simurgh, 1),
            spread(&row.ratio, 3),
            row.must.unwrap_or("–").to_owned(),
            report::verdict(row.reached, false, "**NO**").to_owned(),
        ]
    };
    let head = [
        "file",
        "connections",
        "measure",
        "wrk",
        "simurgh load http",
        "÷ wrk",
        "must reach",
        "ok?",
    ];
    report::table(&head, rows.iter().map(cells))
}

/// Median, lowest and highest; large ones without digits behind the point.
fn spread(values: &[f64], digits: usize) -> String {
    let digits = if values.iter().any(|value| *value >= 1000.0) { 0 } else { digits };
    report::cell(values, digits, "")
}

pub(super) fn publish(options: &Options, samples: &[Sample]) -> Result<()> {
    let rows = rows(samples);
    let connections: Vec<String> = options.connections.iter().map(usize::to_string).collect();
    let command = format!(
        "simurgh-bench http-load --runs {} --seconds {} --connections {}",
        options.runs,
        options.seconds,
        connections.join(",")
    );
    let order = "each job: wrk and simurgh in turn, who is first changes each round";
    let fields = [
        ("command", json!(command)),
        ("order", json!(order)),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::publish(options.paths.out.as_deref(), "issue6-http-load", fields, &text(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tool: Tool, round: usize, cpu_s: f64, p99_us: f64) -> Sample {
        let figures = Figures {
            requests: 1000.0,
            seconds: 1.0,
            mean_us: 100.0,
            p50_us: 100.0,
            p90_us: 100.0,
            p99_us,
            measured_p99_us: None,
            cpu_s,
        };
        let (file, connections) = (FILES[0].0, 32);
        Sample { tool, round, file, connections, figures, server_cpu_s: 0.01, others: 0.0 }
    }

    #[test]
    fn each_round_is_compared_with_itself_and_limits_are_judged() {
        let samples = [
            sample(Tool::Wrk, 1, 0.5, 300.0),
            sample(Tool::Simurgh, 1, 0.5, 350.0),
            sample(Tool::Simurgh, 2, 1.0, 350.0),
            sample(Tool::Wrk, 2, 0.6, 340.0),
        ];
        let rows = rows(&samples);
        assert_eq!(rows[0].ratio, [1.0, 0.6]);
        let judged: Vec<Option<bool>> = rows.iter().map(|row| row.reached).collect();
        assert_eq!(judged[..4], [Some(true), Some(true), Some(false), None]);
        let text = text(&rows);
        assert!(text.contains("| 0.800 (0.600–1.000) | ≥ 0.8 × wrk | yes |"), "{text}");
        assert!(text.contains("within wrk's own runs | **NO** |"), "{text}");
    }
}
