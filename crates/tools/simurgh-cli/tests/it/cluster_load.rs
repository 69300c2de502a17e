//! `simurgh load` and `simurgh road` against several nodes with a real engine: messages are counted
//! exactly on all nodes, also while one of them is killed; in rooms with histories none is missing
//! then.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::engine::{Engine, until};
use crate::support::{Ran, Server, directory, run_long, simurgh};
use serde_json::Value;

/// Longer than any of these takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(240);
const TOKEN: (&str, &str) = ("SIMURGH_API_TOKEN", "a-token-of-no-importance");

/// Runs a shipped scenario with other values for its keys and more below, against these servers.
pub(crate) fn run_shipped(
    name: &str,
    changes: &[(&str, &str)],
    urls: &[String],
    more: &str,
) -> (Ran, Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/scenarios").join(name);
    let mut text = std::fs::read_to_string(path).unwrap();
    for (before, after) in changes {
        assert!(text.contains(before), "{before}");
        text = text.replace(before, after);
    }
    let dir = directory(&[(name, &format!("{text}{more}"))]);
    let flags = ["--workers", "2", "--dashboard", "off", "--quiet", "--server-cpu", "--out", "out"];
    let targets: Vec<&str> = urls.iter().flat_map(|url| ["--target", url]).collect();
    let ran = run_long(dir.path(), &[&["load", name], &flags[..], &targets].concat(), WITHIN);
    let report = std::fs::read(dir.path().join("out/report.json")).unwrap();
    (ran, serde_json::from_slice(&report).unwrap())
}

fn urls(nodes: &[Server]) -> Vec<String> {
    nodes.iter().map(|node| format!("ws://{}", node.addresses[0])).collect()
}

/// A run against three servers without a cluster.
fn polled(session: &str, kills: bool) -> (Ran, Value) {
    let chat = include_str!("../../../../../bench/chat.toml");
    let servers =
        [(); 3].map(|()| Server::start(chat, &["--listen", "127.0.0.1:0", "--log", "warn"]));
    let urls = urls(&servers);
    let text = format!(
        "name = \"polls\"\n{session}\nprotocol = \"phoenix\"\ntransport = \"longpoll\"\nsteps = [\
         {{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:lobby\" }}, \
         {{ loop = 20, every = \"100ms\", steps = [{{ push = \"new:msg\", \
         payload = {{ body = \"x\" }} }}] }}]\n\
         [[phase]]\nduration = \"200ms\"\nrate = 150\n"
    );
    let dir = directory(&[("polls.toml", &text)]);
    let flags = ["--workers", "2", "--dashboard", "off", "--quiet", "--out", "out"];
    let targets: Vec<&str> = urls.iter().flat_map(|url| ["--target", url]).collect();
    let words = [&["load", "polls.toml"], &flags[..], &targets].concat();
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| run_long(dir.path(), &words, WITHIN));
        if kills {
            until("all are there", || (servers[0].metric("simurgh_channels") == 10).then_some(()));
            servers[0].signal("KILL");
        }
        run.join().unwrap()
    });
    let report = std::fs::read(dir.path().join("out/report.json")).unwrap();
    (ran, serde_json::from_slice(&report).unwrap())
}

/// Nodes of the built-in chat without histories, which have found each other.
fn nodes<const N: usize>(engine: &Engine) -> [Server; N] {
    nodes_of(engine, include_str!("../../../../../bench/chat.toml"))
}

fn nodes_of<const N: usize>(engine: &Engine, channels: &str) -> [Server; N] {
    let nodes = std::array::from_fn(|number| {
        let text = format!(
            "{channels}\n[cluster]\nengine = \"nats\"\nname = \"node-{number}\"\n\
             servers = [\"nats://{}\"]\nrequired = \"20s\"\n",
            engine.address()
        );
        let dir = directory(&[("simurgh.toml", &text)]);
        let flags = ["--listen", "127.0.0.1:0", "--shards", "2", "--log", "warn"];
        Server::start_with_env(&simurgh(), dir, &flags, 1, &[TOKEN])
    });
    for node in &nodes {
        let alive = "simurgh_cluster_nodes{state=\"alive\"}";
        let others = N as u64 - 1;
        until("all know each other", || (node.metric(alive) == others).then_some(()));
    }
    nodes
}

