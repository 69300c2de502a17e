//! A member of a kept topic: it notes what it hears with its positions, and comes back with the
//! last of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::back_end::{Said, position};
use crate::listener::{Listener, READ_TIMEOUT, Worker};
use crate::node::Node;
use crate::until;

/// Pushes that wait for an answer while more are made by itself.
const WAITING_MAX: usize = 20;

/// `simurgh:resumed`, or `simurgh:gap`.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) event: String,
    pub(crate) payload: Value,
    /// How many broadcasts were heard before it.
    pub(crate) heard: usize,
}

/// What was heard, on connections one after the other.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) said: Said,
    pub(crate) told: Vec<Told>,
    /// What it has said, and what it was answered: `ok`, a reason, or nothing yet.
    pub(crate) pushed: BTreeMap<String, Option<String>>,
    /// The last position it was told.
    pub(crate) since: Option<String>,
    /// What proves its first join, where that is asked.
    pub(crate) key: Option<String>,
    /// Replies to joins.
    joined: Vec<Value>,
    /// It has no connection, and wants none.
    is_away: bool,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
}

enum Command {
    /// An event with this text.
    Say(&'static str, String),
    /// Something again and again; none for no more.
    Chatter(Option<Duration>),
    /// From now on it is there; none for nowhere.
    Go(Option<String>),
}

pub(crate) struct Member {
    pub(crate) name: String,
    heard: Arc<Mutex<Heard>>,
    worker: Worker<Command>,
}

impl Member {
    /// From now on.
    #[track_caller]
    pub(crate) fn joins(name: &str, node: &Node, topic: &str) -> Self {
        Self::comes_back(name, node, topic, None)
    }

    /// The same, of a topic without a history: nobody is told where it stands.
    #[track_caller]
    pub(crate) fn joins_plain(name: &str, node: &Node, topic: &str) -> Self {
        let member = Self::is_on_its_way(name, node, topic, None);
        until(&format!("{name} has joined"), || (!member.heard().joined.is_empty()).then_some(()));
        member
    }

    /// As one who has heard all up to a position.
    #[track_caller]
    pub(crate) fn comes_back(name: &str, node: &Node, topic: &str, since: Option<&str>) -> Self {
        let member = Self::is_on_its_way(name, node, topic, since);
        member.is_told(1);
        member
    }

    fn is_on_its_way(name: &str, node: &Node, topic: &str, since: Option<&str>) -> Self {
        let since = since.map(str::to_owned);
        let heard = Arc::new(Mutex::new(Heard { since, ..Heard::default() }));
        let runner = Runner {
            name: name.to_owned(),
            topic: topic.to_owned(),
            address: Some(node.address.clone()),
            heard: Arc::clone(&heard),
            chatter: None,
            refs: 0,
            waiting: BTreeMap::new(),
            is_new: true,
        };
        let worker = Worker::start(move |commands| runner.run(&commands));
        Self { name: name.to_owned(), heard, worker }
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap()
    }

    /// Says something, and does not wait for the answer.
    pub(crate) fn says(&self, text: &str) {
        self.worker.send(Command::Say("say", text.to_owned()));
    }

    /// Says something to all others, and waits until it is confirmed.
    #[track_caller]
    pub(crate) fn tells(&self, text: &str) {
        self.worker.send(Command::Say("tell", text.to_owned()));
        until(&format!("{}: {text} is confirmed", self.name), || {
            (self.heard().pushed.get(text)?.as_deref()? == "ok").then_some(())
        });
    }

    /// Says it, and what it was answered.
    #[track_caller]
    pub(crate) fn is_answered(&self, text: &str) -> String {
        self.says(text);
        until(&format!("{}: an answer to {text:.40}", self.name), || {
            self.heard().pushed.get(text)?.clone()
        })
    }

    pub(crate) fn chatters(&self, every: Duration) {
        self.worker.send(Command::Chatter(Some(every)));
    }

    /// Says no more, and has all answers.
    #[track_caller]
    pub(crate) fn is_quiet(&self) {
        self.worker.send(Command::Chatter(None));
        until(&format!("{}: all is answered", self.name), || {
            self.heard().pushed.values().all(Option::is_some).then_some(())
        });
    }

    /// Its connection ends without a word: it hears nothing any more when this returns.
    #[track_caller]
    pub(crate) fn goes(&self) {
        self.worker.send(Command::Go(None));
        until(&format!("{} has gone", self.name), || self.heard().is_away.then_some(()));
    }

