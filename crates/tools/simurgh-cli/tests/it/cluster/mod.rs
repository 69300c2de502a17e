//! Two servers with the table `[cluster]` on a real broker: interests, long polls and observers
//! over both; and mistakes in the table.

mod quiet_topics;
mod reload;

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::engine::{Engine, until};
use crate::support::{Client, Server, directory, run, simurgh};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: (&str, &str) = ("SIMURGH_API_TOKEN", "a-token-of-no-importance");
const SECRET: (&str, &str) =
    ("SIMURGH_SECRET", "what all nodes of these tests share, and nobody else");

/// The file of a node with these keys above its tables, and these channels.
fn settings(name: &str, engine: &Engine, keys: &str, channels: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n{keys}[cluster]\nengine = \"nats\"\nname = \"{name}\"\n\
         servers = [\"nats://{}\"]\nrequired = \"20s\"\n\
         secret_env = \"SIMURGH_SECRET\"\n{channels}",
        engine.address()
    )
}

/// A node with the file in this directory.
fn start(dir: TempDir) -> Server {
    Server::start_with_env(&simurgh(), dir, &["--shards", "2"], 1, &[TOKEN, SECRET])
}

fn node_with(name: &str, engine: &Engine, keys: &str, channels: &str) -> Server {
    start(directory(&[("simurgh.toml", &settings(name, engine, keys, channels))]))
}

fn node(name: &str, engine: &Engine) -> Server {
    let channels = "[[channel]]\ntopic = \"room:*\"\n[[channel.event]]\nname = \"say\"\n\
                    broadcast = \"all\"\n[[channel]]\ntopic = \"sure:*\"\n\
                    wait_for_interest = true\n";
    node_with(name, engine, "longpoll = \"6s\"\n", channels)
}

fn joins(server: &Server, topic: &str) -> Client {
    let mut client = server.client();
    client.join(topic, json!({}));
    client
}

#[track_caller]
fn know_each_other(servers: [&Server; 2]) {
    for server in servers {
        until("both know each other", || {
            (server.metric("simurgh_cluster_nodes{state=\"alive\"}") == 1).then_some(())
        });
    }
}

fn curl(server: &Server, arguments: &[&str]) -> String {
    let (path, rest) = arguments.split_first().unwrap();
    let url = format!("http://{}{path}", server.addresses[0]);
    let token = format!("authorization: Bearer {}", TOKEN.1);
    let ran = Command::new("curl").args(["-sS", "-H", &token, &url]).args(rest).output().unwrap();
    String::from_utf8(ran.stdout).unwrap()
}

