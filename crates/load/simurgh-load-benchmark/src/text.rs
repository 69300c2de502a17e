//! The terminal output of a benchmark: in wrk's form, with further figures below it.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use simurgh_load_record::Total;
use simurgh_text::visible;

use super::job::Plan;
use super::outcome::{Outcome, Spread};
use super::sweep::{Prediction, Row, Sweep};

/// The shortest stall of the generator that marks its run, µs.
const STALL_US: u64 = 20_000;

/// The line above a run.
pub fn head(plan: &Plan) -> String {
    let rate = plan.rate.map_or(String::new(), |rate| format!(" at {rate} requests a second"));
    format!("Running {} test @ {}{rate}\n", seconds(plan.duration.as_secs_f64()), plan.url)
}

/// A run, in the form of wrk.
pub fn outcome(run: &Outcome) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "  {} threads and {} connections", run.threads, run.connections);
    let _ =
        writeln!(text, "  Thread Stats{:>6}{:>11}{:>8}{:>12}", "Avg", "Stdev", "Max", "+/- Stdev");
    spread(&mut text, "Latency", &run.latency_spread_us, microseconds);
    spread(&mut text, "Req/Sec", &run.thread_rate, metric);
    distribution(&mut text, run);
    let took = seconds(run.elapsed_s);
    let read = binary(run.bytes_read as f64);
    let _ = writeln!(text, "  {} requests in {took}, {read}B read", run.requests);
    problems(&mut text, run);
    trust(&mut text, run);
    let _ = writeln!(text, "Requests/sec: {:>9.2}", run.requests_per_second);
    let _ = writeln!(text, "Transfer/sec: {:>10}B", binary(run.bytes_per_second));
    text
}

/// The measured distribution, and that of a closed loop as wrk computes it.
fn distribution(text: &mut String, run: &Outcome) {
    let head = if run.as_wrk.is_some() { "as wrk corrects it" } else { "" };
    *text += format!("  {:<24}{head}", "Latency Distribution").trim_end();
    *text += "\n";
    for percent in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
        let cell = |all: &Total| column(&microseconds(all.percentile(percent) as f64), 10);
        let other = run.as_wrk.as_ref().map_or(String::new(), |all| format!("      {}", cell(all)));
        let name = if percent < 100.0 { format!("{percent}%") } else { "max".to_owned() };
        let line = format!("{name:>8}{}{other}", cell(&run.latency_histogram));
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn problems(text: &mut String, run: &Outcome) {
    let errors = &run.socket_errors;
    if errors.sum() > 0 {
        let _ = writeln!(
            text,
            "  Socket errors: connect {}, read {}, write {}, timeout {}",
            errors.connect, errors.read, errors.write, errors.timeout
        );
        let _ = writeln!(text, "    {}", counted(&run.errors));
        if let Some(first) = &run.first_error {
            let _ = writeln!(text, "    the first: {}", visible(first));
        }
    }
    if run.non_2xx_or_3xx > 0 {
        let _ = writeln!(text, "  Non-2xx or 3xx responses: {}", run.non_2xx_or_3xx);
    }
    if run.statuses.keys().any(|status| *status != 200) {
        let _ = writeln!(text, "  Statuses: {}", counted(&run.statuses));
    }
    if run.reconnects > 0 {
        let _ = writeln!(text, "  Reconnects: {} (closed by the server)", run.reconnects);
    }
    if run.interrupted {
        let _ = writeln!(text, "  Interrupted before {}", seconds(run.duration_s));
    }
}

fn counted<K: Display>(counts: &BTreeMap<K, u64>) -> String {
    counts.iter().map(|(key, count)| format!("{key} {count}")).collect::<Vec<_>>().join(", ")
}

fn trust(text: &mut String, run: &Outcome) {
    match &run.open_loop {
        None => {
            let Outcome { in_flight, connections, .. } = run;
            let product = format!("{in_flight:.2} of {connections} connections");
            let _ = writeln!(text, "  Little's law: rate x latency is {product}");
        }
        Some(open) => {
            let lag = [open.lag_us.p50, open.lag_us.p99, open.lag_us.max];
            let [p50, p99, max] = lag.map(|us| microseconds(us as f64));
            let late = format!("50% {p50}, 99% {p99}, max {max}");
            let _ = writeln!(text, "  Sent late by the load generator: {late}");
            if !open.rate_reached {
                let _ = writeln!(
                    text,
                    "  The rate was not reached: {} requests were due, {} answered, {} never sent \
                     because no\n  connection was free. Latency then grows with the length of the \
                     run, and does not show\n  how fast the server is.",
                    open.due, run.requests, open.unsent
                );
            }
        }
    }
    if run.generator_late_us.max > STALL_US {
        let [p99, max] = [run.generator_late_us.p99, run.generator_late_us.max]
            .map(|us| microseconds(us as f64));
        let _ = writeln!(
            text,
            "  The load generator stood still for {max} (99% of its checks: less than {p99}); \
             latencies contain this time"
        );
    }
    let busy = run.busy() * 100.0;
    let _ = write!(text, "  Load generator: {busy:.0}% of {} cores", run.threads);
    // From here on the generator itself is measured.
    *text += if busy >= 90.0 { "; it may be the limit: use more threads (-t)\n" } else { "\n" };
}

/// The prediction for the next row of a sweep.
pub fn prediction(connections: usize, expected: &Prediction) -> String {
    format!(
        "  Predicted average latency: {} ({connections} connections / {:.2} requests a second)\n",
        microseconds(expected.latency_us),
        expected.rate
    )
}

/// The table of a sweep, with its conclusions.
pub fn sweep(sweep: &Sweep) -> String {
    let heads = [
        "connections",
        "average latency",
        "request / second",
        "p50",
        "p99",
        "server saturation",
        "rate x latency",
        "predicted latency",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(sweep.rows().iter().map(|row| cells(sweep, row)));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text += "|";
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, " {cell:<width$} |");
        }
        text += "\n";
        if index == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "| {} |", rules.join(" | "));
        }
    }
    text + &verdict(sweep)
}

