//! A member of a topic with a history: it records messages with positions, and resumes from the
//! last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::back_end::{Messages, position};
use crate::support::engine::until;
use crate::support::listener::{Listener, READ_TIMEOUT, Worker};
use crate::support::node::Node;

/// The most unanswered repeated pushes.
const WAITING_MAX: usize = 20;

/// `simurgh:resumed`, or `simurgh:gap`.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) event: String,
    pub(crate) payload: Value,
    /// Broadcasts received before it.
    pub(crate) received: usize,
}

/// Everything received, on successive connections.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) messages: Messages,
    pub(crate) notices: Vec<Notice>,
    /// Pushed texts with their answers: `ok`, a reason, or none yet.
    pub(crate) pushed: BTreeMap<String, Option<String>>,
    /// The last received position.
    pub(crate) since: Option<String>,
    /// The key that proves its first join, if required.
    pub(crate) key: Option<String>,
    /// Replies to joins.
    joined: Vec<Value>,
    /// Disconnected on purpose.
    is_away: bool,
    pub(crate) wrong: Vec<String>,
}

enum Command {
    Push(&'static str, String),
    /// Pushes repeatedly; `None` stops that.
    PushEvery(Option<Duration>),
    /// Connects to this address; `None` disconnects.
    Go(Option<String>),
}

pub(crate) struct Member {
    pub(crate) name: String,
    received: Arc<Mutex<Received>>,
    worker: Worker<Command>,
}

impl Member {
    /// Joins without a position.
    #[track_caller]
    pub(crate) fn joins(name: &str, node: &Node, topic: &str) -> Self {
        Self::resumes(name, node, topic, None)
    }

    /// Joins a topic without a history, where there are no notices.
    #[track_caller]
    pub(crate) fn joins_plain(name: &str, node: &Node, topic: &str) -> Self {
        let member = Self::starts(name, node, topic, None);
        until(&format!("{name} has joined"), || {
            (!member.received().joined.is_empty()).then_some(())
        });
        member
    }

    /// Joins with a last known position.
    #[track_caller]
    pub(crate) fn resumes(name: &str, node: &Node, topic: &str, since: Option<&str>) -> Self {
        let member = Self::starts(name, node, topic, since);
        member.is_notified(1);
        member
    }

    fn starts(name: &str, node: &Node, topic: &str, since: Option<&str>) -> Self {
        let since = since.map(str::to_owned);
        let received = Arc::new(Mutex::new(Received { since, ..Received::default() }));
        let runner = Runner {
            name: name.to_owned(),
            topic: topic.to_owned(),
            address: Some(node.address.clone()),
            received: Arc::clone(&received),
            repeated: None,
            refs: 0,
            waiting: BTreeMap::new(),
            is_new: true,
        };
        let worker = Worker::start(move |commands| runner.run(&commands));
        Self { name: name.to_owned(), received, worker }
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap()
    }

    /// Does not wait for the answer.
    pub(crate) fn pushes(&self, text: &str) {
        self.worker.send(Command::Push("say", text.to_owned()));
    }

