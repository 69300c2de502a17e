//! Figures: what of a record can be named in `[pass]`, and whether it holds.
//!
//! | figure | what | written as |
//! |---|---|---|
//! | `METRIC_p99`, `_p99.9` (any percentile), `_max`, `_min`, `_mean` | a time | `< 50ms` |
//! | `METRIC_count` | how many were timed | `>= 1000` |
//! | `users`, `connected` | the most at a time | `>= 100k` |
//! | a counter (`joins`, `frames_in`, `bytes_out`, ...) | its total | `== 0` |
//! | a counter with `_per_second` | its mean over the run | `> 5000` |
//! | `errors`, `errors_KIND` | errors, all or of a kind | `== 0` |
//! | `late_arrivals`, `late_steps`, `error_share`, `arrivals_in_time` | a share | `< 0.5%` |
//! | `http_200` | HTTP answers with this status | `>= 1` |
//! | `duration` | how long the run took | `< 10min` |
//! | `cpu` | CPU time of all workers | `< 5s` |

use serde::Serialize;

use super::view::{arrivals_in_time, per_second, share};
use super::{Count, ErrorKind, Metric, MetricId, Record, Total};
use crate::scenario::{Compare, Threshold};

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// So many.
    Count,
    /// So many per second.
    PerSecond,
    /// A part of a whole, 0 to 1.
    Share,
}

/// Whether a threshold holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The figure's name.
    pub figure: String,
    /// The condition as written.
    pub condition: String,
    /// What was measured, in `unit`; `null`: nothing was, which is no pass.
    pub measured: Option<f64>,
    /// Of `measured`.
    pub unit: Unit,
    /// It holds.
    pub passed: bool,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq)]
enum Figure {
    Time(TimeOf, Measure),
    Users,
    Connected,
    Count(Count),
    Rate(Vec<Count>),
    Sum(Vec<Count>),
    Errors(Option<ErrorKind>),
    Http(u16),
    LateArrivals,
    LateSteps,
    ErrorShare,
    ArrivalsInTime,
    Duration,
    Cpu,
}

