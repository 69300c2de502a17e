//! Notices, open stays and dead letters as JSON.

use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_millis;
use serde::Serialize;
use serde_json::{Value, json};
use simurgh_notices::{Batch, Coordinator, DeadLetter, Key, Kind, Notice, OpenStay};

#[derive(Serialize)]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    stay: String,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    node: &'a str,
}

#[derive(Serialize)]
struct Shown<'a, D> {
    id: String,
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: String,
    log: &'a str,
    partition: u8,
    n: u64,
    data: D,
}

#[derive(Serialize)]
struct Reset {
    partitions: [u8; 1],
    reason: &'static str,
}

/// The content of `data` in a request.
pub(crate) fn to_data(partition: u8, batch: &Batch) -> String {
    let log = &batch.epoch.to_string();
    let json = match batch.reset {
        Some(reason) => {
            let data = Reset { partitions: [partition], reason: reason.into() };
            let (id, kind) = (batch.id.to_string(), "log.reset");
            let timestamp = time(batch.at_ms);
            let n = batch.n;
            serde_json::to_string(&[Shown { id, kind, timestamp, log, partition, n, data }])
        }
        None => {
            let notices = batch.notices.iter().map(|notice| shown(notice, log, partition));
            serde_json::to_string(&notices.collect::<Vec<_>>())
        }
    };
    format!(r#"{{"notices":{}}}"#, json.unwrap_or_default())
}

fn shown<'a>(notice: &'a Notice, log: &'a str, partition: u8) -> Shown<'a, Data<'a>> {
    let id = notice.to_string();
    let stay = id.get(..id.len().saturating_sub(2)).unwrap_or_default().to_owned();
    let reason = notice.end.map(|(_, reason)| reason.name());
    let data = data(&notice.stay.key, stay, notice.stay.since_ms, reason, &notice.node);
    let timestamp = time(notice.at_ms());
    Shown { id, kind: notice.name(), timestamp, log, partition, n: notice.n, data }
}

fn data<'a>(
    key: &'a Key,
    stay: String,
    since_ms: u64,
    reason: Option<&'a str>,
    node: &'a str,
) -> Data<'a> {
    let topic = (key.kind() != Kind::User).then(|| key.topic());
    let user = (key.kind() != Kind::Topic).then(|| key.user());
    Data { topic, user, stay, since: time(since_ms), reason, node }
}

/// An open stay of a partition.
pub(crate) fn to_stay(open: OpenStay, partition: u8) -> Value {
    let notice = Notice { n: 0, stay: open.stay, node: open.node, end: None };
    let kind = match notice.stay.key.kind() {
        Kind::Member => "member",
        Kind::Topic => "topic",
        Kind::User => "user",
    };
    let mut json = serde_json::to_value(shown(&notice, "", partition).data).unwrap_or_default();
    json["kind"] = kind.into();
    json["partition"] = partition.into();
    json
}

/// The dead letters of a hook in a partition.
pub(crate) fn to_letters(of: &Coordinator, hook: usize, partition: u8) -> Vec<Value> {
    let log = &of.epoch().to_string();
    let letters = of.dead(hook).map(|DeadLetter { notice, status, body }| {
        json!({"notice": shown(notice, log, partition), "status": status, "body": body})
    });
    letters.collect()
}

fn time(ms: u64) -> String {
    format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(MS_MAX))).to_string()
}

/// The year 9999, up to which times can be written.
const MS_MAX: u64 = 253_402_300_799_000;
