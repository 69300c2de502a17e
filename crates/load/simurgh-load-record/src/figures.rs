//! The figures of a record, and whether thresholds hold.

use serde::Serialize;
use simurgh_load_scenario::Threshold;

use super::{Ending, Record, Total};

pub use simurgh_load_scenario::figures::*;

/// Whether a threshold holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The figure's name.
    pub figure: String,
    /// The condition as written.
    pub condition: String,
    /// The measured value, in `unit`; `null`: nothing was measured, which does not pass.
    pub measured: Option<f64>,
    /// The unit of `measured`.
    pub unit: Unit,
    /// The threshold holds.
    pub passed: bool,
}

/// A figure: µs, a count, a rate per second or a share (0 to 1); `None`: unknown or not measured.
pub fn lookup(record: &Record, name: &str) -> Option<f64> {
    value(record, &parse(name)?)
}

/// Checks all thresholds. A figure that was never measured does not pass.
pub fn verdicts(record: &Record, thresholds: &[Threshold]) -> Vec<Verdict> {
    let verdicts = thresholds.iter().map(|threshold| {
        let figure = parse(&threshold.figure);
        let measured = figure.as_ref().and_then(|figure| value(record, figure));
        let holds = |measured| threshold.compare.holds(measured, threshold.value);
        Verdict {
            figure: threshold.figure.clone(),
            condition: threshold.text.clone(),
            measured,
            unit: figure.map_or(Unit::Count, |figure| figure.unit()),
            passed: measured.is_some_and(holds),
        }
    });
    verdicts.collect()
}

/// Whether all thresholds hold; `None`: there are none, or the run has not ended.
pub fn passed(record: &Record, verdicts: &[Verdict]) -> Option<bool> {
    let is_decided = record.ending().is_some() && !verdicts.is_empty();
    is_decided.then(|| verdicts.iter().all(|verdict| verdict.passed))
}

/// Whether a run has only errors and requests without an answer: no upgrade, no HTTP answer, and no
/// user that reached its end. Requests on their way do not count if its operator stopped the run.
pub fn nothing_worked(record: &Record) -> bool {
    let counts = record.counts();
    let worked = [Count::Upgrades, Count::HttpAnswers, Count::UsersFinished];
    let unanswered = match record.ending() {
        Some(Ending::Stopped) => 0,
        _ => counts[Count::RequestsUnanswered],
    };
    let failed = record.errors().total().saturating_add(unanswered);
    failed > 0 && worked.iter().all(|&count| counts[count] == 0)
}

/// Times of all requests together.
pub fn requests(record: &Record) -> Total {
    let mut all = Total::new();
    for hist in REQUESTS.iter().filter_map(|&metric| record.times(metric)) {
        all.add(hist);
    }
    all
}

fn value(record: &Record, figure: &Figure) -> Option<f64> {
    let counts = record.counts();
    let sum = |of: &[Count]| of.iter().fold(0_u64, |sum, &count| sum.saturating_add(counts[count]));
    let attempts = || {
        counts[Count::ConnectsTried]
            .saturating_add(counts[Count::Requests])
            .saturating_add(counts[Count::RequestsNoAck])
    };
    let errors = record.errors().total();
    Some(match figure {
        Figure::Time(of, measure) => return time(record, of, *measure),
        Figure::Users => record.users_peak() as f64,
        Figure::Connected => record.connected_peak() as f64,
        Figure::Sum(of) => sum(of) as f64,
        Figure::Rate(of) if record.at_ms() > 0 => per_second(record, sum(of)),
        Figure::Rate(_) => return None,
        Figure::Errors(None) => errors as f64,
        Figure::Errors(Some(kind)) => record.errors().of_kind(*kind) as f64,
        Figure::Http(status) => record.statuses().get(status).copied().unwrap_or(0) as f64,
        Figure::LateArrivals if counts[Count::UsersStarted] == 0 => return None,
        Figure::LateArrivals => share(counts[Count::LateArrivals], counts[Count::UsersStarted]),
        Figure::LateSteps => {
            let steps = record.times(Metric::StepLag)?.count();
            share(counts[Count::LateSteps], steps)
        }
        Figure::ErrorShare if attempts() == 0 => return None,
        Figure::ErrorShare => share(errors, attempts()),
        Figure::ArrivalsInTime => return arrivals_in_time(record),
        Figure::Duration => record.at_ms() as f64 * 1e3,
        Figure::Cpu => record.cpu_ns() as f64 / 1e3,
    })
}

fn time(record: &Record, of: &TimeOf, measure: Measure) -> Option<f64> {
    let requests_now;
    let hist = match of {
        TimeOf::Metric(metric) => record.times(*metric),
        TimeOf::Transaction(name) => {
            let id: MetricId = record.meta().names.transaction(name)?;
            record.times(id)
        }
        TimeOf::Requests => {
            requests_now = requests(record);
            Some(&requests_now)
        }
    };
    if measure == Measure::Count {
        return Some(hist.map_or(0, Total::count) as f64);
    }
    let hist = hist.filter(|hist| hist.count() > 0)?;
    Some(match measure {
        Measure::Percentile(percent) => hist.percentile(percent) as f64,
        Measure::Max => hist.max() as f64,
        Measure::Min => hist.min() as f64,
        Measure::Mean => hist.mean(),
        Measure::Count => hist.count() as f64,
    })
}

fn per_second(record: &Record, n: u64) -> f64 {
    let run_s = record.at_ms() as f64 / 1000.0;
    if run_s > 0.0 { n as f64 / run_s } else { 0.0 }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

fn arrivals_in_time(record: &Record) -> Option<f64> {
    let counts = record.counts();
    let due = counts[Count::UsersDue].max(counts[Count::UsersStarted]);
    let in_time = counts[Count::UsersStarted].saturating_sub(counts[Count::LateArrivals]);
    (due > 0).then(|| share(in_time, due))
}
