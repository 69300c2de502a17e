//! The columns of each table, for the screen and for `--once`.

use std::cmp::Ordering;

use simurgh::observe::view::{
    ConnectionRow, ErrorRow, NodeFigures, NodeMembers, NodeRow, ShardRow, TopicRow,
};
use simurgh_load::report::{bytes, decimal, grouped, span, time};

use super::cluster::{milliseconds, sockets};
use super::text::{cut, visible};

/// What rows are sorted by.
pub(super) enum Value {
    Number(f64),
    Text(String),
}

/// One column.
pub(super) struct Column<T> {
    pub(super) label: &'static str,
    /// Aligned to the right, and first sorted from the greatest.
    pub(super) is_number: bool,
    pub(super) text: fn(&T) -> String,
    pub(super) value: fn(&T) -> Value,
}

const fn number<T>(
    label: &'static str,
    text: fn(&T) -> String,
    value: fn(&T) -> Value,
) -> Column<T> {
    Column { label, is_number: true, text, value }
}

const fn words<T>(
    label: &'static str,
    text: fn(&T) -> String,
    value: fn(&T) -> Value,
) -> Column<T> {
    Column { label, is_number: false, text, value }
}

fn of(number: u64) -> Value {
    Value::Number(number as f64)
}

/// A rate that may not be known yet.
fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), decimal)
}

pub(super) const SHARDS: &[Column<ShardRow>] = &[
    number("shard", |row| row.shard.to_string(), |row| of(row.shard.into())),
    number("connections", |row| grouped(row.connections), |row| of(row.connections)),
    number("channels", |row| grouped(row.channels), |row| of(row.channels)),
    number("topics", |row| grouped(row.topics), |row| of(row.topics)),
    number("mailbox", |row| grouped(row.mailbox_mails), |row| of(row.mailbox_mails)),
    number("under way", |row| bytes(row.mailbox_bytes as f64), |row| of(row.mailbox_bytes)),
    number("fan-outs", |row| grouped(row.fanout_topics), |row| of(row.fanout_topics)),
    number(
        "in/s",
        |row| decimal(row.messages_in_per_s),
        |row| Value::Number(row.messages_in_per_s),
    ),
    number(
        "out/s",
        |row| decimal(row.messages_out_per_s),
        |row| Value::Number(row.messages_out_per_s),
    ),
    number("CPU %", |row| decimal(row.cpu_cores * 100.0), |row| Value::Number(row.cpu_cores)),
    number("p50", |row| time(row.turn_p50_us), |row| Value::Number(row.turn_p50_us)),
    number("p99", |row| time(row.turn_p99_us), |row| Value::Number(row.turn_p99_us)),
    number("longest", |row| time(row.turn_max_us), |row| Value::Number(row.turn_max_us)),
];

pub(super) const ERRORS: &[Column<ErrorRow>] = &[
    number("last minute", |row| grouped(row.last_minute), |row| of(row.last_minute)),
    number("in all", |row| grouped(row.total), |row| of(row.total)),
    words("kind", |row| visible(&row.kind), |row| Value::Text(row.kind.clone())),
    words("what it is", |row| visible(&row.about), |row| Value::Text(row.about.clone())),
];

pub(super) const TOPICS: &[Column<TopicRow>] = &[
    number("members", |row| grouped(row.members), |row| of(row.members)),
    number(
        "deliveries/s",
        |row| rate(row.deliveries_per_s),
        |row| Value::Number(row.deliveries_per_s.unwrap_or(0.0)),
    ),
    number("kept", kept, |row| of(row.kept.as_ref().map_or(0, |kept| kept.bytes))),
    words("topic", |row| visible(&row.topic), |row| Value::Text(row.topic.clone())),
];

pub(super) const CONNECTIONS: &[Column<ConnectionRow>] = &[
    number("queued", |row| bytes(row.queued_bytes as f64), |row| of(row.queued_bytes)),
    number(
        "msgs/s",
        |row| rate(row.messages_per_s),
        |row| Value::Number(row.messages_per_s.unwrap_or(0.0)),
    ),
    number("age", age, |row| of(row.age_s)),
    number("channels", |row| grouped(row.channels), |row| of(row.channels)),
    number("quiet", |row| span(row.quiet_s), |row| Value::Number(row.quiet_s)),
    words("limit met", limit_met, |row| Value::Text(limit_met(row))),
    words("connection", |row| visible(&row.id), |row| Value::Text(row.id.clone())),
    words("peer", peer, |row| Value::Text(peer(row))),
    words("path", |row| visible(&row.path), |row| Value::Text(row.path.clone())),
    words("state", |row| visible(&row.state), |row| Value::Text(row.state.clone())),
    words("topics", topics, |row| Value::Text(topics(row))),
];

pub(super) const NODES: &[Column<NodeRow>] = &[
    words("node", node, |row| Value::Text(row.name.clone())),
    words("state", |row| visible(&row.state), |row| Value::Text(row.state.clone())),
    number("sockets", |row| grouped(sockets(row)), |row| of(sockets(row))),
    number("channels", |row| whole(row, |it| it.channels), |row| figure(row, |it| it.channels)),
    number("topics", |row| whole(row, |it| it.topics), |row| figure(row, |it| it.topics)),
    number("in/s", |row| share(row, messages_in), |row| real(row, messages_in)),
    number("out/s", |row| share(row, messages_out), |row| real(row, messages_out)),
    number("presences", |row| whole(row, presences), |row| figure(row, presences)),
    number(
        "kept",
        |row| whole(row, |it| it.kept_messages),
        |row| figure(row, |it| it.kept_messages),
    ),
    number("memory", memory, |row| figure(row, |it| it.resident_bytes)),
    number("CPU %", |row| share(row, cpu), |row| real(row, cpu)),
];

