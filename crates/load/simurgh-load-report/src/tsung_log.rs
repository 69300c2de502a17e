//! Tsung's own logs, for scripts and people that know them: `tsung.log`, `match.log`,
//! `tsung-fullstats.log`, `tsung.dump`.
//!
//! A block of `tsung.log` has `count mean stddev max min globalmean globalcount` for each
//! statistic, in milliseconds (the first three of this block, the others of the whole run). It has
//! the growth and the total of each counter. Unlike in Tsung, global figures include the block
//! itself, and the first block is at the very start: `tsung_stats.pl` computes rates from the
//! second block on, and would lose the first 10 s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use simurgh_load_record::figures::REQUESTS;
use simurgh_load_record::{
    Count, Counts, Delta, ErrorKind, Errors, Hist, MatchLine, Meta, Metric, Record, Tick, Total,
};
use simurgh_load_scenario::Dump;
use simurgh_text::visible;

use crate::outputs::Exporter;

const BLOCK_MS: u64 = 10_000;

/// Writes `tsung.log`.
#[derive(Debug)]
pub struct TsungLog {
    file: File,
    started_unix_ms: u64,
    /// Sums since the last block: counts, times, errors and statuses.
    block: Delta,
    /// When the last block was written.
    written_ms: u64,
    connected: u64,
    phases_begun: usize,
}

impl TsungLog {
    /// Creates the log of a run in `dir`.
    pub fn create(dir: &Path, meta: &Meta) -> io::Result<Self> {
        let mut log = Self {
            file: File::create(dir.join("tsung.log"))?,
            started_unix_ms: meta.started_unix_ms,
            block: Delta::default(),
            written_ms: 0,
            connected: 0,
            phases_begun: 0,
        };
        log.write_block(&Record::new(meta.clone()), 0)?;
        Ok(log)
    }

    fn write_block(&mut self, record: &Record, at_ms: u64) -> io::Result<()> {
        let unix_s = self.started_unix_ms.saturating_add(at_ms) / 1000;
        let (now, peak) = (record.users(), record.users_peak());
        let mut text = format!("# stats: dump at {unix_s}\nstats: users {now} {peak}\n");
        self.samples(&mut text, record);
        self.counters(&mut text, record);
        self.file.write_all(text.as_bytes())?;
        self.block = Delta::default();
        self.written_ms = at_ms;
        Ok(())
    }

    fn samples(&self, text: &mut String, record: &Record) {
        let mut requests = (Hist::new(), Total::new());
        for metric in REQUESTS {
            if let Some(hist) = self.block.times.get(&metric.into()) {
                requests.0.add(hist);
            }
            if let Some(hist) = record.times(metric) {
                requests.1.add(hist);
            }
        }
        sample(text, "request", &requests.0, &requests.1);
        let none = Hist::new();
        for (&id, total) in record.all_times() {
            let name = match id.metric() {
                Some(metric @ (Metric::Connect | Metric::Session)) => metric.name().to_owned(),
                Some(_) => continue,
                None => plain_name(&record.meta().names.metric_name(id)),
            };
            sample(text, &name, self.block.times.get(&id).unwrap_or(&none), total);
        }
    }

    fn counters(&mut self, text: &mut String, record: &Record) {
        let (now, all) = (&self.block.counts, record.counts());
        let counters: [(&str, &[Count]); 11] = [
            ("users_count", &[Count::UsersStarted]),
            ("finish_users_count", &[Count::UsersFinished, Count::UsersAborted]),
            ("size_rcv", &[Count::BytesIn]),
            ("size_sent", &[Count::BytesOut]),
            ("request_noack", &[Count::RequestsNoAck]),
            ("async_unknown_data_rcv", &[Count::FramesUnsolicited]),
            ("async_data_sent", &[Count::PingsIn, Count::Heartbeats]),
            ("websocket_succ", &[Count::Upgrades]),
            ("reconnect", &[Count::Reconnects]),
            ("match", &[Count::Matches]),
            ("nomatch", &[Count::NoMatches]),
        ];
        let sum = |of: &Counts, counts: &[Count]| counts.iter().map(|&count| of[count]).sum();
        for (name, counts) in counters {
            counter(text, name, sum(now, counts), sum(all, counts));
        }
        let failed = |kind: ErrorKind| {
            matches!(
                kind,
                ErrorKind::UpgradeStatus(_) | ErrorKind::UpgradeWrong | ErrorKind::UpgradeTimeout
            )
        };
        let fails = |of: &Errors| of.iter().filter(|(kind, ..)| failed(*kind)).map(|it| it.2).sum();
        counter(text, "websocket_fail", fails(&self.block.errors), fails(record.errors()));
        let kinds: BTreeSet<ErrorKind> = record.errors().iter().map(|(kind, ..)| kind).collect();
        for kind in kinds {
            let [now, total] = [&self.block.errors, record.errors()].map(|all| all.of_kind(kind));
            counter(text, &kind.tsung(), now, total);
        }
        for (status, &n) in record.statuses() {
            let now = self.block.statuses.get(status).copied().unwrap_or(0);
            counter(text, &status.to_string(), now, n);
        }
        let begun = record.phases().len();
        counter(text, "newphase", (begun - self.phases_begun.min(begun)) as u64, begun as u64);
        self.phases_begun = begun;
        if all[Count::Connects] > 0 {
            let change = i128::from(record.connected()) - i128::from(self.connected);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "stats: connected {change} {}", record.connected());
        }
        self.connected = record.connected();
    }
}

