//! Clients that resume with a shared identity, forged proofs, or slow reads; and too long
//! broadcasts.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{Client, WAIT_MAX, handled, metric, serving, start};
use serde_json::{Value, json};
use simurgh::{
    Builder, Endpoint, Outcome, Payload, ShardContext,
    history::{GapReason, History},
};
use tungstenite::{Message, WebSocket};

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "say" => ctx.broadcast("said", payload.into_owned()),
        "tell" => ctx.broadcast_from("told", payload.into_owned()),
        _ => return Outcome::unknown_event(),
    }
    Outcome::ok(json!({}))
}

fn builder(rule: History) -> Builder {
    serving(handled("kept:*", room).history(rule)).configure(|config| config.shards = 3)
}

/// Topics that have all shards as homes.
fn topics() -> impl Iterator<Item = String> {
    (0..6).map(|n| format!("kept:{n}"))
}

/// A client that has joined, with the reported gap or missed messages, and its position.
fn joined(server: &Endpoint, topic: &str, simurgh: &Value) -> (Client, Value, Value) {
    let mut client = Client::v2(server);
    client.send(json!(["1", "1", topic, "phx_join", {"simurgh": simurgh}]));
    assert_eq!(client.recv()[4]["status"], "ok");
    let resumed = client.recv();
    assert_eq!(resumed[3], "simurgh:resumed", "{resumed}");
    (client, resumed[4].clone(), resumed[1].clone())
}

/// Returns the messages before the answer, without positions.
fn push(client: &mut Client, topic: &str, event: &str, n: u64) -> Vec<(Value, Value)> {
    client.push("push", topic, event, json!({"n": n}));
    let mut before = Vec::new();
    loop {
        let message = client.recv();
        if message[3] == "phx_reply" {
            assert_eq!(message[4]["status"], "ok", "{message}");
            return before;
        }
        before.push((message[3].clone(), message[4]["n"].clone()));
    }
}

#[test]
fn forged_key_proves_nothing_and_is_not_an_error() {
    let server = start(builder(History { only_own: true, ..History::default() }));
    let topic = "kept:1";
    let (mut talker, _, start) = joined(&server, topic, &json!({"id": "the-talker"}));
    push(&mut talker, topic, "say", 1);
    let (ann, new, first) = joined(&server, topic, &json!({"id": "ann-client"}));
    let (_, of_bob, _) = joined(&server, topic, &json!({"id": "bob-client"}));
    let (_, elsewhere, _) = joined(&server, "kept:2", &json!({"id": "ann-client"}));
    push(&mut talker, topic, "say", 2);
    drop(ann);
    let key = new["key"].as_str().unwrap();
    let back = |since: &Value, key: &Value| {
        let said = json!({"id": "ann-client", "since": since, "key": key});
        let (_, mut resumed, _) = joined(&server, topic, &said);
        resumed.as_object_mut().unwrap().remove("key");
        resumed
    };
    let all = json!({"recovered": true, "count": 1});
    assert_eq!(back(&first, &json!(key)), all);
    assert_eq!(back(&start, &json!(key)), all, "not what was said before it came");
    let (position, proof) = key.split_once('~').unwrap();
    let forged = [
        json!(key.replacen(position, start.as_str().unwrap(), 1)),
        of_bob["key"].clone(),
        elsewhere["key"].clone(),
        json!(&key[..key.len() - 1]),
        json!(format!("{key}A")),
        json!(format!("{position}~")),
        json!(format!("~{proof}")),
        json!(format!("{position}~{}", "A".repeat(proof.len()))),
        json!(proof),
        json!(""),
        json!("~"),
        json!("\u{0}"),
        json!("é".repeat(128)),
    ];
    let nothing = json!({"recovered": false, "reason": "epoch", "count": 0});
    for key in &forged {
        assert_eq!(back(&first, key), nothing, "{key}");
        assert_eq!(back(&start, key), nothing, "{key}");
    }
    for wrong in [json!(7), json!([]), json!("x".repeat(129)), json!(true)] {
        let mut client = Client::v2(&server);
        client.send(json!(["1", "1", topic, "phx_join", {"simurgh": {"key": wrong}}]));
        let refused = json!({"status": "error", "response": {"reason": "bad resume"}});
        assert_eq!(client.recv()[4], refused, "{wrong}");
    }
}

