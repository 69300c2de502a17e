//! A server takes over from a running one: listening sockets, histories, blocks, and what both
//! publish meanwhile.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use simurgh::history::History;
use simurgh::{Builder, Endpoint, Outcome, Payload, ShardContext};

use crate::support::nodes::Engine;
use crate::support::{Client, handled, serving, until};

fn speak(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "others" => ctx.broadcast_from("news", payload.into_owned()),
        _ => ctx.broadcast("news", payload.into_owned()),
    }
    Outcome::ok(json!({}))
}

fn builder(shards: usize) -> Builder {
    serving(handled("rooms:*", speak).history(History::default())).configure(|config| {
        config.shards = shards;
        config.drain_time = Duration::from_secs(2);
    })
}

/// A server, the process id that took over from it, and a thread that waits for its end.
struct Running {
    endpoint: Option<Endpoint>,
    address: SocketAddr,
    handed_over: Arc<AtomicU32>,
}

impl Running {
    fn start(builder: Builder, address: SocketAddr, takes_over: bool) -> Self {
        let handed_over = Arc::new(AtomicU32::new(0));
        let of = Arc::clone(&handed_over);
        let builder = builder.listen(&address.to_string());
        let builder = builder.take_over(takes_over, move |pid| of.store(pid, SeqCst));
        let endpoint = builder.start().unwrap();
        let address = endpoint.addresses()[0];
        Self { endpoint: Some(endpoint), address, handed_over }
    }

    fn first(builder: Builder) -> Self {
        Self::start(builder, SocketAddr::from(([127, 0, 0, 1], 0)), false)
    }

    fn next(&self, builder: Builder) -> Self {
        Self::start(builder, self.address, true)
    }

    fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().unwrap()
    }

    /// Waits for the end on another thread, as a process does.
    fn ends(&mut self) -> JoinHandle<()> {
        let endpoint = self.endpoint.take().unwrap();
        std::thread::spawn(move || endpoint.wait().unwrap())
    }
}

fn join(client: &mut Client, topic: &str, since: Option<&str>) -> Vec<Value> {
    client.send(json!(["1", "1", topic, "phx_join", {"simurgh": {"since": since}}]));
    let (reply, resumed) = (client.recv(), client.recv());
    assert_eq!(reply[4]["status"], "ok", "{reply}");
    vec![reply, resumed]
}

/// The next broadcast: its position and its payload.
fn news(client: &mut Client) -> (String, Value) {
    loop {
        let message = client.recv();
        if message[3] == "news" {
            return (message[1].as_str().unwrap().to_owned(), message[4].clone());
        }
    }
}

fn publish(endpoint: &Endpoint, topic: &str, n: u32) {
    endpoint.broadcast(topic, "news", Payload::from_json(json!({"n": n}).to_string())).unwrap();
}

#[test]
fn broadcasts_of_both_processes_have_one_order_and_none_is_lost() {
    for (before, after) in [(2, 3), (3, 1)] {
        let mut one = Running::first(builder(before));
        let topics: Vec<String> = (0..6).map(|n| format!("rooms:{n}")).collect();
        let mut there: Vec<Client> = topics.iter().map(|_| Client::v2(one.endpoint())).collect();
        for (topic, client) in topics.iter().zip(&mut there) {
            join(client, topic, None);
            publish(one.endpoint(), topic, 0);
            assert_eq!(news(client).1, json!({"n": 0}));
        }
        let two = one.next(builder(after));
        assert_eq!(one.handed_over.load(SeqCst), std::process::id());
        let mut here = Vec::new();
        for topic in &topics {
            let mut client = Client::v2(two.endpoint());
            join(&mut client, topic, None);
            publish(two.endpoint(), topic, 1);
            publish(one.endpoint(), topic, 2);
            let mut both = [news(&mut client), news(&mut client)];
            here.push((client, both.clone()));
            both.sort_by_key(|it| it.1["n"].as_u64());
            assert_eq!([&both[0].1, &both[1].1], [&json!({"n": 1}), &json!({"n": 2})]);
        }
        let ended = one.ends();
        // The drain may close a client before it gets them.
        for (client, (_, both)) in there.iter_mut().zip(&here) {
            let received = news_until_close(client);
            assert_eq!(received, both[..received.len()]);
        }
        drop(there);
        ended.join().unwrap();
        for (topic, (client, _)) in topics.iter().zip(&mut here) {
            publish(two.endpoint(), topic, 3);
            assert_eq!(news(client).1, json!({"n": 3}), "it is no longer linked");
        }
    }
}