impl Exporter for TsungLog {
    fn tick(&mut self, record: &Record, tick: &Tick) -> io::Result<()> {
        let all = &tick.all;
        self.block.merge(Delta {
            counts: all.counts.clone(),
            times: all.times.clone(),
            errors: all.errors.clone(),
            statuses: all.statuses.clone(),
            ..Delta::default()
        });
        // The last block is written by `finish`.
        if tick.ending.is_some() || tick.at_ms < self.written_ms.saturating_add(BLOCK_MS) {
            return Ok(());
        }
        self.write_block(record, tick.at_ms)
    }

    fn finish(&mut self, record: &Record) -> io::Result<()> {
        if record.at_ms() > self.written_ms {
            // The log only has seconds: two blocks in one would divide by zero.
            let next_s = (self.started_unix_ms.saturating_add(self.written_ms) / 1000 + 1) * 1000;
            let at_ms = record.at_ms().max(next_s.saturating_sub(self.started_unix_ms));
            self.write_block(record, at_ms)?;
        }
        let end_ms = self.started_unix_ms.saturating_add(record.at_ms());
        let (mega, seconds) = (end_ms / 1_000_000_000, end_ms / 1000 % 1_000_000);
        writeln!(self.file, "EndMonitor:{{{mega},{seconds},{}}}", end_ms % 1000 * 1000)
    }

    fn name(&self) -> &str {
        "tsung.log"
    }
}

/// Tsung leaves out counters that never occurred.
fn counter(text: &mut String, name: &str, now: u64, total: u64) {
    if total > 0 {
        let _ = writeln!(text, "stats: {name} {now} {total}");
    }
}

fn sample(text: &mut String, name: &str, now: &Hist, total: &Total) {
    if total.count() == 0 {
        return;
    }
    let _ = writeln!(
        text,
        "stats: {name} {} {} {} {} {} {} {}",
        now.count(),
        ms(now.mean()),
        ms(now.deviation()),
        ms(total.max() as f64),
        ms(total.min() as f64),
        ms(total.mean()),
        total.count(),
    );
}

/// Microseconds, as milliseconds.
fn ms(us: f64) -> String {
    if us == 0.0 { "0".to_owned() } else { format!("{:.4}", us / 1000.0) }
}

/// Fields are split at blanks, and `tsung_stats.pl` makes file names of names.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// A log with the lines of each second.
#[derive(Debug)]
pub struct LineLog {
    name: &'static str,
    file: File,
    lines: fn(&Record, &Tick) -> String,
}

impl LineLog {
    /// Creates `match.log`: checks of answers, in the directory of a run.
    pub fn matches(dir: &Path) -> io::Result<Self> {
        let head = "# timestamp userid sessionid requestid event transaction name\n";
        Self::create(dir, "match.log", head, match_lines)
    }

    /// Creates `tsung-fullstats.log`: every single time, in milliseconds.
    pub fn full_stats(dir: &Path) -> io::Result<Self> {
        Self::create(dir, "tsung-fullstats.log", "", sample_lines)
    }

    /// Creates `tsung.dump`: the traffic.
    pub fn dump(dir: &Path, dump: Dump) -> io::Result<Self> {
        let head = match dump {
            Dump::Protocol => {
                "#date;pid;id;http method;host;URL;HTTP status;size;duration;transaction;match;\
                 error;tag\n"
            }
            _ => "",
        };
        Self::create(dir, "tsung.dump", head, |_, tick| {
            tick.dump.iter().map(|line| format!("{line}\n")).collect()
        })
    }

    fn create(
        dir: &Path,
        name: &'static str,
        head: &str,
        lines: fn(&Record, &Tick) -> String,
    ) -> io::Result<Self> {
        let mut file = File::create(dir.join(name))?;
        file.write_all(head.as_bytes())?;
        Ok(Self { name, file, lines })
    }
}

impl Exporter for LineLog {
    fn tick(&mut self, record: &Record, tick: &Tick) -> io::Result<()> {
        self.file.write_all((self.lines)(record, tick).as_bytes())
    }

    fn name(&self) -> &str {
        self.name
    }
}

fn match_lines(record: &Record, tick: &Tick) -> String {
    let (meta, mut text) = (record.meta(), String::new());
    for line in &tick.all.match_lines {
        let MatchLine { at_us, user, session, request, event, transaction, name } = line;
        let unix_us = meta.started_unix_ms.saturating_mul(1000).saturating_add(*at_us);
        let transaction = transaction
            .map_or_else(|| "-".to_owned(), |id| plain_name(&meta.names.metric_name(id)));
        // Tsung counts sessions from 1.
        let _ = writeln!(
            text,
            "{}.{:06} {user} {} {request} {} {transaction} {}",
            unix_us / 1_000_000,
            unix_us % 1_000_000,
            u32::from(*session) + 1,
            plain_name(event),
            visible(name),
        );
    }
    text
}

fn sample_lines(record: &Record, tick: &Tick) -> String {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sample in &tick.samples {
        let name = match sample.metric.metric() {
            Some(metric) if REQUESTS.contains(&metric) => "request".to_owned(),
            Some(metric @ (Metric::Connect | Metric::Session)) => metric.name().to_owned(),
            Some(_) => continue,
            None => plain_name(&record.meta().names.metric_name(sample.metric)),
        };
        let ms = format!("{}.{:03}", sample.us / 1000, sample.us % 1000);
        by_name.entry(name).or_default().push(ms);
    }
    let line =
        |(name, times): (String, Vec<String>)| format!("{{sample,{name},[{}]}}\n", times.join(","));
    by_name.into_iter().map(line).collect()
}