#[test]
fn requests_of_a_long_poll_session_go_to_one_server() {
    // Another server would not know the session.
    let (ran, report) = polled("[[session]]", false);
    assert_eq!(report["errors_total"], 0, "{}", ran.stdout);
    assert_eq!(of_servers(&report, "users"), [10; 3]);
    assert_eq!(count(&report, "replies_ok"), 30 * 20, "{}", ran.stdout);
    assert!(of_servers(&report, "connects").iter().all(|n| *n >= 20), "{}", ran.stdout);
}

#[test]
fn long_poll_users_move_to_another_node() {
    let session = "spread = \"elsewhere\"\n[[session]]\n\
        reconnect = { min = \"50ms\", max = \"200ms\" }";
    let (ran, report) = polled(session, true);
    assert_eq!(of_servers(&report, "users"), [10; 3], "{}", ran.stdout);
    assert_eq!(of_servers(&report, "left"), [10, 0, 0], "{}", ran.stdout);
    assert_eq!(of_servers(&report, "reconnects"), [0, 10, 0], "{}", ran.stdout);
    assert_eq!(count(&report, "users_finished"), 30, "{}", ran.stdout);
    let errors = of_servers(&report, "errors");
    assert!(errors[0] >= 10 && errors[1..] == [0, 0], "{}", ran.stdout);
}

/// A column of the report's servers.
fn of_servers(report: &Value, key: &str) -> Vec<u64> {
    let servers = report["servers"].as_array().unwrap();
    servers.iter().map(|server| server[key].as_u64().unwrap()).collect()
}

fn count(report: &Value, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or(0)
}

#[test]
#[ignore = "needs nats-server"]
fn messages_on_three_nodes_are_delivered_once_to_each_member() {
    let engine = Engine::start("");
    let nodes: [Server; 3] = nodes(&engine);
    // Ten rooms of thirty, in each of which ten messages are sent.
    let changes = [
        ("duration = \"115s\"", "duration = \"9s\""),
        ("to = 600", "to = 10"),
        ("duration = \"30s\"\nrate = 580", "duration = \"1s\"\nrate = 290"),
        ("duration = \"10s\"\nrate = 60", "duration = \"1s\"\nrate = 10"),
        ("loop = 300", "loop = 10"),
    ];
    let (ran, report) = run_shipped("cluster-rooms.toml", &changes, &urls(&nodes), "");
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(count(&report, "broadcasts"), 10 * 10, "{}", ran.stdout);
    // To each of the 29 others.
    assert_eq!(count(&report, "deliveries_expected"), 10 * 10 * 29, "{}", ran.stdout);
    assert_eq!(count(&report, "deliveries_once"), 10 * 10 * 29, "{}", ran.stdout);
    for wrong in ["missing", "duplicate", "out_of_order", "unexpected"] {
        assert_eq!(count(&report, &format!("deliveries_{wrong}")), 0, "{wrong}: {}", ran.stdout);
    }
    assert_eq!(of_servers(&report, "users"), [100; 3]);
    assert_eq!(of_servers(&report, "connected_peak"), [100; 3]);
    assert_eq!(of_servers(&report, "errors"), [0; 3]);
    assert!(of_servers(&report, "cpu_us").iter().all(|us| *us > 0), "{}", ran.stdout);
    assert!(ran.stdout.contains("CPU of all servers: "), "{}", ran.stdout);
    // The nodes' count of deliveries includes the sender.
    let delivered = nodes.each_ref().map(|node| node.metric("simurgh_deliveries_total"));
    assert!(delivered.iter().sum::<u64>() >= 10 * 10 * 30, "{delivered:?}");
    let received = nodes
        .each_ref()
        .map(|node| node.metric("simurgh_cluster_received_total{kind=\"broadcast\"}"));
    assert!(received.iter().all(|received| *received > 0), "{received:?}");
}

