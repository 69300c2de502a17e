//! Polls a server's own figures: `/metrics` in Prometheus' text format, once a second.
//!
//! Uses HTTP/1.0, so that the answer has no chunks and ends with its connection; time and size are
//! bounded. A server without such a page is polled again now and then: it may have been started
//! later.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use simurgh_load_scenario::{Scenario, Target};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{Shared, TargetPoint};

const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often a server is polled that did not answer before.
const RETRY_EVERY: Duration = Duration::from_secs(15);
const ANSWER_TIME_MAX: Duration = Duration::from_millis(900);
/// Bytes of an answer; a hundred shards of ours send half a megabyte.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The address of a server's metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// For the `Host` header.
    pub host: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// For example `/metrics`.
    pub path: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    connections: Option<f64>,
    pub(crate) cpu_s: Option<f64>,
    memory_bytes: Option<f64>,
    messages_in: Option<f64>,
}

impl Probe {
    /// `/metrics` of all targets of a scenario that have users and no TLS.
    pub fn all(scenario: &Scenario) -> Vec<Self> {
        let is_asked = |target: &&Target| !target.tls && target.weight > 0.0;
        scenario.targets.iter().filter(is_asked).map(Self::of).collect()
    }

    pub(crate) fn of(target: &Target) -> Self {
        let host = format!("{}:{}", target.host, target.address.port());
        Self { host, address: target.address, path: "/metrics".to_owned() }
    }

    #[allow(clippy::disallowed_types, reason = "its threads have the main table")]
    pub(crate) fn ask(&self) -> io::Result<Figures> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        let mut stream = std::net::TcpStream::connect_timeout(&self.address, ANSWER_TIME_MAX)?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        let request = format!(
            "GET {} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n",
            self.path, self.host
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
        Figures::of_answer(&answer).ok_or_else(|| io::Error::other("no metrics there"))
    }
}

struct PolledServer {
    probe: Probe,
    /// Its last answer, and when it came.
    before: Option<(Instant, Figures)>,
    next: Instant,
}

/// Polls all servers at once until the dashboard ends, and stores the sum of their figures.
pub(super) async fn poll(probes: Vec<Probe>, shared: Arc<Shared>) {
    let started_ms = shared.record(|record| record.meta().started_unix_ms);
    let mut clock = tokio::time::interval(ASK_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let now = Instant::now();
    let asked = |probe| PolledServer { probe, before: None, next: now };
    let mut all: Vec<PolledServer> = probes.into_iter().map(asked).collect();
    loop {
        clock.tick().await;
        if shared.record(|record| record.ending().is_some()) {
            return;
        }
        let mut answers = JoinSet::new();
        for (index, one) in all.iter().enumerate().filter(|(_, one)| one.next <= Instant::now()) {
            let probe = one.probe.clone();
            answers.spawn_blocking(move || (index, probe.ask().ok()));
        }
        let mut sum: Option<TargetPoint> = None;
        while let Some(answer) = answers.join_next().await {
            let Ok((index, figures)) = answer else { continue };
            let Some(one) = all.get_mut(index) else { continue };
            if let Some(point) = one.answered(figures, since_start(started_ms)) {
                sum = Some(sum.map_or(point, |sum| sum.and(point)));
            }
        }
        if let Some(point) = sum {
            shared.target.push(point);
        }
    }
}

impl PolledServer {
    fn answered(&mut self, figures: Option<Figures>, t_s: f64) -> Option<TargetPoint> {
        let now = Instant::now();
        let Some(figures) = figures else {
            // A server under load may be late; one that never answered may have no such page.
            if self.before.is_none() {
                self.next = now + RETRY_EVERY;
            }
            return None;
        };
        let before = self.before.replace((now, figures));
        Some(point(t_s, figures, before.map(|(at, old)| (now - at, old))))
    }
}

fn since_start(started_unix_ms: u64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(started_unix_ms)).as_secs_f64()
}

/// Converts totals to rates since the figures `before`, with the time between.
fn point(t_s: f64, now: Figures, before: Option<(Duration, Figures)>) -> TargetPoint {
    let per_second = |read: fn(&Figures) -> Option<f64>| {
        let (time, old) = before?;
        // A restarted server counts from 0.
        let grown = (read(&now)? - read(&old)?).max(0.0);
        (time > Duration::ZERO).then(|| grown / time.as_secs_f64())
    };
    TargetPoint {
        t_s,
        connections: now.connections,
        cpu_percent: per_second(|figures| figures.cpu_s).map(|share| share * 100.0),
        memory_bytes: now.memory_bytes,
        messages_in: per_second(|figures| figures.messages_in),
    }
}

impl Figures {
    /// Parses a whole HTTP answer; `None` if it has none of these metrics.
    fn of_answer(answer: &str) -> Option<Self> {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let ok = head.split_whitespace().nth(1) == Some("200") && head.starts_with("HTTP/1.");
        let figures = Self::of_text(body);
        (ok && figures != Self::default()).then_some(figures)
    }

    /// Sums over all labels: our servers have one sample for each shard.
    fn of_text(text: &str) -> Self {
        let mut figures = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = sample(line) else { continue };
            let place = match name {
                "simurgh_connections" => &mut figures.connections,
                "simurgh_messages_in_total" => &mut figures.messages_in,
                "process_cpu_seconds_total" => &mut figures.cpu_s,
                "process_resident_memory_bytes" => &mut figures.memory_bytes,
                _ => continue,
            };
            *place = Some(place.unwrap_or(0.0) + value);
        }
        figures
    }
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
        # HELP simurgh_connections TCP connections open now.\n\
        simurgh_connections{shard=\"0\"} 100\n\
        simurgh_connections{shard=\"1} 7\"} 23 1700000000\n\
        simurgh_messages_in_total{shard=\"0\"} 5000\n\
        process_cpu_seconds_total 12.5\n\
        process_resident_memory_bytes NaN\n\
        simurgh_connections_more 9\n";

    #[test]
    fn shards_are_summed() {
        let figures = Figures::of_answer(ANSWER).unwrap();
        let expected = Figures {
            connections: Some(123.0),
            cpu_s: Some(12.5),
            memory_bytes: None,
            messages_in: Some(5000.0),
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn totals_become_rates() {
        let of = |cpu_s, messages_in| Figures {
            cpu_s: Some(cpu_s),
            messages_in: Some(messages_in),
            ..Figures::default()
        };
        let first = point(1.0, of(10.0, 100.0), None);
        assert_eq!((first.cpu_percent, first.messages_in), (None, None));
        let two = Duration::from_secs(2);
        let next = point(3.0, of(11.0, 700.0), Some((two, of(10.0, 100.0))));
        assert_eq!((next.cpu_percent, next.messages_in), (Some(50.0), Some(300.0)));
        let again = point(5.0, of(0.1, 0.0), Some((two, of(11.0, 700.0))));
        assert_eq!((again.cpu_percent, again.messages_in), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn what_is_no_metrics_is_none() {
        let answers = [
            "",
            "HTTP/1.1 404 Not Found\r\n\r\nsimurgh_connections 1\n",
            "HTTP/1.1 200 OK\r\n\r\n<html>process_cpu_seconds_total</html>",
            "HTTP/1.1 200 OK\r\n",
            "}{\r\n\r\n{}} 1",
        ];
        for answer in answers {
            assert_eq!(Figures::of_answer(answer), None, "{answer:?}");
        }
    }
}