#[derive(Clone, Debug, PartialEq)]
enum TimeOf {
    Metric(Metric),
    /// All requests: upgrades, joins, pushes, leaves, messages, HTTP.
    Requests,
    Transaction(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Measure {
    Percentile(f64),
    Max,
    Min,
    Mean,
    Count,
}

/// Metrics whose times are those of requests.
pub const REQUESTS: [Metric; 6] =
    [Metric::Upgrade, Metric::Join, Metric::Push, Metric::Leave, Metric::Message, Metric::Http];

/// Sums of counters that have a name of their own.
const SUMS: &[(&str, &[Count])] = &[
    ("frames_in", &[Count::FramesInText, Count::FramesInBinary]),
    ("frames_out", &[Count::FramesOutText, Count::FramesOutBinary]),
    (
        "messages",
        &[Count::FramesInText, Count::FramesInBinary, Count::FramesOutText, Count::FramesOutBinary],
    ),
    ("bytes", &[Count::BytesIn, Count::BytesOut]),
];

/// All names, for help texts: what is in capitals is to be replaced.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = ["users", "connected", "errors", "errors_KIND"]
        .iter()
        .chain(&["error_share", "late_arrivals", "late_steps", "arrivals_in_time"])
        .chain(&["duration", "cpu", "http_STATUS"])
        .map(|&name| name.to_owned())
        .collect();
    let metrics = Metric::ALL.iter().map(|metric| metric.name());
    for metric in metrics.chain(["request", "tr_NAME"]) {
        names.extend(
            ["p50", "p99", "p99.9", "max", "min", "mean", "count"]
                .map(|of| format!("{metric}_{of}")),
        );
    }
    let counts = Count::ALL.iter().map(|count| count.name());
    for count in counts.chain(SUMS.iter().map(|(name, _)| *name)) {
        if !names.iter().any(|name| name == count) {
            names.push(count.to_owned());
        }
        names.push(format!("{count}_per_second"));
    }
    names
}

/// The value of a figure: µs, a count, a rate per second or a share from 0 to 1. `None`: there is
/// no such figure, or nothing was measured.
pub fn lookup(record: &Record, name: &str) -> Option<f64> {
    value(record, &parse(name)?)
}

/// What a figure is measured in; `None`: there is no such figure.
pub fn unit(name: &str) -> Option<Unit> {
    parse(name).map(|figure| figure.unit())
}

/// Reads a condition such as `< 50ms` on a figure.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn parse_threshold(name: &str, text: &str) -> Result<Threshold, String> {
    let figure = parse(name).ok_or_else(|| unknown(name))?;
    let text = text.trim();
    let operators = [
        ("<=", Compare::Lte),
        (">=", Compare::Gte),
        ("==", Compare::Eq),
        ("!=", Compare::Neq),
        ("<", Compare::Lt),
        (">", Compare::Gt),
        ("=", Compare::Eq),
    ];
    let (rest, compare) = operators
        .iter()
        .find_map(|(operator, compare)| Some((text.strip_prefix(operator)?, *compare)))
        .ok_or_else(|| {
            format!("{text:?} compares nothing; write one of < <= > >= == != before the value")
        })?;
    let value = parse_value(rest.trim(), figure.unit()).map_err(|wrong| {
        let example = match figure.unit() {
            Unit::Microseconds => "< 50ms",
            Unit::Count => ">= 100000",
            Unit::PerSecond => ">= 5000",
            Unit::Share => "< 0.5%",
        };
        format!("{text:?}: {wrong}; {name} is written like \"{example}\"")
    })?;
    Ok(Threshold { figure: name.to_owned(), compare, value, text: text.to_owned() })
}

/// Holds all thresholds against a record. Of what was never measured no condition holds.
pub fn judge(record: &Record, thresholds: &[Threshold]) -> Vec<Verdict> {
    let verdicts = thresholds.iter().map(|threshold| {
        let figure = parse(&threshold.figure);
        let measured = figure.as_ref().and_then(|figure| value(record, figure));
        let passed = measured.is_some_and(|measured| {
            let limit = threshold.value;
            match threshold.compare {
                Compare::Eq => measured == limit,
                Compare::Neq => measured != limit,
                Compare::Gt => measured > limit,
                Compare::Gte => measured >= limit,
                Compare::Lt => measured < limit,
                Compare::Lte => measured <= limit,
            }
        });
        Verdict {
            figure: threshold.figure.clone(),
            condition: threshold.text.clone(),
            measured,
            unit: figure.map_or(Unit::Count, |figure| figure.unit()),
            passed,
        }
    });
    verdicts.collect()
}

impl Figure {
    fn unit(&self) -> Unit {
        match self {
            Self::Time(_, Measure::Count) => Unit::Count,
            Self::Time(..) | Self::Duration | Self::Cpu => Unit::Microseconds,
            Self::Rate(_) => Unit::PerSecond,
            Self::LateArrivals | Self::LateSteps | Self::ErrorShare | Self::ArrivalsInTime => {
                Unit::Share
            }
            _ => Unit::Count,
        }
    }
}

fn parse(name: &str) -> Option<Figure> {
    let known = match name {
        "users" => Some(Figure::Users),
        "connected" => Some(Figure::Connected),
        "errors" => Some(Figure::Errors(None)),
        "late_arrivals" => Some(Figure::LateArrivals),
        "late_steps" => Some(Figure::LateSteps),
        "error_share" => Some(Figure::ErrorShare),
        "arrivals_in_time" => Some(Figure::ArrivalsInTime),
        "duration" => Some(Figure::Duration),
        "cpu" => Some(Figure::Cpu),
        _ => None,
    };
    known.or_else(|| parse_count(name)).or_else(|| parse_time(name))
}