#[test]
#[ignore = "needs nats-server"]
fn users_of_a_killed_node_move_and_the_report_shows_it() {
    let engine = Engine::start("");
    let nodes: [Server; 3] = nodes(&engine);
    let urls = urls(&nodes);
    let [first, second, third] = nodes;
    // Three rooms of thirty, in each of which ten messages a second are sent for six seconds.
    let changes = [
        ("duration = \"75s\"", "duration = \"14s\""),
        ("to = 30", "to = 3"),
        ("duration = \"9s\"\nrate = 330", "duration = \"1s\"\nrate = 87"),
        ("rate = 30", "rate = 3"),
        ("loop = 570", "loop = 60"),
    ];
    let run = std::thread::spawn(move || run_shipped("cluster-kill.toml", &changes, &urls, ""));
    until("thirty users hear what is said", || {
        let heard = second.metric("simurgh_cluster_received_total{kind=\"broadcast\"}");
        (second.metric("simurgh_sockets") == 30 && heard > 30).then_some(())
    });
    second.signal("KILL");
    let (ran, report) = run.join().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let servers = |key| of_servers(&report, key);
    assert_eq!(servers("users"), [30; 3], "{}", ran.stdout);
    assert_eq!(servers("lost"), [0, 30, 0], "{}", ran.stdout);
    assert_eq!(servers("left"), [0, 30, 0], "{}", ran.stdout);
    assert_eq!(servers("reconnects"), [0, 0, 30], "{}", ran.stdout);
    assert_eq!(servers("errors"), [0, 30, 0], "{}", ran.stdout);
    // Sampled at the end of a second; the second node may not have had all of them yet.
    let most = servers("connected_peak");
    assert_eq!((most[0], most[2]), (30, 60), "{}", ran.stdout);
    // All messages before and after are received; those meanwhile are missing.
    let expected = count(&report, "deliveries_expected");
    let once = count(&report, "deliveries_once");
    let missing = count(&report, "deliveries_missing");
    assert_eq!(once + missing, expected, "{}", ran.stdout);
    // No client was disconnected for more than two of the six seconds, and two thirds never.
    assert!(once > expected * 2 / 3, "{}", ran.stdout);
    for wrong in ["duplicate", "out_of_order", "unexpected"] {
        assert_eq!(count(&report, &format!("deliveries_{wrong}")), 0, "{wrong}: {}", ran.stdout);
    }
    let is_it = |line: &&str| line.trim_start().starts_with(&*second.addresses[0]);
    let row = ran.stdout.lines().find(is_it).unwrap();
    assert!(row.split_whitespace().filter(|cell| *cell == "30").count() >= 4, "{row}");
    drop((first, third));
}

