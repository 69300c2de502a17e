//! The worker's side of measuring: everything here runs for each frame, so it only adds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::delta::{BroadcastPart, Delta, Detail, Errors, MatchLine, Sample, Users, WorkerId};
use super::servers::Seen as SeenServers;
use super::{Count, Counts, ErrorKind, Hist, Metric, MetricId, Names, OfServer, Origin, Warning};

/// A user or step that begins later than this after its time is late, microseconds.
pub const LATE_US: u64 = 10_000;
/// Bytes kept of what is said with an error.
pub const DETAIL_BYTES_MAX: usize = 200;
/// Texts kept of each kind of error.
pub const DETAILS_MAX: usize = 5;

/// Broadcasts that one delta follows one by one.
const BROADCASTS_MAX: usize = 1 << 16;
/// Lines of `match.log` in one delta.
const MATCH_LINES_MAX: usize = 10_000;
/// Single samples, and lines of traffic, in one delta.
const SAMPLES_MAX: usize = 200_000;

/// What a receiver remembers of the stamped broadcasts it got: 8 bytes in its own slot. Enough to
/// see duplicates and disorder as long as no broadcast of another sender comes between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Of the last broadcast; 0: none yet (users are numbered from 1).
    pub publisher: u32,
    /// Its number.
    pub seq: u32,
}

/// Takes down what happens at one worker. It holds memory only for what was touched since the last
/// [`Recorder::take`]; an idle worker holds no histogram.
#[derive(Debug)]
pub struct Recorder {
    worker: WorkerId,
    touched: bool,
    counts: Counts,
    times: Vec<Option<Box<Hist>>>,
    errors: Errors,
    details: BTreeSet<Detail>,
    phases: BTreeMap<u16, Users>,
    sessions: BTreeMap<u16, Users>,
    statuses: BTreeMap<u16, u64>,
    servers: SeenServers,
    users: u64,
    connected: u64,
    cpu_ns_taken: u64,
    broadcasts: Vec<BroadcastPart>,
    /// Index into `broadcasts` of the one met last: a broadcast mostly comes to many in a row.
    last_broadcast: usize,
    by_key: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    match_lines: Vec<MatchLine>,
    keep_samples: bool,
    samples: Vec<Sample>,
    dump: Vec<String>,
    warnings: Vec<Warning>,
}