    /// Pushes a text for all others, and waits until it is confirmed.
    #[track_caller]
    pub(crate) fn pushes_and_waits(&self, text: &str) {
        self.worker.send(Command::Push("tell", text.to_owned()));
        until(&format!("{}: {text} is confirmed", self.name), || {
            (self.received().pushed.get(text)?.as_deref()? == "ok").then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn is_answered(&self, text: &str) -> String {
        self.pushes(text);
        until(&format!("{}: an answer to {text:.40}", self.name), || {
            self.received().pushed.get(text)?.clone()
        })
    }

    pub(crate) fn pushes_every(&self, every: Duration) {
        self.worker.send(Command::PushEvery(Some(every)));
    }

    /// Stops pushing, and waits for all answers.
    #[track_caller]
    pub(crate) fn stops_pushing(&self) {
        self.worker.send(Command::PushEvery(None));
        until(&format!("{}: all is answered", self.name), || {
            self.received().pushed.values().all(Option::is_some).then_some(())
        });
    }

    /// Ends its connection without a leave; it receives no message after this returns.
    #[track_caller]
    pub(crate) fn disconnects(&self) {
        self.worker.send(Command::Go(None));
        until(&format!("{} has gone", self.name), || self.received().is_away.then_some(()));
    }

    /// Connects to another node; unanswered pushes remain unanswered.
    pub(crate) fn moves(&self, node: &Node) {
        self.worker.send(Command::Go(Some(node.address.clone())));
    }

    /// Resumes at another node or the same; returns the notice.
    #[track_caller]
    pub(crate) fn resumes_at(&self, node: &Node) -> Notice {
        let before = self.received().notices.len();
        self.moves(node);
        self.is_notified(before + 1)
    }

    /// Waits for this many notices; returns the last.
    #[track_caller]
    pub(crate) fn is_notified(&self, count: usize) -> Notice {
        until(&format!("{} is told where it stands, {count} times", self.name), || {
            self.received().notices.get(count - 1).cloned()
        })
    }

    #[track_caller]
    pub(crate) fn is_notified_of_gap(&self, reason: &str) -> Notice {
        until(&format!("{} is told of a gap: {reason}", self.name), || {
            let received = self.received();
            received.notices.iter().find(|it| it.payload["reason"] == reason).cloned()
        })
    }

    #[track_caller]
    pub(crate) fn has_no_gap(&self) {
        for notice in &self.received().notices {
            assert_eq!(notice.payload["recovered"], true, "{}: {notice:?}", self.name);
        }
    }

    /// Waits until it has received the last message of a history. Checks that it has received all
    /// since its first one, once and in order, except in gaps with a notice; returns their reasons.
    #[track_caller]
    pub(crate) fn has_missed_nothing_silently(&self, history: &Messages) -> Vec<String> {
        let is_there =
            || self.received().messages.last().is_some_and(|it| Some(it) == history.last());
        until(&format!("{} hears the last", self.name), || is_there().then_some(()));
        let received = self.received();
        assert_eq!(received.wrong, [""; 0], "{}", self.name);
        let (mut from, mut at, mut why) = (0, 0, Vec::new());
        let is_gap = |it: &&Notice| it.payload["recovered"] == false;
        let ends = received.notices.iter().filter(is_gap).map(|it| (it.received, Some(it)));
        for (to, gap) in ends.chain([(received.messages.len(), None)]) {
            let some = &received.messages[from..to];
            if let Some(first) = some.first() {
                let place = history.iter().position(|it| it == first);
                let place =
                    place.unwrap_or_else(|| panic!("{}: {first:?} from nowhere", self.name));
                assert!(place >= at, "{}: {first:?} again", self.name);
                // After a gap any message may follow; before the first gap none is missing.
                assert!(from > 0 || !why.is_empty() || place == 0, "{}: {place}", self.name);
                let other = some.iter().zip(&history[place..]).find(|(one, other)| one != other);
                assert_eq!(other, None, "{}: left out in silence", self.name);
                at = place + some.len();
            }
            from = to;
            why.extend(gap.map(|it| it.payload["reason"].as_str().unwrap().to_owned()));
        }
        why
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.received().messages.iter().map(|it| it.1.clone()).collect()
    }

    /// Waits for exactly these texts after the first `skipped`.
    #[track_caller]
    pub(crate) fn receives(&self, skipped: usize, texts: &[&str]) {
        let what = format!("{} hears {texts:?} behind {skipped}", self.name);
        let begun = Instant::now();
        loop {
            let found = self.texts();
            let found = found.get(skipped..).unwrap_or_default();
            if found == texts {
                break;
            }
            assert!(begun.elapsed() < crate::support::engine::WAIT, "{what}, not {found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.received().wrong, [""; 0], "{what}");
    }

    /// Waits for exactly these messages and positions.
    #[track_caller]
    pub(crate) fn has_received_all_of(&self, messages: &Messages) {
        let is_there =
            || self.received().messages.last().is_some_and(|it| Some(it) == messages.last());
        until(&format!("{} hears the last", self.name), || is_there().then_some(()));
        let received = self.received();
        assert_eq!(received.wrong, [""; 0], "{}", self.name);
        let other = received.messages.iter().zip(messages).find(|(one, other)| one != other);
        assert_eq!(other, None, "{}: the first that is another", self.name);
        assert_eq!(received.messages.len(), messages.len(), "{}", self.name);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let received = self.received.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let count = received.messages.len();
            eprintln!("{} has heard {count} and was told {:?}", self.name, received.notices);
        }
    }
}

struct Runner {
    name: String,
    topic: String,
    address: Option<String>,
    received: Arc<Mutex<Received>>,
    /// The interval of pushes, and the next time.
    repeated: Option<(Duration, Instant)>,
    refs: u64,
    /// Unanswered pushes, by ref.
    waiting: BTreeMap<String, String>,
    /// No message was received on this connection.
    is_new: bool,
}

impl Runner {
    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let mut socket = None;
        loop {
            match commands.try_recv() {
                Ok(Command::Push(event, text)) => match &mut socket {
                    Some(socket) => self.push(socket, event, text),
                    None => panic!("{} says something where it is not", self.name),
                },
                Ok(Command::PushEvery(every)) => {
                    self.repeated = every.map(|it| (it, Instant::now()));
                }
                Ok(Command::Go(address)) => {
                    self.received.lock().unwrap().is_away = address.is_none();
                    (self.address, socket) = (address, None);
                }
                Err(mpsc::TryRecvError::Disconnected) => return,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            match (&mut socket, self.address.clone()) {
                (Some(it), _) => match self.receives(it) {
                    true => self.push_if_due(it),
                    false => socket = None,
                },
                (None, Some(address)) => {
                    socket = self.connect(&address);
                    std::thread::sleep(READ_TIMEOUT);
                }
                (None, None) => std::thread::sleep(READ_TIMEOUT),
            }
        }
    }

    fn connect(&mut self, address: &str) -> Option<Listener> {
        let mut socket = Listener::connect(address)?;
        let mut received = self.received.lock().unwrap();
        for (_, text) in std::mem::take(&mut self.waiting) {
            received.pushed.insert(text, Some("the connection has ended".to_owned()));
        }
        drop(received);
        self.is_new = true;
        let mut resume = json!({"id": format!("client-{}", self.name)});
        {
            let received = self.received.lock().unwrap();
            resume["since"] = received.since.as_deref().into();
            if let Some(key) = &received.key {
                resume["key"] = key.as_str().into();
            }
        }
        let join = json!(["j", "j", self.topic, "phx_join", {"simurgh": resume}]);
        socket.send(&join);
        Some(socket)
    }

    fn push(&mut self, socket: &mut Listener, event: &str, text: String) {
        self.refs += 1;
        let msg_ref = format!("r{}", self.refs);
        let message = json!(["j", msg_ref, self.topic, event, {"text": text}]);
        self.received.lock().unwrap().pushed.insert(text.clone(), None);
        self.waiting.insert(msg_ref, text);
        socket.send(&message);
    }

    fn push_if_due(&mut self, socket: &mut Listener) {
        let Some((every, next)) = &mut self.repeated else { return };
        if *next > Instant::now() || self.waiting.len() >= WAITING_MAX {
            return;
        }
        *next += *every;
        let text = format!("{}/{}", self.name, self.refs);
        self.push(socket, "say", text);
    }

    /// Reads until the timeout. Returns false if the connection has ended.
    fn receives(&mut self, socket: &mut Listener) -> bool {
        match socket.read() {
            Ok(text) => text.into_iter().for_each(|text| self.on_text(&text)),
            Err(()) => return false,
        }
        true
    }

    fn on_text(&mut self, text: &str) {
        let message: Value = serde_json::from_str(text).unwrap();
        let (msg_ref, event, payload) = (&message[1], message[3].as_str(), &message[4]);
        let mut received = self.received.lock().unwrap();
        match event.unwrap_or_default() {
            "phx_reply" if msg_ref == "j" => {
                if payload["status"] != "ok" {
                    received.wrong.push(format!("the join was answered {payload}"));
                }
                received.joined.push(payload.clone());
            }
            "phx_reply" => {
                let pushed = self.waiting.remove(msg_ref.as_str().unwrap_or_default());
                let reason = payload["response"]["reason"].as_str();
                let outcome = reason.unwrap_or(payload["status"].as_str().unwrap_or_default());
                match pushed {
                    Some(text) => drop(received.pushed.insert(text, Some(outcome.to_owned()))),
                    None => received.wrong.push(format!("nobody asked: {message}")),
                }
            }
            "say" | "tell" => self.on_broadcast(&mut received, &message),
            event @ ("simurgh:resumed" | "simurgh:gap" | "simurgh:at") => {
                received.since = msg_ref.as_str().map(str::to_owned);
                if event != "simurgh:at" {
                    if let Some(key) = payload["key"].as_str() {
                        received.key = Some(key.to_owned());
                    }
                    let (event, payload) = (event.to_owned(), payload.clone());
                    let count = received.messages.len();
                    received.notices.push(Notice { event, payload, received: count });
                }
                self.is_new = false;
            }
            _ => received.wrong.push(text.to_owned()),
        }
    }

    fn on_broadcast(&self, received: &mut Received, message: &Value) {
        let text = message[4]["text"].as_str().unwrap_or_default().to_owned();
        let Some(place) = message[1].as_str() else {
            return received.wrong.push(format!("no position: {message}"));
        };
        let at = position(place);
        if self.is_new {
            received.wrong.push(format!("{message} before it was said where it stands"));
        }
        // Positions of the same epoch grow.
        if let Some(since) = received.since.as_deref().map(position)
            && since.0 == at.0
            && since >= at
        {
            received.wrong.push(format!("{at:?} after {since:?}"));
        }
        received.since = Some(place.to_owned());
        received.messages.push((place.to_owned(), text));
    }
}