/// All broadcasts until the server closes the socket, with 1012.
fn news_until_close(client: &mut Client) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    loop {
        match client.0.read().unwrap() {
            tungstenite::Message::Text(text) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(message[3], "news", "{message}");
                all.push((message[1].as_str().unwrap().to_owned(), message[4].clone()));
            }
            tungstenite::Message::Close(frame) => {
                assert_eq!(frame.map(|it| it.code.into()), Some(1012_u16));
                return all;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn client_resumes_behind_what_it_published_in_the_earlier_process() {
    let mut one = Running::first(builder(2));
    let mut client = Client::v2(one.endpoint());
    let mut other = Client::v2(one.endpoint());
    let resumed = join(&mut client, "rooms:a", None);
    let first = resumed[1][1].as_str().unwrap().to_owned();
    join(&mut other, "rooms:a", None);
    // The drain begins late enough for what follows.
    let two = Running::start(builder(2), one.address, true);
    for (n, event) in ["all", "others", "all"].iter().enumerate() {
        client.push("7", "rooms:a", event, json!({"n": n}));
    }
    let mut answers = 0;
    let mut seen = Vec::new();
    while let Ok(tungstenite::Message::Text(text)) = client.0.read() {
        let message: Value = serde_json::from_str(&text).unwrap();
        match message[3].as_str().unwrap() {
            "phx_reply" => answers += u32::from(message[4]["status"] == "ok"),
            "news" => seen.push(message[4]["n"].as_u64().unwrap()),
            _ => {}
        }
    }
    // It was closed before or behind any of them.
    let mut back = Client::v2(two.endpoint());
    let resumed = join(&mut back, "rooms:a", Some(&first));
    let count = resumed[1][4]["count"].as_u64().unwrap();
    assert_eq!(resumed[1][4]["recovered"], true, "{resumed:?}");
    assert!(count >= u64::from(answers), "{answers} were answered, {count} are retained");
    assert!(seen.iter().all(|n| *n != 1), "its own is not for it: {seen:?}");
    let ended = one.ends();
    drop((client, other));
    ended.join().unwrap();
}

#[test]
fn no_connection_is_refused_while_servers_take_over_one_after_the_other() {
    let mut one = Running::first(builder(2));
    let (address, ends) = (one.address, Arc::new(AtomicBool::new(false)));
    let failures = Arc::new(Mutex::new(Vec::new()));
    let connecting: Vec<JoinHandle<u32>> = (0..4)
        .map(|_| {
            let (ends, failures) = (Arc::clone(&ends), Arc::clone(&failures));
            std::thread::spawn(move || {
                let mut count = 0;
                while !ends.load(SeqCst) {
                    let path = "/socket/websocket?vsn=2.0.0";
                    match Client::try_connect(address, path) {
                        Ok(_) => count += 1,
                        Err(error) => failures.lock().unwrap().push(error),
                    }
                }
                count
            })
        })
        .collect();
    let mut ended = Vec::new();
    for shards in [3, 1, 2] {
        // A server is taken over once it has nothing to do with the one before.
        until("the end of the one before", || ended.iter().all(JoinHandle::is_finished));
        let next = one.next(builder(shards));
        ended.push(std::mem::replace(&mut one, next).ends());
    }
    ends.store(true, SeqCst);
    let connected: u32 = connecting.into_iter().map(|it| it.join().unwrap()).sum();
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new(), "of {connected}");
    assert!(connected > 0);
    ended.into_iter().for_each(|it| it.join().unwrap());
}

#[test]
fn node_of_a_cluster_is_taken_over_and_the_broker_keeps_its_histories() {
    let engine = Engine::start();
    let mut one = Running::first(engine.node(builder(2), "one"));
    let mut client = Client::v2(one.endpoint());
    join(&mut client, "rooms:a", None);
    publish(one.endpoint(), "rooms:a", 1);
    let position = news(&mut client).0;
    let two = one.next(engine.node(builder(1), "one"));
    publish(one.endpoint(), "rooms:a", 2);
    publish(two.endpoint(), "rooms:a", 3);
    let ended = one.ends();
    news_until_close(&mut client);
    drop(client);
    let mut back = Client::v2(two.endpoint());
    let resumed = join(&mut back, "rooms:a", Some(&position));
    assert_eq!(resumed[1][4]["recovered"], true, "{resumed:?}");
    let mut all = [news(&mut back).1, news(&mut back).1].map(|it| it["n"].as_u64());
    all.sort_unstable();
    assert_eq!(all, [Some(2), Some(3)]);
    ended.join().unwrap();
}

/// A process that asks to take over, step by step as the test calls it.
struct Asking(UnixStream);

impl Asking {
    fn of(address: SocketAddr) -> Self {
        let name = UnixAddress::from_abstract_name(format!("simurgh/{address}")).unwrap();
        Self(UnixStream::connect_addr(&name).unwrap())
    }

    fn write(&mut self, head: &Value) {
        let head = head.to_string();
        self.0.write_all(&(head.len() as u32).to_le_bytes()).unwrap();
        self.0.write_all(&0_u32.to_le_bytes()).unwrap();
        self.0.write_all(head.as_bytes()).unwrap();
    }

    fn read(&mut self) -> Value {
        let mut lengths = [[0; 4]; 2];
        lengths.iter_mut().for_each(|it| self.0.read_exact(it).unwrap());
        let [mut head, mut body] = lengths.map(|it| vec![0; u32::from_le_bytes(it) as usize]);
        self.0.read_exact(&mut head).unwrap();
        self.0.read_exact(&mut body).unwrap();
        serde_json::from_slice(&head).unwrap()
    }
}

#[test]
fn server_goes_on_if_the_later_process_ends_before_it_serves() {
    let one = Running::first(builder(2));
    let mut client = Client::v2(one.endpoint());
    join(&mut client, "rooms:a", None);
    publish(one.endpoint(), "rooms:a", 1);
    let before = news(&mut client).0;
    let mut asking = Asking::of(one.address);
    asking.write(&json!({"TakeOver": {"version": 1, "is_node": false}}));
    let sockets = asking.read()["Offer"]["sockets"].as_u64().unwrap();
    assert_eq!(sockets, 2);
    let mut byte = [0];
    asking.0.read_exact(&mut byte).unwrap();
    asking.write(&json!("State"));
    while asking.read().get("Numbers").is_none() {}
    publish(one.endpoint(), "rooms:a", 2);
    // It waits for the other process, which keeps it.
    assert!(asking.read().get("Store").is_some());
    drop(asking);
    // Messages that it had not confirmed are lost with it, and reported as unconfirmed.
    let (after, payload) = loop {
        client.push("2", "rooms:a", "all", json!({"n": 3}));
        let message = client.recv();
        if message[3] == "news" {
            break (message[1].as_str().unwrap().to_owned(), message[4].clone());
        }
        assert_eq!(message[4]["response"]["reason"], "unconfirmed", "{message}");
    };
    assert_eq!(payload, json!({"n": 3}));
    assert_eq!(after.split_once('.').unwrap().0, before.split_once('.').unwrap().0);
    assert_eq!(one.handed_over.load(SeqCst), 0);
    let two = one.next(builder(2));
    let mut back = Client::v2(two.endpoint());
    let resumed = join(&mut back, "rooms:a", Some(&before));
    assert_eq!(resumed[1][4], json!({"recovered": true, "count": 1}));
}

#[test]
fn another_version_is_refused() {
    let one = Running::first(builder(1));
    for head in [
        json!({"TakeOver": {"version": 0, "is_node": false}}),
        json!({"TakeOver": {"version": 1, "is_node": true}}),
        json!("State"),
    ] {
        let mut asking = Asking::of(one.address);
        asking.write(&head);
        assert!(asking.read().get("Refused").is_some(), "{head}");
    }
    publish(one.endpoint(), "rooms:a", 1);
}

#[test]
fn unix_sockets_and_the_admin_address_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clients");
    let with_more = |admin: SocketAddr| {
        let path = path.clone();
        builder(2).configure(move |config| {
            config.listen_unix.push(path);
            config.admin_listen = Some(admin);
        })
    };
    let mut one = Running::first(with_more(([127, 0, 0, 1], 0).into()));
    let admin = one.endpoint().admin_address().unwrap();
    let two = one.next(with_more(admin));
    assert_eq!(two.endpoint().admin_address(), Some(admin));
    one.ends().join().unwrap();
    for _ in 0..20 {
        UnixStream::connect(&path).expect("the earlier one leaves the path");
        let metrics = crate::support::metrics_at(admin);
        assert!(metrics.contains("simurgh_"), "{metrics}");
    }
}

#[cfg(feature = "token")]
#[test]
fn blocks_of_both_processes_count_in_the_later_one() {
    use crate::api_access::{refusal, user};
    use crate::api_orders::{builder, order};

    let mut one = Running::first(builder());
    let block = |endpoint: &Endpoint, name: &str| {
        assert_eq!(order(endpoint, "block", &json!({ "user": name })).0, 200);
    };
    block(one.endpoint(), "ann");
    // A connection to the earlier server, on which it gets a request after it has handed over.
    let two = one.next(builder());
    one.endpoint().handle().pubsub().disconnect("nobody").unwrap();
    block(two.endpoint(), "bob");
    for name in ["ann", "bob"] {
        assert!(refusal(two.endpoint(), &user(name)).is_some(), "{name}");
    }
    one.ends().join().unwrap();
}
