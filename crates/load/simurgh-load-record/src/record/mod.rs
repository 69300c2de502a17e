//! The whole run: every worker's deltas merged, second by second.

mod detector;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::broadcasts::{Broadcasts, slowest};
use super::series::{Point, Series};
use super::servers::{Connected, ServerTotal};
use super::{
    Broadcast, Count, Counts, DETAILS_MAX, Delta, Ending, ErrorKind, Errors, Meta, MetricId, Tick,
    Total, Users, Warning, WorkerId, WorkerTick, add_each, add_number,
};
use detector::WarningDetector;

/// The slowest broadcasts of the run that are kept.
const SLOWEST: usize = 20;
/// Lines of match.log and of traffic in one tick, over all workers.
const LINES_MAX: usize = 100_000;

/// All that is known of a run. Its size does not grow with time.
#[derive(Clone, Debug, Default)]
pub struct Record {
    meta: Meta,
    /// The records since the last tick.
    pending: Delta,
    pending_workers: BTreeMap<WorkerId, WorkerTick>,
    broadcasts: Broadcasts,
    at_servers: Connected,
    detector: WarningDetector,
    // All fields below follow from the ticks alone.
    at_ms: u64,
    ending: Option<Ending>,
    users: Gauge,
    connected: Gauge,
    counts: Counts,
    times: BTreeMap<MetricId, Total>,
    errors: Errors,
    details: BTreeMap<ErrorKind, Vec<String>>,
    phases: BTreeMap<u16, Users>,
    sessions: BTreeMap<u16, Users>,
    statuses: BTreeMap<u16, u64>,
    servers: BTreeMap<u16, ServerTotal>,
    cpu_ns: u64,
    workers: BTreeMap<WorkerId, Worker>,
    slowest: Vec<Broadcast>,
    series: Series,
    warnings: Vec<Warning>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gauge {
    now: u64,
    peak: u64,
}

impl Gauge {
    fn set(&mut self, now: u64) {
        *self = Self { now, peak: self.peak.max(now) };
    }
}

/// Totals of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Worker {
    /// Users alive now.
    pub users: u64,
    /// Connections open now.
    pub connected: u64,
    /// The most connections that were open.
    pub connected_peak: u64,
    /// Users started.
    pub started: u64,
    /// Errors.
    pub errors: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// CPU time, nanoseconds; written in seconds.
    #[serde(rename = "cpu_s", serialize_with = "in_seconds")]
    pub cpu_ns: u64,
    /// Share of a core in its last second, percent.
    pub cpu_percent: f64,
    /// The highest `cpu_percent`.
    pub cpu_percent_max: f64,
    /// When its last delta came, milliseconds since the start.
    #[serde(skip)]
    pub reported_ms: u64,
    /// It ended early.
    pub lost: bool,
}

impl Record {
    /// The record of a run that starts.
    pub fn new(meta: Meta) -> Self {
        Self { meta, ..Self::default() }
    }

    /// Adds a worker's delta; it is visible from the next [`Record::close_second`] on.
    pub fn merge(&mut self, mut delta: Delta) {
        let mut worker = WorkerTick {
            worker: delta.worker,
            users: delta.users,
            connected: delta.connected,
            started: delta.counts[Count::UsersStarted],
            errors: delta.errors.total(),
            frames_in: delta.counts.frames_in(),
            frames_out: delta.counts.frames_out(),
            cpu_ns: delta.cpu_ns,
            span_ms: 0,
            lost: false,
        };
        if let Some(before) = self.pending_workers.get(&delta.worker) {
            add_fields!(worker, before; started, errors, frames_in, frames_out, cpu_ns);
        }
        self.pending_workers.insert(worker.worker, worker);
        self.at_servers.update(worker.worker, &delta.servers);
        for part in std::mem::take(&mut delta.broadcasts) {
            self.broadcasts.add(part, &mut self.pending);
        }
        self.pending.merge(delta);
    }

    /// Adds CPU time that a server reports to have used, microseconds.
    pub fn server_cpu(&mut self, server: u16, us: u64) {
        let of = self.pending.servers.entry(server).or_default();
        of.cpu_us = of.cpu_us.saturating_add(us);
    }

