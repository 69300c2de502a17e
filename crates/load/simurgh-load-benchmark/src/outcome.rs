//! The figures of a benchmark, also as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use simurgh_load_record::{ErrorKind, Stats, Total};

use super::job::Job;
use super::tally::Tally;

/// The result of one run. Its JSON is for scripts: names are stable, and end with the unit.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The URL of the plan.
    pub url: String,
    /// Connections of the plan.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// The rate of the plan; absent: a closed loop.
    pub rate: Option<f64>,
    /// The planned duration.
    pub duration_s: f64,
    /// The measured duration.
    pub elapsed_s: f64,
    /// It was ended early.
    pub interrupted: bool,
    /// Complete answers.
    pub requests: u64,
    /// Bytes of answers, as far as they came: heads, bodies and their framing; without TLS'.
    pub bytes_read: u64,
    /// Answers a second.
    pub requests_per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// From when a request was due (sent, in a closed loop) to the end of its answer.
    pub latency_us: Stats,
    /// The same with the requests that a closed loop holds back while it waits, added as wrk does:
    /// see [`Total::corrected`]. Only this can be compared with the figures of wrk.
    pub latency_as_wrk_us: Option<Stats>,
    /// The histogram of those.
    #[serde(skip)]
    pub(super) as_wrk: Option<Total>,
    /// The spread of the latency.
    pub latency_spread_us: Spread,
    /// The latency's histogram, as base64 of HdrHistogram's V2 encoding, µs.
    pub latency_histogram: Total,
    /// Answers a second of one thread, each tenth of a second.
    pub thread_rate: Spread,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers with other statuses than 2xx and 3xx.
    pub non_2xx_or_3xx: u64,
    /// Errors in the groups of wrk.
    pub socket_errors: SocketErrors,
    /// Errors with their names in all reports.
    pub errors: BTreeMap<String, u64>,
    /// The text of the first error.
    pub first_error: Option<String>,
    /// Connections that replaced one which the server had closed.
    pub reconnects: u64,
    /// Average number of open requests: rate × mean latency (Little's law), counting all that
    /// ended. In a closed loop without errors that is the number of connections, less the time in
    /// which the generator did not use them.
    pub in_flight: f64,
    /// How late the generator's own checks were, one every 10 ms; latencies contain these delays.
    pub generator_late_us: Stats,
    /// CPU seconds of the generator's threads.
    pub cpu_s: f64,
    /// Only of an open loop.
    pub open_loop: Option<OpenLoop>,
}

/// The spread of values.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// The maximum.
    pub max: f64,
    /// Percentage of values within one deviation of the mean.
    pub within_percent: f64,
}

/// Errors in the groups of wrk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SocketErrors {
    /// Connections that were not established, TLS included.
    pub connect: u64,
    /// Invalid or incomplete answers, and broken connections.
    pub read: u64,
    /// Requests that could not be sent.
    pub write: u64,
    /// Answers that did not come in time.
    pub timeout: u64,
}

/// Figures of an open loop.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpenLoop {
    /// Requests that were due; the latency histogram has an entry for each.
    pub due: u64,
    /// Due requests that were not sent by the end: all connections were busy.
    pub unsent: u64,
    /// How late the generator sent requests for which a connection was free.
    pub lag_us: Stats,
    /// At least 99 % of due requests were answered within the run; those of its last moments (twice
    /// the minimum latency) are not required.
    pub rate_reached: bool,
}

impl Spread {
    fn of(values: &Total) -> Self {
        let (mean, deviation) = (values.mean(), values.deviation());
        let within = values.share_between(mean - deviation, mean + deviation);
        Self { mean, deviation, max: values.max() as f64, within_percent: within * 100.0 }
    }
}

impl SocketErrors {
    fn of(errors: &BTreeMap<ErrorKind, u64>) -> Self {
        let mut sorted = Self::default();
        for (kind, count) in errors {
            *match kind {
                ErrorKind::ReplyTimeout => &mut sorted.timeout,
                ErrorKind::Send | ErrorKind::SendStalled => &mut sorted.write,
                kind if kind.is_connect() => &mut sorted.connect,
                _ => &mut sorted.read,
            } += count;
        }
        sorted
    }

    /// All errors.
    pub fn sum(&self) -> u64 {
        self.connect + self.read + self.write + self.timeout
    }
}

/// The share of due requests that must be answered for the rate to count as reached.
const REACHED: f64 = 0.99;

impl Outcome {
    pub(super) fn new(
        job: &Job,
        connections: usize,
        threads: usize,
        tally: &Tally,
        interrupted: bool,
    ) -> Self {
        let plan = job.plan();
        let seconds = tally.elapsed_ns as f64 / 1e9;
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let as_wrk = plan.rate.is_none().then(|| as_wrk(tally, connections));
        let odd = tally.statuses.iter().filter(|(status, _)| !(200..400).contains(*status));
        let answered = tally.requests as f64;
        let open_loop = plan.rate.map(|rate| {
            let under_way = 1.0 + 2.0 * rate * tally.least_ns.unwrap_or(0) as f64 / 1e9;
            OpenLoop {
                due: tally.due,
                unsent: tally.unsent,
                lag_us: tally.lag.stats(),
                rate_reached: answered + under_way >= REACHED * tally.due as f64,
            }
        });
        Self {
            url: plan.url.clone(),
            connections,
            threads,
            rate: plan.rate,
            duration_s: plan.duration.as_secs_f64(),
            elapsed_s: seconds,
            interrupted,
            requests: tally.requests,
            bytes_read: tally.bytes_in,
            requests_per_second: per_second(answered),
            bytes_per_second: per_second(tally.bytes_in as f64),
            latency_us: Stats { mean: tally.mean_us(), ..tally.latency.stats() },
            latency_as_wrk_us: as_wrk.as_ref().map(Total::stats),
            as_wrk,
            latency_spread_us: Spread { mean: tally.mean_us(), ..Spread::of(&tally.latency) },
            latency_histogram: tally.latency.clone(),
            thread_rate: Spread::of(&tally.rates),
            non_2xx_or_3xx: odd.map(|(_, count)| count).sum(),
            statuses: tally.statuses.clone(),
            socket_errors: SocketErrors::of(&tally.errors),
            errors: tally.errors.iter().map(|(kind, n)| (kind.name().into_owned(), *n)).collect(),
            first_error: tally.first_error.clone(),
            reconnects: tally.reconnects,
            in_flight: per_second(tally.latency_ns as f64 / 1e9),
            generator_late_us: tally.stalls.stats(),
            cpu_s: tally.cpu_ns as f64 / 1e9,
            open_loop,
        }
    }

    /// The share of one core that each thread used; near 1 the generator measures itself.
    pub fn busy(&self) -> f64 {
        self.cpu_s / (self.elapsed_s * self.threads as f64).max(f64::MIN_POSITIVE)
    }
}

/// As wrk: assumes that a connection sends as often as it was answered on average.
fn as_wrk(tally: &Tally, connections: usize) -> Total {
    match tally.requests / (connections as u64).max(1) {
        0 => tally.latency.clone(),
        each => tally.latency.corrected(tally.elapsed_ns / 1000 / each),
    }
}
