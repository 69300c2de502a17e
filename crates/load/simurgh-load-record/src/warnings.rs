//! Warnings, each with what to do.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use thiserror::Error;

/// A warning for the operator. Its text ends with what to do.
#[derive(Clone, Debug, PartialEq, Error, IntoStaticStr, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Warning {
    /// A thread reached its limit of open descriptors.
    #[error("descriptor limit reached at {at} connections{}; raise it (`ulimit -n`, \
         `LimitNOFILE=`) or use more workers", known_limit(.limit))]
    DescriptorLimit {
        /// Connections open at the time, on all hosts.
        at: u64,
        /// The limit; 0 if it is not known.
        limit: u64,
    },
    /// No free local port is left.
    #[error(
        "local ports exhausted at {at} connections; give more source addresses \
         (`--source`, `sources.addresses`) or widen net.ipv4.ip_local_port_range"
    )]
    PortsExhausted {
        /// Connections open at the time, on all hosts.
        at: u64,
    },
    /// A worker used all CPU time of its core: its measurements are not reliable.
    #[error(
        "the load generator is CPU-bound: worker {thread} of {host} used {percent} % of a core, \
         so results are not trustworthy. Use more workers or hosts, or a lower rate."
    )]
    CpuBound {
        /// The host.
        host: String,
        /// The thread.
        thread: u16,
        /// Share of a core, percent.
        percent: u64,
    },
    /// Users started later than planned: the measurements are not reliable.
    #[error("{late} of {started} users started more than 10 ms late (p99 {:.1} ms), so results are \
         not trustworthy: {}", milliseconds(.p99_us), remedy(.busiest_percent))]
    ArrivalsLate {
        /// 99th percentile of the delay, µs.
        p99_us: u64,
        /// Users later than 10 ms.
        late: u64,
        /// Users started.
        started: u64,
        /// Share of a core that the busiest worker had in the seconds with late users, percent.
        #[serde(default)]
        busiest_percent: u64,
    },
    /// Steps began later than planned: the measurements are not reliable.
    #[error("{late} of {begun} timed steps began more than 10 ms late (p99 {:.1} ms), so results \
         are not trustworthy: {}", milliseconds(.p99_us), remedy(.busiest_percent))]
    StepsLate {
        /// 99th percentile of the delay, µs.
        p99_us: u64,
        /// Steps later than 10 ms.
        late: u64,
        /// Steps that began at a time: after a think time, or in a loop with `every`.
        begun: u64,
        /// Share of a core that the busiest worker had in the seconds with late steps, percent.
        #[serde(default)]
        busiest_percent: u64,
    },
    /// A worker itself stood still: its measurements are not reliable.
    #[error("{late} of {ticks} checks of the load generator were more than 10 ms late (up to {} \
         ms), so results are not trustworthy: {}", .max_us / 1000, remedy(.busiest_percent))]
    GeneratorLate {
        /// The longest delay, µs.
        max_us: u64,
        /// Ticks later than 10 ms.
        late: u64,
        /// Ticks of all workers.
        ticks: u64,
        /// Share of a core that the busiest worker had in the seconds with late ticks, percent.
        busiest_percent: u64,
    },
    /// Connections were refused.
    #[error(
        "the server refused {count} connections, the first with {at} open. Is it running there? \
         Check its backlog (net.core.somaxconn) and limits."
    )]
    ServerRefused {
        /// How many so far.
        count: u64,
        /// Connections open at the time.
        at: u64,
    },
    /// The clocks of two hosts differ, and their difference is only known to this bound.
    #[error("the clock of {host} differs by {:.3} ms, known to ± {:.3} ms; delivery times \
         between hosts are corrected but no better than that; use NTP or PTP, or send \
         and receive on one host", milliseconds(.offset_us), milliseconds(.bound_us))]
    ClockSkew {
        /// The host with the other clock.
        host: String,
        /// The measured lead of that clock, µs; times are corrected by it.
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
        "lost agent {host} with {users} users, which count as errors; the others continue. Look \
         at its output and at the network."
    )]
    AgentLost {
        /// The agent.
        host: String,
        /// Its users, counted as errors of kind `worker_lost`.
        users: u64,
    },
    /// A worker of this host ended early.
    #[error(
        "worker {thread} of {host} ended with {users} users, which count as errors; \
         please report this with the log"
    )]
    WorkerLost {
        /// The host.
        host: String,
        /// Its thread.
        thread: u16,
        /// Its users, counted as errors of kind `worker_lost`.
        users: u64,
    },
    /// An output could not be written and was given up; the run continues.
    #[error(
        "cannot write {output} ({error}); the run continues without it. Free space, or choose \
         another --out."
    )]
    OutputFailed {
        /// The output: `journal`, `report.json` ...
        output: String,
        /// The system's error.
        error: String,
    },
    /// The journal ends in the middle of a line: the process was killed while it wrote.
    #[error(
        "the journal ends in an incomplete line of {bytes} bytes, which was ignored: the run was \
         killed, or the disk was full"
    )]
    JournalTorn {
        /// Bytes ignored.
        bytes: u64,
    },
    /// The journal has no end: the process was killed.
    #[error(
        "the journal has no end: the run was killed, or is still running; this is what \
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
        "{count} messages have the stamp of another run and were not timed. Let only one run use \
         these topics."
    )]
    ForeignStamps {
        /// How many.
        count: u64,
    },
    /// The bodies of answers could not be searched as a whole.
    #[error(
        "{count} answers were searched only in part, so <match>, <dyn_variable>, checks and \
         captures may have missed something: their bodies are longer than 4 MiB, or compressed in \
         another way than gzip and deflate; request smaller ones, or send another Accept-Encoding"
    )]
    AnswersCut {
        /// How many.
        count: u64,
    },
    /// The run ended before many answers came.
    #[error(
        "{count} of {of} requests had no answer when the run ended: their times are lower bounds; \
         run for longer, or see why the server does not answer"
    )]
    RequestsOpen {
        /// How many.
        count: u64,
        /// Of all requests.
        of: u64,
    },
    /// Another warning.
    #[error("{text}")]
    Other {
        /// The text, with what to do.
        text: String,
    },
}

