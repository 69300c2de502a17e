//! Records for people and programs: with names in place of numbers.
//!
//! [`Summary`] is `report.json`; its schema is `docs/report.schema.json`. [`Live`] is the part of
//! it that changes every second. All times are in microseconds unless their name says otherwise.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::{self, Verdict};
use super::{
    Broadcast, Counts, Ending, Meta, MetricId, PhasePlan, Point, Record, ServerTotal, Stats,
    TimePoint, Users, Warning, Worker,
};

type Columns = BTreeMap<&'static str, Vec<f64>>;

/// The current state of the run, without its history: for a page that is refreshed each second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Live {
    /// Time since the start, seconds.
    pub at_s: f64,
    /// How it ended; `null` while it runs.
    pub ending: Option<Ending>,
    /// Users alive.
    pub users: u64,
    /// The maximum of users alive.
    pub users_peak: u64,
    /// Connections open.
    pub connected: u64,
    /// The maximum of connections open.
    pub connected_peak: u64,
    /// CPU time of all workers, seconds.
    pub cpu_s: f64,
    /// Counters that are not 0, by name.
    pub counts: Counts,
    /// All errors.
    pub errors_total: u64,
    /// Times by metric.
    pub metrics: Vec<MetricRow>,
    /// Errors by kind, the most frequent first.
    pub errors: Vec<ErrorRow>,
    /// Phases in order.
    pub phases: Vec<PhaseRow>,
    /// Sessions in order.
    pub sessions: Vec<SessionRow>,
    /// HTTP answers by status.
    pub statuses: Vec<StatusRow>,
    /// Servers in the order of the scenario.
    pub servers: Vec<ServerRow>,
    /// Workers by host and thread.
    pub workers: Vec<WorkerRow>,
    /// The slowest broadcasts, the slowest first.
    pub broadcasts: Vec<Broadcast>,
    /// Warnings for the operator.
    pub warnings: Vec<WarningRow>,
    /// `false`: the generator was overloaded, and the figures are not those of the server.
    pub trustworthy: bool,
    /// The last point of the series: rates are its values divided by its `span_s`.
    pub point: BTreeMap<&'static str, f64>,
    /// Times of the last point.
    pub point_times: BTreeMap<String, TimePoint>,
    /// Errors of the last point, by kind.
    pub point_errors: BTreeMap<String, u64>,
}

/// The whole run: the content of `report.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Version of this format, as in the schema.
    pub format: u32,
    /// The program that wrote it.
    pub tool: &'static str,
    /// Its version.
    pub version: String,
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The servers.
    pub targets: Vec<String>,
    /// Hosts that generated load.
    pub hosts: Vec<String>,
    /// Every threshold holds; `null`: there are none, or the run has not ended.
    pub passed: Option<bool>,
    /// The thresholds, each with the measured value.
    pub verdicts: Vec<Verdict>,
    /// Totals and tables.
    #[serde(flatten)]
    pub live: Live,
    /// The run over time.
    pub series: SeriesView,
}

/// The run over time, in columns of one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesView {
    /// Seconds that one point represents.
    pub seconds_per_point: u32,
    /// `t_s`, `span_s`, `users`, `connected`, `arrivals`, ...: see [`Point::columns`].
    pub columns: Columns,
    /// Times by metric: `count`, `p50`, `p90`, `p99`, `p99_9`, `max`; `null`: none occurred.
    pub metrics: BTreeMap<String, BTreeMap<&'static str, Vec<Option<u64>>>>,
    /// Errors by kind.
    pub errors: BTreeMap<String, Vec<u64>>,
}

/// Times of one metric over the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricRow {
    /// `join`, `tr_login`, ...
    pub name: String,
    /// Times in microseconds.
    #[serde(flatten)]
    pub stats: Stats,
}

/// Errors of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorRow {
    /// For example `connect_refused`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// By phase.
    pub phases: BTreeMap<String, u64>,
    /// Texts of the first of them.
    pub examples: Vec<String>,
}

/// One phase: its plan and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseRow {
    /// The plan; all 0 for users with an appointment.
    #[serde(flatten)]
    pub plan: PhasePlan,
    /// Its users.
    #[serde(flatten)]
    pub users: Users,
    /// Still alive.
    pub running: u64,
    /// Errors of its users.
    pub errors: u64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionRow {
    /// Its name.
    pub name: String,
    /// Its users.
    #[serde(flatten)]
    pub users: Users,
    /// Still alive.
    pub running: u64,
}

