//! The Grafana dashboard and the alerts of Prometheus, compared with all metrics that a server has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use simurgh::Endpoint;
use simurgh::declared::{Defaults, user_socket_with_hooks};
use simurgh::hooks::{Forward, HookConfig, HookSet, HookSpec, NoticeConfig, TlsConfig};
use simurgh::token::{TokenPolicy, jwt::Checks};
use tempfile::TempDir;

use crate::metrics::{families, family};
use crate::support::nodes::Engine;
use crate::support::start;
use crate::tls::{certificate, renew};

const DASHBOARD: &str = include_str!("../../../../../docs/grafana/simurgh.json");
const PROMETHEUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/prometheus");

/// Metrics that are not on the dashboard.
const NOT_SHOWN: [(&str, &str); 1] =
    [("simurgh_local_connections", "sockets within the process, which no server in operation has")];

/// The metrics of a server with a cluster, TLS, a hook with notices, a schema, and keys of tokens
/// at a URL.
fn all_metrics() -> String {
    let nowhere = "http://127.0.0.1:9/";
    let mut config = HookConfig::new("app", nowhere.parse().unwrap());
    config.notices = Some(NoticeConfig::new(1));
    let forward = Forward::default();
    let spec = HookSpec { config, asks_connect: true, asks_refresh: false, forward };
    let hooks = Arc::new(HookSet::new(vec![spec]));
    let schema = json!({"type": "object"});
    let channels = json!([{"topic": "*", "event": [{"name": "say", "schema": schema}]}]);
    let channels: Vec<_> = serde_json::from_value(channels).unwrap();
    let (tls, checks) = (TlsConfig::default(), Checks::default());
    let tokens = TokenPolicy::jwks_url(nowhere.parse().unwrap(), tls, Vec::new(), checks);
    let tokens = Some(tokens.unwrap().optional(true));
    let defaults = Defaults::default();
    let socket = user_socket_with_hooks("/socket", &channels, defaults, tokens, hooks).unwrap();
    let (engine, root) = (Engine::start(), TempDir::new().unwrap());
    renew(&root);
    let builder = Endpoint::builder().socket(socket).tls(certificate(&root));
    let endpoint = start(engine.node(builder, "a"));
    crate::support::metrics(&endpoint)
}

/// The metrics that expressions name. All of them exist.
fn named<'a>(expressions: impl IntoIterator<Item = &'a str>, metrics: &str) -> BTreeSet<String> {
    let families = families(metrics);
    let mut named = BTreeSet::new();
    for expression in expressions {
        for word in expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            if word.starts_with("simurgh_") || word.starts_with("process_") {
                let name = family(word, &families);
                assert!(families.contains_key(name), "{word} in {expression}");
                named.insert(name.to_owned());
            }
        }
    }
    named
}

#[test]
fn dashboard_shows_every_metric() {
    let metrics = all_metrics();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut shown = named(expressions(&dashboard), &metrics);
    for (name, why) in NOT_SHOWN {
        assert!(shown.insert(name.to_owned()), "{name} is shown, although: {why}");
    }
    let all: BTreeSet<String> = families(&metrics).into_keys().collect();
    assert_eq!(all.difference(&shown).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn metrics_page_lists_exactly_the_metrics_of_notices() {
    let page = include_str!("../../../../../docs/METRICS.md");
    let section = page.split("\n## Notices\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: BTreeSet<&str> = cells.flat_map(|cell| cell.split(", ")).skip(1).collect();
    let metrics = families(&all_metrics());
    let served = metrics.keys().filter_map(|name| name.strip_prefix("simurgh_"));
    let served =
        served.filter(|name| ["notices_", "lifecycle_"].iter().any(|it| name.starts_with(it)));
    assert_eq!(listed, served.collect());
}

#[test]
fn panels_have_one_data_source_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} overlaps another panel", panel["title"]);
        }
        assert!(x + w <= 24, "{}", panel["title"]);
        if panel["type"] != "row" {
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}");
        }
    }
}

#[test]
fn alerts_use_existing_metrics_and_each_is_tested() {
    let [rules, tests] = ["simurgh.rules.yml", "simurgh.test.yml"]
        .map(|name| fs::read_to_string(Path::new(PROMETHEUS).join(name)).unwrap());
    named(rules.lines(), &all_metrics());
    named(tests.lines(), &all_metrics());
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 30, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} has no test");
    }
}

#[test]
#[ignore = "needs promtool"]
fn promtool_accepts_alerts_their_tests_and_all_expressions_of_the_dashboard() {
    let prometheus = Path::new(PROMETHEUS);
    promtool(&["check", "rules"], &prometheus.join("simurgh.rules.yml"));
    promtool(&["test", "rules"], &prometheus.join("simurgh.test.yml"));
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let rules: Vec<Value> = expressions(&dashboard)
        .into_iter()
        .filter(|expression| !expression.starts_with("label_values"))
        .map(|expression| expression.replace("$__rate_interval", "1m"))
        .map(|expression| json!({"record": "a", "expr": expression}))
        .collect();
    let root = TempDir::new().unwrap();
    let path = root.path().join("dashboard.yml");
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&path, groups.to_string()).unwrap();
    promtool(&["check", "rules", "--lint=none"], &path);
}

fn promtool(words: &[&str], path: &PathBuf) {
    let ran = Command::new("promtool").args(words).arg(path).output().unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn expressions(dashboard: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    add_expressions(dashboard, &mut found);
    found
}

fn add_expressions<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" || name == "query" => found.push(text),
                    value => add_expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_expressions(value, found)),
        _ => {}
    }
}