    /// It is at another node from now on, or soon; what it was not answered it will not be.
    pub(crate) fn moves(&self, node: &Node) {
        self.worker.send(Command::Go(Some(node.address.clone())));
    }

    /// It comes back at another node, or the same; what it is told there.
    #[track_caller]
    pub(crate) fn comes_to(&self, node: &Node) -> Told {
        let before = self.heard().told.len();
        self.moves(node);
        self.is_told(before + 1)
    }

    /// Waits until it was told this many things; the last of them.
    #[track_caller]
    pub(crate) fn is_told(&self, count: usize) -> Told {
        until(&format!("{} is told where it stands, {count} times", self.name), || {
            self.heard().told.get(count - 1).cloned()
        })
    }

    /// Waits until it was told of a gap for this reason.
    #[track_caller]
    pub(crate) fn is_told_of_gap(&self, reason: &str) -> Told {
        until(&format!("{} is told of a gap: {reason}", self.name), || {
            let heard = self.heard();
            heard.told.iter().find(|it| it.payload["reason"] == reason).cloned()
        })
    }

    /// All that it was told is that it has missed nothing.
    #[track_caller]
    pub(crate) fn has_no_gap(&self) {
        for told in &self.heard().told {
            assert_eq!(told.payload["recovered"], true, "{}: {told:?}", self.name);
        }
    }