/// HTTP answers with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StatusRow {
    /// The status.
    pub status: u16,
    /// How many.
    pub count: u64,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerRow {
    /// As in `targets`.
    pub name: String,
    /// Its figures.
    #[serde(flatten)]
    pub total: ServerTotal,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerRow {
    /// Its host.
    pub host: String,
    /// Its thread.
    pub thread: u16,
    /// Its figures.
    #[serde(flatten)]
    pub worker: Worker,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WarningRow {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub text: String,
    /// Its figures.
    pub data: Warning,
}

impl Record {
    /// The run so far.
    pub fn live(&self) -> Live {
        let last = self.series().points().last();
        let (warnings, statuses) = (self.warnings(), self.statuses().iter());
        Live {
            at_s: seconds(self.at_ms()),
            ending: self.ending(),
            users: self.users(),
            users_peak: self.users_peak(),
            connected: self.connected(),
            connected_peak: self.connected_peak(),
            cpu_s: self.cpu_ns() as f64 / 1e9,
            counts: self.counts().clone(),
            errors_total: self.errors().total(),
            metrics: metric_rows(self),
            errors: error_rows(self),
            phases: phase_rows(self),
            sessions: session_rows(self),
            statuses: statuses.map(|(&status, &count)| StatusRow { status, count }).collect(),
            servers: server_rows(self),
            workers: worker_rows(self),
            broadcasts: self.slowest_broadcasts().to_vec(),
            warnings: warnings.iter().map(WarningRow::of).collect(),
            trustworthy: !warnings.iter().any(Warning::is_untrustworthy),
            point: last.map(|point| point.columns().collect()).unwrap_or_default(),
            point_times: last.map(|point| point_times(self.meta(), point)).unwrap_or_default(),
            point_errors: last.map(point_errors).unwrap_or_default(),
        }
    }

    /// The whole run.
    pub fn summary(&self) -> Summary {
        let meta = self.meta();
        let verdicts = figures::verdicts(self, &meta.pass);
        Summary {
            format: 1,
            tool: "simurgh load",
            version: meta.version.clone(),
            scenario: meta.scenario.clone(),
            seed: meta.seed,
            started_unix_ms: meta.started_unix_ms,
            targets: meta.targets.clone(),
            hosts: meta.hosts.clone(),
            passed: figures::passed(self, &verdicts),
            verdicts,
            live: self.live(),
            series: self.series_view(),
        }
    }

    /// The run over time, in columns.
    pub fn series_view(&self) -> SeriesView {
        let points = self.series().points();
        let mut columns = Columns::new();
        let mut metrics = BTreeMap::new();
        let mut errors: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (index, point) in points.iter().enumerate() {
            for (name, value) in point.columns() {
                columns.entry(name).or_default().push(value);
            }
            for (id, stats) in &point.times {
                let name = self.meta().names.metric_name(*id);
                let metric: &mut BTreeMap<_, Vec<_>> = metrics.entry(name).or_default();
                for (name, value) in time_columns(stats) {
                    let column = metric.entry(name).or_default();
                    column.resize(index, None);
                    column.push(Some(value));
                }
            }
            for (kind, count) in point_errors(point) {
                let column = errors.entry(kind).or_default();
                column.resize(index, 0);
                column.push(count);
            }
        }
        for column in metrics.values_mut().flat_map(BTreeMap::values_mut) {
            column.resize(points.len(), None);
        }
        for column in errors.values_mut() {
            column.resize(points.len(), 0);
        }
        SeriesView { seconds_per_point: self.series().ticks_per_point(), columns, metrics, errors }
    }
}

impl WarningRow {
    fn of(warning: &Warning) -> Self {
        Self { code: warning.code(), text: warning.to_string(), data: warning.clone() }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn time_columns(stats: &TimePoint) -> [(&'static str, u64); 6] {
    [
        ("count", stats.count),
        ("p50", stats.p50),
        ("p90", stats.p90),
        ("p99", stats.p99),
        ("p99_9", stats.p99_9),
        ("max", stats.max),
    ]
}

fn point_times(meta: &Meta, point: &Point) -> BTreeMap<String, TimePoint> {
    point.times.iter().map(|(id, stats)| (meta.names.metric_name(*id), *stats)).collect()
}

fn point_errors(point: &Point) -> BTreeMap<String, u64> {
    point.kinds.iter().map(|(kind, count)| (kind.name().into_owned(), *count)).collect()
}

fn metric_rows(record: &Record) -> Vec<MetricRow> {
    let names = &record.meta().names;
    let row = |(&id, hist): (&MetricId, &super::Total)| MetricRow {
        name: names.metric_name(id),
        stats: hist.stats(),
    };
    record.all_times().iter().map(row).collect()
}

fn error_rows(record: &Record) -> Vec<ErrorRow> {
    let mut rows: Vec<ErrorRow> = Vec::new();
    for (kind, phase, count) in record.errors().iter() {
        let name = kind.name();
        // Kinds come in order, so an equal one is the last.
        if rows.last().is_none_or(|row| row.kind != name) {
            let examples = record.details(kind).to_vec();
            let phases = BTreeMap::new();
            rows.push(ErrorRow { kind: name.into_owned(), count: 0, phases, examples });
        }
        if let Some(row) = rows.last_mut() {
            row.count = row.count.saturating_add(count);
            let name = record.meta().names.phase_name(phase);
            let in_phase = row.phases.entry(name).or_default();
            *in_phase = in_phase.saturating_add(count);
        }
    }
    rows.retain(|row| row.count > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

fn phase_rows(record: &Record) -> Vec<PhaseRow> {
    let meta = record.meta();
    let rows = (0_u16..).zip(&meta.names.phases).map(|(phase, name)| {
        let users = record.phases().get(&phase).copied().unwrap_or_default();
        let plan = meta.phases.get(usize::from(phase)).cloned();
        PhaseRow {
            plan: plan.unwrap_or_else(|| PhasePlan { name: name.clone(), ..PhasePlan::default() }),
            users,
            running: users.running(),
            errors: record.errors().of_phase(phase),
        }
    });
    rows.collect()
}

fn session_rows(record: &Record) -> Vec<SessionRow> {
    let rows = (0_u16..).zip(&record.meta().names.sessions).map(|(session, name)| {
        let users = record.sessions().get(&session).copied().unwrap_or_default();
        SessionRow { name: name.clone(), users, running: users.running() }
    });
    rows.collect()
}

fn server_rows(record: &Record) -> Vec<ServerRow> {
    let rows = (0_u16..).zip(&record.meta().targets).map(|(server, name)| {
        let total = record.servers().get(&server).copied().unwrap_or_default();
        ServerRow { name: name.clone(), total }
    });
    rows.collect()
}

fn worker_rows(record: &Record) -> Vec<WorkerRow> {
    let rows = record.workers().iter().map(|(id, worker)| WorkerRow {
        host: record.meta().host_name(id.host),
        thread: id.thread,
        worker: *worker,
    });
    rows.collect()
}