pub(super) const LIVES: &[Column<NodeRow>] = &[
    words("node", node, |row| Value::Text(row.name.clone())),
    words("id", |row| visible(&row.id), |row| Value::Text(row.id.clone())),
    words("version", |row| visible(&row.version), |row| Value::Text(row.version.clone())),
    words("state", |row| visible(&row.state), |row| Value::Text(row.state.clone())),
    number(
        "beat",
        |row| maybe(row.heard_ms.map(|it| it as f64)),
        |row| of(row.heard_ms.unwrap_or(0)),
    ),
    number("RTT", |row| maybe(row.rtt_ms), |row| Value::Number(row.rtt_ms.unwrap_or(0.0))),
    number(
        "delay",
        |row| maybe(row.delay_ms.map(|it| it as f64)),
        |row| of(row.delay_ms.unwrap_or(0)),
    ),
    number("clock", clock, |row| Value::Number(row.clock_offset_ms.unwrap_or(0) as f64)),
];

fn node(row: &NodeRow) -> String {
    cut(&visible(&row.name), 30) + if row.is_here { " *" } else { "" }
}

fn whole(row: &NodeRow, read: fn(&NodeFigures) -> u64) -> String {
    row.figures.as_ref().map_or_else(|| "-".to_owned(), |it| grouped(read(it)))
}

fn share(row: &NodeRow, read: fn(&NodeFigures) -> f64) -> String {
    row.figures.as_ref().map_or_else(|| "-".to_owned(), |it| decimal(read(it)))
}

fn figure(row: &NodeRow, read: fn(&NodeFigures) -> u64) -> Value {
    of(row.figures.as_ref().map_or(0, read))
}

fn real(row: &NodeRow, read: fn(&NodeFigures) -> f64) -> Value {
    Value::Number(row.figures.as_ref().map_or(0.0, read))
}

const fn messages_in(figures: &NodeFigures) -> f64 {
    figures.messages_in_per_s
}

const fn messages_out(figures: &NodeFigures) -> f64 {
    figures.messages_out_per_s
}

const fn presences(figures: &NodeFigures) -> u64 {
    figures.presences_local
}

const fn cpu(figures: &NodeFigures) -> f64 {
    figures.cpu_cores * 100.0
}

fn memory(row: &NodeRow) -> String {
    let bytes = |it: &NodeFigures| bytes(it.resident_bytes as f64);
    row.figures.as_ref().map_or_else(|| "-".to_owned(), bytes)
}

fn maybe(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), milliseconds)
}

/// A clock's difference, with its sign.
fn clock(row: &NodeRow) -> String {
    match row.clock_offset_ms {
        None => "-".to_owned(),
        Some(0) => "0".to_owned(),
        Some(ms) => {
            let sign = if ms < 0 { '-' } else { '+' };
            format!("{sign}{}", milliseconds(ms.unsigned_abs() as f64))
        }
    }
}

/// On which nodes a topic has members; empty of a server that is alone.
pub(super) fn places(nodes: &[NodeMembers]) -> String {
    let place = |it: &NodeMembers| match it.members {
        Some(0) => None,
        Some(members) => Some(format!("{} {}", visible(&it.name), grouped(members))),
        None => Some(format!("{} ?", visible(&it.name))),
    };
    let places: Vec<String> = nodes.iter().filter_map(place).collect();
    if places.is_empty() { String::new() } else { format!("; on {}", places.join(", ")) }
}

fn kept(row: &TopicRow) -> String {
    row.kept.as_ref().map_or_else(|| "-".to_owned(), |kept| bytes(kept.bytes as f64))
}

pub(super) fn age(row: &ConnectionRow) -> String {
    let more = if row.age_is_more { "> " } else { "" };
    format!("{more}{}", span(row.age_s as f64))
}

/// The limit that it has met last, and how often it has lately.
pub(super) fn limit_met(row: &ConnectionRow) -> String {
    let text = |limit: &str| format!("{} x{}", visible(limit), grouped(row.limited));
    row.limit.as_deref().map_or_else(|| "-".to_owned(), text)
}

fn peer(row: &ConnectionRow) -> String {
    row.peer.as_deref().map_or_else(|| "-".to_owned(), visible)
}

pub(super) fn topics(row: &ConnectionRow) -> String {
    let named: Vec<String> = row.topics.iter().map(|topic| cut(&visible(topic), 40)).collect();
    let more = row.channels.saturating_sub(row.topics.len() as u64);
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    named.join(", ") + &more
}

/// Rows by the values of one column.
pub(super) fn sorted<'a, T>(rows: &'a [T], by: &Column<T>, is_falling: bool) -> Vec<&'a T> {
    let mut rows: Vec<&T> = rows.iter().collect();
    rows.sort_by(|a, b| {
        let order = match ((by.value)(a), (by.value)(b)) {
            (Value::Number(a), Value::Number(b)) => a.total_cmp(&b),
            (Value::Text(a), Value::Text(b)) => a.cmp(&b),
            _ => Ordering::Equal,
        };
        if is_falling { order.reverse() } else { order }
    });
    rows
}

/// The cells of a row.
pub(super) fn cells<T>(columns: &[Column<T>], row: &T) -> Vec<String> {
    columns.iter().map(|column| (column.text)(row)).collect()
}
