//! Compares a stream's configuration with the one it should have.

use std::fmt;

use serde_json::Value;

use crate::streams::{METADATA, METADATA_EPOCH};

/// The most characters that are shown of a value.
const SHOWN_CHARS_MAX: usize = 200;

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    key: &'static str,
    expected: Value,
    found: Value,
    /// Whether it can be changed without a loss of needed data.
    is_safe: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |value: &Value| -> String { value.to_string().chars().take(SHOWN_CHARS_MAX).collect() };
        write!(f, "{} is {}, not {}", self.key, shown(&self.found), shown(&self.expected))
    }
}

/// Settings that must be equal. The broker leaves out those with their defaults.
const SAME: &[&str] = &[
    "subjects",
    "storage",
    "retention",
    "discard",
    "allow_direct",
    "allow_msg_ttl",
    "mirror",
    "sources",
    "subject_transform",
    "sealed",
    "deny_purge",
    "no_ack",
];

/// The differences between two configurations; `expected` is how this node would make the stream.
pub(super) fn compare(expected: &Value, found: &Value) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut differs = |key, expected: &Value, found: &Value, is_safe| {
        let (expected, found) = (expected.clone(), found.clone());
        differences.push(Difference { key, expected, found, is_safe });
    };
    for key in SAME {
        if plain(&expected[key]) != plain(&found[key]) {
            differs(key, &expected[key], &found[key], false);
        }
    }
    let (ours, theirs) = (&expected["republish"], &found["republish"]);
    let is_whole = plain(&theirs["headers_only"]) == &Value::Null;
    if ours["src"] != theirs["src"] || ours["dest"] != theirs["dest"] || !is_whole {
        differs("republish", ours, theirs, false);
    }
    if expected["metadata"][METADATA] != found["metadata"][METADATA] {
        differs("metadata", &expected["metadata"], &found["metadata"], false);
    }
    // Settings that must not be lower. 0 and below mean no limit.
    let limits = [
        ("max_msgs", false),
        ("max_msg_size", false),
        ("duplicate_window", false),
        ("max_msgs_per_subject", true),
        ("max_age", true),
    ];
    for (key, is_safe) in limits {
        let (ours, theirs) = (number(&expected[key]), number(&found[key]));
        let is_unlimited = theirs <= 0 && key != "duplicate_window";
        if !is_unlimited && (ours <= 0 || theirs < ours) {
            differs(key, &expected[key], &found[key], is_safe);
        }
    }
    let bytes = |it: &Value| number(it).max(0);
    if bytes(&expected["max_bytes"]) != bytes(&found["max_bytes"]) {
        differs("max_bytes", &expected["max_bytes"], &found["max_bytes"], true);
    }
    if number(&expected["num_replicas"]) != number(&found["num_replicas"]).max(1) {
        differs("num_replicas", &expected["num_replicas"], &found["num_replicas"], true);
    }
    differences
}

