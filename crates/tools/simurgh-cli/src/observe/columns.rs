//! The columns of each table, for the screen and for `--once`.

use std::cmp::Ordering;

use simurgh::observe::view::{
    ConnectionRow, ErrorRow, NodeFigures, NodeMembers, NodeRow, ShardRow, TopicRow,
};
use simurgh_text::format::{self, bytes, grouped};
use simurgh_text::{cut, visible};

use super::facts::{milliseconds, sockets};

/// The text of a cell, and its sort value.
pub(super) struct Value {
    text: String,
    order: Order,
}

enum Order {
    Number(f64),
    Text(String),
}

impl Value {
    fn number(number: f64, text: String) -> Self {
        Self { text, order: Order::Number(number) }
    }

    fn count(count: u64) -> Self {
        Self::number(count as f64, grouped(count))
    }

    fn size(size: u64) -> Self {
        Self::number(size as f64, bytes(size as f64))
    }

    /// A rate or a share.
    fn decimal(number: f64) -> Self {
        Self::number(number, format::number(number))
    }

    fn micros(us: f64) -> Self {
        Self::number(us, format::micros(us))
    }

    fn millis(ms: f64) -> Self {
        Self::number(ms, milliseconds(ms))
    }

    /// A text from another machine.
    fn text(text: &str) -> Self {
        Self { text: visible(text), order: Order::Text(text.to_owned()) }
    }

    fn maybe<V>(value: Option<V>, show: fn(V) -> Self) -> Self {
        value.map_or_else(|| Self::number(0.0, "-".to_owned()), show)
    }
}

pub(super) struct Column<T> {
    pub(super) label: &'static str,
    /// Aligned right, and sorted from the greatest at first.
    pub(super) is_number: bool,
    /// Left out where not all columns fit, the highest first; 0 stays.
    pub(super) spare: u8,
    value: fn(&T) -> Value,
}

