//! A client with a thread of its own, which keeps what it hears and holds it against what must be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::listener::{Listener, Worker};
use crate::node::Node;
use crate::until;

/// Between the end of a connection and the next.
const AGAIN: Duration = Duration::from_millis(100);

/// What was heard of one topic, on connections of one client one after the other.
#[derive(Default)]
pub(crate) struct Topic {
    /// The last number of each publisher, by its connection; of this connection of ours.
    last: BTreeMap<(String, u64), u64>,
    /// How many of each publisher.
    pub(crate) heard: BTreeMap<String, u64>,
    /// Numbers that were left out, by publisher, while both connections stood.
    pub(crate) missing: BTreeMap<String, u64>,
    /// The longest that a broadcast was under way, by publisher, in milliseconds.
    pub(crate) longest_ms: BTreeMap<String, u64>,
    /// Keys by phx_ref.
    pub(crate) present: BTreeMap<String, String>,
    /// Diffs that came before the list.
    early: Option<Vec<Value>>,
    /// Who left, and when.
    pub(crate) left: Vec<(String, Instant)>,
    /// Diffs in which somebody left.
    pub(crate) diffs_of_leaves: usize,
}

/// What was heard.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) topics: BTreeMap<String, Topic>,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
    /// Connections made.
    pub(crate) connections: u64,
    /// Topics whose join was answered, on this connection.
    joined: BTreeSet<String>,
    /// Any other event: nobody sends one.
    pub(crate) other: Vec<Value>,
}

enum Command {
    /// An event for all of a topic, numbered.
    Say { topic: String, pad: usize },
    /// The same again and again; none for no more.
    Chatter(Option<(String, Duration, usize)>),
}

pub(crate) struct Client {
    pub(crate) name: String,
    heard: Arc<Mutex<Heard>>,
    worker: Worker<Command>,
}

/// Where clients find nodes: in turn, from the first on. Nodes that come and go change it.
pub(crate) type Addresses = Arc<Mutex<Vec<String>>>;

impl Client {
    /// A member of these topics at one node; returns when all joins were answered.
    #[track_caller]
    pub(crate) fn joins(name: &str, node: &Node, topics: &[&str]) -> Self {
        Self::joins_at(name, Arc::new(Mutex::new(vec![node.address.clone()])), topics)
    }

    /// The same, who goes to the next node when a connection ends.
    #[track_caller]
    pub(crate) fn joins_at(name: &str, addresses: Addresses, topics: &[&str]) -> Self {
        let heard = Arc::<Mutex<Heard>>::default();
        let topics: Vec<String> = topics.iter().map(|&it| it.to_owned()).collect();
        let runner = Runner {
            name: name.to_owned(),
            topics: topics.clone(),
            addresses,
            heard: Arc::clone(&heard),
            chatter: None,
            said: 0,
        };
        let worker = Worker::start(move |commands| runner.run(&commands));
        let client = Self { name: name.to_owned(), heard, worker };
        until(&format!("{name} has joined"), || {
            (client.heard().joined.len() == topics.len()).then_some(())
        });
        client
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap()
    }

    /// One topic of what was heard.
    pub(crate) fn of<T>(&self, topic: &str, look: impl FnOnce(&mut Topic) -> T) -> T {
        look(self.heard().topics.entry(topic.to_owned()).or_default())
    }

    /// How many broadcasts of somebody were heard.
    pub(crate) fn count(&self, topic: &str, from: &str) -> u64 {
        self.of(topic, |it| it.heard.get(from).copied().unwrap_or(0))
    }

    pub(crate) fn says(&self, topic: &str) {
        self.worker.send(Command::Say { topic: topic.to_owned(), pad: 0 });
    }

    /// Says something so often, with so many bytes beside it.
    pub(crate) fn chatters(&self, topic: &str, every: Duration, pad: usize) {
        self.worker.send(Command::Chatter(Some((topic.to_owned(), every, pad))));
    }

    pub(crate) fn is_quiet(&self) {
        self.worker.send(Command::Chatter(None));
    }

    /// Nobody has left, as far as it has heard.
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
    heard: Arc<Mutex<Heard>>,
    /// What is said again and again, and when next.
    chatter: Option<(String, Duration, usize, Instant)>,
    said: u64,
}

