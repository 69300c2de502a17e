//! Figures: what a run measures, by the names that `[pass]` and all outputs use.
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

mod count;
mod error;
mod metric;
mod named;

pub use count::{Count, Counts};
pub use error::ErrorKind;
pub use metric::{Metric, MetricId, Names};

use serde::Serialize;

use crate::{Compare, Threshold};

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// A number.
    Count,
    /// A number per second.
    PerSecond,
    /// A part of a whole, 0 to 1.
    Share,
}

/// A parsed figure name.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// A measure of times.
    Time(TimeOf, Measure),
    /// The maximum of users at a time.
    Users,
    /// The maximum of connections at a time.
    Connected,
    /// The mean of counters over the run, per second.
    Rate(Vec<Count>),
    /// The total of counters.
    Sum(Vec<Count>),
    /// Errors of a kind, or all.
    Errors(Option<ErrorKind>),
    /// HTTP answers with this status.
    Http(u16),
    /// Share of the users that started late.
    LateArrivals,
    /// Share of the steps that began late.
    LateSteps,
    /// Errors for each connection and request.
    ErrorShare,
    /// Share of the users that started in time.
    ArrivalsInTime,
    /// How long the run took.
    Duration,
    /// CPU time of all workers.
    Cpu,
}

/// The times that are measured.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeOf {
    /// One metric.
    Metric(Metric),
    /// All requests: upgrades, joins, pushes, leaves, messages, HTTP.
    Requests,
    /// A transaction of the scenario, by its name.
    Transaction(String),
}

/// A measure of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// A percentile, 0 to 100.
    Percentile(f64),
    /// The longest.
    Max,
    /// The shortest.
    Min,
    /// The mean.
    Mean,
    /// How many were timed.
    Count,
}

/// Metrics of requests.
pub const REQUESTS: [Metric; 6] =
    [Metric::Upgrade, Metric::Join, Metric::Push, Metric::Leave, Metric::Message, Metric::Http];

const SUMS: &[(&str, &[Count])] = &[
    ("frames_in", &[Count::FramesInText, Count::FramesInBinary]),
    ("frames_out", &[Count::FramesOutText, Count::FramesOutBinary]),
    (
        "messages",
        &[Count::FramesInText, Count::FramesInBinary, Count::FramesOutText, Count::FramesOutBinary],
    ),
    ("bytes", &[Count::BytesIn, Count::BytesOut]),
];

/// All names, for help texts; words in capitals are placeholders.
pub fn names() -> Vec<String> {
    const OWN: &str = "users connected errors errors_KIND error_share late_arrivals late_steps \
                       arrivals_in_time duration cpu http_STATUS";
    let mut names: Vec<String> = OWN.split(' ').map(str::to_owned).collect();
    let metrics = Metric::ALL.iter().map(|metric| metric.name());
    for metric in metrics.chain(["request", "tr_NAME"]) {
        let measures = ["p50", "p99", "p99.9", "max", "min", "mean", "count"];
        names.extend(measures.map(|of| format!("{metric}_{of}")));
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

/// The unit of a figure; `None`: no such figure.
pub fn unit(name: &str) -> Option<Unit> {
    parse(name).map(|figure| figure.unit())
}

/// Parses a condition such as `< 50ms`. An error says what is wrong and what is right.
pub fn parse_threshold(name: &str, text: &str) -> Result<Threshold, String> {
    let figure = parse(name).ok_or_else(|| unknown(name))?;
    let text = text.trim();
    let equals = || Some((Compare::Eq, text.strip_prefix('=')?.trim()));
    let (compare, rest) = Compare::split(text).or_else(equals).ok_or_else(|| {
        let quoted = if text.is_empty() { name } else { text };
        format!("{quoted:?} compares nothing; write one of < <= > >= == != before the value")
    })?;
    let value = parse_value(rest, figure.unit()).map_err(|wrong| {
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

impl Figure {
    /// The figure's unit.
    pub fn unit(&self) -> Unit {
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

/// The figure with this name, as thresholds write it.
pub fn parse(name: &str) -> Option<Figure> {
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
    let counts = |name: &str| {
        let sum = SUMS.iter().find(|(known, _)| *known == name).map(|(_, sum)| sum.to_vec());
        sum.or_else(|| Count::named(name).map(|count| vec![count]))
    };
    match name.strip_suffix("_per_second") {
        Some(of) => counts(of).map(Figure::Rate),
        None => counts(name).map(Figure::Sum),
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
    let number: f64 = digits.replace('_', "").parse().map_err(|_| match text {
        "" => "the value is missing".to_owned(),
        _ => format!("{text:?} is not a number"),
    })?;
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
        (_, other) => return Err(format!("{other:?} is not a unit of this figure")),
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
