//! The worker's side of measuring. This runs for each frame, so it only adds numbers.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::delta::{BroadcastPart, Delta, Detail, MatchLine, Sample, Users, WorkerId};
use super::servers::ServerCounters;
use super::{Count, ErrorKind, Hist, Metric, MetricId, Names, OfServer, Origin, Warning};

/// A user or step that begins this much after its time is late, microseconds.
pub const LATE_US: u64 = 10_000;
/// Bytes kept of an error's text.
pub const DETAIL_BYTES_MAX: usize = 200;
/// Texts kept of each kind of error.
pub const DETAILS_MAX: usize = 5;

const BROADCASTS_MAX: usize = 1 << 16;
const MATCH_LINES_MAX: usize = 10_000;
/// Single samples, and lines of traffic, in one delta.
const SAMPLES_MAX: usize = 200_000;

/// A receiver's memory of the stamped broadcasts it got: 8 bytes. Enough to recognise
/// duplicates and disorder as long as no broadcast of another sender comes between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Sender of the last broadcast; 0: none yet (users are numbered from 1).
    pub publisher: u32,
    /// Its number.
    pub seq: u32,
}

/// Records what happens at one worker. It only keeps what was recorded since the last
/// [`Recorder::take`]; an idle worker has no histogram.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The next delta, except times and servers.
    delta: Delta,
    touched: bool,
    times: Vec<Option<Box<Hist>>>,
    servers: ServerCounters,
    cpu_ns_taken: u64,
    /// Index into `delta.broadcasts` of the last one: many users get one in a row.
    last_broadcast: usize,
    by_key: HashMap<(u32, u32), u32, FixedState>,
    keep_samples: bool,
}

impl Recorder {
    /// A recorder for a worker. `keep_samples`: each single time is kept too (Tsung's `fullstats`).
    pub fn new(worker: WorkerId, names: &Names, keep_samples: bool) -> Self {
        let mut times = Vec::new();
        times.resize_with(names.metrics(), || None);
        let delta = Delta { worker, ..Delta::default() };
        Self { delta, times, keep_samples, ..Self::default() }
    }

    /// Records a time in microseconds. A metric that [`Names`] does not have is ignored.
    #[inline]
    pub fn time(&mut self, metric: impl Into<MetricId>, us: u64) {
        let metric = metric.into();
        self.touched = true;
        if let Some(place) = self.times.get_mut(usize::from(metric.0)) {
            place.get_or_insert_default().record(us);
        }
        if self.keep_samples {
            self.sample(Sample { metric, us });
        }
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&mut self, count: Count, n: u64) {
        self.touched = true;
        self.delta.counts[count] = self.delta.counts[count].saturating_add(n);
    }

    /// The figures of a server, by its index.
    #[inline]
    pub fn at(&mut self, server: u16) -> &mut OfServer {
        self.touched = true;
        self.servers.at(server)
    }

    /// Counts an error of a user, or of a phase where only that is known.
    pub fn error(&mut self, kind: ErrorKind, origin: impl Into<Origin>) {
        self.touched = true;
        let Origin { phase, target } = origin.into();
        self.delta.errors.count(kind, phase, 1);
        if let Some(server) = target {
            self.at(server).errors += 1;
        }
    }

    /// Counts an error with its text: `text` is called only while there is room for it.
    pub fn error_with(
        &mut self,
        kind: ErrorKind,
        origin: impl Into<Origin>,
        text: impl FnOnce() -> String,
    ) {
        self.error(kind, origin);
        if self.delta.details.iter().filter(|detail| detail.kind == kind).count() < DETAILS_MAX {
            let mut text = text();
            text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
            let detail = Detail { kind, text };
            if !detail.text.is_empty() {
                self.delta.details.insert(detail);
            }
        }
    }

    /// A user started `lag_us` after its time.
    pub fn user_started(&mut self, phase: u16, session: u16, lag_us: u64) {
        self.time(Metric::ArrivalLag, lag_us);
        self.count(Count::UsersStarted, 1);
        if lag_us > LATE_US {
            self.count(Count::LateArrivals, 1);
        }
        self.user(phase, session, |users| users.started += 1);
    }