impl<T> Column<T> {
    const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

const fn number<T>(label: &'static str, value: fn(&T) -> Value) -> Column<T> {
    Column { label, is_number: true, spare: 0, value }
}

const fn words<T>(label: &'static str, value: fn(&T) -> Value) -> Column<T> {
    Column { label, is_number: false, spare: 0, value }
}

pub(super) const SHARDS: &[Column<ShardRow>] = &[
    number("shard", |row| Value::number(row.shard.into(), row.shard.to_string())),
    number("connections", |row| Value::count(row.connections)),
    number("channels", |row| Value::count(row.channels)),
    number("topics", |row| Value::count(row.topics)),
    number("waiting", |row: &ShardRow| Value::count(row.mailbox_mails)).spare(2),
    number("bytes", |row: &ShardRow| Value::size(row.mailbox_bytes)).spare(1),
    number("fan-outs", |row: &ShardRow| Value::count(row.fanout_topics)).spare(3),
    number("in/s", |row| Value::decimal(row.messages_in_per_s)),
    number("out/s", |row| Value::decimal(row.messages_out_per_s)),
    number("CPU %", |row| Value::decimal(row.cpu_cores * 100.0)),
    number("p50", |row| Value::micros(row.turn_p50_us)),
    number("p99", |row| Value::micros(row.turn_p99_us)),
    number("longest", |row| Value::micros(row.turn_max_us)),
];

pub(super) const ERRORS: &[Column<ErrorRow>] = &[
    number("last minute", |row| Value::count(row.last_minute)),
    number("total", |row| Value::count(row.total)),
    words("kind", |row| Value::text(&row.kind)),
    words("meaning", |row| Value::text(&row.about)),
];

pub(super) const TOPICS: &[Column<TopicRow>] = &[
    number("members", |row| Value::count(row.members)),
    number("deliveries/s", |row| Value::maybe(row.deliveries_per_s, Value::decimal)),
    number("history", |row| Value::maybe(row.kept.as_ref(), |kept| Value::size(kept.bytes))),
    words("topic", |row| Value::text(&row.topic)),
];

pub(super) const CONNECTIONS: &[Column<ConnectionRow>] = &[
    number("queued", |row| Value::size(row.queued_bytes)),
    number("msgs/s", |row| Value::maybe(row.messages_per_s, Value::decimal)),
    number("age", |row| Value::number(row.age_s as f64, age(row))),
    number("channels", |row| Value::count(row.channels)),
    number("quiet", |row: &ConnectionRow| Value::number(row.quiet_s, format::time(row.quiet_s)))
        .spare(2),
    words("over limit", |row: &ConnectionRow| Value::text(&limit_met(row))).spare(3),
    words("connection", |row| Value::text(&row.id)),
    words("address", |row| Value::text(row.peer.as_deref().unwrap_or("-"))),
    words("path", |row: &ConnectionRow| Value::text(&row.path)).spare(5),
    words("state", |row: &ConnectionRow| Value::text(&row.state)).spare(4),
    words("topics", |row| Value::text(&topics(row))),
];

pub(super) const NODES: &[Column<NodeRow>] = &[
    words("node", node),
    words("state", |row| Value::text(&row.state)),
    number("sockets", |row| Value::count(sockets(row))),
    number("channels", |row| figure(row, |it| Value::count(it.channels))),
    number("in/s", |row| figure(row, |it| Value::decimal(it.messages_in_per_s))),
    number("out/s", |row| figure(row, |it| Value::decimal(it.messages_out_per_s))),
    number("presences", |row: &NodeRow| figure(row, |it| Value::count(it.presences_local)))
        .spare(2),
    number("history", |row: &NodeRow| figure(row, |it| Value::count(it.kept_messages))).spare(1),
    number("memory", |row| figure(row, |it| Value::size(it.resident_bytes))),
    number("CPU %", |row| figure(row, |it| Value::decimal(it.cpu_cores * 100.0))),
];

/// What a node knows about the others from their heartbeats.
pub(super) const BEATS: &[Column<NodeRow>] = &[
    words("node", node),
    words("id", |row| Value::text(&row.id)),
    words("version", |row| Value::text(&row.version)),
    words("state", |row| Value::text(&row.state)),
    number("heartbeat", |row| Value::maybe(row.heard_ms, |ms| Value::millis(ms as f64))),
    number("RTT", |row| Value::maybe(row.rtt_ms, Value::millis)),
    number("delay", |row| Value::maybe(row.delay_ms, |ms| Value::millis(ms as f64))),
    number("clock", |row| Value::maybe(row.clock_offset_ms, clock)),
];

fn node(row: &NodeRow) -> Value {
    let text = cut(&visible(&row.name), 30) + if row.is_here { " *" } else { "" };
    Value { text, order: Order::Text(row.name.clone()) }
}

fn figure(row: &NodeRow, show: fn(&NodeFigures) -> Value) -> Value {
    Value::maybe(row.figures.as_ref(), show)
}

/// A difference of clocks, with its sign.
fn clock(ms: i64) -> Value {
    let text = match ms {
        0 => "0".to_owned(),
        ms => {
            let sign = if ms < 0 { '-' } else { '+' };
            format!("{sign}{}", milliseconds(ms.unsigned_abs() as f64))
        }
    };
    Value::number(ms as f64, text)
}

/// Nodes with members of a topic; empty without a cluster.
pub(super) fn places(nodes: &[NodeMembers]) -> String {
    let place = |it: &NodeMembers| match it.members {
        Some(0) => None,
        Some(members) => Some(format!("{} {}", visible(&it.name), grouped(members))),
        None => Some(format!("{} ?", visible(&it.name))),
    };
    let places: Vec<String> = nodes.iter().filter_map(place).collect();
    if places.is_empty() { String::new() } else { format!("; on {}", places.join(", ")) }
}

pub(super) fn age(row: &ConnectionRow) -> String {
    let more = if row.age_is_more { "> " } else { "" };
    format!("{more}{}", format::time(row.age_s as f64))
}

/// The last limit it has reached, and how often recently.
pub(super) fn limit_met(row: &ConnectionRow) -> String {
    let text = |limit: &str| format!("{} x{}", visible(limit), grouped(row.limited));
    row.limit.as_deref().map_or_else(|| "-".to_owned(), text)
}

fn topics(row: &ConnectionRow) -> String {
    let named: Vec<String> = row.topics.iter().map(|topic| cut(&visible(topic), 40)).collect();
    let more = row.channels.saturating_sub(row.topics.len() as u64);
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    named.join(", ") + &more
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_falling: bool,
}

impl Sort {
    pub(super) fn next<T>(&mut self, columns: &[Column<T>]) {
        self.column = (self.column + 1) % columns.len().max(1);
        self.is_falling = columns.get(self.column).is_some_and(|column| column.is_number);
    }
}

pub(super) fn sorted<'a, T>(rows: &'a [T], columns: &[Column<T>], by: Sort) -> Vec<&'a T> {
    let mut rows: Vec<&T> = rows.iter().collect();
    let Some(Column { value, .. }) = columns.get(by.column) else { return rows };
    rows.sort_by(|a, b| {
        let order = match (value(a).order, value(b).order) {
            (Order::Number(a), Order::Number(b)) => a.total_cmp(&b),
            (Order::Text(a), Order::Text(b)) => a.cmp(&b),
            _ => Ordering::Equal,
        };
        if by.is_falling { order.reverse() } else { order }
    });
    rows
}

pub(super) fn cells<T>(columns: &[Column<T>], row: &T) -> Vec<String> {
    columns.iter().map(|column| (column.value)(row).text).collect()
}
