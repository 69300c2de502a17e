//! A client with its own thread, which records messages and checks their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::engine::until;
use crate::support::listener::{Listener, Worker};
use crate::support::node::Node;

const AGAIN: Duration = Duration::from_millis(100);

/// Everything received of one topic, on successive connections.
#[derive(Default)]
pub(crate) struct Topic {
    /// The last number of each publisher and its connection, on our current connection.
    last: BTreeMap<(String, u64), u64>,
    /// The number of messages, by publisher.
    pub(crate) received: BTreeMap<String, u64>,
    /// Missing numbers, by publisher, while both connections lasted.
    pub(crate) missing: BTreeMap<String, u64>,
    /// The longest delay of a broadcast, by publisher, in milliseconds.
    pub(crate) longest_ms: BTreeMap<String, u64>,
    /// Keys by phx_ref.
    pub(crate) present: BTreeMap<String, String>,
    /// Diffs received before the presence state.
    early: Option<Vec<Value>>,
    pub(crate) left: Vec<(String, Instant)>,
    /// Diffs with a leave.
    pub(crate) diffs_of_leaves: usize,
}

#[derive(Default)]
pub(crate) struct Received {
    pub(crate) topics: BTreeMap<String, Topic>,
    pub(crate) wrong: Vec<String>,
    pub(crate) connections: u64,
    /// Topics whose join was answered, on this connection.
    joined: BTreeSet<String>,
    /// Any other event: none is expected.
    pub(crate) other: Vec<Value>,
}

enum Command {
    /// Pushes a numbered event that is broadcast to the topic.
    Push { topic: String, pad: usize },
    /// Pushes repeatedly; `None` stops that.
    PushEvery(Option<(String, Duration, usize)>),
}

pub(crate) struct Client {
    pub(crate) name: String,
    received: Arc<Mutex<Received>>,
    worker: Worker<Command>,
}

/// The addresses that clients try in turn. Tests change them when nodes start and end.
pub(crate) type Addresses = Arc<Mutex<Vec<String>>>;

impl Client {
    /// Returns when all joins were answered.
    #[track_caller]
    pub(crate) fn joins(name: &str, node: &Node, topics: &[&str]) -> Self {
        Self::joins_at(name, Arc::new(Mutex::new(vec![node.address.clone()])), topics)
    }

    /// With several addresses, it tries the next one when a connection ends.
    #[track_caller]
    pub(crate) fn joins_at(name: &str, addresses: Addresses, topics: &[&str]) -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let topics: Vec<String> = topics.iter().map(|&it| it.to_owned()).collect();
        let runner = Runner {
            name: name.to_owned(),
            topics: topics.clone(),
            addresses,
            received: Arc::clone(&received),
            repeated: None,
            pushed: 0,
        };
        let worker = Worker::start(move |commands| runner.run(&commands));
        let client = Self { name: name.to_owned(), received, worker };
        until(&format!("{name} has joined"), || {
            (client.received().joined.len() == topics.len()).then_some(())
        });
        client
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap()
    }

    pub(crate) fn of<T>(&self, topic: &str, look: impl FnOnce(&mut Topic) -> T) -> T {
        look(self.received().topics.entry(topic.to_owned()).or_default())
    }

    /// The number of received broadcasts of a publisher.
    pub(crate) fn count(&self, topic: &str, from: &str) -> u64 {
        self.of(topic, |it| it.received.get(from).copied().unwrap_or(0))
    }

    pub(crate) fn pushes(&self, topic: &str) {
        self.worker.send(Command::Push { topic: topic.to_owned(), pad: 0 });
    }

    pub(crate) fn pushes_every(&self, topic: &str, every: Duration, pad: usize) {
        self.worker.send(Command::PushEvery(Some((topic.to_owned(), every, pad))));
    }

    pub(crate) fn stops_pushing(&self) {
        self.worker.send(Command::PushEvery(None));
    }

    #[track_caller]
    pub(crate) fn has_seen_nobody_leave(&self, topic: &str) {
        let left: Vec<String> =
            self.of(topic, |it| it.left.iter().map(|it| it.0.clone()).collect());
        assert!(left.is_empty(), "{} saw {left:?} leave", self.name);
    }
}

struct Runner {
    name: String,
    topics: Vec<String>,
    addresses: Addresses,
    received: Arc<Mutex<Received>>,
    /// The repeated push, and its next time.
    repeated: Option<(String, Duration, usize, Instant)>,
    pushed: u64,
}

/// Milliseconds on a clock of the process.
fn now_ms() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