    /// A user reached the end of its session, `life_us` after its intended start.
    pub fn user_finished(&mut self, phase: u16, session: u16, life_us: u64) {
        self.time(Metric::Session, life_us);
        self.count(Count::UsersFinished, 1);
        self.user(phase, session, |users| users.finished += 1);
    }

    /// A user ended before the end of its session, by an error, an abort or the end of the run.
    pub fn user_aborted(&mut self, phase: u16, session: u16, life_us: u64) {
        self.time(Metric::Session, life_us);
        self.count(Count::UsersAborted, 1);
        self.user(phase, session, |users| users.aborted += 1);
    }

    /// A step began `lag_us` after its time.
    #[inline]
    pub fn step_lag(&mut self, lag_us: u64) {
        self.time(Metric::StepLag, lag_us);
        if lag_us > LATE_US {
            self.count(Count::LateSteps, 1);
        }
    }

    /// A tick of the worker came `lag_us` after its time. One in time waits for the next report.
    pub fn tick_lag(&mut self, lag_us: u64) {
        self.delta.counts[Count::Ticks] += 1;
        if lag_us > LATE_US {
            self.count(Count::LateTicks, 1);
            self.delta.stall_us = self.delta.stall_us.max(lag_us);
        }
    }

    /// Counts an HTTP answer with this status.
    #[inline]
    pub fn status(&mut self, status: u16) {
        self.count(Count::HttpAnswers, 1);
        if status >= 400 {
            self.count(Count::HttpFailures, 1);
        }
        *self.delta.statuses.entry(status).or_default() += 1;
    }

    /// Counts a sent broadcast. `expected`: how many should get it, 0 if that is not known.
    pub fn published(&mut self, publisher: u32, seq: u32, sent_ns: u64, expected: u32) {
        self.count(Count::Broadcasts, 1);
        if let Some(part) = self.broadcast(publisher, seq, sent_ns) {
            part.expected = part.expected.max(expected);
        }
    }

    /// Counts a stamped broadcast that a user received. Both times are of the run's common clock;
    /// without `seen`, duplicates and disorder are not recognised.
    #[inline]
    pub fn delivery(
        &mut self,
        publisher: u32,
        seq: u32,
        sent_ns: u64,
        received_ns: u64,
        seen: Option<&mut Seen>,
    ) {
        let is_first = seen.is_none_or(|seen| self.is_first(publisher, seq, seen));
        self.delivered(publisher, seq, sent_ns, received_ns, is_first);
    }

    /// As `delivery`, where the caller knows whether this is the first time.
    #[inline]
    pub fn delivered(
        &mut self,
        publisher: u32,
        seq: u32,
        sent_ns: u64,
        received_ns: u64,
        is_first: bool,
    ) {
        if received_ns < sent_ns {
            self.count(Count::DeliveriesBeforeSent, 1);
        }
        self.count(Count::Deliveries, 1);
        self.time(Metric::Delivery, received_ns.saturating_sub(sent_ns) / 1000);
        if !is_first {
            return;
        }
        if let Some(part) = self.broadcast(publisher, seq, sent_ns) {
            part.receivers = part.receivers.saturating_add(1);
            part.first_ns = part.first_ns.min(received_ns);
            part.last_ns = part.last_ns.max(received_ns);
        }
    }

    /// Adds a line for `match.log`; the match itself is counted by [`Recorder::count`].
    pub fn match_line(&mut self, line: MatchLine) {
        self.touched = true;
        if self.delta.match_lines.len() < MATCH_LINES_MAX {
            self.delta.match_lines.push(line);
        } else {
            self.count(Count::MatchLinesDropped, 1);
        }
    }

    /// Adds a line of traffic for `tsung.dump`.
    pub fn dump(&mut self, line: String) {
        self.touched = true;
        if self.delta.dump.len() < SAMPLES_MAX {
            self.delta.dump.push(line);
        } else {
            self.count(Count::SamplesDropped, 1);
        }
    }