fn history(node: &Server, topic: &str) -> Vec<String> {
    let url = format!("http://{}/api/history?topic={topic}&limit=1000", node.addresses[0]);
    let token = format!("authorization: Bearer {}", TOKEN.1);
    let ran = Command::new("curl").args(["-sS", "-H", &token, &url]).output().expect("curl");
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let messages = answer["messages"].as_array().unwrap_or_else(|| panic!("{answer}"));
    messages.iter().map(|it| it["payload"]["body"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "needs nats-server"]
fn resumed_clients_miss_nothing_after_node_and_broker_are_killed() {
    let mut engine = Engine::start("jetstream { store_dir: \"store\" }\n");
    let channels = "[[channel]]\ntopic = \"rooms:*\"\njoin_reply = {}\n\
        history = { count = 1000, age = \"10m\", bytes = \"4MiB\" }\n\
        [[channel.event]]\nname = \"new:msg\"\nbroadcast = \"all\"\nreply = {}\n";
    let nodes: [Server; 3] = nodes_of(&engine, channels);
    let urls = urls(&nodes);
    let [first, second, third] = nodes;
    // Three rooms of twenty, in each of which ten messages a second are sent for eight seconds.
    let changes = [
        ("duration = \"110s\"", "duration = \"22s\""),
        ("to = 10", "to = 3"),
        ("duration = \"20s\"\nrate = 500", "duration = \"1s\"\nrate = 60"),
        ("rate = 10\n", "rate = 3\n"),
        ("duration = \"60s\"", "duration = \"9s\""),
        ("every = \"10s\", for = \"2s\"", "every = \"3s\", for = \"500ms\""),
        ("loop = 600", "loop = 80"),
    ];
    let run = std::thread::spawn(move || run_shipped("drops-cluster.toml", &changes, &urls, ""));
    let heard = "simurgh_deliveries_total";
    until("what is said is heard", || (second.metric(heard) > 200).then_some(()));
    engine.kill();
    let away = "simurgh_cluster_state{state=\"away\"}";
    until("the engine is missed", || (second.metric(away) == 1).then_some(()));
    second.signal("KILL");
    engine.restart();
    let (ran, report) = run.join().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(of_servers(&report, "users"), [21; 3], "{}", ran.stdout);
    assert!(of_servers(&report, "lost")[1] > 0, "{}", ran.stdout);
    assert!(count(&report, "drops_silent") + count(&report, "drops_reset") > 60, "{}", ran.stdout);
    for wrong in ["missing", "duplicate", "out_of_order", "unexpected"] {
        assert_eq!(count(&report, &format!("deliveries_{wrong}")), 0, "{wrong}: {}", ran.stdout);
    }
    // Confirmed messages, and those stored without a confirmation, reach each of the twenty others.
    let doubtful = ["broadcasts_unconfirmed", "broadcasts_unconfirmed_heard"];
    let [unconfirmed, of_these_heard] = doubtful.map(|it| count(&report, it));
    assert_eq!(count(&report, "broadcasts"), 3 * 80, "{}", ran.stdout);
    let kept = 3 * 80 - unconfirmed + of_these_heard;
    assert_eq!(count(&report, "deliveries_once"), kept * 20, "{}", ran.stdout);
    // The history on each node has exactly those.
    for node in [&first, &third] {
        let all: Vec<String> =
            (1..=3).flat_map(|room| history(node, &format!("rooms:{room}"))).collect();
        assert_eq!(all.len() as u64, kept, "{}", ran.stdout);
        assert_eq!(
            all.iter().collect::<BTreeSet<_>>().len() as u64,
            kept,
            "something is kept twice"
        );
    }
}

#[test]
#[ignore = "needs nats-server"]
fn capacity_test_compares_three_nodes_with_one() {
    let program = crate::support::engine::program();
    let dir = directory(&[]);
    let flags = ["--nodes", "3", "--connections", "600", "--rate", "600", "--broadcasts", "2"];
    let more =
        ["--compare", "--no-reconnect", "--no-tune", "--heartbeats", "off", "--dashboard", "off"];
    let engine = ["--nats", program.to_str().unwrap(), "--out", "out"];
    let words = [&["road"], &flags[..], &more, &engine].concat();
    let ran = run_long(dir.path(), &words, WITHIN);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let road = std::fs::read(dir.path().join("out/road.json")).unwrap();
    let road: Value = serde_json::from_slice(&road).unwrap();
    assert_eq!((&road["nodes"], road["told"].as_array().unwrap().len()), (&3.into(), 2));
    let sum = |list: &Value, key: &str| -> u64 {
        list.as_array().unwrap().iter().map(|it| it[key].as_u64().unwrap()).sum()
    };
    // Includes two hundred that join and stay silent.
    assert_eq!(sum(&road["milestones"][0]["nodes"], "sockets"), 800, "{road}");
    for broadcast in road["told"].as_array().unwrap() {
        assert_eq!(
            (&broadcast["receivers"], &broadcast["delivered"]),
            (&600.into(), &600.into()),
            "{broadcast}"
        );
        // The sender also receives the command to send.
        assert_eq!(sum(&broadcast["nodes"], "delivered"), 601, "{broadcast}");
        let nodes = broadcast["nodes"].as_array().unwrap();
        assert!(nodes.iter().all(|it| it["delivered"].as_u64() > Some(150)), "{broadcast}");
        assert!(broadcast["engine_us"].as_f64() > Some(0.0), "{broadcast}");
    }
    let compared = &road["compared"];
    for road in ["nodes", "one"] {
        assert_eq!(compared[road]["broadcasts"], 2, "{compared}");
        assert!(compared[road]["server_us"].as_f64() > Some(0.0), "{compared}");
    }
    assert!(compared["server_us_ratio"].as_f64() > Some(0.0), "{compared}");
    assert_eq!(compared["road"]["milestones"][0]["broadcast"]["receivers"], 600, "{compared}");
    for word in ["3 nodes with nats-server", "node-3", "times the CPU per delivery"] {
        assert!(ran.stdout.contains(word), "{word:?} is not in\n{}", ran.stdout);
    }
}