fn parse_count(name: &str) -> Option<Figure> {
    if let Some(kind) = name.strip_prefix("errors_") {
        return kind.parse().ok().map(|kind| Figure::Errors(Some(kind)));
    }
    if let Some(status) = name.strip_prefix("http_")
        && status.len() == 3
        && let Ok(status) = status.parse()
    {
        return Some(Figure::Http(status));
    }
    let sum = |name: &str| SUMS.iter().find(|(known, _)| *known == name).map(|(_, sum)| *sum);
    if let Some(of) = name.strip_suffix("_per_second") {
        let counts = sum(of).map(<[Count]>::to_vec);
        return counts.or_else(|| Count::named(of).map(|count| vec![count])).map(Figure::Rate);
    }
    match sum(name) {
        Some(counts) => Some(Figure::Sum(counts.to_vec())),
        None => Count::named(name).map(Figure::Count),
    }
}

fn parse_time(name: &str) -> Option<Figure> {
    // `p99_9` is `p99.9` where a dot would have to be quoted.
    let (of, measure) = split_percentile(name).or_else(|| {
        let (of, measure) = name.rsplit_once('_')?;
        let measure = match measure {
            "max" => Measure::Max,
            "min" => Measure::Min,
            "mean" => Measure::Mean,
            "count" => Measure::Count,
            _ => return None,
        };
        Some((of, measure))
    })?;
    let of = match (of, of.strip_prefix("tr_")) {
        (_, Some(name)) if !name.is_empty() => TimeOf::Transaction(name.to_owned()),
        ("request", _) => TimeOf::Requests,
        _ => TimeOf::Metric(Metric::named(of)?),
    };
    Some(Figure::Time(of, measure))
}

fn split_percentile(name: &str) -> Option<(&str, Measure)> {
    let at = name.rfind("_p")?;
    let digits = name.get(at + 2..)?.replace('_', ".");
    let digital = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = digits.parse().ok()?;
    let measure = Measure::Percentile(percent);
    (digital && (0.0..=100.0).contains(&percent)).then(|| (&name[..at], measure))
}

fn parse_value(text: &str, unit: Unit) -> Result<f64, String> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_')));
    let (digits, suffix) = text.split_at(split.unwrap_or(text.len()));
    let number: f64 =
        digits.replace('_', "").parse().map_err(|_| format!("{digits:?} is no number"))?;
    let factor = match (unit, suffix.trim()) {
        (Unit::Microseconds, "us" | "µs" | "μs") => 1.0,
        (Unit::Microseconds, "ms") => 1e3,
        (Unit::Microseconds, "s") => 1e6,
        (Unit::Microseconds, "min") => 60e6,
        (Unit::Microseconds, "h") => 3600e6,
        (Unit::Microseconds, "") => return Err("a time needs a unit: us, ms, s, min or h".into()),
        (Unit::Share, "%") => 0.01,
        (Unit::Share, "") if number <= 1.0 => 1.0,
        (Unit::Share, "") => return Err("a share is 0 to 1, or has a %".into()),
        (Unit::Count | Unit::PerSecond, "") | (Unit::PerSecond, "/s") => 1.0,
        (Unit::Count | Unit::PerSecond, "k") => 1e3,
        (Unit::Count | Unit::PerSecond, "M") => 1e6,
        (_, other) => return Err(format!("{other:?} is no unit of this figure")),
    };
    Ok(number * factor)
}

fn unknown(name: &str) -> String {
    let alike = |known: &String| (strsim::jaro_winkler(known, name) * 1e6) as u64;
    let near = names().into_iter().max_by_key(alike).unwrap_or_default();
    format!(
        "there is no figure {name:?}; did you mean {near:?}? (figures are METRIC_p99, METRIC_max, \
         errors, connected, counters and counters with _per_second)"
    )
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
        Figure::Count(count) => counts[*count] as f64,
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
