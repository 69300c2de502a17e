//! Once a second: the counters of all shards as an [`Overview`], and a point of the history.
//!
//! This runs also without viewers, so that a new viewer sees the minutes before; it reads about
//! fifty numbers per shard and two files.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use simurgh_core::{SUBSCRIPTION_BYTES, TOPIC_BYTES};
use simurgh_reactor::{Counts, TURN_BUCKETS_NS};
use simurgh_shard::server::Server;
use simurgh_shard::shard::CONNECTION_BYTES;
use simurgh_shard::view::{ErrorRow, Memory, Overview, Point, ShardRow, TlsFigures};

use super::{Observer, unix_s};
use crate::metrics::{REACTOR_METRICS, ShardMetrics, process};

const EVERY: Duration = Duration::from_secs(1);
/// Points of the history: five minutes.
const HISTORY_MAX: usize = 300;
/// Errors are summed over this many points.
const MINUTE: usize = 60;

/// The kernel memory of a socket with its registration, bytes: measured on Linux 6.18, x86-64,
/// with empty buffers (docs/BENCHMARKS.md).
const KERNEL_SOCKET_BYTES: u64 = 4_100;

/// Counters of errors, besides all whose names begin with `errors_`, and those of limits.
const WRONG: [&str; 10] = [
    "upgrades_refused",
    "refused_full",
    "joins_refused",
    "publishers_held",
    "slow_peer_disconnects",
    "idle_timeouts",
    "handshake_timeouts",
    "slow_callbacks",
    "hand_off_refused",
    "accept_pauses",
];

/// Earlier values, for rates.
#[derive(Default)]
pub(super) struct History {
    points: VecDeque<Point>,
    /// Totals of errors at the last seconds, in the order of [`errors`].
    errors: VecDeque<Vec<u64>>,
    before: Option<Reading>,
}

struct Reading {
    at: Instant,
    cpu_s: f64,
    shards: Vec<ShardReading>,
}

#[derive(Clone, Copy, Default)]
struct ShardReading {
    counts: Counts,
    messages_in: u64,
    messages_out: u64,
    deliveries: u64,
}