    /// Adds a warning, each text at most once a second.
    pub fn warn(&mut self, warning: Warning) {
        self.touched = true;
        if !self.delta.warnings.contains(&warning) {
            self.delta.warnings.push(warning);
        }
    }

    /// Sets the users and open connections of this worker.
    pub fn gauges(&mut self, users: u64, connected: u64) {
        self.touched |= (users, connected) != (self.delta.users, self.delta.connected);
        (self.delta.users, self.delta.connected) = (users, connected);
    }

    /// Whether there is anything to report.
    #[inline]
    pub fn is_touched(&self) -> bool {
        self.touched
    }

    /// Takes all that was recorded since the last call; `None` if nothing was. `cpu_ns`: total CPU
    /// time of this thread; the share of a time without a delta is added to the next one.
    pub fn take(&mut self, cpu_ns: u64) -> Option<Delta> {
        if !std::mem::take(&mut self.touched) {
            return None;
        }
        let cpu_ns_taken = std::mem::replace(&mut self.cpu_ns_taken, cpu_ns);
        let metrics = (0..).map(MetricId).zip(&mut self.times);
        let times = metrics.filter_map(|(id, place)| Some((id, *place.take()?))).collect();
        // Dropped rather than emptied, so that the memory of a burst is not kept.
        self.by_key = HashMap::default();
        self.last_broadcast = 0;
        let Delta { worker, users, connected, .. } = self.delta;
        let fresh = Delta { worker, users, connected, ..Delta::default() };
        Some(Delta {
            times,
            servers: self.servers.take(),
            cpu_ns: cpu_ns.saturating_sub(cpu_ns_taken),
            ..std::mem::replace(&mut self.delta, fresh)
        })
    }

    fn user(&mut self, phase: u16, session: u16, count: fn(&mut Users)) {
        count(self.delta.phases.entry(phase).or_default());
        count(self.delta.sessions.entry(session).or_default());
    }

    fn sample(&mut self, sample: Sample) {
        if self.delta.samples.len() < SAMPLES_MAX {
            self.delta.samples.push(sample);
        } else {
            self.count(Count::SamplesDropped, 1);
        }
    }

    /// Whether a receiver gets this broadcast for the first time, as far as `seen` shows.
    #[inline]
    fn is_first(&mut self, publisher: u32, seq: u32, seen: &mut Seen) -> bool {
        if seen.publisher == publisher {
            if seq == seen.seq {
                self.count(Count::DeliveriesDuplicate, 1);
                return false;
            }
            if seq < seen.seq {
                self.count(Count::DeliveriesOutOfOrder, 1);
                return true;
            }
        }
        *seen = Seen { publisher, seq };
        true
    }

    #[inline]
    fn broadcast(&mut self, publisher: u32, seq: u32, sent_ns: u64) -> Option<&mut BroadcastPart> {
        let same = |part: &BroadcastPart| part.publisher == publisher && part.seq == seq;
        if !self.delta.broadcasts.get(self.last_broadcast).is_some_and(same) {
            self.last_broadcast = self.find_broadcast(publisher, seq, sent_ns)?;
        }
        self.delta.broadcasts.get_mut(self.last_broadcast)
    }

    fn find_broadcast(&mut self, publisher: u32, seq: u32, sent_ns: u64) -> Option<usize> {
        if let Some(&index) = self.by_key.get(&(publisher, seq)) {
            return Some(index as usize);
        }
        let index = self.delta.broadcasts.len();
        if index >= BROADCASTS_MAX {
            self.count(Count::BroadcastsUntracked, 1);
            return None;
        }
        self.by_key.insert((publisher, seq), index as u32);
        self.delta.broadcasts.push(BroadcastPart {
            publisher,
            seq,
            sent_ns,
            first_ns: u64::MAX,
            last_ns: 0,
            receivers: 0,
            expected: 0,
        });
        Some(index)
    }
}