/// A setting that is missing, off or empty counts as the same.
fn plain(value: &Value) -> &Value {
    match value {
        Value::Bool(false) => &Value::Null,
        Value::Array(items) if items.is_empty() => &Value::Null,
        other => other,
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The verdict on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// It must be changed to this configuration.
    Change(Value),
    /// It cannot be used, for this reason.
    Refused(String),
}

/// Judges a stream of this configuration. `may_change`: this node makes the changes that it can.
pub(super) fn judge(expected: &Value, found: &Value, may_change: bool) -> Verdict {
    let mut differences = compare(expected, found);
    if !may_change {
        // The creator of the stream has chosen its size and number of servers.
        differences.retain(|it| !matches!(it.key, "max_bytes" | "num_replicas"));
    }
    if differences.is_empty() {
        return Verdict::Fits;
    }
    let refused: Vec<String> = differences
        .iter()
        .filter(|it| !it.is_safe || !may_change)
        .map(ToString::to_string)
        .collect();
    if !refused.is_empty() {
        return Verdict::Refused(refused.join("; "));
    }
    let mut changed = found.clone();
    for difference in differences {
        changed[difference.key] = difference.expected;
    }
    Verdict::Change(changed)
}

/// How often the stream was set back, from its metadata.
pub(super) fn set_backs(config: &Value) -> u64 {
    let text = config["metadata"][METADATA_EPOCH].as_str();
    text.and_then(|it| it.parse().ok()).unwrap_or(0)
}

pub(super) fn set_back(config: &Value) -> Value {
    let mut changed = config.clone();
    let count = set_backs(config).saturating_add(1);
    changed["metadata"][METADATA_EPOCH] = count.to_string().into();
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use simurgh_cluster::Prefix;

    use super::*;
    use crate::streams::StreamsConfig;

    fn expected() -> Value {
        StreamsConfig::default().stream(&Prefix::new("p").unwrap(), 0)
    }

    /// As an engine returns it: with more settings, and without some defaults.
    fn found() -> Value {
        let mut found = expected();
        found["compression"] = "none".into();
        found["consumer_limits"] = json!({});
        found["sealed"] = false.into();
        found["metadata"]["_nats.ver"] = "2.15.2".into();
        found
    }

    #[test]
    fn stream_with_the_expected_settings_fits() {
        assert_eq!(judge(&expected(), &found(), true), Verdict::Fits);
        assert_eq!(judge(&expected(), &found(), false), Verdict::Fits);
    }

    #[test]
    fn changeable_settings_change_and_others_stay() {
        for (key, value) in [
            ("max_msgs_per_subject", json!(7)),
            ("max_age", json!(1_000_000_000_u64)),
            ("max_bytes", json!(1_000_000)),
            ("num_replicas", json!(3)),
        ] {
            let mut found = found();
            found[key] = value;
            found["placement"] = json!({ "cluster": "east" });
            let Verdict::Change(changed) = judge(&expected(), &found, true) else {
                panic!("{key}");
            };
            assert_eq!(changed[key], expected()[key]);
            assert_eq!(changed["placement"]["cluster"], "east");
            assert_eq!(changed["metadata"]["_nats.ver"], "2.15.2");
            assert_eq!(judge(&expected(), &changed, true), Verdict::Fits);
        }
    }

    #[test]
    fn stream_that_retains_more_is_unchanged() {
        for (key, value) in [
            ("max_msgs_per_subject", json!(1_000)),
            ("max_msgs_per_subject", json!(-1)),
            ("max_age", json!(0)),
            ("max_age", json!(900_000_000_000_u64)),
            ("duplicate_window", json!(300_000_000_000_u64)),
        ] {
            let mut found = found();
            found[key] = value;
            assert_eq!(judge(&expected(), &found, true), Verdict::Fits, "{key}");
        }
    }

    #[test]
    fn incompatible_setting_is_named_with_its_expected_value() {
        for (key, value, words) in [
            ("subjects", json!(["q.h.>"]), r#"subjects is ["q.h.>"], not ["p.h.>"]"#),
            ("storage", json!("memory"), r#"storage is "memory", not "file""#),
            ("retention", json!("workqueue"), "retention is"),
            ("discard", json!("new"), "discard is"),
            ("allow_direct", json!(false), "allow_direct is false, not true"),
            ("allow_msg_ttl", Value::Null, "allow_msg_ttl is null, not true"),
            ("republish", json!({ "src": "p.h.>", "dest": "x.>" }), "republish is"),
            (
                "republish",
                json!({ "src": "p.h.>", "dest": "p.b.>", "headers_only": true }),
                "republish is",
            ),
            ("metadata", json!({ "other": "1" }), "metadata is"),
            ("metadata", json!({ "simurgh": "2" }), "metadata is"),
            ("max_msgs", json!(1_000), "max_msgs is 1000, not -1"),
            ("max_msg_size", json!(1_000), "max_msg_size is"),
            ("duplicate_window", json!(1_000), "duplicate_window is 1000, not 120000000000"),
            ("mirror", json!({ "name": "x" }), "mirror is"),
            ("sources", json!([{ "name": "x" }]), "sources is"),
            ("sealed", json!(true), "sealed is true"),
            ("deny_purge", json!(true), "deny_purge is true"),
        ] {
            let mut found = found();
            found[key] = value;
            let Verdict::Refused(why) = judge(&expected(), &found, true) else { panic!("{key}") };
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn large_enough_stream_is_used_without_permission_to_change_it() {
        let mut stream = found();
        stream["num_replicas"] = 3.into();
        stream["max_bytes"] = 1_000_000.into();
        assert_eq!(judge(&expected(), &stream, false), Verdict::Fits);
        stream["max_msgs_per_subject"] = 99.into();
        let Verdict::Refused(why) = judge(&expected(), &stream, false) else { panic!() };
        assert_eq!(why, "max_msgs_per_subject is 99, not 100");
    }

    #[test]
    fn stream_metadata_counts_resets() {
        let once = set_back(&found());
        assert_eq!((set_backs(&found()), set_backs(&once), set_backs(&set_back(&once))), (0, 1, 2));
        assert_eq!(once["metadata"][METADATA], "1");
        assert_eq!(judge(&expected(), &once, true), Verdict::Fits);
    }
}
