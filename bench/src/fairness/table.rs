//! From the figures of all rounds to the table, and to the raw file that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::talk::Wire;
use super::{Options, Sample, cursors, flood, inbound, server, silent, suspended};
use crate::{report, stats};

/// What a server may take beyond what was published, MB.
const BESIDE_MB: f64 = 16.0;

/// One line of the table. Its names are those of the other tables of this program, which
/// `cargo xtask bench` reads.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    row: &'static str,
    measure: String,
    unit: &'static str,
    simurgh: Vec<f64>,
    at_most: Option<f64>,
    reached: Option<bool>,
    #[serde(skip)]
    digits: usize,
}

/// How a line is made: row, what it is, its figure, unit, and what it must not pass.
struct Recipe(&'static str, String, &'static str, &'static str, Option<f64>);

/// Bytes as MB.
fn mb(bytes: usize) -> f64 {
    stats::per(bytes, 1_000_000)
}

fn recipes(options: &Options) -> Vec<Recipe> {
    [flood(options), stored(options), timed(options)].into_iter().flatten().collect()
}

fn flood(options: &Options) -> Vec<Recipe> {
    let row = "flood";
    let many = options.size("100,000", "10,000");
    let readers = flood::READERS;
    let what = format!("{many} × 1 kB to {readers}");
    let lines = "the same, each with a line of 40 Mbit/s";
    let shards = "the same on two shards";
    let burst = "6,000 × 1 kB in one go, lines of 8 Mbit/s";
    let two = "two of 9.9 MB in one go, lines of 8 Mbit/s";
    let of = |attack: &str, text: &str, figure, unit, limit| {
        Recipe(row, format!("{attack}: {text}"), figure, unit, limit)
    };
    let must =
        |attack: &str, text: &str, figure, unit, limit| of(attack, text, figure, unit, Some(limit));
    let shown = |attack: &str, text: &str, figure, unit| of(attack, text, figure, unit, None);
    let [cut, missing, memory] = ["members cut", "messages not got", "server memory over idle"];
    let [beat, publish] = ["a bystander's heartbeat", "a publisher in another room"];
    let p99 = |who: &str| format!("{who}, p99");
    let p50 = |who: &str| format!("{who}, p50");
    let longest = |who: &str| format!("{who}, longest");
    vec![
        must(&what, cut, "flood_cut", "", 0.0),
        must(&what, missing, "flood_missing", "", 0.0),
        must(&what, memory, "flood_memory_mb", "MB", 64.0),
        must(&what, &p99(beat), "flood_heartbeat_p99_ms", "ms", 5.0),
        must(&what, &p99(publish), "flood_publish_p99_ms", "ms", 20.0),
        must(lines, cut, "lines_cut", "", 0.0),
        must(lines, missing, "lines_missing", "", 0.0),
        must(lines, memory, "lines_memory_mb", "MB", 64.0),
        must(lines, &p99(beat), "lines_heartbeat_p99_ms", "ms", 5.0),
        must(lines, &p99(publish), "lines_publish_p99_ms", "ms", 20.0),
        must(shards, cut, "two-shards_cut", "", 0.0),
        must(shards, missing, "two-shards_missing", "", 0.0),
        must(shards, memory, "two-shards_memory_mb", "MB", 64.0),
        must(burst, cut, "burst_cut", "", 0.0),
        must(burst, missing, "burst_missing", "", 0.0),
        must(two, cut, "two_cut", "", 0.0),
        must(two, missing, "two_missing", "", 0.0),
        shown(two, memory, "two_memory_mb", "MB"),
        shown(&what, "all is done after", "flood_seconds", "s"),
        shown(&what, "delivered", "flood_mb_per_s", "MB/s"),
        shown(&what, &p50(beat), "flood_heartbeat_p50_ms", "ms"),
        shown(&what, &longest(beat), "flood_heartbeat_max_ms", "ms"),
        shown(
            &what,
            "the heartbeat in the second before, p99",
            "flood_heartbeat_calm_p99_ms",
            "ms",
        ),
        shown(&what, &p50(publish), "flood_publish_p50_ms", "ms"),
        shown(&what, &longest(publish), "flood_publish_max_ms", "ms"),
        shown(&what, "longest turn of the shard, CPU time", "flood_turn_cpu_ms", "ms"),
        shown(lines, "all is done after", "lines_seconds", "s"),
        shown(lines, &longest(beat), "lines_heartbeat_max_ms", "ms"),
        shown(lines, &longest(publish), "lines_publish_max_ms", "ms"),
        shown(shards, &p99(beat), "two-shards_heartbeat_p99_ms", "ms"),
        shown(shards, &p99(publish), "two-shards_publish_p99_ms", "ms"),
    ]
}

/// What is stored for those who do not take it, or have not sent it whole.
fn stored(options: &Options) -> Vec<Recipe> {
    let members = options.size(cursors::SILENT, cursors::SILENT_SHORT);
    let serializers = stats::per(Wire::ALL.len(), 1);
    let at_cursors = mb(cursors::LARGE + members * cursors::SMALL) * serializers + BESIDE_MB;
    let heard = mb(silent::LARGE) + BESIDE_MB;
    let said = mb(silent::LARGE * silent::SILENT) + BESIDE_MB;
    let narrow = format!("with {} MiB of address space", server::NARROW >> 20);
    let row = |row, attack: &str, text: &str, figure, unit, limit| {
        Recipe(row, format!("{attack}: {text}"), figure, unit, Some(limit))
    };
    let (memory, missing) = ("server memory over idle", "messages that readers did not get");
    let (ended, newcomer) = ("server ended", "newcomer not served");
    let wide = format!("{members} at as many cursors, 5 MB");
    let less = format!("the same {narrow}");
    let (many, told) = ("cursors", "9.9 MB to 20 that never read");
    let (never, tell) = ("never-reads", "20 that never read say 9.9 MB each");
    let tell_less = format!("{tell}, {narrow}");
    let (inbound, hold) = ("inbound", "49 hold the budget");
    let others = format!("closed of {} others", inbound::OTHERS);
    let watched = stats::per(silent::WATCHED_S, 1);
    vec![
        row(many, &wide, memory, "wide_memory_mb", "MB", at_cursors),
        row(many, &wide, missing, "wide_witnesses_missing", "", 0.0),
        row(many, &less, ended, "narrow_ended", "", 0.0),
        row(many, &less, newcomer, "narrow_newcomer_failed", "", 0.0),
        row(many, &less, missing, "narrow_witnesses_missing", "", 0.0),
        row(never, told, memory, "heard_memory_mb", "MB", heard),
        row(never, told, "gone after", "heard_gone_s", "s", watched),
        row(never, tell, memory, "said_memory_mb", "MB", said),
        row(never, &tell_less, ended, "said-narrow_ended", "", 0.0),
        row(never, &tell_less, newcomer, "said-narrow_newcomer_failed", "", 0.0),
        row(inbound, hold, &others, "inbound_closed", "", 0.0),
        row(inbound, hold, "messages not answered", "inbound_unanswered", "", 0.0),
    ]
}

fn timed(options: &Options) -> Vec<Recipe> {
    let clients = options.size(suspended::CLIENTS, suspended::CLIENTS / 10);
    let seconds = options.size(90, 6);
    let mut all = vec![
        Recipe(
            "suspended",
            format!("stopped for {seconds} s: closed of {clients} that had sent"),
            "suspended_closed",
            "",
            Some(0.0),
        ),
        Recipe(
            "suspended",
            format!("stopped for {seconds} s: heartbeats not answered"),
            "suspended_unanswered",
            "",
            Some(0.0),
        ),
    ];
    for (name, p50, p99, turn) in [
        ("escapes", "escapes_heartbeat_p50_ms", "escapes_heartbeat_p99_ms", "escapes_turn_cpu_ms"),
        ("blanks", "blanks_heartbeat_p50_ms", "blanks_heartbeat_p99_ms", "blanks_turn_cpu_ms"),
        ("nested", "nested_heartbeat_p50_ms", "nested_heartbeat_p99_ms", "nested_turn_cpu_ms"),
    ] {
        let text = |what: &str| format!("9 MB of {name}: {what}");
        let row = "long-message";
        all.push(Recipe(row, text("a bystander's heartbeat, p99"), p99, "ms", Some(5.0)));
        all.push(Recipe(row, text("a bystander's heartbeat, p50"), p50, "ms", None));
        all.push(Recipe(row, text("longest turn of the shard, CPU time"), turn, "ms", None));
    }
    all
}

/// The lines of all rows that were run.
pub(super) fn rows(options: &Options, samples: &[Sample]) -> Vec<Row> {
    let line = |Recipe(row, measure, figure, unit, at_most)| {
        let of_row = samples.iter().filter(|sample| sample.row == row);
        let simurgh: Vec<f64> =
            of_row.filter_map(|sample| sample.figures.get(figure).copied()).collect();
        // A limit that was missed once is missed, whatever the median says.
        let worst = stats::quantile(&simurgh, 1.0);
        let reached = worst.zip(at_most).map(|(worst, limit)| worst <= limit);
        let digits = match unit {
            "ms" => 2,
            "" => 0,
            _ => 1,
        };
        Row { row, measure, unit, simurgh, at_most, reached, digits }
    };
    let rows = recipes(options).into_iter().map(line);
    rows.filter(|row| options.only.iter().any(|only| only == row.row)).collect()
}

/// The table in Markdown: medians, with the lowest and highest round behind them where there are
/// several.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text =
        String::from("| row | measure | Simurgh | must reach | ok? |\n|---|---|---|---|---|\n");
    for row in rows {
        let Row { row: name, measure, unit, simurgh, digits, .. } = row;
        let value = match simurgh.as_slice() {
            [one] => format!("{one:.digits$} {unit}"),
            several => report::cell(several, *digits, unit),
        };
        let limit = row.at_most.map_or("–".to_owned(), |limit| {
            let digits = if limit.fract() == 0.0 { 0 } else { 1 };
            format!("≤ {limit:.digits$} {unit}")
        });
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

/// What explains figures, and what makes them invalid.
pub(super) fn remarks(samples: &[Sample]) -> String {
    let mut text = String::new();
    let loads = samples.iter().map(|sample| sample.load_average).collect::<Vec<_>>();
    if let Some(load) = stats::quantile(&loads, 1.0) {
        let _ = writeln!(text, "\nLoad average before a row: up to {load:.1}.\n");
    }
    for sample in samples {
        let Sample { round, row, notes, faults, .. } = sample;
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
pub(super) fn write(
    out: &Path,
    options: &Options,
    samples: &[Sample],
    rows: &[Row],
) -> Result<PathBuf> {
    let fields = [
        ("command", json!(command(options))),
        ("order", json!("a fresh server for each attack; a limit holds for the worst round")),
        ("table", json!(rows)),
        ("samples", json!(samples)),
    ];
    report::keep(out, "fairness", fields, &format!("{}{}", text(rows), remarks(samples)))
}

/// The command line without paths: what is committed names no machine's directories.
fn command(options: &Options) -> String {
    let short = if options.short { " --short" } else { "" };
    let only = options.only.join(",");
    format!("simurgh-bench fairness --only {only} --runs {}{short}", options.runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::ROWS;

    fn options(only: &[&str]) -> Options {
        let only = only.iter().map(|row| (*row).to_owned()).collect();
        Options { only, runs: 1, short: false, server_bin: None, out: None }
    }

    fn sample(row: &'static str, figures: &[(&str, f64)]) -> Sample {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Sample { row, figures, ..Sample::default() }
    }

    #[test]
    fn a_limit_missed_in_one_round_is_missed() {
        let rounds = [0.0, 0.0, 3.0].map(|cut| sample("flood", &[("flood_cut", cut)]));
        let rows = rows(&options(&["flood"]), &rounds);
        let cut =
            rows.iter().find(|row| row.measure.ends_with("1 kB to 100: members cut")).unwrap();
        assert_eq!((cut.reached, cut.at_most), (Some(false), Some(0.0)));
        let text = text(&rows);
        assert!(text.contains("members cut | 0 (0–3) | ≤ 0 | **MISSED** |"), "{text}");
        assert!(text.contains("memory over idle | – | ≤ 64 MB | not measured |"), "{text}");
    }

    #[test]
    fn memory_is_what_was_published_once_for_each_serializer_and_little_beside() {
        let samples = [sample("cursors", &[("wide_memory_mb", 26.0)])];
        let rows = rows(&options(&["cursors"]), &samples);
        let memory = rows.iter().find(|row| row.measure.contains("memory")).unwrap();
        assert!((memory.at_most.unwrap() - 26.048).abs() < 1e-9, "{:?}", memory.at_most);
        assert_eq!(memory.reached, Some(true));
        assert!(rows.iter().all(|row| row.row == "cursors"), "what was not asked for has no line");
    }

    #[test]
    fn every_row_has_a_limit_and_every_measure_its_own_name() {
        let all = rows(&options(&ROWS), &[]);
        for row in ROWS {
            assert!(all.iter().any(|line| line.row == row && line.at_most.is_some()), "{row}");
        }
        let mut names: Vec<&str> = all.iter().map(|row| row.measure.as_str()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "names tell measures apart from day to day");
    }

    #[test]
    fn the_raw_file_is_read_by_the_names_it_has() {
        let rows =
            rows(&options(&["inbound"]), &[sample("inbound", &[("inbound_closed", 1000.0)])]);
        let raw = serde_json::to_value(&rows).unwrap();
        assert_eq!(raw[0]["at_most"], 0.0);
        assert_eq!(raw[0]["simurgh"][0], 1000.0);
        assert_eq!(raw[0]["reached"], false);
    }
}
