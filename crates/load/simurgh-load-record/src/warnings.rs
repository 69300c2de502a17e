//! Warnings, each with the next step to take.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use thiserror::Error;

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
        /// Of this number.
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
        /// The system's error.
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
        (self.code(), self.subject()) == (old.code(), old.subject())
    }

    /// What it is about, where there may be several of its kind.
    fn subject(&self) -> (&str, u16) {
        match self {
            Self::CpuBound { host, thread, .. } | Self::WorkerLost { host, thread, .. } => {
                (host, *thread)
            }
            Self::ClockSkew { host, .. } | Self::AgentLost { host, .. } => (host, 0),
            Self::OutputFailed { output: subject, .. } | Self::Other { text: subject } => {
                (subject, 0)
            }
            _ => ("", 0),
        }
    }
}

fn milliseconds(us: &(impl Copy + TryInto<i64>)) -> f64 {
    (*us).try_into().unwrap_or(i64::MAX) as f64 / 1000.0
}

fn known_limit(limit: &u64) -> String {
    if *limit > 0 { format!(" (limit {limit} a worker)") } else { String::new() }
}