pub(crate) async fn run(observer: Weak<Observer>) {
    loop {
        {
            let Some(observer) = observer.upgrade() else { return };
            let overview = take(&observer);
            observer.latest.send_replace(Arc::new(overview));
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Observer {
    pub(super) fn points(&self) -> Vec<Point> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.points.iter().cloned().collect()
    }
}

fn take(observer: &Observer) -> Overview {
    let server = &*observer.server.now();
    let process = process::read();
    let reading = read(server, process.cpu_s);
    let mut history = observer.history.lock().unwrap_or_else(PoisonError::into_inner);
    let errors = errors(server, &reading, &mut history.errors);
    let before = history.before.as_ref();
    let span_s = before.map_or(0.0, |it| (reading.at - it.at).as_secs_f64());
    let shards: Vec<ShardRow> = reading
        .shards
        .iter()
        .enumerate()
        .map(|(shard, now)| {
            let before = before.and_then(|it| it.shards.get(shard)).copied().unwrap_or_default();
            shard_row(server, shard, now, &before, span_s)
        })
        .collect();
    let mut now = point(&reading, before, span_s);
    now.resident_bytes = process.resident_bytes;
    now.channels = sum(server, |metrics| metrics.channels.value());
    now.sockets = sum(server, |metrics| metrics.sockets.value());
    now.topics = sum(server, |metrics| metrics.topics.value());
    now.mailbox_bytes = shards.iter().map(|row| row.mailbox_bytes).sum();
    let last = history.errors.iter().rev().nth(1);
    let since_then = |is_meant: fn(&ErrorRow) -> bool| -> u64 {
        let both = errors.iter().zip(last.into_iter().flatten());
        both.filter(|(row, _)| is_meant(row))
            .map(|(row, last)| row.total.saturating_sub(*last))
            .sum()
    };
    now.errors_per_s = per_second(since_then(|_| true), span_s);
    now.limited_per_s = per_second(since_then(|row| is_limit(&row.kind)), span_s);
    let local = reading.shards.iter().map(|it| it.counts.local).sum();
    let counts: Vec<Counts> = reading.shards.iter().map(|it| it.counts).collect();
    history.before = Some(reading);
    history.points.push_back(now.clone());
    if history.points.len() > HISTORY_MAX {
        history.points.pop_front();
    }
    drop(history);
    let config = &server.config;
    Overview {
        server: "simurgh".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: config.commit.clone(),
        uptime_s: server.started.0.elapsed().as_secs_f64(),
        max_connections: config.max_connections.map(|most| most as u64),
        outbound_bytes_max: config.outbound_bytes_max as u64,
        mailbox_bytes_max: config.mailbox_bytes_max as u64,
        can_disconnect: config.api_token.is_some(),
        cluster: server.cluster.as_ref().map(|inbox| inbox.view().state.name().to_owned()),
        tls: tls(server, &counts),
        memory: memory(server, &now, local),
        now,
        shards,
        errors,
        #[cfg(feature = "hooks")]
        hooks: crate::hooked::rows(server),
        #[cfg(not(feature = "hooks"))]
        hooks: Vec::new(),
        history: Vec::new(),
    }
}

fn tls(server: &Server, counts: &[Counts]) -> Option<TlsFigures> {
    let certificates = server.certificates.as_ref()?.current();
    let first = certificates.all().iter().min_by_key(|certificate| certificate.not_after);
    let (certificate, expires_in_s) = first.map_or((String::new(), 0.0), |certificate| {
        (certificate.names.first().cloned().unwrap_or_default(), certificate.expires_in_s())
    });
    let sum = |read: fn(&Counts) -> u64| counts.iter().map(read).sum();
    Some(TlsFigures {
        under_way: sum(|it| it.tls_under_way),
        handshakes: sum(|it| it.tls_handshakes),
        handshakes_1_2: sum(|it| it.tls_12),
        resumed: sum(|it| it.tls_resumed),
        failed: sum(|it| it.tls_failed),
        refused: sum(|it| it.tls_refused),
        certificate,
        expires_in_s,
    })
}

fn sum(server: &Server, read: impl Fn(&ShardMetrics) -> u64) -> u64 {
    server.metrics.iter().map(|metrics| read(metrics)).sum()
}

fn read(server: &Server, cpu_s: f64) -> Reading {
    let stats = server.stats.get().map(Vec::as_slice).unwrap_or_default();
    let shards = server
        .metrics
        .iter()
        .enumerate()
        .map(|(shard, metrics)| ShardReading {
            counts: stats.get(shard).map(|stats| stats.read()).unwrap_or_default(),
            messages_in: metrics.messages_in.value(),
            messages_out: metrics.messages_out.value(),
            deliveries: metrics.deliveries.value(),
        })
        .collect();
    Reading { at: Instant::now(), cpu_s, shards }
}

fn point(now: &Reading, before: Option<&Reading>, span_s: f64) -> Point {
    let total = |reading: &Reading, read: fn(&ShardReading) -> u64| -> u64 {
        reading.shards.iter().map(read).sum()
    };
    let rate = |read: fn(&ShardReading) -> u64| {
        let before = before.map_or(0, |before| total(before, read));
        per_second(total(now, read).saturating_sub(before), span_s)
    };
    let mut turns = Turns::default();
    for (shard, reading) in now.shards.iter().enumerate() {
        let before = before.and_then(|it| it.shards.get(shard)).copied().unwrap_or_default();
        turns.add(&reading.counts, &before.counts);
    }
    let cpu_s = before.map_or(0.0, |before| now.cpu_s - before.cpu_s);
    Point {
        at_unix_s: unix_s(),
        connections: total(now, |it| it.counts.open),
        queued_bytes: total(now, |it| it.counts.queued_bytes),
        messages_in_per_s: rate(|it| it.messages_in),
        messages_out_per_s: rate(|it| it.messages_out),
        deliveries_per_s: rate(|it| it.deliveries),
        bytes_in_per_s: rate(|it| it.counts.bytes_in),
        bytes_out_per_s: rate(|it| it.counts.bytes_out),
        accepted_per_s: rate(|it| it.counts.accepted),
        cpu_cores: if span_s > 0.0 { cpu_s / span_s } else { 0.0 },
        turn_p50_us: turns.percentile(0.5),
        turn_p99_us: turns.percentile(0.99),
        ..Point::default()
    }
}

fn shard_row(
    server: &Server,
    shard: usize,
    now: &ShardReading,
    before: &ShardReading,
    span_s: f64,
) -> ShardRow {
    let rate =
        |read: fn(&ShardReading) -> u64| per_second(read(now).saturating_sub(read(before)), span_s);
    let mut turns = Turns::default();
    turns.add(&now.counts, &before.counts);
    let metrics = server.metrics.get(shard);
    let gauge = |read: fn(&ShardMetrics) -> u64| metrics.map_or(0, |metrics| read(metrics));
    let mailbox = server.mailboxes.get(shard);
    let posted = mailbox.map_or(0, |mailbox| mailbox.posted());
    let has_ended =
        server.ended.get(shard).map(|ended| ended.load(std::sync::atomic::Ordering::Relaxed));
    ShardRow {
        shard: shard as u16,
        ended: has_ended.unwrap_or(false),
        connections: now.counts.open,
        channels: gauge(|metrics| metrics.channels.value()),
        topics: gauge(|metrics| metrics.topics.value()),
        mailbox_mails: posted.saturating_sub(now.counts.mails),
        mailbox_bytes: mailbox.map_or(0, |mailbox| mailbox.bytes() as u64),
        fanout_topics: gauge(|metrics| metrics.fanout_topics.value()),
        queued_bytes: now.counts.queued_bytes,
        messages_in_per_s: rate(|it| it.messages_in),
        messages_out_per_s: rate(|it| it.messages_out),
        cpu_cores: rate(|it| it.counts.cpu_ns) / 1e9,
        turns_per_s: rate(|it| it.counts.turns),
        turn_p50_us: turns.percentile(0.5),
        turn_p99_us: turns.percentile(0.99),
        turn_max_us: now.counts.turn_max_ns as f64 / 1e3,
        turn_cpu_max_us: now.counts.turn_cpu_max_ns as f64 / 1e3,
    }
}

/// Whether a counter belongs to `simurgh_limited_total`.
fn is_limit(name: &str) -> bool {
    name.starts_with("limited_")
}

fn per_second(count: u64, span_s: f64) -> f64 {
    if span_s > 0.0 { count as f64 / span_s } else { 0.0 }
}

#[derive(Default)]
struct Turns {
    buckets: [u64; TURN_BUCKETS_NS.len() + 1],
    max_ns: u64,
}

impl Turns {
    fn add(&mut self, now: &Counts, before: &Counts) {
        let both = now.turns_by_duration.iter().zip(before.turns_by_duration);
        for (bucket, (now, before)) in self.buckets.iter_mut().zip(both) {
            *bucket += now.saturating_sub(before);
        }
        self.max_ns = self.max_ns.max(now.turn_max_ns);
    }

    /// In microseconds; assumes an even distribution within a bucket.
    fn percentile(&self, part: f64) -> f64 {
        let wanted = part * self.buckets.iter().sum::<u64>() as f64;
        let bounds = TURN_BUCKETS_NS.iter().copied().chain([self.max_ns]);
        let (mut seen, mut low) = (0.0, 0);
        for (count, high) in self.buckets.iter().zip(bounds) {
            let count = *count as f64;
            if count > 0.0 && seen + count >= wanted {
                // The longest of all turns limits the bucket.
                let high = high.min(self.max_ns).max(low);
                return (low as f64 + (high - low) as f64 * (wanted - seen) / count) / 1e3;
            }
            seen += count;
            low = high;
        }
        0.0
    }
}

/// Errors by kind, and how many in the last minute; `past` keeps the totals for that.
fn errors(server: &Server, reading: &Reading, past: &mut VecDeque<Vec<u64>>) -> Vec<ErrorRow> {
    let is_wrong =
        |name: &str| name.starts_with("errors_") || is_limit(name) || WRONG.contains(&name);
    let row = |name: &str, about: &str, total| ErrorRow {
        kind: name.to_owned(),
        about: about.trim().to_owned(),
        total,
        last_minute: 0,
    };
    let of_shards = ShardMetrics::ALL
        .iter()
        .filter(|(name, ..)| is_wrong(name))
        .map(|(name, _, about, read)| row(name, about, sum(server, read)));
    let of_loops =
        REACTOR_METRICS.iter().filter(|(name, ..)| is_wrong(name)).map(|(name, _, about, read)| {
            let total: f64 = reading.shards.iter().map(|it| read(&it.counts)).sum();
            row(name, about, total as u64)
        });
    let mut rows: Vec<ErrorRow> = of_shards.chain(of_loops).collect();
    past.push_back(rows.iter().map(|row| row.total).collect());
    if past.len() > MINUTE + 1 {
        past.pop_front();
    }
    if let Some(then) = past.front() {
        for (row, then) in rows.iter_mut().zip(then) {
            row.last_minute = row.total.saturating_sub(*then);
        }
    }
    rows
}

/// `local` connections have no socket.
fn memory(server: &Server, now: &Point, local: u64) -> Memory {
    let mut memory = Memory {
        resident: now.resident_bytes,
        connection_records: now.connections * CONNECTION_BYTES as u64,
        tables: sum(server, |metrics| metrics.subscriptions.value()) * SUBSCRIPTION_BYTES as u64
            + now.topics * TOPIC_BYTES as u64,
        outbound_queues: now.queued_bytes,
        half_received: sum(server, |metrics| metrics.inbound_bytes.value()),
        kept: sum(server, |it| it.history_bytes.value() + it.history_topic_bytes.value()),
        rest: 0,
        kernel_sockets: now.connections.saturating_sub(local) * KERNEL_SOCKET_BYTES,
        kernel_buffers: process::tcp_buffer_bytes(),
    };
    let Memory { connection_records, tables, outbound_queues, half_received, kept, .. } = memory;
    let known = connection_records + tables + outbound_queues + half_received + kept;
    memory.rest = memory.resident.saturating_sub(known);
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_turns_between_two_readings() {
        let (mut before, mut now) = (Counts::default(), Counts::default());
        before.turns_by_duration[0] = 1000;
        now.turns_by_duration[0] = 1050;
        now.turns_by_duration[3] = 49;
        now.turns_by_duration[12] = 1;
        now.turn_max_ns = 120_000_000;
        let mut turns = Turns::default();
        turns.add(&now, &before);
        assert_eq!(turns.percentile(0.5), 10.0);
        assert_eq!(turns.percentile(0.99), 100.0);
        assert_eq!(turns.percentile(1.0), 120_000.0);
        assert_eq!(Turns::default().percentile(0.5), 0.0);
    }

    #[test]
    fn no_turn_is_longer_than_the_longest() {
        let mut now = Counts::default();
        now.turns_by_duration[0] = 10;
        now.turn_max_ns = 4_000;
        let mut turns = Turns::default();
        turns.add(&now, &Counts::default());
        assert_eq!(turns.percentile(1.0), 4.0);
    }
}