#[test]
fn ids_and_positions_of_every_wrong_shape_are_refused_or_gaps() {
    let server = start(builder(History::default()));
    let answer = |simurgh: &Value| {
        let mut client = Client::v2(&server);
        client.send(json!(["1", "1", "kept:1", "phx_join", {"simurgh": simurgh}]));
        let reply = client.recv();
        match reply[4]["status"] == "ok" {
            true => client.recv()[4].clone(),
            false => reply[4]["response"].clone(),
        }
    };
    for wrong in [
        json!({"since": 1}),
        json!({"since": [1]}),
        json!({"since": ["a00000.1"]}),
        json!({"since": {"a": 1}}),
        json!({"since": 18_446_744_073_709_551_615_u64}),
        json!({"id": "1234567"}),
        json!({"id": "é".repeat(65)}),
        json!({"id": "x".repeat(10_000)}),
        json!({"id": null}),
        json!({"id": ["12345678"]}),
        json!({"seen": 1}),
        json!({"partial": 0}),
        json!("kept:1"),
        json!([{}]),
        json!(null),
    ] {
        assert_eq!(answer(&wrong), json!({"reason": "bad resume"}), "{wrong}");
    }
    let (_, _, position) = joined(&server, "kept:1", &json!({}));
    let (epoch, seq) = position.as_str().unwrap().split_once('.').unwrap();
    for unknown in [
        "",
        "x",
        &"x".repeat(10_000),
        &format!("{epoch}.18446744073709551616"),
        &format!("{epoch}.18446744073709551615"),
        &format!("{epoch}.{}", seq.parse::<u64>().unwrap() + 1),
        &format!("{epoch}.0{seq}"),
        &format!("{epoch}.-{seq}"),
    ] {
        let expected = json!({"recovered": false, "reason": "epoch", "count": 0});
        assert_eq!(answer(&json!({"since": unknown})), expected, "{:?}", unknown.get(..40));
    }
    let fine = json!({"recovered": true, "count": 0});
    for id in ["12345678", &"é".repeat(64)] {
        assert_eq!(answer(&json!({"id": id, "since": position})), fine, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn message_above_the_history_limit_is_delivered_and_leaves_a_gap() {
    let server = start(builder(History { bytes: 1 << 20, ..History::default() }));
    let pubsub = server.pubsub();
    for topic in topics() {
        let kept = metric(&server, "simurgh_history_bytes");
        let (mut member, _, first) = joined(&server, &topic, &json!({}));
        push(&mut member, &topic, "say", 1);
        let long = "x".repeat(9 << 20);
        let position = pubsub.broadcast_kept(&topic, "said", json!({"text": long})).await.unwrap();
        let mut text = member.recv();
        while text[4]["text"].is_null() {
            text = member.recv();
        }
        assert_eq!(text[4]["text"].as_str().map(str::len), Some(9 << 20));
        assert_eq!(text[1], position.to_string());
        let page = pubsub.history(topic.as_str()).await.unwrap();
        assert_eq!((page.messages.len(), page.position), (0, position));
        assert_eq!(metric(&server, "simurgh_history_bytes"), kept, "{topic}");
        push(&mut member, &topic, "say", 3);
        // A client that has received it has missed one message; another has a gap.
        let (_, resumed, _) = joined(&server, &topic, &json!({"since": position.to_string()}));
        assert_eq!(resumed, json!({"recovered": true, "count": 1}));
        let (_, resumed, _) = joined(&server, &topic, &json!({"since": first}));
        assert_eq!(resumed, json!({"recovered": false, "reason": "overwritten", "count": 1}));
        let page = pubsub.history(topic.as_str()).limit(5).await.unwrap();
        assert_eq!((page.messages.len(), page.gap), (1, None));
        let first = simurgh::history::Position::parse(first.as_str().unwrap()).unwrap();
        let gap = pubsub.history(topic.as_str()).after(first).await.unwrap();
        assert_eq!(gap.gap, Some(GapReason::Overwritten));
    }
    assert_eq!(metric(&server, "simurgh_history_too_large_total"), 6);
}

/// Reads a kilobyte a second while it is slow.
struct Slow {
    stream: TcpStream,
    is_slow: Arc<AtomicBool>,
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_slow.load(Relaxed) {
            return self.stream.read(buffer);
        }
        std::thread::sleep(Duration::from_millis(100));
        let most = buffer.len().min(100);
        self.stream.read(&mut buffer[..most])
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Reads until the connection ends or the last number has come.
fn numbers(socket: &mut WebSocket<Slow>, last: u64) -> (Vec<u64>, Option<Value>) {
    let (mut numbers, mut position) = (Vec::new(), None);
    while numbers.last() != Some(&last) {
        let Ok(Message::Text(text)) = socket.read() else { break };
        let message: Value = serde_json::from_str(&text).unwrap();
        if message[3] == "said" {
            numbers.push(message[4]["n"].as_u64().unwrap());
        }
        if message[1].as_str().is_some_and(|it| simurgh::history::Position::parse(it).is_some()) {
            position = Some(message[1].clone());
        }
    }
    (numbers, position)
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_resuming_reader_is_closed_and_continues_later() {
    const MESSAGES: u64 = 100;
    let rule = History { count: 1_000, bytes: 32 << 20, ..History::default() };
    let server = start(builder(rule).configure(|config| {
        config.history.replay_bytes = 20 << 20;
        config.slow_after = Duration::from_millis(700);
        config.close_timeout = Duration::from_millis(200);
    }));
    let topic = "kept:1";
    let (mut probe, _, first) = joined(&server, topic, &json!({}));
    let text = "x".repeat(100_000);
    for n in 0..MESSAGES {
        let message = json!({"n": n, "text": text});
        server.pubsub().broadcast_kept(topic, "said", message).await.unwrap();
        while probe.recv()[4]["n"] != n {}
    }
    let connect = |since: &Value, is_slow: bool| {
        let stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.addresses()[0]);
        let is_slow = (Arc::new(AtomicBool::new(false)), is_slow);
        let slow = Slow { stream, is_slow: Arc::clone(&is_slow.0) };
        let (mut socket, _) = tungstenite::client(url, slow).unwrap();
        let join = json!(["1", "1", topic, "phx_join", {"simurgh": {"since": since}}]);
        is_slow.0.store(is_slow.1, Relaxed);
        socket.send(Message::text(join.to_string())).unwrap();
        (socket, is_slow.0)
    };
    let (mut slow, is_slow) = connect(&first, true);
    let reader = std::thread::spawn(move || numbers(&mut slow, MESSAGES - 1));
    let until = Instant::now() + WAIT_MAX;
    let mut served = 0;
    loop {
        probe.heartbeat();
        if metric(&server, "simurgh_slow_peer_disconnects_total") > 0 {
            break;
        }
        assert!(Instant::now() < until, "nobody is cut");
        served += 1;
    }
    assert!(served > 0, "others are served meanwhile");
    is_slow.store(false, Relaxed);
    let (mut heard, position) = reader.join().unwrap();
    assert!(heard.len() < MESSAGES as usize, "it was cut before the end");
    let (mut again, _) = connect(&position.unwrap_or(first), false);
    heard.extend(numbers(&mut again, MESSAGES - 1).0);
    assert_eq!(heard, (0..MESSAGES).collect::<Vec<_>>());
}

fn saves(path: &Path, since: &Value) -> Value {
    let path = path.to_owned();
    let server = start(builder(History::default()).configure(|config| {
        config.history_save = Some(path);
        config.drain_time = Duration::from_millis(50);
    }));
    let (mut client, resumed, _) = joined(&server, "kept:0", &json!({"since": since}));
    push(&mut client, "kept:0", "say", 1);
    drop(client);
    server.drain().unwrap();
    resumed
}

/// A save file that is cut, changed, of another server or not one at all is reported and left
/// unchanged, at the start and at the drain; clients learn that the server was restarted.
#[test]
fn invalid_save_file_stays_and_clients_get_a_gap() {
    let dir = std::env::temp_dir().join(format!("simurgh-save-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("history");
    saves(&path, &Value::Null);
    let saved = fs::read(&path).unwrap();
    let cut = saved[..saved.len() - 1].to_vec();
    let mut changed = saved.clone();
    changed[saved.len() / 2] ^= 1;
    for wrong in [cut, changed, Vec::new(), b"port = 4000\n".to_vec()] {
        fs::write(&path, &wrong).unwrap();
        let resumed = saves(&path, &json!("a00000.1"));
        assert_eq!(resumed["reason"], "epoch", "{resumed}");
        assert_eq!(fs::read(&path).unwrap(), wrong, "neither read nor written over");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    saves(&path, &Value::Null);
    assert!(path.is_dir());
    fs::remove_dir(&path).unwrap();
    // A correct one is loaded and removed.
    fs::write(&path, &saved).unwrap();
    let server = start(builder(History::default()).configure(|config| {
        config.history_save = Some(path.clone());
    }));
    assert!(!path.exists(), "a second start would give its numbers twice");
    let (_, resumed, _) = joined(&server, "kept:0", &json!({"since": "a00000.1"}));
    assert_eq!(resumed["count"], 1, "what was said before: {resumed}");
    drop(server);
    fs::remove_dir_all(&dir).unwrap();
}
