//! Compares docs/METRICS.md with a running server.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::nodes::Engine;
use crate::support::{Client, handled, serving, start};
use serde_json::{Value, json};
use simurgh::{Outcome, Payload, ShardContext, history::History};

const PAGE: &str = include_str!("../../../../../docs/METRICS.md");

fn metrics() -> String {
    let engine = Engine::start();
    let endpoint = start(engine.node(serving(handled("*", talk)), "a"));
    Client::v2(&endpoint).join("rooms:a");
    crate::support::metrics(&endpoint)
}

fn value(text: &str, name: &str, labels: &str) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let meant = lines.filter(|(of, _)| of.starts_with(['{', ' ']) || of.is_empty());
    meant.filter(|(of, _)| of.contains(labels)).map(|(_, it)| it.parse::<f64>().unwrap()).sum()
}

/// Type and help of each metric.
pub(crate) fn families(text: &str) -> BTreeMap<String, (String, String)> {
    let mut families = BTreeMap::new();
    let mut help = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, about)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' '))
        {
            assert!(help.insert(name, about).is_none(), "{name} has two HELPs");
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        {
            let about = help.get(name).unwrap_or_else(|| panic!("{name} has no HELP before TYPE"));
            families.insert(name.to_owned(), (kind.to_owned(), (*about).to_owned()));
        }
    }
    families
}

/// The metric of a series.
pub(crate) fn family<'a>(name: &'a str, families: &BTreeMap<String, (String, String)>) -> &'a str {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    match base {
        Some(base) if families.get(base).is_some_and(|(kind, _)| kind == "histogram") => base,
        _ => name,
    }
}

#[test]
fn metrics_page_lists_exactly_the_exported_metrics() {
    let families = families(&metrics());
    assert!(families.len() > 50, "{families:#?}");
    let listed: BTreeMap<String, (String, String)> = PAGE
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let name = cells.next()?.strip_suffix('`')?;
            let kind = cells.next()?.to_owned();
            Some((name.to_owned(), (kind, cells.next()?.trim_end_matches(" |").to_owned())))
        })
        .collect();
    let only = |one: &BTreeMap<_, _>, other: &BTreeMap<_, _>| -> Vec<String> {
        let differs = |(name, it): &(&String, &_)| other.get(*name) != Some(*it);
        one.iter().filter(differs).map(|it| format!("{it:?}")).collect()
    };
    assert_eq!(only(&listed, &families), only(&families, &listed), "on the page, and served");
}

#[test]
fn metrics_follow_prometheus_conventions() {
    let text = metrics();
    let families = families(&text);
    for (name, (kind, help)) in &families {
        assert!(name.starts_with("simurgh_") || name.starts_with("process_"), "{name}");
        assert!(
            name.bytes()
                .all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit()),
            "{name}"
        );
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert!(help.ends_with('.'), "{name}: {help}");
        for (unit, plural) in [("bytes", "_bytes"), ("seconds", "_seconds")] {
            let stem = name.trim_end_matches("_total");
            assert_eq!(stem.contains(unit), stem.ends_with(plural), "{name}: its unit comes last");
        }
    }
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(name), "{name} is there twice");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        let name = name.split('{').next().unwrap();
        assert!(families.contains_key(family(name, &families)), "{line}");
    }
    for name in families.keys().filter(|name| families[*name].0 == "histogram") {
        for end in ["_bucket", "_sum", "_count"] {
            let series = format!("{name}{end}");
            let is_it = |it: &&str| it.split('{').next() == Some(&series);
            assert!(seen.iter().any(is_it), "{series}");
        }
    }
}

fn talk(ctx: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
    ctx.broadcast("said", payload.into_owned());
    Outcome::ok(Payload::EMPTY_OBJECT)
}

#[test]
fn histories_and_resumes_are_counted() {
    let endpoint = start(
        serving(handled("kept:*", talk).history(History { count: 2, ..History::default() }))
            .configure(|config| config.shards = 3),
    );
    let join = |topic: &str, since: &Value| {
        let mut client = Client::v2(&endpoint);
        client.send(json!(["1", "1", topic, "phx_join", {"simurgh": {"since": since}}]));
        client.recv();
        let resumed = client.recv();
        (client, resumed[1].clone(), resumed[4].clone())
    };
    let topics = 6;
    for topic in (0..topics).map(|n| format!("kept:{n}")) {
        let (mut speaker, first, _) = join(&topic, &Value::Null);
        for n in 0..3 {
            speaker.push(&n.to_string(), &topic, "say", json!({"n": n}));
            // Its own broadcast and the answer come in either order.
            let both = [speaker.recv(), speaker.recv()];
            assert!(both.iter().any(|it| it[3] == "phx_reply"), "{both:?}");
        }
        let (_, _, gap) = join(&topic, &first);
        assert_eq!(gap, json!({"recovered": false, "reason": "overwritten", "count": 2}));
        assert_eq!(join(&topic, &json!("k7ku80.1")).2["reason"], "epoch");
    }
    let text = crate::support::metrics(&endpoint);
    for (name, labels, expected) in [
        ("simurgh_history_topics", "", topics),
        ("simurgh_history_messages", "", 2 * topics),
        ("simurgh_history_kept_total", "", 3 * topics),
        ("simurgh_history_evicted_total", "", topics),
        ("simurgh_history_evicted_total", "reason=\"count\"", topics),
        ("simurgh_resume_total", "", 3 * topics),
        ("simurgh_resume_total", "result=\"recovered\"", topics),
        ("simurgh_resume_total", "result=\"gap\"", 2 * topics),
        ("simurgh_resume_total", "reason=\"overwritten\"", topics),
        ("simurgh_resume_total", "reason=\"epoch\"", topics),
        ("simurgh_resume_messages_total", "", 4 * topics),
        ("simurgh_resume_seconds_count", "", 3 * topics),
        ("simurgh_resume_seconds_bucket", "le=\"+Inf\"", 3 * topics),
        ("simurgh_publish_unconfirmed_total", "", 0),
    ] {
        assert_eq!(value(&text, name, labels), f64::from(expected), "{name} {labels}");
    }
    let seconds = value(&text, "simurgh_resume_seconds_sum", "");
    assert!(seconds > 0.0 && seconds < 10.0, "{seconds}");
    // All topics have a name of six bytes.
    assert_eq!(value(&text, "simurgh_history_topic_bytes", ""), f64::from(246 * topics));
}
