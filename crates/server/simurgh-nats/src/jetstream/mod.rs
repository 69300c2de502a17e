//! JetStream: the streams that topics are kept in, and what is stream_requests of them.
//!
//! Without I/O and without a clock. For each link the streams are looked at first
//! ([`check`]); then it is said whether anything is kept, with the epoch, and what waits is stream_requests.
//! While the link stands they are looked at again from time to time: a stream that was made anew
//! or set back meanwhile ends the link, so that the next one has another epoch.
//!
//! ```text
//! link ─► Checking ─► On ──────► a stream is another ─► a new link
//!            │  └───► Off: why ► all is as it should be ─► a new link
//!            └──────► Hoping: nobody answers; as it was, if it still is
//! ```

mod api;
mod check;
mod compare;
mod fetch;
#[cfg(any(test, feature = "fuzz"))]
#[allow(clippy::expect_used, clippy::panic, reason = "what does not hold ends the run")]
pub(crate) mod fuzz;
mod publish;
mod requests;
mod since;
#[cfg(test)]
mod tests;
mod tickets;

use std::collections::VecDeque;

use bytes::BytesMut;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde_json::Value;
use simurgh_cluster::{Event, Prefix};

use self::api::StreamInfo;
use self::check::{Check, Say, Verb};
use self::tickets::{QuestionNumber, Tickets, What};
use crate::streams::{self, StreamsConfig};
use crate::wire::{self, Message};

/// The subscription that answers come to.
pub(crate) const INBOX_SID: u64 = 0;
/// The first version whose streams do what is needed.
const VERSION_MIN: (u32, u32) = (2, 11);
/// How long the streams of a new link may be looked at before it is said to be up.
const CHECK_MS: u64 = 3_000;
/// The same, if they were known on the link before.
const CHECK_AGAIN_MS: u64 = 1_000;
/// How long it is hoped that they are what they were: a stream on several servers that loses its
/// leader has another one after some six seconds.
const HOPE_MS: u64 = 10_000;
/// Streams that are as they should be are looked at so often.
const LOOK_EVERY_MS: u64 = 30_000;
/// One that does not answer is looked at again so soon.
const LOOK_AGAIN_MS: u64 = 2_000;
/// And one that seems to begin again: at once, and not more often than this.
const LOOK_ANEW_MS: u64 = 1_000;
/// Streams that cannot be used are looked at so often.
const RETRY_EVERY_MS: u64 = 5_000;
/// What waits to be written; beyond that nothing is stream_requests again.
const OUT_BYTES_MAX: usize = 256 << 10;

/// Questions about streams that are remembered.
const STREAM_REQUESTS_MAX: usize = 1_024;

/// What an answer may lead to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    /// The link is to be ended, and another made: why.
    Reconnect(Box<str>),
}

#[derive(Debug)]
enum State {
    /// There is no link.
    Away,
    /// The streams are looked at; it is decided then, whatever they are.
    Checking {
        until_ms: u64,
    },
    /// It is said that they are what they were, and that is looked at still.
    Hoping {
        until_ms: u64,
    },
    On,
    /// They cannot be used. `is_final`: on this link.
    Off {
        why: Box<str>,
        is_final: bool,
    },
}

/// See the module.
pub(crate) struct JetStream {
    prefix: Prefix,
    config: Option<StreamsConfig>,
    state: State,
    checks: Vec<Check>,
    /// Which stream a question is about, and the highest number of it that was seen before.
    stream_requests: HashMap<u64, StreamRequest, RandomState>,
    tickets: Tickets,
    /// Of the last link on which something was kept.
    epoch: Option<u64>,
    /// The one that was said last.
    said_epoch: Option<u64>,
    /// It was said that the link is up.
    is_up: bool,
    /// The last time that nobody answered it did not last.
    may_hope: bool,
    /// Where answers go, with the last token missing.
    inbox: String,
    next_key: u64,
    look_ms: Option<u64>,
    /// When the streams were looked at last.
    looked_ms: u64,
    random: fastrand::Rng,
}

#[derive(Clone, Copy, Debug)]
struct StreamRequest {
    stream: usize,
    /// None: whether it is still what it was.
    verb: Option<Verb>,
    seen: u64,
}