impl Runner {
    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let mut turn = 0;
        loop {
            let address = {
                let addresses = self.addresses.lock().unwrap();
                addresses[turn % addresses.len()].clone()
            };
            turn += 1;
            let mut socket = self.connect(&address);
            if let Some(socket) = &mut socket
                && self.stays(socket, commands)
            {
                return;
            }
            std::thread::sleep(AGAIN);
            // A client without a node must end, too, when it is dropped.
            if matches!(commands.try_recv(), Err(mpsc::TryRecvError::Disconnected)) {
                return;
            }
        }
    }

    fn connect(&mut self, address: &str) -> Option<Listener> {
        let mut socket = Listener::connect(address)?;
        {
            let mut received = self.received.lock().unwrap();
            received.connections += 1;
            received.joined.clear();
            for topic in received.topics.values_mut() {
                topic.last.clear();
                topic.present.clear();
                topic.early = None;
            }
            for topic in &self.topics {
                received.topics.entry(topic.clone()).or_default().early = Some(vec![]);
            }
        }
        for (n, topic) in self.topics.iter().enumerate() {
            let join =
                json!([n.to_string(), n.to_string(), topic, "phx_join", {"user": self.name}]);
            socket.send(&join);
        }
        Some(socket)
    }

    /// Runs until the connection ends, or the client is dropped; returns true for the latter.
    fn stays(&mut self, socket: &mut Listener, commands: &mpsc::Receiver<Command>) -> bool {
        loop {
            match commands.try_recv() {
                Ok(Command::Push { topic, pad }) => self.push(socket, &topic, pad),
                Ok(Command::PushEvery(repeated)) => {
                    self.repeated =
                        repeated.map(|(topic, every, pad)| (topic, every, pad, Instant::now()));
                }
                Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            let due = self.repeated.as_mut().and_then(|(topic, every, pad, next)| {
                let is_due = *next <= Instant::now();
                is_due.then(|| {
                    *next += *every;
                    (topic.clone(), *pad)
                })
            });
            if let Some((topic, pad)) = due {
                self.push(socket, &topic, pad);
            }
            match socket.read() {
                Ok(text) => text.into_iter().for_each(|text| self.receives(&text)),
                Err(()) => return false,
            }
        }
    }

    fn push(&mut self, socket: &mut Listener, topic: &str, pad: usize) {
        let at = self.topics.iter().position(|it| it == topic).unwrap();
        self.pushed += 1;
        let connection = self.received.lock().unwrap().connections;
        let payload = json!({
            "from": self.name, "connection": connection, "n": self.pushed, "at": now_ms(),
            "pad": "x".repeat(pad),
        });
        let message = json!([at.to_string(), null, topic, "say", payload]);
        socket.send(&message);
    }

    fn receives(&mut self, text: &str) {
        let Ok(Value::Array(mut message)) = serde_json::from_str(text) else {
            return self.received.lock().unwrap().wrong.push(format!("no message: {text}"));
        };
        let payload = message.pop().unwrap_or_default();
        let event = message.pop().and_then(|it| Some(it.as_str()?.to_owned())).unwrap_or_default();
        let topic = message.pop().and_then(|it| Some(it.as_str()?.to_owned())).unwrap_or_default();
        let mut received = self.received.lock().unwrap();
        if event == "phx_reply" && payload["status"] == "ok" {
            received.joined.insert(topic);
            return;
        }
        let mut wrong = Vec::new();
        let it = received.topics.entry(topic).or_default();
        match &*event {
            "say" => it.on_broadcast(&payload, &mut wrong),
            "presence_state" => it.on_presence_state(&payload, &mut wrong),
            "presence_diff" => match &mut it.early {
                Some(early) => early.push(payload),
                None => it.on_presence_diff(&payload, &mut wrong),
            },
            _ => received.other.push(json!([event, payload])),
        }
        received.wrong.append(&mut wrong);
    }
}

impl Topic {
    fn on_broadcast(&mut self, payload: &Value, wrong: &mut Vec<String>) {
        let from = payload["from"].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| payload[field].as_u64().unwrap_or_default();
        let (n, key) = (number("n"), (from.clone(), number("connection")));
        if let Some(last) = self.last.insert(key, n) {
            if n <= last {
                wrong.push(format!("{n} of {from} after {last}"));
            } else {
                *self.missing.entry(from.clone()).or_default() += n - last - 1;
            }
        }
        let longest = self.longest_ms.entry(from.clone()).or_default();
        *longest = (*longest).max(now_ms().saturating_sub(number("at")));
        *self.received.entry(from).or_default() += 1;
    }

    fn on_presence_state(&mut self, list: &Value, wrong: &mut Vec<String>) {
        self.present = refs(list);
        for diff in self.early.take().unwrap_or_default() {
            self.on_presence_diff(&diff, wrong);
        }
    }

    fn on_presence_diff(&mut self, diff: &Value, wrong: &mut Vec<String>) {
        let (joins, leaves) = (refs(&diff["joins"]), refs(&diff["leaves"]));
        let mut gone = Vec::new();
        for (phx_ref, key) in &leaves {
            if joins.contains_key(phx_ref) {
                wrong.push(format!("{key} joins and leaves under {phx_ref}"));
            }
            if self.present.remove(phx_ref).is_some() {
                gone.push(key.clone());
            }
        }
        self.present.extend(joins);
        // A key with another ref has not left.
        gone.retain(|key| !self.present.values().any(|it| it == key));
        self.diffs_of_leaves += usize::from(!gone.is_empty());
        self.left.extend(gone.into_iter().map(|key| (key, Instant::now())));
    }
}

/// Keys by phx_ref.
fn refs(list: &Value) -> BTreeMap<String, String> {
    let entries = list.as_object().into_iter().flatten();
    let metas = entries.flat_map(|(key, it)| {
        let metas = it["metas"].as_array().into_iter().flatten();
        metas
            .map(move |meta| (meta["phx_ref"].as_str().unwrap_or_default().to_owned(), key.clone()))
    });
    metas.collect()
}
