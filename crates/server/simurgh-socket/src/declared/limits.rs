//! Limits as text or tables: `20`, `"100/min"`, `"64KiB/s"`, or a table with burst and policy.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use simurgh_channel::{ChannelLimits, LimitPolicy, Rate, RateLimit, SizeLimit, SocketLimits};

use super::size;

/// The accepted forms of a rate, for error messages.
const RATE: &str = "a number per second such as 20, a text such as \"100/min\", or a table such \
    as { rate = \"20/s\", burst = 50, policy = \"close\" }";
const SIZE: &str =
    "a size such as \"16KiB\", or a table such as { max = \"16KiB\", policy = \"close\" }";
const POLICIES: &str = "\"reply\", \"drop\" or \"close\"";

/// The table `[limits]`: limits of one socket, on all its topics together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketLimitsSpec {
    /// Joins.
    #[serde(deserialize_with = "count")]
    pub joins: Option<RateLimit>,
    /// Messages.
    #[serde(deserialize_with = "count")]
    pub messages: Option<RateLimit>,
    /// Their bytes.
    #[serde(deserialize_with = "bytes")]
    pub bytes: Option<RateLimit>,
    /// Presence calls of its channels.
    #[serde(deserialize_with = "count")]
    pub presence_calls: Option<RateLimit>,
}

impl From<SocketLimitsSpec> for SocketLimits {
    fn from(spec: SocketLimitsSpec) -> Self {
        let SocketLimitsSpec { joins, messages, bytes, presence_calls } = spec;
        Self { joins, messages, bytes, presence_calls }
    }
}

pub(super) fn channel<'de, D: Deserializer<'de>>(from: D) -> Result<ChannelLimits, D::Error> {
    let Value::Object(table) = Value::deserialize(from)? else {
        return Err(de::Error::custom(
            "must be a table, such as { messages = 20, bytes = \"64KiB/s\" }",
        ));
    };
    let mut limits = ChannelLimits::default();
    for (key, value) in &table {
        let read = match key.as_str() {
            "messages" => rate(value, whole).map(|it| limits.messages = Some(it)),
            "bytes" => rate(value, bytes_of).map(|it| limits.bytes = Some(it)),
            "presence_calls" => rate(value, whole).map(|it| limits.presence_calls = Some(it)),
            "payload_bytes" => size_limit(value).map(|it| limits.payload_bytes = Some(it)),
            _ => Err("no such key; the keys are messages, bytes, presence_calls and payload_bytes"
                .to_owned()),
        };
        read.map_err(|why| de::Error::custom(format!("{key}: {why}")))?;
    }
    Ok(limits)
}

