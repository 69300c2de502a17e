//! Warnings, each with the next step to take.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use thiserror::Error;

use super::{Count, ErrorKind, Metric, Record, Tick, WorkerId};

/// Share of a core, in percent, from which a worker's thread is too busy to be trusted.
const BUSY_PERCENT: u64 = 90;
/// For so many seconds in a row.
const BUSY_TICKS: u32 = 3;
/// Arrivals later than this at the 99th percentile are not what the scenario asked for, µs.
const LAG_US_MAX: u64 = 10_000;

/// What the operator should know about a run. Its text ends with what to do.
#[derive(Clone, Debug, PartialEq, Error, IntoStaticStr, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Warning {
    /// A thread may not open more descriptors.
    #[error("descriptor limit reached at {at} connections{}; raise it (`ulimit -n`, \
         `LimitNOFILE=`) or use more workers", known_limit(.limit))]
    DescriptorLimit {
        /// Connections open at the time, on all hosts.
        at: u64,
        /// The limit, if it is known; else 0.
        limit: u64,
    },
    /// No free local port to connect from.
    #[error(
        "local ports exhausted at {at} connections; give more source addresses \
         (`--source`, `sources.addresses`) or widen net.ipv4.ip_local_port_range"
    )]
    PortsExhausted {
        /// Connections open at the time, on all hosts.
        at: u64,
    },
    /// A worker had no CPU time left: what it measured is not to be trusted.
    #[error(
        "generator is CPU-bound: worker {thread} of {host} used {percent} % of a core; \
         results are not trustworthy; use more workers, more hosts, or a lower rate"
    )]
    CpuBound {
        /// Of this host.
        host: String,
        /// Of this thread.
        thread: u16,
        /// Share of a core, percent.
        percent: u64,
    },
    /// Users started later than planned: what was measured is not to be trusted.
    #[error("generator is late: {late} of {started} users started more than 10 ms after \
         their time (p99 {:.1} ms); results are not trustworthy; use more workers, more \
         hosts, or a lower rate", milliseconds(.p99_us))]
    ArrivalsLate {
        /// 99th percentile of the delay, µs.
        p99_us: u64,
        /// Users later than 10 ms.
        late: u64,
        /// Of so many.
        started: u64,
    },
    /// Connections were refused.
    #[error(
        "the server refused {count} connections, the first with {at} open; see that it \
         runs and listens there, and look at its backlog (net.core.somaxconn) and limits"
    )]
    ServerRefused {
        /// How many so far.
        count: u64,
        /// Connections open at the time.
        at: u64,
    },
    /// Clocks of two hosts differ by an amount known only this well.
    #[error("the clock of {host} differs by {:.3} ms, known to ± {:.3} ms; delivery times \
         between hosts are corrected but no better than that; use NTP or PTP, or send \
         and receive on one host", milliseconds(.offset_us), milliseconds(.bound_us))]
    ClockSkew {
        /// Whose clock, as against this host's.
        host: String,
        /// By how much it was ahead when measured, µs; taken into account.
        offset_us: i64,
        /// The error that may remain, µs, either way.
        bound_us: u64,
    },
    /// Broadcasts came before they were sent, by the clocks.
    #[error(
        "{count} broadcasts arrived before they were sent, by the clocks, and count as \
         0 µs; the clocks of the hosts drift: use NTP or PTP, or send and receive on one \
         host"
    )]
    DeliveriesBeforeSent {
        /// How many.
        count: u64,
    },
    /// An agent does not answer any more.
    #[error(
        "agent {host} is lost with {users} users, which count as errors; the others go \
         on; look at its output and at the network between"
    )]
    AgentLost {
        /// Which.
        host: String,
        /// Its users, counted as errors of kind `worker_lost`.
        users: u64,
    },
    /// A worker of this host ended before its time.
    #[error(
        "worker {thread} of {host} ended with {users} users, which count as errors; \
         please report this with the log"
    )]
    WorkerLost {
        /// Of this host.
        host: String,
        /// Its thread.
        thread: u16,
        /// Its users, counted as errors of kind `worker_lost`.
        users: u64,
    },
    /// An output could not be written and is given up; the run goes on.
    #[error(
        "{output} could not be written and is given up ({error}); the run goes on; make \
         room or choose another directory with `--out`"
    )]
    OutputFailed {
        /// Which: `journal`, `report.json` ...
        output: String,
        /// What the system said.
        error: String,
    },
    /// The journal ends in the middle of a line: the run was killed while it wrote.
    #[error(
        "the last {bytes} bytes of the journal are half a line and were left out: the \
         run was killed, or the disk was full"
    )]
    JournalTorn {
        /// Bytes ignored.
        bytes: u64,
    },
    /// The journal has no end: the run was killed.
    #[error(
        "the journal has no end: the run was killed, or still goes on; this is what \
         happened so far"
    )]
    Unfinished,
    /// The kernel has no memory for more sockets.
    #[error(
        "the kernel has no memory for more sockets at {at} connections; look at \
         net.ipv4.tcp_mem and at free memory"
    )]
    NoMemory {
        /// Connections open at the time.
        at: u64,
    },
    /// Stamps of another run arrived.
    #[error(
        "{count} broadcasts bore the stamp of another run and were not timed; see that \
         only one run uses these topics"
    )]
    ForeignStamps {
        /// How many.
        count: u64,
    },
    /// Anything else, in words.
    #[error("{text}")]
    Other {
        /// The words, and what to do.
        text: String,
    },
}