pub(super) fn cells(sweep: &Sweep, row: &Row) -> Vec<String> {
    let run = &row.outcome;
    let mark = if sweep.saturates_at() == Some(run.connections) { " <" } else { "" };
    let predicted = row.prediction.zip(row.deviation()).map_or("–".to_owned(), |(it, by)| {
        format!("{} ({:+.1} %)", milliseconds(it.latency_us), by * 100.0)
    });
    vec![
        run.connections.to_string(),
        milliseconds(run.latency_us.mean),
        format!("{:.2}", run.requests_per_second),
        milliseconds(run.latency_us.p50 as f64),
        milliseconds(run.latency_us.p99 as f64),
        format!("{:.0} %{mark}", sweep.saturation(row) * 100.0),
        format!("{:.2} ({:+.1} %)", run.in_flight, row.little() * 100.0),
        predicted,
    ]
}

pub(super) fn verdict(sweep: &Sweep) -> String {
    let rate = sweep.greatest_rate();
    match sweep.saturates_at() {
        Some(connections) => format!(
            "Saturates at {connections} connections, the lowest number that reaches 95 % of the \
             highest rate, {rate:.2} requests/s.\n"
        ),
        None => format!(
            "Not saturated: the rate still grows ({rate:.2} requests/s). Try more connections.\n"
        ),
    }
}

/// Rate and latency against connections, as bars.
pub fn chart(sweep: &Sweep) -> String {
    const WIDTH: f64 = 24.0;
    let means = || sweep.rows().iter().map(|row| row.outcome.latency_us.mean.max(1.0));
    let (least, most) = (means().fold(f64::INFINITY, f64::min), means().fold(1.0, f64::max));
    let mut text = format!(
        "{:>11}  {:<37}{}\n",
        "connections", "request / second", "average latency (logarithmic)"
    );
    for row in sweep.rows() {
        let run = &row.outcome;
        let mean = run.latency_us.mean.max(1.0);
        // The minimum gets a bar of a tenth of the width.
        let share = (mean / least).ln() / (most / least).ln().max(f64::MIN_POSITIVE);
        let _ = writeln!(
            text,
            "{:>11}  {:<24} {:>10.2}  {:<24} {:>11}",
            run.connections,
            bar(sweep.saturation(row) * WIDTH),
            run.requests_per_second,
            bar((0.1 + 0.9 * share) * WIDTH),
            milliseconds(mean)
        );
    }
    text
}

