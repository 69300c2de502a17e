//! A server's own figures: `/metrics` in Prometheus' text format.
//!
//! Uses HTTP/1.0, so that the answer has no chunks and ends with its connection; time and size are
//! bounded.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use simurgh_load_scenario::Target;

use super::target::TargetPoint;

const ANSWER_TIME_MAX: Duration = Duration::from_millis(900);
/// Bytes of an answer; a hundred shards of ours send half a megabyte.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The address of a server's metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// For the `Host` header.
    pub(crate) host: String,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// Sums over all samples of a metric, by its name: our servers have one for each shard.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

pub(crate) const CPU: &str = "process_cpu_seconds_total";

/// Metrics, their columns, and what a rate per second is multiplied with, if it is one.
const COLUMNS: [(&str, &str, Option<f64>); 4] = [
    ("simurgh_connections", "connections", None),
    // Percent of a core, above 100 with several cores.
    (CPU, "cpu_percent", Some(100.0)),
    ("process_resident_memory_bytes", "memory_bytes", None),
    ("simurgh_messages_in_total", "messages_in", Some(1.0)),
];

impl Probe {
    pub(crate) fn of(target: &Target) -> Self {
        let host = format!("{}:{}", target.host, target.address.port());
        Self { host, address: target.address }
    }

    #[allow(clippy::disallowed_types, reason = "its thread has the main table")]
    pub(crate) fn ask(&self) -> io::Result<Figures> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        let mut stream = std::net::TcpStream::connect_timeout(&self.address, ANSWER_TIME_MAX)?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        let request = format!(
            "GET /metrics HTTP/1.0\r\nHost: {}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n",
            self.host
        );
        stream.write_all(request.as_bytes())?;
        let (mut answer, mut piece) = (Vec::new(), [0; 16 << 10]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || answer.len() as u64 > ANSWER_BYTES_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut piece)? {
                0 => break,
                n => answer.extend_from_slice(piece.get(..n).unwrap_or_default()),
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        figures_of(&answer).ok_or_else(|| io::Error::other("no metrics there"))
    }
}

/// Converts totals to rates since the figures `before`, with the time between.
pub(crate) fn point(now: &Figures, before: Option<(Duration, &Figures)>) -> TargetPoint {
    let columns = COLUMNS.map(|(metric, column, rate)| {
        let value = now.get(metric).copied();
        let per_second = |factor: f64| {
            let (time, old) = before.filter(|(time, _)| !time.is_zero())?;
            Some(grown(metric, now, old)? / time.as_secs_f64() * factor)
        };
        (column, rate.map_or(value, per_second))
    });
    columns.into()
}

/// By how much a total has grown; a restarted server counts from 0.
pub(crate) fn grown(metric: &str, now: &Figures, old: &Figures) -> Option<f64> {
    Some((now.get(metric)? - old.get(metric)?).max(0.0))
}

/// The sum of two servers' figures, as far as known.
pub(crate) fn and(mut sum: TargetPoint, other: TargetPoint) -> TargetPoint {
    for (column, more) in other {
        let value = sum.entry(column).or_default();
        *value = match (*value, more) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
    sum
}

/// Parses a whole HTTP answer; `None` if it has none of these metrics.
fn figures_of(answer: &str) -> Option<Figures> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_ok = head.split_whitespace().nth(1) == Some("200") && head.starts_with("HTTP/1.");
    let mut figures = Figures::new();
    for (name, value) in body.lines().filter(|line| !line.starts_with('#')).filter_map(sample) {
        if let Some((metric, ..)) = COLUMNS.iter().find(|(metric, ..)| *metric == name) {
            *figures.entry(metric).or_default() += value;
        }
    }
    (is_ok && !figures.is_empty()).then_some(figures)
}

/// Name and value of a line such as `name{label="x"} 1.5 1700000000`.
fn sample(line: &str) -> Option<(&str, f64)> {
    let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(name_end);
    // A label's text may contain a brace, but a value cannot.
    let values = rest.rsplit_once('}').map_or(rest, |(_, values)| values);
    let value: f64 = values.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\n\
        # HELP simurgh_connections Open TCP connections.\n\
        simurgh_connections{shard=\"0\"} 100\n\
        simurgh_connections{shard=\"1} 7\"} 23 1700000000\n\
        simurgh_messages_in_total{shard=\"0\"} 5000\n\
        process_cpu_seconds_total 12.5\n\
        process_resident_memory_bytes NaN\n\
        simurgh_connections_more 9\n";

    #[test]
    fn shards_are_summed() {
        let figures = [(CPU, 12.5), ("simurgh_connections", 123.0)];
        let expected = Figures::from_iter(figures.into_iter().chain([(COLUMNS[3].0, 5000.0)]));
        assert_eq!(figures_of(ANSWER), Some(expected));
    }

    #[test]
    fn known_totals_become_rates_and_sums() {
        let of = |cpu_s, messages| Figures::from([(CPU, cpu_s), (COLUMNS[3].0, messages)]);
        let columns = |point: &TargetPoint| (point["cpu_percent"], point["messages_in"]);
        let first = point(&of(10.0, 100.0), None);
        assert_eq!(columns(&first), (None, None));
        let two = Duration::from_secs(2);
        let next = point(&of(11.0, 700.0), Some((two, &of(10.0, 100.0))));
        assert_eq!(columns(&next), (Some(50.0), Some(300.0)));
        let again = point(&of(0.1, 0.0), Some((two, &of(11.0, 700.0))));
        assert_eq!(columns(&again), (Some(0.0), Some(0.0)));
        let sum = and(and(first, next.clone()), next);
        assert_eq!(columns(&sum), (Some(100.0), Some(600.0)));
    }

    #[test]
    fn invalid_metrics_response_has_no_figures() {
        let answers = [
            "",
            "HTTP/1.1 404 Not Found\r\n\r\nsimurgh_connections 1\n",
            "HTTP/1.1 200 OK\r\n\r\n<html>process_cpu_seconds_total</html>",
            "HTTP/1.1 200 OK\r\n",
            "}{\r\n\r\n{}} 1",
        ];
        for answer in answers {
            assert_eq!(figures_of(answer), None, "{answer:?}");
        }
    }
}