impl Warning {
    /// Name for programs.
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// Whether the figures of this run are those of an overloaded generator.
    pub fn is_untrustworthy(&self) -> bool {
        matches!(self, Self::CpuBound { .. } | Self::ArrivalsLate { .. })
    }

    /// Whether this one has newer figures of the same thing.
    pub(super) fn replaces(&self, old: &Self) -> bool {
        match (self, old) {
            (
                Self::CpuBound { host, thread, .. },
                Self::CpuBound { host: old_host, thread: old_thread, .. },
            )
            | (
                Self::WorkerLost { host, thread, .. },
                Self::WorkerLost { host: old_host, thread: old_thread, .. },
            ) => (host, thread) == (old_host, old_thread),
            (Self::ClockSkew { host, .. }, Self::ClockSkew { host: old, .. })
            | (Self::AgentLost { host, .. }, Self::AgentLost { host: old, .. }) => host == old,
            (Self::OutputFailed { output, .. }, Self::OutputFailed { output: old, .. }) => {
                output == old
            }
            (Self::Other { text }, Self::Other { text: old }) => text == old,
            _ => self.code() == old.code(),
        }
    }
}

fn milliseconds(us: &(impl Copy + TryInto<i64>)) -> f64 {
    (*us).try_into().unwrap_or(i64::MAX) as f64 / 1000.0
}

fn known_limit(limit: &u64) -> String {
    if *limit > 0 { format!(" (limit {limit} a worker)") } else { String::new() }
}

/// Derives warnings from each second.
#[derive(Clone, Debug, Default)]
pub(super) struct WarningDetector {
    busy: BTreeMap<WorkerId, u32>,
    late_ticks: u32,
}

impl WarningDetector {
    /// Warnings that follow from one more second; `record` is as it was before.
    pub(super) fn check(&mut self, record: &Record, tick: &Tick) -> Vec<Warning> {
        let mut warnings = Vec::new();
        self.check_errors(record, tick, &mut warnings);
        self.check_workers(record, tick, &mut warnings);
        self.check_arrivals(record, tick, &mut warnings);
        let so_far = |count| {
            let now = tick.all.counts[count];
            if now > 0 { record.counts()[count].saturating_add(now) } else { 0 }
        };
        let count = so_far(Count::DeliveriesBeforeSent);
        if count > 0 {
            warnings.push(Warning::DeliveriesBeforeSent { count });
        }
        let count = so_far(Count::StampsForeign);
        if count > 0 {
            warnings.push(Warning::ForeignStamps { count });
        }
        warnings
    }

    fn check_errors(&self, record: &Record, tick: &Tick, warnings: &mut Vec<Warning>) {
        let at = tick.all.connected;
        let first = |kind| record.errors().of_kind(kind) == 0 && tick.all.errors.of_kind(kind) > 0;
        // A worker that knows its limit says so itself.
        let known = |code: &str| {
            let mut known = record.warnings().iter().chain(&tick.all.warnings);
            known.any(|warning| warning.code() == code)
        };
        if first(ErrorKind::NoDescriptors) && !known("descriptor_limit") {
            warnings.push(Warning::DescriptorLimit { at, limit: 0 });
        }
        if first(ErrorKind::NoPorts) && !known("ports_exhausted") {
            warnings.push(Warning::PortsExhausted { at });
        }
        if first(ErrorKind::NoMemory) && !known("no_memory") {
            warnings.push(Warning::NoMemory { at });
        }
        let refused = tick.all.errors.of_kind(ErrorKind::ConnectRefused);
        if refused > 0 {
            let known = record.warnings().iter().find_map(|warning| match warning {
                Warning::ServerRefused { at, .. } => Some(*at),
                _ => None,
            });
            let count = record.errors().of_kind(ErrorKind::ConnectRefused) + refused;
            warnings.push(Warning::ServerRefused { count, at: known.unwrap_or(at) });
        }
    }

    fn check_workers(&mut self, record: &Record, tick: &Tick, warnings: &mut Vec<Warning>) {
        self.busy.retain(|id, _| tick.workers.iter().any(|worker| worker.worker == *id));
        for worker in &tick.workers {
            let percent = worker.cpu_ns / 10_000 / worker.span_ms.max(1);
            if percent < BUSY_PERCENT {
                self.busy.remove(&worker.worker);
                continue;
            }
            let ticks = self.busy.entry(worker.worker).or_default();
            *ticks += 1;
            if *ticks >= BUSY_TICKS {
                let host = record.meta().host_name(worker.worker.host);
                let thread = worker.worker.thread;
                warnings.push(Warning::CpuBound { host, thread, percent: percent.min(100) });
            }
        }
    }

    fn check_arrivals(&mut self, record: &Record, tick: &Tick, warnings: &mut Vec<Warning>) {
        let now = tick.all.times.get(&Metric::ArrivalLag.into());
        let late_now = now.is_some_and(|lag| lag.percentile(99.0) > LAG_US_MAX);
        // Seconds without arrivals say nothing.
        if now.is_some() {
            self.late_ticks = if late_now { self.late_ticks + 1 } else { 0 };
        }
        let lasting = late_now && self.late_ticks >= BUSY_TICKS;
        if !lasting && tick.ending.is_none() {
            return;
        }
        let mut lag = record.times(Metric::ArrivalLag).cloned().unwrap_or_default();
        if let Some(now) = now {
            lag.absorb(now);
        }
        let p99_us = lag.percentile(99.0);
        if lasting || p99_us > LAG_US_MAX {
            let late = record.counts()[Count::LateArrivals] + tick.all.counts[Count::LateArrivals];
            warnings.push(Warning::ArrivalsLate { p99_us, late, started: lag.count() });
        }
    }
}