    /// Removes a lost worker with all its users; returns how many they were.
    pub fn worker_lost(&mut self, id: WorkerId) -> u64 {
        let known = self.workers.get(&id).copied().unwrap_or_default();
        let pending = self.pending_workers.get(&id).copied();
        self.at_servers.forget(id);
        let lost = known.lost || pending.is_some_and(|worker| worker.lost);
        let users = if lost { 0 } else { pending.map_or(known.users, |worker| worker.users) };
        // Their phases are not known here, so they count in the first.
        self.pending.errors.count(ErrorKind::WorkerLost, 0, users);
        let tick = self.pending_workers.entry(id).or_default();
        let before = *tick;
        *tick = WorkerTick { worker: id, users: 0, connected: 0, lost: true, ..before };
        tick.errors = tick.errors.saturating_add(users);
        users
    }

    /// Removes all workers of a lost host, adds a warning, and returns how many users they had.
    pub fn host_lost(&mut self, host: u16) -> u64 {
        let name = self.meta.host_name(host);
        let is_known =
            |warning: &Warning| matches!(warning, Warning::AgentLost { host, .. } if *host == name);
        if self.warnings.iter().any(is_known) {
            return 0;
        }
        let mut workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        workers.extend(self.pending_workers.keys());
        workers.sort_unstable();
        workers.dedup();
        workers.retain(|id| id.host == host);
        let users = workers.into_iter().map(|id| self.worker_lost(id)).sum();
        self.warn(Warning::AgentLost { host: name, users });
        users
    }

    /// Adds a warning; it is visible at once, and is part of the next tick.
    pub fn warn(&mut self, warning: Warning) {
        self.note(&warning);
        self.pending.warnings.push(warning);
    }

    /// Closes a second, `at_ms` after the start of the run: all that was merged since the last one
    /// becomes part of the record. The tick is for the journal and the outputs.
    pub fn close_second(&mut self, at_ms: u64) -> Tick {
        self.close(at_ms, None)
    }

    /// Closes the run with its last, perhaps shorter second.
    pub fn finish(&mut self, at_ms: u64, ending: Ending) -> Tick {
        self.close(at_ms, Some(ending))
    }

    fn close(&mut self, at_ms: u64, ending: Option<Ending>) -> Tick {
        let at_ms = at_ms.max(self.at_ms);
        let mut all = std::mem::take(&mut self.pending);
        let broadcasts = self.broadcasts.close(at_ms, ending.is_some(), &mut all);
        let mut workers: Vec<WorkerTick> =
            std::mem::take(&mut self.pending_workers).into_values().collect();
        for worker in &mut workers {
            let reported_ms = self.workers.get(&worker.worker).map_or(0, |known| known.reported_ms);
            worker.span_ms = at_ms.saturating_sub(reported_ms);
        }
        let silent = self
            .workers
            .iter()
            .filter(|(id, _)| workers.binary_search_by_key(*id, |worker| worker.worker).is_err());
        let (users, connected) = silent
            .map(|(_, known)| (known.users, known.connected))
            .chain(workers.iter().map(|worker| (worker.users, worker.connected)))
            .fold((0_u64, 0_u64), |(users, connected), (more_users, more_connected)| {
                (users.saturating_add(more_users), connected.saturating_add(more_connected))
            });
        (all.users, all.connected) = (users, connected);
        self.at_servers.close(&self.servers, &mut all.servers);
        tidy_lines(&mut all);
        let span_ms = at_ms - self.at_ms;
        let (samples, dump) = (std::mem::take(&mut all.samples), std::mem::take(&mut all.dump));
        let mut tick = Tick { at_ms, span_ms, all, workers, broadcasts, samples, dump, ending };
        let mut detector = std::mem::take(&mut self.detector);
        let warnings = detector.check(self, &tick);
        self.detector = detector;
        tick.all.warnings.extend(warnings);
        self.apply(&tick);
        tick
    }

