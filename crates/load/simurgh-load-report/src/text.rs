//! The summary of a run as text: aligned tables, each number with its unit.

use std::fmt::Write as _;

use simurgh_load_record::figures::{Unit, Verdict};
use simurgh_load_record::{
    Count, Live, Metric, MetricRow, Record, ServerRow, ServerTotal, Summary, Users, WorkerRow,
};
use simurgh_text::format::{self, bytes, grouped, micros, time};
use simurgh_text::visible;

/// The summary of a run for a terminal, at most 110 columns wide unless names are long.
pub fn summary(record: &Record) -> String {
    let all = record.summary();
    let mut text = String::new();
    head(&mut text, &all, record);
    users(&mut text, &all.live);
    traffic(&mut text, &all.live);
    times(&mut text, &all.live);
    broadcasts(&mut text, record, &all.live);
    resumes(&mut text, &all.live);
    errors(&mut text, &all.live);
    phases(&mut text, &all.live);
    servers(&mut text, &all.live);
    workers(&mut text, &all.live);
    warnings(&mut text, &all.live);
    verdicts(&mut text, &all);
    text
}

fn head(text: &mut String, all: &Summary, record: &Record) {
    let how = record.ending().map_or("not finished", |ending| ending.describe());
    let _ = writeln!(text, "{}: {how}, after {}", all.scenario, time(all.live.at_s));
    let hosts = match all.hosts.as_slice() {
        [] => "local".to_owned(),
        hosts => hosts.join(", "),
    };
    let workers = all.live.workers.len();
    let s = if workers == 1 { "" } else { "s" };
    let _ = writeln!(
        text,
        "against {} from {hosts} ({workers} worker{s}), seed {}",
        all.targets.join(", "),
        all.seed
    );
}

fn users(text: &mut String, live: &Live) {
    let counts = &live.counts;
    let (started, late) = (counts[Count::UsersStarted], counts[Count::LateArrivals]);
    let mut table = Table::new(text, "Users", &[]);
    let mut row = |name, n, more| table.row(name, [grouped(n), more]);
    row("started", started, rate(live, started));
    row("finished", counts[Count::UsersFinished], String::new());
    row("aborted", counts[Count::UsersAborted], String::new());
    if live.users > 0 {
        row("still running", live.users, String::new());
    }
    row("most concurrent", live.users_peak, String::new());
    row("most connected", live.connected_peak, String::new());
    row("started late (> 10 ms)", late, percent(late, started));
    table.end();
}

fn traffic(text: &mut String, live: &Live) {
    let counts = &live.counts;
    let mut table = Table::new(text, "Traffic", &[]);
    let rows = [
        ("connections", counts[Count::Connects]),
        ("dropped by a reset", counts[Count::DropsReset]),
        ("dropped silently", counts[Count::DropsSilent]),
        ("reconnects", counts[Count::Reconnects]),
        ("requests", counts[Count::Requests]),
        ("  unanswered", counts[Count::RequestsUnanswered]),
        ("messages without reply", counts[Count::RequestsNoAck]),
        ("frames received", counts.frames_in()),
        ("frames sent", counts.frames_out()),
    ];
    for (name, n) in rows {
        if n > 0 {
            table.row(name, [grouped(n), rate(live, n)]);
        }
    }
    for (name, n) in [("received", counts[Count::BytesIn]), ("sent", counts[Count::BytesOut])] {
        table.row(name, [bytes(n as f64), bytes(per_second(live, n)) + "/s"]);
    }
    for status in &live.statuses {
        let cells = [grouped(status.count), rate(live, status.count)];
        table.row(&format!("HTTP {}", status.status), cells);
    }
    table.end();
}