fn count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RateLimit>, D::Error> {
    rate(&Value::deserialize(from)?, whole).map(Some).map_err(de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RateLimit>, D::Error> {
    rate(&Value::deserialize(from)?, bytes_of).map(Some).map_err(de::Error::custom)
}

type Read = fn(&Value) -> Option<u64>;

fn rate(value: &Value, read: Read) -> Result<RateLimit, String> {
    let Value::Object(table) = value else { return plain_rate(value, read).map(RateLimit::from) };
    only(table, &["rate", "burst", "policy"])?;
    let rate = table.get("rate").ok_or("the table has no rate, such as \"20/s\"")?;
    let mut rate = plain_rate(rate, read)?;
    if let Some(burst) = table.get("burst") {
        let burst =
            read(burst).ok_or_else(|| format!("burst: {burst} is not a positive whole number"))?;
        rate = rate.with_burst(burst).map_err(|error| format!("burst: {error}"))?;
    }
    Ok(RateLimit::from(rate).or(policy(table)?))
}

/// A number per second, or a text with a time.
fn plain_rate(value: &Value, read: Read) -> Result<Rate, String> {
    let second = Duration::from_secs(1);
    let split = value.as_str().and_then(|text| text.split_once('/'));
    let (count, period) = match split {
        None => (read(value), Some(second)),
        Some((count, period)) => (read(&Value::from(count.trim())), time(period)),
    };
    let wrong = || format!("{value} is not a rate: use {RATE}");
    let rate = Rate::every(count.ok_or_else(wrong)?, period.ok_or_else(wrong)?);
    rate.map_err(|error| format!("{value}: {error}"))
}

fn size_limit(value: &Value) -> Result<SizeLimit, String> {
    let (bytes, policy) = match value {
        Value::Object(table) => {
            only(table, &["max", "policy"])?;
            let max = table.get("max").ok_or("the table has no max, such as \"16KiB\"")?;
            (max, policy(table)?)
        }
        plain => (plain, LimitPolicy::default()),
    };
    match size::read(bytes) {
        Some(0) => Err("must be at least 1; remove it for no limit".to_owned()),
        Some(bytes_max) => Ok(SizeLimit { bytes_max, policy }),
        None => Err(format!("{value} is not a size: use {SIZE}")),
    }
}

fn policy(table: &Map<String, Value>) -> Result<LimitPolicy, String> {
    match table.get("policy").map(|policy| (policy, policy.as_str())) {
        None => Ok(LimitPolicy::default()),
        Some((_, Some("reply"))) => Ok(LimitPolicy::Reply),
        Some((_, Some("drop"))) => Ok(LimitPolicy::Drop),
        Some((_, Some("close"))) => Ok(LimitPolicy::Close),
        Some((other, _)) => Err(format!("policy: {other} is unknown: use {POLICIES}")),
    }
}

fn only(table: &Map<String, Value>, keys: &[&str]) -> Result<(), String> {
    match table.keys().find(|key| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(format!("{key}: no such key; the keys are {}", keys.join(", "))),
    }
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.replace('_', "").parse().ok(),
        number => number.as_u64(),
    }
}

fn bytes_of(value: &Value) -> Option<u64> {
    size::read(value).map(|bytes| bytes as u64)
}

/// `s`, `min`, `h`, or a multiple of them, such as `10s`.
fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = if number.is_empty() { 1 } else { number.parse::<u64>().ok()? };
    let ms = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<SocketLimitsSpec, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    fn every(count: u64, ms: u64) -> Rate {
        Rate::every(count, Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn rates_are_read() {
        for (value, expected) in [
            (json!(20), every(20, 1_000)),
            (json!("20"), every(20, 1_000)),
            (json!("1_000/s"), every(1_000, 1_000)),
            (json!("100/min"), every(100, 60_000)),
            (json!(" 5 / 2m"), every(5, 120_000)),
            (json!("7/250ms"), every(7, 250)),
            (json!("1/h"), every(1, 3_600_000)),
        ] {
            let limits = read(json!({"joins": value})).expect("a rate");
            assert_eq!(limits.joins, Some(expected.into()), "{value}");
        }
        let table = json!({"rate": "64KiB/s", "burst": "1MiB", "policy": "drop"});
        let bytes = every(65_536, 1_000).with_burst(1 << 20).unwrap();
        let expected = RateLimit { rate: bytes, policy: LimitPolicy::Drop };
        assert_eq!(read(json!({"bytes": table})).unwrap().bytes, Some(expected));
        let limits: SocketLimits = read(json!({})).unwrap().into();
        assert_eq!(limits, SocketLimits::default());
    }

    #[test]
    fn invalid_limit_is_reported() {
        for (value, why) in [
            (json!(0), "0: a rate and its burst must be from 1"),
            (json!(-5), "-5 is not a rate: use a number per second such as 20"),
            (json!(1.5), "1.5 is not a rate"),
            (json!(true), "true is not a rate"),
            (json!("fast"), "\"fast\" is not a rate"),
            (json!("5/day"), "\"5/day\" is not a rate"),
            (json!("64KiB/s"), "\"64KiB/s\" is not a rate"),
            (
                json!("5/2h"),
                "\"5/2h\": the interval of a rate must be from a millisecond to an hour",
            ),
            (json!("5/0s"), "\"5/0s\": the interval of a rate must be"),
            (json!(u64::MAX), "a rate and its burst must be from 1 to 1099511627776"),
            (json!({}), "the table has no rate"),
            (json!({"rate": 5, "burst": 0}), "burst: a rate and its burst must be from 1"),
            (json!({"rate": 5, "burst": "x"}), "burst: \"x\" is not a positive whole number"),
            (json!({"rate": 1, "burst": 4_000}), "burst: a burst must refill within an hour"),
            (json!({"rate": 5, "policy": "kill"}), "policy: \"kill\" is unknown: use \"reply\""),
            (
                json!({"rate": 5, "brust": 5}),
                "brust: no such key; the keys are rate, burst, policy",
            ),
        ] {
            let error = read(json!({"messages": value})).expect_err("no rate");
            assert!(error.contains(why), "{value}: {error}");
        }
        let channel = |value: Value| channel(value).map_err(|error| error.to_string());
        for (value, why) in [
            (json!(5), "must be a table, such as"),
            (json!({"joins": 5}), "joins: no such key; the keys are messages, bytes"),
            (json!({"bytes": "1/0"}), "bytes: \"1/0\" is not a rate"),
            (json!({"payload_bytes": 0}), "payload_bytes: must be at least 1"),
            (json!({"payload_bytes": "-1"}), "payload_bytes: \"-1\" is not a size: use a size"),
            (json!({"payload_bytes": {"policy": "drop"}}), "payload_bytes: the table has no max"),
        ] {
            let error = channel(value.clone()).expect_err("no limit");
            assert!(error.contains(why), "{value}: {error}");
        }
        let limits = channel(json!({"payload_bytes": {"max": "1KiB", "policy": "close"}}));
        let expected = SizeLimit { bytes_max: 1_024, policy: LimitPolicy::Close };
        assert_eq!(limits.unwrap().payload_bytes, Some(expected));
    }
}