/// It also receives what another node broadcasts right after the reply.
#[test]
#[ignore = "needs nats-server"]
fn confirmed_join_receives_every_later_broadcast_of_other_nodes() {
    let engine = Engine::start("");
    let (one, two) = (node("one", &engine), node("two", &engine));
    for n in 0..100 {
        let topic = format!("sure:{n}");
        let mut there = joins(&two, &topic);
        let body = json!({"topic": topic, "event": "say", "payload": {"n": n}}).to_string();
        assert_eq!(curl(&one, &["/api/broadcast", "-d", &body]), r#"{"taken":1}"#);
        there.expect(&topic, "say", json!({"n": n}));
    }
    // Without the engine no request waits for it.
    drop(engine);
    let began = Instant::now();
    joins(&two, "sure:alone");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

fn polled(server: &Server, token: &str) -> Value {
    let path = format!("/socket/longpoll?vsn=2.0.0&token={token}");
    serde_json::from_str(&curl(server, &[&path])).unwrap()
}

fn posted(server: &Server, token: &str, message: &Value) -> Value {
    let path = format!("/socket/longpoll?vsn=2.0.0&token={token}");
    serde_json::from_str(&curl(server, &[&path, "-d", &message.to_string()])).unwrap()
}

/// Polls a session on these nodes in turn until there are messages.
fn poll_messages(servers: &[&Server], token: &mut String) -> Vec<Value> {
    for server in servers.iter().cycle().take(12) {
        let answer = polled(server, token);
        answer["token"].as_str().unwrap().clone_into(token);
        if answer["status"] == 200 {
            let messages = answer["messages"].as_array().unwrap();
            let read = |it: &Value| serde_json::from_str(it.as_str().unwrap()).unwrap();
            return messages.iter().map(read).collect();
        }
        assert_eq!(answer["status"], 204);
    }
    panic!("nothing was said");
}

#[test]
#[ignore = "needs nats-server"]
fn a_long_poll_session_is_served_by_any_node() {
    let dir = directory(&[]);
    let engine = Engine::start("");
    let (one, two) = (node("one", &engine), node("two", &engine));
    know_each_other([&one, &two]);
    let opened = polled(&one, "");
    assert_eq!(opened["status"], 410);
    let mut token = opened["token"].as_str().unwrap().to_owned();
    // Posts and polls through the other node: small and large, JSON and not.
    let join = json!(["1", "1", "room:p", "phx_join", {}]);
    assert_eq!(posted(&two, &token, &join), json!({"status": 200}));
    let replies = poll_messages(&[&two], &mut token);
    assert_eq!((&replies[0][3], &replies[0][4]["status"]), (&json!("phx_reply"), &json!("ok")));
    let long = "x".repeat(3 << 20);
    let push = json!(["1", "2", "room:p", "say", {"long": long}]);
    std::fs::write(dir.path().join("body"), push.to_string()).unwrap();
    let body = format!("@{}", dir.path().join("body").display());
    let path = format!("/socket/longpoll?vsn=2.0.0&token={token}");
    let answered = curl(&two, &[&path, "--data-binary", &body]);
    assert!(answered.contains("413") || answered == r#"{"status":200}"#, "{answered}");
    for n in 0..20 {
        let push = json!(["1", "3", "room:p", "say", {"n": n}]);
        let by = [&one, &two][n % 2];
        assert_eq!(posted(by, &token, &push), json!({"status": 200}));
    }
    let mut received = Vec::new();
    while received.len() < 20 {
        let messages = poll_messages(&[&one, &two, &two], &mut token);
        let pushed = messages.iter().filter(|it| it[3] == "say");
        received.extend(pushed.filter_map(|it| it[4]["n"].as_u64()));
    }
    assert_eq!(received, (0..20).collect::<Vec<u64>>());
    let metrics = curl(&two, &["/metrics"]);
    let passed_on =
        metrics.lines().find_map(|it| it.strip_prefix("simurgh_longpoll_elsewhere_total "));
    assert!(passed_on.unwrap().parse::<u64>().unwrap() >= 12, "{passed_on:?}");
    // A node's sessions end with it: the client is asked to reconnect.
    drop(one);
    until("the client is told", || {
        let answer = polled(&two, &token);
        (answer["status"] == 500 || answer["status"] == 410).then_some(())
    });
}

#[test]
#[ignore = "needs nats-server"]
fn observer_of_one_node_shows_all_nodes() {
    let dir = directory(&[]);
    let engine = Engine::start("");
    let (one, two) = (node("one", &engine), node("two", &engine));
    let _clients = [&one, &two, &two].map(|server| joins(server, "room:a"));
    let observe = |more: &[&str]| {
        let at = [&["observe", &one.addresses[0], "--cluster", "--once"], more].concat();
        let ran = crate::support::run_with_env(dir.path(), &at, TOKEN);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let cluster = until("both are shown", || {
        let all: Value = serde_json::from_str(&observe(&["--json"])).unwrap();
        let cluster = all["cluster"].clone();
        let seen = |at: usize| cluster["nodes"][at]["figures"]["channels"].clone();
        ((seen(0), seen(1)) == (json!(1), json!(2))).then_some(cluster)
    });
    let engine_of = cluster["link"]["engine"].as_str().unwrap();
    assert!(engine_of.starts_with(&format!("nats://{}, NATS ", engine.address())), "{engine_of}");
    assert!(cluster["link"]["rtt_ms"].as_f64().is_some_and(|it| it > 0.0 && it < 5000.0));
    let (here, there) = (&cluster["nodes"][0], &cluster["nodes"][1]);
    assert_eq!((&here["name"], &there["name"]), (&json!("one"), &json!("two")));
    assert!(there["rtt_ms"].as_f64().is_some_and(|it| it > 0.0 && it < 500.0), "{there}");
    let there = until("a delay is known", || {
        let all: Value = serde_json::from_str(&observe(&["--json"])).unwrap();
        let there = all["cluster"]["nodes"][1].clone();
        there["delay_ms"].is_number().then_some(there)
    });
    assert!(there["clock_offset_ms"].as_i64().is_some_and(|it| it.abs() < 5000), "{there}");
    let text = observe(&[]);
    for part in ["link          up for", "one *", "two", "one by one", "CPU %"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let members = curl(&two, &["/observer/api/members?topic=room%3Aa"]);
    let members: Value = serde_json::from_str(&members).unwrap();
    let of =
        |at: usize| (members["nodes"][at]["name"].clone(), members["nodes"][at]["members"].clone());
    assert_eq!((of(0), of(1)), ((json!("two"), json!(2)), (json!("one"), json!(1))));
    let metrics = curl(&one, &["/metrics"]);
    for name in ["rtt", "delay"] {
        let count = format!("simurgh_cluster_{name}_seconds_count ");
        let count = metrics.lines().find_map(|it| it.strip_prefix(&*count)).unwrap();
        assert!(count.parse::<u64>().unwrap() > 0, "{name}");
    }
    assert!(metrics.contains("simurgh_cluster_reconnects_total 0\n"));
    drop(engine);
    let why = until("the link is away", || {
        let all: Value = serde_json::from_str(&observe(&["--json"])).unwrap();
        all["cluster"]["link"]["why"].as_str().map(str::to_owned)
    });
    assert!(why.contains("broker"), "{why}");
    for output in [observe(&[]), metrics, why] {
        assert!(!output.contains(TOKEN.1) && !output.contains(SECRET.1), "{output}");
    }
}

#[test]
fn single_server_reports_no_cluster() {
    let dir = directory(&[]);
    let server = Server::start("listen = [\"127.0.0.1:0\"]\n", &[]);
    for how in [&["--once"][..], &["--once", "--json"]] {
        let at = [&["observe", &server.addresses[0], "--cluster"], how].concat();
        let ran = run(dir.path(), &at);
        assert_eq!(ran.status.code(), Some(1));
        assert!(ran.stderr.contains("is not in a cluster"), "{}", ran.stderr);
    }
}

#[test]
fn invalid_cluster_table_is_named_with_its_line() {
    let text = "[cluster]\nengine = \"nats\"\nprefix = \"A\"\nservers = [\"http://x\"]\n\
        presence_down = \"1s\"\nuser = \"me\"\n[[channel]]\ntopic = \"t\"\n";
    let dir = directory(&[("simurgh.toml", text)]);
    let ran = run(dir.path(), &["config", "--check", "simurgh.toml"]);
    for line in [3, 4, 5, 6] {
        assert!(ran.stderr.contains(&format!("simurgh.toml:{line}:")), "{line}: {}", ran.stderr);
    }
    // Invalid values of the settings of histories.
    let text = "[cluster]\nengine = \"nats\"\nservers = [\"nats://127.0.0.1:1\"]\n\
        history_streams = 2\nhistory_replicas = 2\nhistory_engine_bytes = \"x\"\n\
        [[channel]]\ntopic = \"t\"\nhistory = true\n";
    let dir = directory(&[("simurgh.toml", text)]);
    for arguments in [&["config", "--check", "simurgh.toml"][..], &["serve"]] {
        let ran = run(dir.path(), arguments);
        assert!(!ran.status.success());
        for (line, words) in [
            (4, "[cluster] history_streams: must be 1 or 16"),
            (5, "[cluster] history_replicas: must be 1, 3 or 5"),
            (6, "[cluster] history_engine_bytes: "),
        ] {
            let stands = format!("simurgh.toml:{line}: {words}");
            assert!(ran.stderr.contains(&stands), "{stands}: {}", ran.stderr);
        }
    }
    for (key, words) in [
        ("history_storage = \"tape\"", "`file` or `memory`"),
        ("history_create_streams = 1", "boolean"),
        ("history_when_away = \"wait\"", "`hold` or `local`"),
        ("history_streams = \"16\"", "u8"),
        ("history_replica = 3", "history_replicas"),
    ] {
        let text = format!("[cluster]\nengine = \"nats\"\n\n{key}\n");
        let dir = directory(&[("simurgh.toml", &text)]);
        let ran = run(dir.path(), &["config", "--check", "simurgh.toml"]);
        let is_named = ran.stderr.contains("simurgh.toml:4") && ran.stderr.contains(words);
        assert!(is_named && !ran.status.success(), "{key}: {}", ran.stderr);
    }
}

#[test]
fn history_save_file_is_refused_with_a_cluster() {
    let text = "listen = [\"127.0.0.1:0\"]\nhistory_save = \"kept\"\n[cluster]\n\
        engine = \"nats\"\nservers = [\"nats://127.0.0.1:1\"]\n[[channel]]\ntopic = \"t\"\n\
        history = true\n";
    let dir = directory(&[("simurgh.toml", text)]);
    let words = "history_save: not with [cluster], whose broker stores histories: remove it";
    for arguments in [&["config", "--check", "simurgh.toml"][..], &["serve"]] {
        let ran = run(dir.path(), arguments);
        let is_named = ran.stderr.contains(&format!("simurgh.toml:2: {words}"));
        assert!(!ran.status.success() && is_named, "{}", ran.stderr);
    }
    let text = text.replace("history_save = \"kept\"\n", "");
    let dir = directory(&[("simurgh.toml", &text)]);
    let ran = run(dir.path(), &["serve", "--history-save", "kept"]);
    let is_named = ran.stderr.contains(&format!("--{}", words.replace('_', "-")));
    assert!(!ran.status.success() && is_named, "{}", ran.stderr);
}

#[test]
fn broker_permissions_are_printed() {
    let dir = directory(&[]);
    let printed = |flags: &[&str]| {
        let ran = run(dir.path(), &[&["config", "--nats-permissions=chat"], flags].concat());
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let names = |text: &str| text.matches("$JS.API.DIRECT.GET.CHAT_H").count();
    for (flags, streams) in [
        (&[][..], 1),
        (&["--nats-streams=1"], 1),
        (&["--nats-streams=16"], 16),
        (&["--nats-streams=0"], 0),
    ] {
        let text = printed(flags);
        assert!(text.contains("\"chat.b.>\""), "{text}");
        assert_eq!((names(&text), text.contains("chat.h.>")), (streams, streams > 0), "{text}");
        assert_eq!(text.contains("_INBOX_chat.>"), streams > 0, "{text}");
    }
    assert!(printed(&["--nats-streams=16"]).contains("\"$JS.API.STREAM.PURGE.CHAT_Hf\""));
    let text = printed(&["--nats-streams=0", "--nats-notices"]);
    for part in ["chat.l.>", "STREAM.CREATE.CHAT_L0", "STREAM.PURGE.CHAT_L0", "_INBOX_chat.>"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let wrong = ["config", "--nats-permissions=chat", "--nats-streams=3"];
    let ran = run(dir.path(), &wrong);
    assert!(ran.stderr.contains("expected 0, 1 or 16") && !ran.status.success(), "{}", ran.stderr);
    let ran = run(dir.path(), &["config", "--nats-permissions=Chat"]);
    assert!(ran.stderr.contains("'C'") && !ran.status.success(), "{}", ran.stderr);
}