fn times(text: &mut String, live: &Live) {
    // Rows about this tool come after those about the server.
    let own = |row: &&MetricRow| {
        let own = [Metric::ArrivalLag, Metric::StepLag, Metric::StampError];
        own.iter().any(|metric| metric.name() == row.name)
    };
    let (of_tool, of_server): (Vec<_>, Vec<_>) = live.metrics.iter().partition(own);
    for (title, rows) in [("Times", of_server), ("Times of this tool", of_tool)] {
        if rows.is_empty() {
            continue;
        }
        let heads = ["count", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
        let mut table = Table::new(text, title, &heads);
        for MetricRow { name, stats } in rows {
            let slowest = [stats.p50, stats.p90, stats.p99, stats.p99_9, stats.max];
            let times = [stats.min as f64, stats.mean].into_iter();
            let times = times.chain(slowest.map(|us| us as f64)).map(micros);
            table.row(name, [grouped(stats.count)].into_iter().chain(times));
        }
        table.end();
    }
}

fn broadcasts(text: &mut String, record: &Record, live: &Live) {
    let counts = &live.counts;
    if counts[Count::Broadcasts] == 0 && counts[Count::Deliveries] == 0 {
        return;
    }
    let mut table = Table::new(text, "Broadcasts", &[]);
    let expected = counts[Count::DeliveriesExpected];
    let rows = [
        ("sent", Count::Broadcasts),
        ("deliveries", Count::Deliveries),
        ("expected", Count::DeliveriesExpected),
        ("delivered", Count::DeliveriesOnce),
        ("missing", Count::DeliveriesMissing),
        ("double", Count::DeliveriesDuplicate),
        ("out of order", Count::DeliveriesOutOfOrder),
        ("unexpected", Count::DeliveriesUnexpected),
        ("not confirmed", Count::BroadcastsUnconfirmed),
        ("of these received", Count::BroadcastsUnconfirmedHeard),
        ("not numbered", Count::BroadcastsUnnumbered),
    ];
    for (name, count) in rows {
        let n = counts[count];
        let of_all = matches!(count, Count::DeliveriesOnce | Count::DeliveriesMissing);
        let is_wrong =
            of_all || matches!(count, Count::DeliveriesDuplicate | Count::DeliveriesOutOfOrder);
        let is_asked_for =
            matches!(count, Count::Broadcasts | Count::Deliveries) || is_wrong && expected > 0;
        let more = match (of_all && expected > 0, n) {
            (true, _) => percent(n, expected),
            (false, 0) => String::new(),
            (false, _) => rate(live, n),
        };
        if n > 0 || is_asked_for {
            table.row(name, [grouped(n), more]);
        }
    }
    if let Some(slowest) = record.slowest_broadcasts().first() {
        let to = format!("to its last of {} receivers", grouped(u64::from(slowest.receivers)));
        table.row("slowest", [micros(slowest.last_us as f64), to]);
    }
    table.end();
}

/// Missed messages that servers sent again, and gaps that they reported.
fn resumes(text: &mut String, live: &Live) {
    let mut table = Table::new(text, "Resumes", &[]);
    let rows =
        [("recovered", Count::ResumesRecovered), ("messages sent again", Count::ResumedMessages)];
    let gaps = Count::GAPS.map(|(reason, count)| (format!("gaps: {reason}"), count));
    for (name, count) in rows.map(|(name, count)| (name.to_owned(), count)).into_iter().chain(gaps)
    {
        let n = live.counts[count];
        if n > 0 {
            table.row(&name, [grouped(n)]);
        }
    }
    table.end();
}

fn errors(text: &mut String, live: &Live) {
    let failed_checks = live.counts[Count::NoMatches];
    if live.errors.is_empty() && failed_checks == 0 {
        text.push_str("\nNo errors.\n");
        return;
    }
    let mut table = Table::new(text, "Errors", &["count", "in phases"]);
    for row in &live.errors {
        let phases: Vec<String> =
            row.phases.iter().map(|(phase, n)| format!("{phase}: {}", grouped(*n))).collect();
        table.row(&row.kind, [grouped(row.count), phases.join(", ")]);
    }
    if failed_checks > 0 {
        table.row("checks failed", [grouped(failed_checks), String::new()]);
    }
    table.end();
    for row in &live.errors {
        for example in &row.examples {
            let _ = writeln!(text, "  {}: {}", row.kind, visible(example));
        }
    }
}

fn phases(text: &mut String, live: &Live) {
    if live.phases.len() < 2 {
        return;
    }
    let heads = ["starts at", "lasts", "started", "finished", "aborted", "running", "errors"];
    let mut table = Table::new(text, "Phases", &heads);
    for row in &live.phases {
        let Users { started, finished, aborted } = row.users;
        let times = [row.plan.starts_s, row.plan.duration_s].map(time).into_iter();
        let counts = [started, finished, aborted, row.running, row.errors].map(grouped);
        table.row(&row.plan.name, times.chain(counts));
    }
    table.end();
}

/// Servers, if there are several, or their CPU time is known.
fn servers(text: &mut String, live: &Live) {
    let is_asked = live.servers.iter().any(|row| row.total.seen.cpu_us > 0);
    if live.servers.len() < 2 && !is_asked {
        return;
    }
    let heads = [
        "users",
        "connected",
        "at most",
        "made",
        "refused",
        "lost",
        "cut",
        "back",
        "left",
        "errors",
        "CPU",
    ];
    let heads = heads.get(..10 + usize::from(is_asked)).unwrap_or_default();
    let mut table = Table::new(text, "Servers", heads);
    for ServerRow { name, total: ServerTotal { seen, connected_peak } } in &live.servers {
        let counts = [
            seen.users,
            seen.connected,
            *connected_peak,
            seen.connects,
            seen.refused,
            seen.lost,
            seen.cut,
            seen.reconnects,
            seen.left,
            seen.errors,
        ];
        let cpu = is_asked.then(|| time(seen.cpu_us as f64 / 1e6));
        table.row(name, counts.map(grouped).into_iter().chain(cpu));
    }
    table.end();
    if is_asked {
        let all: u64 = live.servers.iter().map(|row| row.total.seen.cpu_us).sum();
        let _ = writeln!(text, "  CPU of all servers: {}", time(all as f64 / 1e6));
    }
}

fn workers(text: &mut String, live: &Live) {
    /// More rows would hide the rest; `report.json` has all.
    const ROWS_MAX: usize = 16;
    let heads = ["most connected", "started", "errors", "frames in", "CPU", "of a core", ""];
    let mut table = Table::new(text, "Workers", &heads);
    for WorkerRow { host, thread, worker } in live.workers.iter().take(ROWS_MAX) {
        let counts = [worker.connected_peak, worker.started, worker.errors, worker.frames_in];
        let more = [
            time(worker.cpu_ns as f64 / 1e9),
            format!("max {:.0} %", worker.cpu_percent_max),
            if worker.lost { "lost" } else { "" }.to_owned(),
        ];
        table.row(&format!("{host}/{thread}"), counts.map(grouped).into_iter().chain(more));
    }
    table.end();
    if let Some(more) = live.workers.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more; CPU of all: {}", time(live.cpu_s));
    }
}