    /// Adds a tick that another record has closed: this makes a record from a journal.
    pub fn apply(&mut self, tick: &Tick) {
        let all = &tick.all;
        self.at_ms = self.at_ms.max(tick.at_ms);
        self.ending = tick.ending.or(self.ending);
        self.users.set(all.users);
        self.connected.set(all.connected);
        self.counts.add(&all.counts);
        add_each(&mut self.times, &all.times, Total::absorb);
        self.errors.add(&all.errors);
        for detail in &all.details {
            let texts = self.details.entry(detail.kind).or_default();
            if texts.len() < DETAILS_MAX && !texts.contains(&detail.text) {
                texts.push(detail.text.clone());
            }
        }
        add_each(&mut self.phases, &all.phases, Users::add);
        add_each(&mut self.sessions, &all.sessions, Users::add);
        add_each(&mut self.statuses, &all.statuses, add_number);
        add_each(&mut self.servers, &all.servers, ServerTotal::apply);
        self.cpu_ns = self.cpu_ns.saturating_add(all.cpu_ns);
        for worker in &tick.workers {
            self.workers.entry(worker.worker).or_default().apply(worker, tick.at_ms);
        }
        self.slowest.extend(&tick.broadcasts);
        slowest(&mut self.slowest, SLOWEST);
        self.series.push(Point::of(tick));
        for warning in &all.warnings {
            self.note(warning);
        }
    }

    /// Adds a warning, or replaces an older one of the same thing.
    pub fn note(&mut self, warning: &Warning) {
        match self.warnings.iter_mut().find(|old| warning.replaces(old)) {
            Some(old) => old.clone_from(warning),
            None => self.warnings.push(warning.clone()),
        }
    }
}

macro_rules! parts {
    ($record:ident: $($(#[$doc:meta])+ $name:ident -> $type:ty = $part:expr;)+) => {
        impl Record {
            $($(#[$doc])+ pub fn $name(&self) -> $type { let $record = self; $part })+
        }
    };
}

parts! { record:
    /// The metadata.
    meta -> &Meta = &record.meta;
    /// How long it has run, milliseconds.
    at_ms -> u64 = record.at_ms;
    /// How it ended; `None`: it runs, or was killed.
    ending -> Option<Ending> = record.ending;
    /// Users alive.
    users -> u64 = record.users.now;
    /// The most users that were alive at the end of a second.
    users_peak -> u64 = record.users.peak;
    /// Connections open.
    connected -> u64 = record.connected.now;
    /// The most connections that were open at the end of a second.
    connected_peak -> u64 = record.connected.peak;
    /// Counters.
    counts -> &Counts = &record.counts;
    /// Times of all metrics that occurred.
    all_times -> &BTreeMap<MetricId, Total> = &record.times;
    /// Errors by kind and phase.
    errors -> &Errors = &record.errors;
    /// Users by phase.
    phases -> &BTreeMap<u16, Users> = &record.phases;
    /// Users by session.
    sessions -> &BTreeMap<u16, Users> = &record.sessions;
    /// HTTP answers by status.
    statuses -> &BTreeMap<u16, u64> = &record.statuses;
    /// Servers that were used, by index.
    servers -> &BTreeMap<u16, ServerTotal> = &record.servers;
    /// CPU time of all workers, nanoseconds.
    cpu_ns -> u64 = record.cpu_ns;
    /// Workers that have sent a delta.
    workers -> &BTreeMap<WorkerId, Worker> = &record.workers;
    /// The slowest broadcasts, the slowest first.
    slowest_broadcasts -> &[Broadcast] = &record.slowest;
    /// The run over time.
    series -> &Series = &record.series;
    /// Warnings for the operator.
    warnings -> &[Warning] = &record.warnings;
}

impl Record {
    /// Times of one metric; `None`: it did not occur.
    pub fn times(&self, metric: impl Into<MetricId>) -> Option<&Total> {
        self.times.get(&metric.into())
    }

    /// Texts of the first errors of a kind.
    pub fn details(&self, kind: ErrorKind) -> &[String] {
        self.details.get(&kind).map_or(&[], Vec::as_slice)
    }
}

impl Worker {
    fn apply(&mut self, tick: &WorkerTick, at_ms: u64) {
        self.users = tick.users;
        self.connected = tick.connected;
        self.connected_peak = self.connected_peak.max(tick.connected);
        add_fields!(self, tick; started, errors, frames_in, frames_out, cpu_ns);
        if tick.span_ms > 0 {
            self.cpu_percent = tick.cpu_ns as f64 / 10_000.0 / tick.span_ms as f64;
            self.cpu_percent_max = self.cpu_percent_max.max(self.cpu_percent);
        }
        self.reported_ms = at_ms;
        self.lost |= tick.lost;
    }
}

fn in_seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

fn tidy_lines(all: &mut Delta) {
    all.match_lines.sort_unstable();
    let over = all.match_lines.len().saturating_sub(LINES_MAX);
    all.counts[Count::MatchLinesDropped] += over as u64;
    all.match_lines.truncate(LINES_MAX);
}