    /// Waits until it has heard the last of a history. Of that it has heard all since its first
    /// but for what it was told to be missing, each once and in order; why, each time.
    #[track_caller]
    pub(crate) fn has_missed_nothing_silently(&self, history: &Said) -> Vec<String> {
        let is_there = || self.heard().said.last().is_some_and(|it| Some(it) == history.last());
        until(&format!("{} hears the last", self.name), || is_there().then_some(()));
        let heard = self.heard();
        assert_eq!(heard.wrong, [""; 0], "{}", self.name);
        let (mut from, mut at, mut why) = (0, 0, Vec::new());
        let is_gap = |it: &&Told| it.payload["recovered"] == false;
        let ends = heard.told.iter().filter(is_gap).map(|it| (it.heard, Some(it)));
        for (to, gap) in ends.chain([(heard.said.len(), None)]) {
            let some = &heard.said[from..to];
            if let Some(first) = some.first() {
                let place = history.iter().position(|it| it == first);
                let place =
                    place.unwrap_or_else(|| panic!("{}: {first:?} from nowhere", self.name));
                assert!(place >= at, "{}: {first:?} again", self.name);
                // Behind a gap there may be anything; before the first nothing is left out.
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

    /// The texts, in order.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.heard().said.iter().map(|it| it.1.clone()).collect()
    }

    /// Waits until it has heard exactly this since a number of broadcasts.
    #[track_caller]
    pub(crate) fn hears(&self, skipped: usize, texts: &[&str]) {
        let what = format!("{} hears {texts:?} behind {skipped}", self.name);
        let begun = Instant::now();
        loop {
            let found = self.texts();
            let found = found.get(skipped..).unwrap_or_default();
            if found == texts {
                break;
            }
            assert!(begun.elapsed() < crate::WAIT, "{what}, not {found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.heard().wrong, [""; 0], "{what}");
    }

    /// Waits until it has heard exactly this, with these positions.
    #[track_caller]
    pub(crate) fn has_heard_all_of(&self, said: &Said) {
        let is_there = || self.heard().said.last().is_some_and(|it| Some(it) == said.last());
        until(&format!("{} hears the last", self.name), || is_there().then_some(()));
        let heard = self.heard();
        assert_eq!(heard.wrong, [""; 0], "{}", self.name);
        let other = heard.said.iter().zip(said).find(|(one, other)| one != other);
        assert_eq!(other, None, "{}: the first that is another", self.name);
        assert_eq!(heard.said.len(), said.len(), "{}", self.name);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let heard = self.heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let count = heard.said.len();
            eprintln!("{} has heard {count} and was told {:?}", self.name, heard.told);
        }
    }
}

struct Runner {
    name: String,
    topic: String,
    /// Where it is to be.
    address: Option<String>,
    heard: Arc<Mutex<Heard>>,
    /// How often something is said, and when next.
    chatter: Option<(Duration, Instant)>,
    refs: u64,
    /// Pushes without an answer, by their refs.
    waiting: BTreeMap<String, String>,
    /// Nothing was heard on this connection.
    is_new: bool,
}

impl Runner {
    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let mut socket = None;
        loop {
            match commands.try_recv() {
                Ok(Command::Say(event, text)) => match &mut socket {
                    Some(socket) => self.say(socket, event, text),
                    None => panic!("{} says something where it is not", self.name),
                },
                Ok(Command::Chatter(every)) => {
                    self.chatter = every.map(|it| (it, Instant::now()));
                }
                Ok(Command::Go(address)) => {
                    self.heard.lock().unwrap().is_away = address.is_none();
                    (self.address, socket) = (address, None);
                }
                Err(mpsc::TryRecvError::Disconnected) => return,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            match (&mut socket, self.address.clone()) {
                (Some(it), _) => match self.hears(it) {
                    true => self.chat(it),
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
        let mut heard = self.heard.lock().unwrap();
        for (_, text) in std::mem::take(&mut self.waiting) {
            heard.pushed.insert(text, Some("the connection has ended".to_owned()));
        }
        drop(heard);
        self.is_new = true;
        let mut resume = json!({"id": format!("client-{}", self.name)});
        {
            let heard = self.heard.lock().unwrap();
            resume["since"] = heard.since.as_deref().into();
            if let Some(key) = &heard.key {
                resume["key"] = key.as_str().into();
            }
        }
        let join = json!(["j", "j", self.topic, "phx_join", {"simurgh": resume}]);
        socket.send(&join);
        Some(socket)
    }

    fn say(&mut self, socket: &mut Listener, event: &str, text: String) {
        self.refs += 1;
        let msg_ref = format!("r{}", self.refs);
        let message = json!(["j", msg_ref, self.topic, event, {"text": text}]);
        self.heard.lock().unwrap().pushed.insert(text.clone(), None);
        self.waiting.insert(msg_ref, text);
        socket.send(&message);
    }

    fn chat(&mut self, socket: &mut Listener) {
        let Some((every, next)) = &mut self.chatter else { return };
        if *next > Instant::now() || self.waiting.len() >= WAITING_MAX {
            return;
        }
        *next += *every;
        let text = format!("{}/{}", self.name, self.refs);
        self.say(socket, "say", text);
    }

    /// Listens a while; whether the connection stands.
    fn hears(&mut self, socket: &mut Listener) -> bool {
        match socket.read() {
            Ok(text) => text.into_iter().for_each(|text| self.is_said(&text)),
            Err(()) => return false,
        }
        true
    }

    fn is_said(&mut self, text: &str) {
        let message: Value = serde_json::from_str(text).unwrap();
        let (msg_ref, event, payload) = (&message[1], message[3].as_str(), &message[4]);
        let mut heard = self.heard.lock().unwrap();
        match event.unwrap_or_default() {
            "phx_reply" if msg_ref == "j" => {
                if payload["status"] != "ok" {
                    heard.wrong.push(format!("the join was answered {payload}"));
                }
                heard.joined.push(payload.clone());
            }
            "phx_reply" => {
                let pushed = self.waiting.remove(msg_ref.as_str().unwrap_or_default());
                let reason = payload["response"]["reason"].as_str();
                let outcome = reason.unwrap_or(payload["status"].as_str().unwrap_or_default());
                match pushed {
                    Some(text) => drop(heard.pushed.insert(text, Some(outcome.to_owned()))),
                    None => heard.wrong.push(format!("nobody asked: {message}")),
                }
            }
            "say" | "tell" => self.is_broadcast(&mut heard, &message),
            event @ ("simurgh:resumed" | "simurgh:gap" | "simurgh:at") => {
                heard.since = msg_ref.as_str().map(str::to_owned);
                if event != "simurgh:at" {
                    if let Some(key) = payload["key"].as_str() {
                        heard.key = Some(key.to_owned());
                    }
                    let (event, payload) = (event.to_owned(), payload.clone());
                    let count = heard.said.len();
                    heard.told.push(Told { event, payload, heard: count });
                }
                self.is_new = false;
            }
            _ => heard.wrong.push(text.to_owned()),
        }
    }

    fn is_broadcast(&self, heard: &mut Heard, message: &Value) {
        let text = message[4]["text"].as_str().unwrap_or_default().to_owned();
        let Some(said_at) = message[1].as_str() else {
            return heard.wrong.push(format!("no position: {message}"));
        };
        let at = position(said_at);
        if self.is_new {
            heard.wrong.push(format!("{message} before it was said where it stands"));
        }
        // What comes behind the last that it was told, of the same epoch, is later.
        if let Some(since) = heard.since.as_deref().map(position)
            && since.0 == at.0
            && since >= at
        {
            heard.wrong.push(format!("{at:?} after {since:?}"));
        }
        heard.since = Some(said_at.to_owned());
        heard.said.push((said_at.to_owned(), text));
    }
}