impl Warning {
    /// The name for programs.
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// Whether this warning means that the generator has not done what the scenario says, so that
    /// the results say less about the server.
    pub fn is_untrustworthy(&self) -> bool {
        matches!(
            self,
            Self::CpuBound { .. }
                | Self::ArrivalsLate { .. }
                | Self::StepsLate { .. }
                | Self::GeneratorLate { .. }
                | Self::DescriptorLimit { .. }
                | Self::PortsExhausted { .. }
                | Self::NoMemory { .. }
                | Self::AgentLost { .. }
                | Self::WorkerLost { .. }
        )
    }

    /// Whether this warning has newer figures of the same thing.
    pub(super) fn replaces(&self, old: &Self) -> bool {
        (self.code(), self.subject()) == (old.code(), old.subject())
    }

    /// The parts that distinguish two warnings of one kind.
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

/// Above this share of a core, percent, a late worker is late because of its own work.
const BUSY_PERCENT: u64 = 80;

fn remedy(busiest_percent: &u64) -> String {
    match *busiest_percent {
        BUSY_PERCENT.. => {
            "the load generator needs more CPU: use more workers or hosts, or a lower \
                           rate"
                .to_owned()
        }
        percent => format!(
            "another program used this machine (the busiest worker needed {percent} % of a core): \
             stop it, or use another machine"
        ),
    }
}

fn milliseconds(us: &(impl Copy + TryInto<i64>)) -> f64 {
    (*us).try_into().unwrap_or(i64::MAX) as f64 / 1000.0
}

fn known_limit(limit: &u64) -> String {
    if *limit > 0 { format!(" (limit {limit} a worker)") } else { String::new() }
}