/// A bar of this width in columns, to an eighth.
fn bar(columns: f64) -> String {
    let eighths = (columns.max(0.0) * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8) {
        bar += part;
    }
    bar
}

fn spread(text: &mut String, name: &str, spread: &Spread, unit: fn(f64) -> String) {
    let _ = writeln!(
        text,
        "    {name:<10}{}{}{}{:>8.2}%",
        column(&unit(spread.mean), 8),
        column(&unit(spread.deviation), 10),
        column(&unit(spread.max), 9),
        spread.within_percent
    );
}

/// A number with its unit in two columns, so that numbers with other units align.
fn column(text: &str, width: usize) -> String {
    let letters = text.chars().rev().take_while(char::is_ascii_alphabetic).count();
    let pad = 2_usize.saturating_sub(letters);
    format!("{text:>width$}{}", " ".repeat(pad), width = width - pad)
}

/// As in wrk: the next unit from 85 % of it on, two digits.
fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let (first, rest) = units.split_first().unwrap_or((&"", &[]));
    let mut unit = *first;
    for next in rest {
        if value < step * 0.85 {
            break;
        }
        value /= step;
        unit = next;
    }
    format!("{value:.2}{unit}")
}

fn microseconds(us: f64) -> String {
    scaled(us, 1000.0, &["us", "ms", "s"])
}

fn seconds(seconds: f64) -> String {
    let text = scaled(seconds, 60.0, &["s", "m", "h"]);
    // Whole units are shown without a fraction.
    text.replace(".00", "")
}

fn metric(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G"])
}

fn binary(value: f64) -> String {
    scaled(value, 1024.0, &["", "K", "M", "G", "T", "P"])
}

pub(super) fn milliseconds(us: f64) -> String {
    format!("{:.3} ms", us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::tests::{outcome as run, page_benchmark};
    use super::*;

    #[test]
    fn run_report_has_the_format_of_wrk() {
        let text = outcome(&run(1, 2_075, 491));
        let wanted = "  1 threads and 1 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   491.00us    0.00us 491.00us  100.00%
    Req/Sec     0.00      0.00     0.00      0.00%
  Latency Distribution    as wrk corrects it
     50%  491.00us        491.00us
     75%  491.00us        491.00us
     90%  491.00us        491.00us
     99%  491.00us        491.00us
   99.9%  491.00us        491.00us
  99.99%  491.00us        491.00us
     max  491.00us        491.00us
  2075 requests in 1s, 0.00B read
  Little's law: rate x latency is 1.02 of 1 connections
  Load generator: 0% of 1 cores
Requests/sec:   2075.00
Transfer/sec:       0.00B
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn units_change_at_the_same_values_as_in_wrk() {
        let times = [491.16, 849.0, 850.0, 12_860.0, 850_000.0, 61_000_000.0].map(microseconds);
        assert_eq!(times, ["491.16us", "849.00us", "0.85ms", "12.86ms", "0.85s", "61.00s"]);
        assert_eq!([10.0, 60.0, 90.0, 4000.0].map(seconds), ["10s", "1m", "1.50m", "1.11h"]);
        assert_eq!([2090.0, 109.18].map(metric), ["2.09k", "109.18"]);
        assert_eq!([5_305_795.0, 0.0].map(binary), ["5.06M", "0.00"]);
    }

    #[test]
    fn table_and_chart_have_one_line_for_each_row() {
        let table = sweep(&page_benchmark());
        let widths: Vec<usize> =
            table.lines().filter(|it| it.starts_with('|')).map(|it| it.chars().count()).collect();
        assert_eq!(widths.len(), 11);
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
        assert!(table.contains("| 8           | 1.640 ms        | 4907.00 "), "{table}");
        assert!(table.contains("99 % <") && table.contains("Saturates at 8"), "{table}");
        assert!(table.contains("25.780 ms (+2.2 %)"), "{table}");
        let chart = chart(&page_benchmark());
        assert_eq!(chart.lines().count(), 10);
        assert!(chart.lines().all(|line| line.chars().count() <= 100), "{chart}");
    }
}
