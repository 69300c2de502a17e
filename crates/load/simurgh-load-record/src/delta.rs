//! The measurements of one worker since its last delta: plain data, also sent over the network.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Counts, ErrorKind, Hist, MetricId, Warning, add_each, add_number};

/// A worker of a run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct WorkerId {
    /// Index into [`super::Meta::hosts`]; an agent sends 0 and the controller sets the real number.
    pub host: u16,
    /// Thread of that host, from 0.
    pub thread: u16,
}

/// Everything measured at one worker since its last delta.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delta {
    /// The worker.
    pub worker: WorkerId,
    /// Counters.
    pub counts: Counts,
    /// Times by metric.
    pub times: BTreeMap<MetricId, Hist>,
    /// Errors by kind and phase.
    pub errors: Errors,
    /// Texts of the first few errors.
    pub details: BTreeSet<Detail>,
    /// Users by phase.
    pub phases: BTreeMap<u16, Users>,
    /// Users by session.
    pub sessions: BTreeMap<u16, Users>,
    /// HTTP answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Figures of each server, by its index.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<u16, OfServer>,
    /// Users alive now.
    pub users: u64,
    /// Connections open now.
    pub connected: u64,
    /// CPU time of the worker's thread since its last delta, nanoseconds.
    pub cpu_ns: u64,
    /// The longest time that a tick of the worker was late, µs; 0 if none was.
    pub stall_us: u64,
    /// Broadcasts sent or received here.
    pub broadcasts: Vec<BroadcastPart>,
    /// Lines for `match.log`.
    pub match_lines: Vec<MatchLine>,
    /// Single times, where the scenario wants each one kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
    /// Lines of traffic for `tsung.dump`, without their line ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dump: Vec<String>,
    /// Warnings for the operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

impl Delta {
    /// Adds another worker's delta, or a later one of the same worker. Sums do not depend on the
    /// order; values of a moment (`worker`, `users`, `connected`, also those of servers) stay
    /// unchanged, and so do `broadcasts`, which the record follows one by one.
    pub fn merge(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (metric, hist) in other.times {
            self.times.entry(metric).and_modify(|known| known.add(&hist)).or_insert(hist);
        }
        self.errors.add(&other.errors);
        self.details.extend(other.details);
        add_each(&mut self.phases, &other.phases, Users::add);
        add_each(&mut self.sessions, &other.sessions, Users::add);
        add_each(&mut self.statuses, &other.statuses, add_number);
        add_each(&mut self.servers, &other.servers, OfServer::add);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.stall_us = self.stall_us.max(other.stall_us);
        self.match_lines.extend(other.match_lines);
        self.samples.extend(other.samples);
        self.dump.extend(other.dump);
        self.warnings.extend(other.warnings);
    }
}

/// Errors by kind and by the phase in which their user started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors(BTreeMap<(ErrorKind, u16), u64>);

impl Errors {
    /// Counts `n` errors.
    pub fn count(&mut self, kind: ErrorKind, phase: u16, n: u64) {
        let count = self.0.entry((kind, phase)).or_default();
        *count = count.saturating_add(n);
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        for (kind, phase, n) in other.iter() {
            self.count(kind, phase, n);
        }
    }

    /// Kind, phase and count, in the order of kinds.
    pub fn iter(&self) -> impl Iterator<Item = (ErrorKind, u16, u64)> + '_ {
        self.0.iter().map(|(&(kind, phase), &n)| (kind, phase, n))
    }

    /// All errors.
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// All errors of a kind.
    pub fn of_kind(&self, kind: ErrorKind) -> u64 {
        self.0.range((kind, 0)..=(kind, u16::MAX)).map(|(_, n)| n).sum()
    }

    /// All errors of users that started in a phase.
    pub fn of_phase(&self, phase: u16) -> u64 {
        self.iter().filter(|(_, of, _)| *of == phase).map(|(_, _, n)| n).sum()
    }
}

impl Serialize for Errors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Errors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut errors = Self::default();
        for (kind, phase, n) in Vec::<(ErrorKind, u16, u64)>::deserialize(deserializer)? {
            errors.count(kind, phase, n);
        }
        Ok(errors)
    }
}

/// The text of an error: a join's refusal, a close reason, a message of the system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Detail {
    /// Its kind.
    pub kind: ErrorKind,
    /// Its text, cut to [`super::DETAIL_BYTES_MAX`].
    pub text: String,
}

/// Users of a phase or a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Users {
    /// Started.
    pub started: u64,
    /// Users that reached the end of their session.
    pub finished: u64,
    /// Users that ended before that.
    pub aborted: u64,
}

impl Users {
    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        add_fields!(self, other; started, finished, aborted);
    }

    /// Still alive.
    pub fn running(&self) -> u64 {
        self.started.saturating_sub(self.finished).saturating_sub(self.aborted)
    }
}

/// Figures of one server. All except `connected` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OfServer {
    /// Users whose first connection went to it.
    pub users: u64,
    /// Connections open now.
    pub connected: u64,
    /// Connections tried.
    pub connects_tried: u64,
    /// TCP connections made (with TLS where it is used).
    pub connects: u64,
    /// Connections that failed.
    pub refused: u64,
    /// Connections that ended while their user still used them.
    pub lost: u64,
    /// Connections cut on purpose.
    pub cut: u64,
    /// Users that reconnected to this server after a connection was lost, cut or refused.
    pub reconnects: u64,
    /// Users that changed to another server after that.
    pub left: u64,
    /// Errors of users while they used it.
    pub errors: u64,
    /// CPU time that the server reports to have used, microseconds; 0 unless it is measured.
    pub cpu_us: u64,
}

impl OfServer {
    /// Counts a connection that has ended.
    pub fn disconnected(&mut self) {
        self.connected = self.connected.saturating_sub(1);
    }

    /// Adds all but `connected`.
    pub(super) fn add(&mut self, more: &Self) {
        add_fields!(self, more; users, connects_tried, connects, refused, lost, cut, reconnects,
            left, errors, cpu_us);
    }
}

/// One worker's part of a broadcast. Times are nanoseconds of the run's common clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BroadcastPart {
    /// Number of the user that sent it.
    pub publisher: u32,
    /// The sender's running number.
    pub seq: u32,
    /// Its stamp.
    pub sent_ns: u64,
    /// When the first receiver of this worker got it; `u64::MAX` if there was none.
    pub first_ns: u64,
    /// When the last receiver of this worker got it; 0 if there was none.
    pub last_ns: u64,
    /// Receivers of this worker.
    pub receivers: u32,
    /// Receivers expected in all, known to the sender's worker; 0: not known.
    pub expected: u32,
}

/// A line of `match.log`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MatchLine {
    /// Since the start of the run, microseconds.
    pub at_us: u64,
    /// Number of the user.
    pub user: u64,
    /// Number of its session, from 0.
    pub session: u16,
    /// Number of the request in the session, from 1.
    pub request: u32,
    /// The event, in Tsung's words: `match`, `nomatch`, `match_loop`, `match_dump` …
    pub event: String,
    /// The transaction it belongs to.
    pub transaction: Option<MetricId>,
    /// Name of the check, or `-`.
    pub name: String,
}

/// One time, or one step of a counter, for `tsung-fullstats.log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The metric.
    pub metric: MetricId,
    /// Microseconds.
    pub us: u64,
}
