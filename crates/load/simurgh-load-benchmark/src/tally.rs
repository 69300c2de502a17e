//! Measurements of a worker, which are not shared until the end of the run.

use std::collections::BTreeMap;

use simurgh_load_record::{ErrorKind, Total};

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// From when a request was due to the end of its answer, µs; also time-outs, and in an open
    /// loop requests unanswered at the end, with the time waited.
    pub(super) latency: Total,
    /// The least of an answered request, ns.
    pub(super) least_ns: Option<u64>,
    /// The exact sum of all, ns.
    pub(super) latency_ns: u64,
    /// Requests a second of one thread, each tenth of a second.
    pub(super) rates: Total,
    /// Open loop: how late requests were sent for which a connection was free, µs.
    pub(super) lag: Total,
    /// How late the checks of the generator itself came, µs: a stall is in the latency.
    pub(super) stalls: Total,
    pub(super) requests: u64,
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) bytes_in: u64,
    pub(super) errors: BTreeMap<ErrorKind, u64>,
    pub(super) first_error: Option<String>,
    /// Connections that replaced one which the server had closed in an orderly way.
    pub(super) reconnects: u64,
    pub(super) due: u64,
    /// Due requests that were not sent, as no connection was free.
    pub(super) unsent: u64,
    /// The measured duration, ns.
    pub(super) elapsed_ns: u64,
    /// CPU time of the threads in it, ns.
    pub(super) cpu_ns: u64,
}

impl Tally {
    /// Counts a request that ended `ns` after it was due.
    #[inline]
    pub(super) fn waited(&mut self, ns: u64) {
        self.latency.record((ns + 500) / 1000);
        self.latency_ns += ns;
    }

    #[inline]
    pub(super) fn answered(&mut self, status: u16, ns: u64) {
        self.waited(ns);
        self.least_ns = Some(self.least_ns.map_or(ns, |least_ns| least_ns.min(ns)));
        self.requests += 1;
        *self.statuses.entry(status).or_default() += 1;
    }

    pub(super) fn error(&mut self, kind: ErrorKind, text: impl FnOnce() -> String) {
        *self.errors.entry(kind).or_default() += 1;
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Mean latency, exact: µs.
    pub(super) fn mean_us(&self) -> f64 {
        match self.latency.count() {
            0 => 0.0,
            count => self.latency_ns as f64 / 1e3 / count as f64,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.least_ns = [self.least_ns, other.least_ns].into_iter().flatten().min();
        self.latency_ns += other.latency_ns;
        self.rates.add(&other.rates);
        self.lag.add(&other.lag);
        self.stalls.add(&other.stalls);
        self.requests += other.requests;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.bytes_in += other.bytes_in;
        for (kind, count) in &other.errors {
            *self.errors.entry(*kind).or_default() += count;
        }
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.reconnects += other.reconnects;
        self.due += other.due;
        self.unsent += other.unsent;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.cpu_ns += other.cpu_ns;
    }
}