impl JetStream {
    pub(crate) fn new(prefix: &Prefix, config: Option<StreamsConfig>) -> Self {
        let mut random = fastrand::Rng::new();
        let inbox = format!("_INBOX_{}.{:016x}.", prefix.as_str(), random.u64(..));
        let check = |config: &StreamsConfig, at: usize| {
            let expected = config.stream(prefix, at);
            let name = config.stream_name(prefix, at);
            // `=~` begins the token of a hash, which is longer.
            let nowhere = format!("{}.h.{at:x}.00.=~", prefix.as_str());
            Check::new(name, nowhere, expected, config.create_streams)
        };
        let checks = |it: &StreamsConfig| (0..it.streams.get()).map(|at| check(it, at)).collect();
        Self {
            prefix: prefix.clone(),
            checks: config.as_ref().map(checks).unwrap_or_default(),
            config,
            state: State::Away,
            stream_requests: HashMap::default(),
            tickets: Tickets::default(),
            epoch: None,
            said_epoch: None,
            is_up: false,
            may_hope: true,
            inbox,
            next_key: 1,
            look_ms: None,
            looked_ms: 0,
            random,
        }
    }

    // Links.

    /// A new link, to a server of this version.
    pub(crate) fn link(&mut self, now_ms: u64, version: &str, out: &mut BytesMut) {
        if self.config.is_none() {
            return;
        }
        if is_too_old(version) {
            let (major, minor) = VERSION_MIN;
            let why = format!(
                "the engine is NATS {version}, and what is kept needs {major}.{minor} or later"
            );
            self.state = State::Off { why: why.into(), is_final: true };
            return;
        }
        wire::put_subscribe(out, &format!("{}*", self.inbox), INBOX_SID);
        let time = if self.hopes() { CHECK_AGAIN_MS } else { CHECK_MS };
        self.state = State::Checking { until_ms: now_ms + time };
        self.check_all(now_ms, out);
    }

    /// The link is gone.
    pub(crate) fn unlink(&mut self) {
        (self.state, self.is_up) = (State::Away, false);
        self.stream_requests.clear();
        self.look_ms = None;
        self.checks.iter_mut().for_each(Check::end);
    }

    /// Whether it can be said what is kept: its epoch, or that nothing is. None: not yet.
    pub(crate) fn decided(&self) -> Option<Option<u64>> {
        match &self.state {
            _ if self.config.is_none() => Some(None),
            State::Away | State::Checking { .. } => None,
            State::Hoping { .. } | State::On => Some(self.epoch),
            State::Off { .. } => Some(None),
        }
    }

    /// The link is said to be up: what waits is stream_requests, or refused.
    pub(crate) fn up(&mut self, now_ms: u64, out: &mut BytesMut, events: &mut VecDeque<Event>) {
        self.is_up = true;
        if self.said_epoch != self.epoch {
            // What was stream_requests before is about numbers of what is kept no more.
            let is_of_numbers = |it: &What| !matches!(it, What::Store(_));
            for key in self.tickets.keys(is_of_numbers) {
                self.tickets.give_up(key, events);
            }
            self.said_epoch = self.epoch;
        }
        match &self.state {
            State::On => self.ask_all(now_ms, out),
            State::Off { why, .. } => {
                let why = why.clone();
                self.tickets.refuse_all(&why, events);
            }
            _ => {}
        }
    }

    /// Whether tickets are stream_requests as soon as they come.
    fn is_asking(&self) -> bool {
        self.is_up && matches!(self.state, State::On)
    }

    /// Why nothing is kept, or what holds of what is; none, while that is not known.
    pub(crate) fn words(&self) -> Option<String> {
        match &self.state {
            State::Off { why, .. } => Some(format!("nothing is kept: {why}")),
            State::On => {
                let first = self.checks.first()?;
                Some(streams::durability(first.storage(), first.replicas()))
            }
            _ => None,
        }
    }

    /// How often something was sent again on the same link.
    pub(crate) fn repeats(&self) -> u64 {
        self.tickets.repeats()
    }

    /// An answer was taken by the node.
    pub(crate) fn taken(&mut self) {
        self.tickets.taken();
    }