/// Milliseconds since some moment that is the same for all of the process.
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
            // Whoever drops a client that finds no node does not wait for it for ever.
            if matches!(commands.try_recv(), Err(mpsc::TryRecvError::Disconnected)) {
                return;
            }
        }
    }

    fn connect(&mut self, address: &str) -> Option<Listener> {
        let mut socket = Listener::connect(address)?;
        {
            let mut heard = self.heard.lock().unwrap();
            heard.connections += 1;
            heard.joined.clear();
            for topic in heard.topics.values_mut() {
                topic.last.clear();
                topic.present.clear();
                topic.early = None;
            }
            for topic in &self.topics {
                heard.topics.entry(topic.clone()).or_default().early = Some(vec![]);
            }
        }
        for (n, topic) in self.topics.iter().enumerate() {
            let join =
                json!([n.to_string(), n.to_string(), topic, "phx_join", {"user": self.name}]);
            socket.send(&join);
        }
        Some(socket)
    }

    /// Until the connection ends, or all; whether it was all.
    fn stays(&mut self, socket: &mut Listener, commands: &mpsc::Receiver<Command>) -> bool {
        loop {
            match commands.try_recv() {
                Ok(Command::Say { topic, pad }) => self.say(socket, &topic, pad),
                Ok(Command::Chatter(chatter)) => {
                    self.chatter =
                        chatter.map(|(topic, every, pad)| (topic, every, pad, Instant::now()));
                }
                Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            let due = self.chatter.as_mut().and_then(|(topic, every, pad, next)| {
                let is_due = *next <= Instant::now();
                is_due.then(|| {
                    *next += *every;
                    (topic.clone(), *pad)
                })
            });
            if let Some((topic, pad)) = due {
                self.say(socket, &topic, pad);
            }
            match socket.read() {
                Ok(text) => text.into_iter().for_each(|text| self.hears(&text)),
                Err(()) => return false,
            }
        }
    }

    fn say(&mut self, socket: &mut Listener, topic: &str, pad: usize) {
        let at = self.topics.iter().position(|it| it == topic).unwrap();
        self.said += 1;
        let connection = self.heard.lock().unwrap().connections;
        let payload = json!({
            "from": self.name, "connection": connection, "n": self.said, "at": now_ms(),
            "pad": "x".repeat(pad),
        });
        let message = json!([at.to_string(), null, topic, "say", payload]);
        socket.send(&message);
    }

    fn hears(&mut self, text: &str) {
        let Ok(Value::Array(mut message)) = serde_json::from_str(text) else {
            return self.heard.lock().unwrap().wrong.push(format!("no message: {text}"));
        };
        let payload = message.pop().unwrap_or_default();
        let event = message.pop().and_then(|it| Some(it.as_str()?.to_owned())).unwrap_or_default();
        let topic = message.pop().and_then(|it| Some(it.as_str()?.to_owned())).unwrap_or_default();
        let mut heard = self.heard.lock().unwrap();
        if event == "phx_reply" && payload["status"] == "ok" {
            heard.joined.insert(topic);
            return;
        }
        let mut wrong = Vec::new();
        let it = heard.topics.entry(topic).or_default();
        match &*event {
            "say" => it.is_said(&payload, &mut wrong),
            "presence_state" => it.is_listed(&payload, &mut wrong),
            "presence_diff" => match &mut it.early {
                Some(early) => early.push(payload),
                None => it.changes(&payload, &mut wrong),
            },
            _ => heard.other.push(json!([event, payload])),
        }
        heard.wrong.append(&mut wrong);
    }
}

impl Topic {
    fn is_said(&mut self, payload: &Value, wrong: &mut Vec<String>) {
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
        *self.heard.entry(from).or_default() += 1;
    }

    fn is_listed(&mut self, list: &Value, wrong: &mut Vec<String>) {
        self.present = refs(list);
        for diff in self.early.take().unwrap_or_default() {
            self.changes(&diff, wrong);
        }
    }

    fn changes(&mut self, diff: &Value, wrong: &mut Vec<String>) {
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
        // Who is there under another ref has not left.
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