impl Recorder {
    /// For a worker. `keep_samples`: each single time is handed on as well (Tsung's `fullstats`).
    pub fn new(worker: WorkerId, names: &Names, keep_samples: bool) -> Self {
        let mut times = Vec::new();
        times.resize_with(names.metrics(), || None);
        Self {
            worker,
            touched: false,
            counts: Counts::default(),
            times,
            errors: Errors::default(),
            details: BTreeSet::new(),
            phases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            statuses: BTreeMap::new(),
            servers: SeenServers::default(),
            users: 0,
            connected: 0,
            cpu_ns_taken: 0,
            broadcasts: Vec::new(),
            last_broadcast: 0,
            by_key: HashMap::default(),
            match_lines: Vec::new(),
            keep_samples,
            samples: Vec::new(),
            dump: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Takes down a time in microseconds. A metric that [`Names`] does not have is ignored.
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

    /// Counts.
    #[inline]
    pub fn count(&mut self, count: Count, n: u64) {
        self.touched = true;
        self.counts[count] = self.counts[count].saturating_add(n);
    }

    /// What is counted of a server, by its index.
    #[inline]
    pub fn at(&mut self, server: u16) -> &mut OfServer {
        self.touched = true;
        self.servers.at(server)
    }

    /// Counts an error of a user; of one that started in a phase where only that is known.
    pub fn error(&mut self, kind: ErrorKind, origin: impl Into<Origin>) {
        self.touched = true;
        let Origin { phase, target } = origin.into();
        self.errors.count(kind, phase, 1);
        if let Some(server) = target {
            self.at(server).errors += 1;
        }
    }

    /// Counts an error with what was said: `text` is called only while room is left for it.
    pub fn error_with(
        &mut self,
        kind: ErrorKind,
        origin: impl Into<Origin>,
        text: impl FnOnce() -> String,
    ) {
        self.error(kind, origin);
        if self.details.iter().filter(|detail| detail.kind == kind).count() < DETAILS_MAX {
            let mut text = text();
            text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
            let detail = Detail { kind, text };
            if !detail.text.is_empty() {
                self.details.insert(detail);
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
        self.phases.entry(phase).or_default().started += 1;
        self.sessions.entry(session).or_default().started += 1;
    }

    /// A user came to the end of its session, `life_us` after its intended start.
    pub fn user_finished(&mut self, phase: u16, session: u16, life_us: u64) {
        self.time(Metric::Session, life_us);
        self.count(Count::UsersFinished, 1);
        self.phases.entry(phase).or_default().finished += 1;
        self.sessions.entry(session).or_default().finished += 1;
    }

    /// A user ended before the end of its session, by an error, an abort or the end of the run.
    pub fn user_aborted(&mut self, phase: u16, session: u16, life_us: u64) {
        self.time(Metric::Session, life_us);
        self.count(Count::UsersAborted, 1);
        self.phases.entry(phase).or_default().aborted += 1;
        self.sessions.entry(session).or_default().aborted += 1;
    }

    /// A step began `lag_us` after its time.
    #[inline]
    pub fn step_lag(&mut self, lag_us: u64) {
        self.time(Metric::StepLag, lag_us);
        if lag_us > LATE_US {
            self.count(Count::LateSteps, 1);
        }
    }

    /// An HTTP answer with this status.
    #[inline]
    pub fn status(&mut self, status: u16) {
        self.count(Count::HttpAnswers, 1);
        if status >= 400 {
            self.count(Count::HttpFailures, 1);
        }
        *self.statuses.entry(status).or_default() += 1;
    }

    /// A broadcast was sent. `expected`: how many should get it, 0 if that is not known.
    pub fn published(&mut self, publisher: u32, seq: u32, sent_ns: u64, expected: u32) {
        self.count(Count::Broadcasts, 1);
        if let Some(part) = self.broadcast(publisher, seq, sent_ns) {
            part.expected = part.expected.max(expected);
        }
    }

    /// A stamped broadcast has come to a user. Both times are of the run's common clock; `seen` is
    /// the receiver's memory, without it duplicates and disorder go unseen.
    #[inline]
    pub fn delivery(
        &mut self,
        publisher: u32,
        seq: u32,
        sent_ns: u64,
        received_ns: u64,
        seen: Option<&mut Seen>,
    ) {
        let is_news = seen.is_none_or(|seen| self.is_news(publisher, seq, seen));
        self.delivered(publisher, seq, sent_ns, received_ns, is_news);
    }

    /// The same of one of which it is known whether the user has it for the first time.
    #[inline]
    pub fn delivered(
        &mut self,
        publisher: u32,
        seq: u32,
        sent_ns: u64,
        received_ns: u64,
        is_news: bool,
    ) {
        if received_ns < sent_ns {
            self.count(Count::DeliveriesBeforeSent, 1);
        }
        self.count(Count::Deliveries, 1);
        self.time(Metric::Delivery, received_ns.saturating_sub(sent_ns) / 1000);
        if !is_news {
            return;
        }
        if let Some(part) = self.broadcast(publisher, seq, sent_ns) {
            part.receivers = part.receivers.saturating_add(1);
            part.first_ns = part.first_ns.min(received_ns);
            part.last_ns = part.last_ns.max(received_ns);
        }
    }

    /// A line for `match.log`; the match itself is counted by [`Recorder::count`].
    pub fn match_line(&mut self, line: MatchLine) {
        self.touched = true;
        if self.match_lines.len() < MATCH_LINES_MAX {
            self.match_lines.push(line);
        } else {
            self.count(Count::MatchLinesDropped, 1);
        }
    }

    /// A line of traffic for `tsung.dump`.
    pub fn dump(&mut self, line: String) {
        self.touched = true;
        if self.dump.len() < SAMPLES_MAX {
            self.dump.push(line);
        } else {
            self.count(Count::SamplesDropped, 1);
        }
    }

    /// Something that the operator should know; said once each second at most.
    pub fn warn(&mut self, warning: Warning) {
        self.touched = true;
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// How many users are alive and connections open at this worker now.
    pub fn gauges(&mut self, users: u64, connected: u64) {
        self.touched |= (users, connected) != (self.users, self.connected);
        (self.users, self.connected) = (users, connected);
    }

    /// Whether there is something to hand over.
    #[inline]
    pub fn is_touched(&self) -> bool {
        self.touched
    }

    /// Hands over all since the last time; `None` when nothing was touched. `cpu_ns`: CPU time of
    /// this thread in all; the share of a time without a delta goes into the next one.
    pub fn take(&mut self, cpu_ns: u64) -> Option<Delta> {
        if !std::mem::take(&mut self.touched) {
            return None;
        }
        let cpu_ns_taken = std::mem::replace(&mut self.cpu_ns_taken, cpu_ns);
        let metrics = (0..).map(MetricId).zip(&mut self.times);
        let times = metrics.filter_map(|(id, place)| Some((id, *place.take()?))).collect();
        // Dropped rather than emptied, as all the rest: what one burst took is not kept.
        self.by_key = HashMap::default();
        self.last_broadcast = 0;
        Some(Delta {
            worker: self.worker,
            counts: std::mem::take(&mut self.counts),
            times,
            errors: std::mem::take(&mut self.errors),
            details: std::mem::take(&mut self.details),
            phases: std::mem::take(&mut self.phases),
            sessions: std::mem::take(&mut self.sessions),
            statuses: std::mem::take(&mut self.statuses),
            servers: self.servers.take(),
            users: self.users,
            connected: self.connected,
            cpu_ns: cpu_ns.saturating_sub(cpu_ns_taken),
            broadcasts: std::mem::take(&mut self.broadcasts),
            match_lines: std::mem::take(&mut self.match_lines),
            samples: std::mem::take(&mut self.samples),
            dump: std::mem::take(&mut self.dump),
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    fn sample(&mut self, sample: Sample) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        } else {
            self.count(Count::SamplesDropped, 1);
        }
    }

    /// Whether a receiver has this broadcast for the first time, as far as it can remember.
    #[inline]
    fn is_news(&mut self, publisher: u32, seq: u32, seen: &mut Seen) -> bool {
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

    /// The entry of a broadcast; `None` when there are too many.
    #[inline]
    fn broadcast(&mut self, publisher: u32, seq: u32, sent_ns: u64) -> Option<&mut BroadcastPart> {
        let same = |part: &BroadcastPart| part.publisher == publisher && part.seq == seq;
        if !self.broadcasts.get(self.last_broadcast).is_some_and(same) {
            self.last_broadcast = self.find_broadcast(publisher, seq, sent_ns)?;
        }
        self.broadcasts.get_mut(self.last_broadcast)
    }

    fn find_broadcast(&mut self, publisher: u32, seq: u32, sent_ns: u64) -> Option<usize> {
        let key = u64::from(publisher) << 32 | u64::from(seq);
        if let Some(&index) = self.by_key.get(&key) {
            return Some(index as usize);
        }
        let index = self.broadcasts.len();
        if index >= BROADCASTS_MAX {
            self.count(Count::BroadcastsUntracked, 1);
            return None;
        }
        self.by_key.insert(key, index as u32);
        let (first_ns, last_ns) = (u64::MAX, 0);
        let (receivers, expected) = (0, 0);
        self.broadcasts.push(BroadcastPart {
            publisher,
            seq,
            sent_ns,
            first_ns,
            last_ns,
            receivers,
            expected,
        });
        Some(index)
    }
}

/// Spreads keys that count up, at the price of one multiplication. Keys are numbers that this tool
/// gave out itself, or a server that fakes stamps would at worst slow down its own measurement.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        // The table takes the low bits for the place and the high ones for its tags.
        let product = (self.0 ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }
}
