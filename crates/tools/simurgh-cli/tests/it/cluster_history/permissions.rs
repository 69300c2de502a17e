//! An engine that gives its nodes exactly the printed permissions, or fewer.

use std::process::Command;
use std::time::{Duration, Instant};

use super::back_end::{TOPIC, histories, keeps, plan, publish, publish_to, texts};
use super::member::Member;
use crate::support::engine::Engine;
use crate::support::engine::until;
use crate::support::node::{Node, Plan, know_each_other};

/// The permissions from `simurgh config`, and their subjects in line order.
fn printed(streams: &str) -> (String, Vec<String>) {
    let printed = Command::new(env!("CARGO_BIN_EXE_simurgh"))
        .args(["config", "--nats-permissions=faults", &format!("--nats-streams={streams}")])
        .output()
        .unwrap();
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    let subjects = text.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    (text, subjects)
}

fn engine(permissions: &str) -> Engine {
    let user = format!("{{ user: node, password: rosebud, {permissions} }}");
    Engine::start(&format!(
        "jetstream {{ store_dir: store }}\n\
         accounts {{ A {{ jetstream: enabled, users = [ {user} ] }} }}\n"
    ))
}

fn node(name: &str, engine: &Engine, keys: &str) -> Node {
    let keys = format!("user = \"node\"\npassword_env = \"NATS_PASSWORD\"\n{keys}");
    let env = vec![("NATS_PASSWORD", "rosebud".into())];
    Plan { keys, env, ..plan(name, &engine.address()) }.start()
}

#[test]
#[ignore = "needs nats-server"]
fn nodes_with_history_need_exactly_the_printed_permissions() {
    for (streams, keys) in [("1", ""), ("16", "history_streams = 16\n")] {
        let engine = engine(&printed(streams).0);
        let nodes = ["one", "two"].map(|name| node(name, &engine, keys));
        know_each_other(&nodes);
        nodes.iter().for_each(keeps);
        let member = Member::joins("member", &nodes[1], TOPIC);
        publish(&nodes[0], "first");
        member.receives(0, &["first"]);
        let (status, body) = nodes[0].ask(&format!("DELETE /api/history?topic={TOPIC}"), "");
        assert_eq!(status, 200, "{body}");
        publish(&nodes[0], "second");
        member.receives(0, &["first", "second"]);
        assert_eq!(texts(&histories(&nodes)), ["second"]);
        for node in &nodes {
            assert!(!node.log().contains("ermission"), "{}", node.log());
            assert_eq!(node.metric("simurgh_cluster_reconnects_total"), 0);
        }
    }
}

/// Without one of the permissions, the node names it, does not hang, and plain topics work where
/// they do not need it.
fn is_named(missing: &str, permissions: &str) {
    let engine = engine(permissions);
    let node = node("one", &engine, "");
    let named = missing.trim_end_matches('>');
    let has_named = || {
        let log = node.log();
        let mut lines = log.lines();
        lines.any(|it| it.contains("Permissions Violation") && it.contains(named)).then_some(())
    };
    let began = Instant::now();
    let (status, body) = publish_to(&node, TOPIC, "said", None);
    if missing.contains("PURGE") {
        // Nodes purge histories by themselves.
        assert_eq!(status, 202, "{body}");
        let (status, body) = node.ask(&format!("DELETE /api/history?topic={TOPIC}"), "");
        assert_eq!(status, 200, "{body}");
        assert_eq!(texts(&histories([&node])), [""; 0]);
    } else {
        assert_eq!(status, 503, "{missing}: {body}");
        let member = Member::joins("member", &node, TOPIC);
        assert_eq!(member.is_notified(1).payload["reason"], "unavailable", "{missing}");
        assert_eq!(member.is_answered("not kept"), "not stored", "{missing}");
    }
    until(&format!("{missing} is named"), has_named);
    assert!(began.elapsed() < Duration::from_secs(25), "{missing}: {:?}", began.elapsed());
    let plain = Member::joins_plain("plain", &node, "plain:a");
    assert_eq!(plain.is_answered("heard"), "ok", "{missing}");
}

#[test]
#[ignore = "needs nats-server"]
fn missing_history_permission_is_named_and_plain_topics_work() {
    let (all, subjects) = printed("1");
    let (_, plain) = printed("0");
    let of_keeping: Vec<&String> =
        subjects.iter().filter(|it| !plain.contains(it) && !it.contains("STREAM.UPDATE")).collect();
    assert_eq!(of_keeping.len(), 7, "{of_keeping:?}");
    std::thread::scope(|scope| {
        for missing in of_keeping {
            let left = all.replace(&format!("    \"{missing}\"\n"), "");
            assert_ne!(left, all, "{missing}");
            scope.spawn(move || is_named(missing, &left));
        }
    });
}

#[test]
#[ignore = "needs nats-server"]
fn forbidden_stream_change_is_named() {
    let (all, _) = printed("1");
    let left = all.replace("    \"$JS.API.STREAM.UPDATE.FAULTS_H0\"\n", "");
    assert_ne!(left, all);
    let engine = engine(&left);
    keeps(&node("one", &engine, ""));
    // This one has limits on its stream.
    let node = node("two", &engine, "history_engine_bytes = \"10MiB\"\n");
    until("it is named", || {
        let log = node.log();
        let is_it = |it: &str| it.contains("Permissions Violation") && it.contains("STREAM.UPDATE");
        log.lines().any(is_it).then_some(())
    });
    assert_eq!(publish_to(&node, TOPIC, "said", None).0, 503);
}