fn warnings(text: &mut String, live: &Live) {
    if !live.warnings.is_empty() {
        text.push_str("\nWarnings\n");
    }
    for warning in &live.warnings {
        let _ = writeln!(text, "  {}", visible(&warning.text));
    }
}

fn verdicts(text: &mut String, all: &Summary) {
    if all.verdicts.is_empty() {
        return;
    }
    let mut table = Table::new(text, "Pass", &["wanted", "measured", ""]);
    for verdict in &all.verdicts {
        let passed = if verdict.passed { "ok" } else { "FAILED" };
        let cells = [verdict.condition.clone(), measured(verdict), passed.to_owned()];
        table.row(&verdict.figure, cells);
    }
    table.end();
    let verdict = match all.passed {
        Some(true) => "PASSED",
        Some(false) => "FAILED",
        None => "undecided: the run did not finish",
    };
    let _ = writeln!(text, "{verdict}");
}

pub(crate) fn measured(verdict: &Verdict) -> String {
    match (verdict.measured, verdict.unit) {
        (None, _) => "nothing".to_owned(),
        (Some(us), Unit::Microseconds) => micros(us),
        (Some(n), Unit::Count) => grouped(n as u64),
        (Some(n), Unit::PerSecond) => format::rate(n),
        (Some(share), Unit::Share) => format::percent(share),
    }
}

fn per_second(live: &Live, n: u64) -> f64 {
    if live.at_s > 0.0 { n as f64 / live.at_s } else { 0.0 }
}

fn rate(live: &Live, n: u64) -> String {
    format::rate(per_second(live, n))
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { format::percent(part as f64 / whole as f64) }
}

struct Table<'a> {
    text: &'a mut String,
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    fn new(text: &'a mut String, title: &'a str, heads: &[&str]) -> Self {
        let head = std::iter::once(title).chain(heads.iter().copied());
        let rows = vec![head.map(str::to_owned).collect()];
        Self { text, rows }
    }

    fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| visible(&cell));
        self.rows.push(std::iter::once(format!("  {}", visible(name))).chain(cells).collect());
    }

    fn end(mut self) {
        if self.rows.len() < 2 {
            return;
        }
        self.text.push('\n');
        if let [title] = self.rows.first().map(Vec::as_slice).unwrap_or_default() {
            // A title does not make the column wider.
            let _ = writeln!(self.text, "{title}");
            self.rows.remove(0);
        }
        self.text.push_str(&format::aligned(&self.rows, |column| column == 0));
    }
}