    /// It is worth saying that more is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.tickets.has_room()
    }

    // What is said to the engine.

    fn reply(&self, number: QuestionNumber) -> String {
        format!("{}{}", self.inbox, number.text())
    }

    fn check_all(&mut self, now_ms: u64, out: &mut BytesMut) {
        for stream in 0..self.checks.len() {
            if let Some(check) = self.checks.get_mut(stream) {
                let verbs = check.begin(now_ms);
                self.say(stream, &verbs, &Value::Null, out);
            }
        }
    }

    /// Asks these of a stream.
    fn say(&mut self, stream: usize, verbs: &[Verb], config: &Value, out: &mut BytesMut) {
        for &verb in verbs {
            let key = self.next_key();
            let reply = self.reply(QuestionNumber { key, attempt: 0 });
            let Some(check) = self.checks.get(stream) else { return };
            match check.say(verb, config) {
                Say::Question((subject, words)) => {
                    wire::put_question(out, &subject, &reply, &words);
                }
                Say::Unstorable => {
                    // No stream has a name with a dot, so it is refused whatever it is.
                    let headers = [("Nats-Expected-Stream", "no.stream")];
                    wire::put_with_headers(out, &check.nowhere, &reply, &headers, b"");
                }
            }
            if self.stream_requests.len() >= STREAM_REQUESTS_MAX {
                // Nobody answers for long.
                self.stream_requests.clear();
            }
            self.stream_requests.insert(key, StreamRequest { stream, verb: Some(verb), seen: 0 });
        }
    }

    /// Looks whether the streams are what they were.
    fn look(&mut self, now_ms: u64, out: &mut BytesMut) {
        for stream in 0..self.checks.len() {
            let key = self.next_key();
            let reply = self.reply(QuestionNumber { key, attempt: 0 });
            let Some(check) = self.checks.get_mut(stream) else { return };
            check.is_looked_at(now_ms);
            let (subject, words) = api::info(&check.name);
            wire::put_question(out, &subject, &reply, &words);
            self.stream_requests
                .insert(key, StreamRequest { stream, verb: None, seen: check.seen() });
        }
    }

    // What the engine says.

    /// An answer.
    pub(crate) fn hear(
        &mut self,
        message: Message,
        now_ms: u64,
        out: &mut BytesMut,
        events: &mut VecDeque<Event>,
    ) -> Action {
        let token = message.subject().strip_prefix(self.inbox.as_bytes());
        let Some(number) = token.and_then(QuestionNumber::read) else { return Action::Continue };
        if let Some(stream_requests) = self.stream_requests.remove(&number.key) {
            return match stream_requests.verb {
                Some(verb) => {
                    self.hear_check(stream_requests.stream, verb, &message, now_ms, out, events)
                }
                None => self.hear_look(stream_requests, &message, now_ms),
            };
        }
        self.hear_ticket(number, message, now_ms, out, events);
        Action::Continue
    }

    fn hear_check(
        &mut self,
        stream: usize,
        verb: Verb,
        message: &Message,
        now_ms: u64,
        out: &mut BytesMut,
        events: &mut VecDeque<Event>,
    ) -> Action {
        let Some(check) = self.checks.get_mut(stream) else { return Action::Continue };
        let (verbs, config) = check.hear(verb, message, now_ms);
        self.say(stream, &verbs, &config, out);
        self.decide(now_ms, out, events)
    }

    /// The streams have all been looked at, or one of them cannot be used: says what that means.
    fn decide(&mut self, now_ms: u64, out: &mut BytesMut, events: &mut VecDeque<Event>) -> Action {
        if let Some(why) = self.checks.iter().find_map(Check::why_not) {
            let why: Box<str> = why.into();
            return self.is_off(why, now_ms);
        }
        if !self.checks.iter().all(Check::fits) {
            return Action::Continue;
        }
        let epoch = self.epoch_of_streams();
        match self.state {
            State::Checking { .. } => {
                self.epoch = Some(epoch);
                self.is_on(now_ms);
            }
            State::Hoping { .. } if self.epoch == Some(epoch) => {
                self.is_on(now_ms);
                self.up(now_ms, out, events);
            }
            State::Hoping { .. } => {
                return Action::Reconnect("the engine keeps something else now".into());
            }
            State::Off { .. } => return Action::Reconnect("the engine can keep topics now".into()),
            State::On | State::Away => {}
        }
        Action::Continue
    }

    fn is_on(&mut self, now_ms: u64) {
        (self.state, self.may_hope) = (State::On, true);
        self.look_ms = Some(self.later(now_ms, LOOK_EVERY_MS));
    }

    fn is_off(&mut self, why: Box<str>, now_ms: u64) -> Action {
        self.checks.iter_mut().for_each(Check::end);
        self.stream_requests.clear();
        self.look_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
        match self.state {
            State::Checking { .. } | State::Off { .. } => {
                self.state = State::Off { why, is_final: false };
                Action::Continue
            }
            // It was said that something is kept.
            _ => Action::Reconnect(why),
        }
    }

    /// About then, by lot, so that not all nodes ask at once.
    fn later(&mut self, now_ms: u64, ms: u64) -> u64 {
        now_ms + ms * 3 / 4 + self.random.u64(..=ms / 2)
    }

    fn hear_look(
        &mut self,
        stream_requests: StreamRequest,
        message: &Message,
        now_ms: u64,
    ) -> Action {
        let Some(check) = self.checks.get_mut(stream_requests.stream) else {
            return Action::Continue;
        };
        match api::read::<StreamInfo>(message) {
            Ok(info) if check.is_still(&info, stream_requests.seen) => check.has_answered(),
            Err(failure) if failure.is_passing() => return Action::Continue,
            Ok(_) => {
                let why = format!("the stream {} is not what it was", check.name);
                return Action::Reconnect(why.into());
            }
            Err(failure) => {
                let why = format!("the stream {} is not there: {failure}", check.name);
                return Action::Reconnect(why.into());
            }
        }
        if self.checks.iter().all(|it| it.silent_ms(now_ms).is_none()) {
            self.look_ms = Some(self.later(now_ms, LOOK_EVERY_MS));
        }
        Action::Continue
    }

    /// A stream republished something under this number.
    pub(crate) fn heard(&mut self, subject: &[u8], seq: u64) {
        let Some(config) = &self.config else { return };
        let Some(stream) = config.stream_of_republished(&self.prefix, subject) else { return };
        self.saw(stream, seq);
        let is_back = self.checks.get_mut(stream).is_some_and(|it| it.hears(seq));
        if is_back {
            // A stream sends in its order: it was made anew, or two of our interests overlap.
            let soon_ms = self.looked_ms + LOOK_ANEW_MS;
            self.look_ms = self.look_ms.map(|it| it.min(soon_ms));
        }
    }

    fn saw(&mut self, stream: usize, seq: u64) {
        if let Some(check) = self.checks.get_mut(stream) {
            check.saw(seq);
        }
    }

    // Time.

    /// Does what is due; `out` is where to, if there is a link.
    pub(crate) fn tick(
        &mut self,
        now_ms: u64,
        mut out: Option<&mut BytesMut>,
        events: &mut VecDeque<Event>,
    ) -> Action {
        let is_on = self.is_asking();
        let is_free = out.as_ref().is_some_and(|it| it.len() <= OUT_BYTES_MAX);
        let again = self.tickets.tick(now_ms, (is_on, is_free), events);
        let Some(out) = &mut out else { return Action::Continue };
        again.into_iter().for_each(|key| self.ask(key, now_ms, out));
        for stream in 0..self.checks.len() {
            let verbs = self.checks.get_mut(stream).map(|it| it.tick(now_ms)).unwrap_or_default();
            self.say(stream, &verbs, &Value::Null, out);
        }
        match self.state {
            State::Checking { until_ms } if until_ms <= now_ms => self.gives_up_checking(now_ms),
            State::Hoping { until_ms } if until_ms <= now_ms => {
                self.may_hope = false;
                return Action::Reconnect(self.trouble().into());
            }
            _ if self.look_ms.is_some_and(|it| it <= now_ms) => {
                return self.tick_look(now_ms, out);
            }
            _ => {}
        }
        Action::Continue
    }

    fn tick_look(&mut self, now_ms: u64, out: &mut BytesMut) -> Action {
        match self.state {
            State::On => {
                let is_silent = |it: &&Check| it.silent_ms(now_ms).is_some_and(|ms| ms >= HOPE_MS);
                if let Some(check) = self.checks.iter().find(is_silent) {
                    let why = format!("nobody answers for the stream {}", check.name);
                    self.may_hope = false;
                    return Action::Reconnect(why.into());
                }
                (self.look_ms, self.looked_ms) = (Some(now_ms + LOOK_AGAIN_MS), now_ms);
                self.stream_requests.clear();
                self.look(now_ms, out);
            }
            State::Off { is_final: false, .. } => {
                self.look_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
                self.stream_requests.clear();
                self.check_all(now_ms, out);
            }
            _ => self.look_ms = None,
        }
        Action::Continue
    }

    /// Nobody has said what is kept, and the link must not wait for it.
    fn gives_up_checking(&mut self, now_ms: u64) {
        if self.hopes() {
            self.state = State::Hoping { until_ms: now_ms + HOPE_MS };
            return;
        }
        let why = self.trouble().into();
        self.state = State::Off { why, is_final: false };
        self.look_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
    }

    /// Whether it is said to be what it was as long as nobody answers.
    fn hopes(&self) -> bool {
        self.epoch.is_some() && self.may_hope
    }

    /// Why it is not known what is kept.
    fn trouble(&self) -> String {
        self.checks.iter().find(|it| !it.fits()).map(Check::trouble).unwrap_or_default()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn next_tick_ms(&self) -> Option<u64> {
        let until_ms = match self.state {
            State::Checking { until_ms } | State::Hoping { until_ms } => Some(until_ms),
            _ => None,
        };
        let checks = self.checks.iter().filter_map(Check::next_tick_ms);
        checks.chain(until_ms).chain(self.look_ms).chain(self.tickets.next_ms()).min()
    }

    /// Of all streams: one number, the same on every node.
    fn epoch_of_streams(&self) -> u64 {
        let mut text = String::new();
        for check in &self.checks {
            let (identity, set_back) = check.identity().unwrap_or_default();
            for part in [&*check.name, " ", identity, " ", set_back, "\n"] {
                text.push_str(part);
            }
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        digest.as_ref().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }
}

/// Whether a server's version is known to be too old.
fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|it| it.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < VERSION_MIN,
        _ => false,
    }
}
