//! JetStream: the streams for topics with a history, and requests to them.
//!
//! Without I/O and without a clock. Over each link the streams are checked first ([`check`]); then
//! the adapter reports whether anything is stored, with the epoch, and waiting tickets are
//! requested. They are checked again from time to time: a stream that was recreated or restored
//! meanwhile ends the link, so that the next one has another epoch.
//!
//! ```text
//! link ─► Checking ─► On ──────► a stream is another ─► a new link
//!            │  └───► Off: why ► all is as it should be ─► a new link
//!            └──────► Presumed: no answer; unchanged if it was valid
//! ```

mod api;
mod check;
mod compare;
mod fetch;
#[cfg(any(test, feature = "fuzz"))]
#[allow(clippy::expect_used, clippy::panic, reason = "what does not hold ends the run")]
pub(crate) mod fuzz;
mod publish;
pub(crate) mod requests;
mod since;
#[cfg(test)]
mod tests;
mod tickets;

use std::collections::VecDeque;

use bytes::BytesMut;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use simurgh_cluster::{Event, Prefix};

use self::api::StreamInfo;
use self::check::{Check, Verb};
use self::tickets::{RequestNumber, Tickets, What};
use crate::streams::{self, StreamsConfig};
use crate::wire::{self, Message};

/// The subscription for answers.
pub(crate) const INBOX_SID: u64 = 0;
/// The first version of NATS whose streams have all needed features.
const VERSION_MIN: (u32, u32) = (2, 11);
/// How long the streams of a new link may be checked before the link is reported as up. A broker
/// without JetStream ends the check with its first answer.
const CHECK_MS: u64 = 3_000;
/// The same, if they were known over the last link.
const CHECK_AGAIN_MS: u64 = 1_000;
/// How long unchanged streams are presumed: a stream on several servers that loses its leader has
/// another one after some six seconds.
const PRESUME_MS: u64 = 10_000;
/// The time between two checks of valid streams,
const RECHECK_EVERY_MS: u64 = 30_000;
/// of one that does not answer,
const RECHECK_AGAIN_MS: u64 = 2_000;
/// of one that seems to begin anew,
const RECHECK_ANEW_MS: u64 = 1_000;
/// and of streams that cannot be used.
const RETRY_EVERY_MS: u64 = 5_000;
/// Above this size of the output nothing is repeated.
const OUT_BYTES_MAX: usize = 256 << 10;

/// The most requests about streams that are stored.
const STREAM_REQUESTS_MAX: usize = 1_024;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    /// End the link and make another, for this reason.
    Reconnect(Box<str>),
}

#[derive(Debug)]
enum State {
    Away,
    /// The streams are being checked, at most until this time.
    Checking {
        until_ms: u64,
    },
    /// They were reported as unchanged, and are still being checked.
    Presumed {
        until_ms: u64,
    },
    On,
    /// They cannot be used. `is_final`: for the rest of this link.
    Off {
        why: Box<str>,
        is_final: bool,
    },
}

/// The epochs of the histories and of the log of notices; `None` if the broker does not store them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    pub(crate) kept: Option<u64>,
    pub(crate) log: Option<u64>,
}

/// JetStream for one node.
pub(crate) struct JetStream {
    prefix: Prefix,
    config: Option<StreamsConfig>,
    state: State,
    checks: Vec<Check>,
    /// The requests about streams, by number.
    stream_requests: HashMap<u64, StreamRequest, RandomState>,
    pub(crate) tickets: Tickets,
    /// The epochs over the last link with valid streams.
    epochs: Option<Epochs>,
    /// The epochs that were reported last.
    reported_epochs: Option<Epochs>,
    /// The link was reported as up.
    is_up: bool,
    /// Unchanged streams may be presumed, as the last presumption was right.
    may_presume: bool,
    /// The subject for answers, without its last token.
    inbox: String,
    next_key: u64,
    next_recheck_ms: Option<u64>,
    /// When the streams were checked last.
    last_recheck_ms: u64,
    random: fastrand::Rng,
}

#[derive(Clone, Copy, Debug)]
struct StreamRequest {
    stream: usize,
    /// None if the request checks whether it is unchanged.
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
            Check::new(name, config.unused(prefix, at), expected, config.create_streams)
        };
        let checks = |it: &StreamsConfig| (0..it.len()).map(|at| check(it, at)).collect();
        Self {
            prefix: prefix.clone(),
            checks: config.as_ref().map(checks).unwrap_or_default(),
            config,
            state: State::Away,
            stream_requests: HashMap::default(),
            tickets: Tickets::default(),
            epochs: None,
            reported_epochs: None,
            is_up: false,
            may_presume: true,
            inbox,
            next_key: 1,
            next_recheck_ms: None,
            last_recheck_ms: 0,
            random,
        }
    }

    // Links.

    pub(crate) fn link(&mut self, now_ms: u64, version: &str, out: &mut BytesMut) {
        if self.config.is_none() {
            return;
        }
        if is_too_old(version) {
            let (major, minor) = VERSION_MIN;
            let why = format!(
                "the broker is NATS {version}, but histories need {major}.{minor} or later"
            );
            self.state = State::Off { why: why.into(), is_final: true };
            return;
        }
        wire::put_subscribe(out, &format!("{}*", self.inbox), INBOX_SID);
        let time = if self.may_be_presumed() { CHECK_AGAIN_MS } else { CHECK_MS };
        self.state = State::Checking { until_ms: now_ms + time };
        self.check_all(now_ms, out);
    }

    pub(crate) fn unlink(&mut self) {
        (self.state, self.is_up) = (State::Away, false);
        self.stream_requests.clear();
        self.next_recheck_ms = None;
        self.checks.iter_mut().for_each(Check::end);
    }

    /// The epochs to report; `None` while unknown.
    pub(crate) fn decided(&self) -> Option<Epochs> {
        match &self.state {
            _ if self.config.is_none() => Some(Epochs::default()),
            State::Away | State::Checking { .. } => None,
            State::Presumed { .. } | State::On => self.epochs,
            State::Off { .. } => Some(Epochs::default()),
        }
    }

    /// The link is reported as up: requests waiting tickets, or refuses them.
    pub(crate) fn up(&mut self, now_ms: u64, out: &mut BytesMut, events: &mut VecDeque<Event>) {
        self.is_up = true;
        if self.reported_epochs != self.epochs {
            // Older requests have numbers of another epoch.
            for key in self.tickets.keys(|it| !matches!(it.what, What::Store(_))) {
                self.tickets.give_up(key, events);
            }
            self.reported_epochs = self.epochs;
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

    fn is_asking(&self) -> bool {
        self.is_up && matches!(self.state, State::On)
    }

    /// Why nothing is stored, or how durable the streams are, in words; none while unknown.
    pub(crate) fn describe(&self) -> Option<String> {
        match &self.state {
            State::Off { why, .. } => Some(format!("not stored: {why}")),
            State::On => {
                let first = self.checks.first()?;
                Some(streams::durability(first.storage(), first.replicas()))
            }
            _ => None,
        }
    }

    // Requests.

    /// The subject for the answer to a request about a stream.
    fn reply(&mut self, request: StreamRequest) -> String {
        let key = self.next_key();
        if self.stream_requests.len() >= STREAM_REQUESTS_MAX {
            // The broker has not answered for long.
            self.stream_requests.clear();
        }
        self.stream_requests.insert(key, request);
        format!("{}{}", self.inbox, RequestNumber { key, attempt: 0 }.text())
    }

    fn check_all(&mut self, now_ms: u64, out: &mut BytesMut) {
        for stream in 0..self.checks.len() {
            let verbs = self.checks.get_mut(stream).map(|it| it.begin(now_ms)).unwrap_or_default();
            self.probe(stream, &verbs, out);
        }
    }

    fn probe(&mut self, stream: usize, verbs: &[Verb], out: &mut BytesMut) {
        for &verb in verbs {
            let reply = self.reply(StreamRequest { stream, verb: Some(verb), seen: 0 });
            let Some(check) = self.checks.get(stream) else { return };
            match check.request(verb) {
                Some((subject, body)) => wire::put_request(out, &subject, &reply, &body),
                None => {
                    // A stream's name has no dot, so this is always refused.
                    let headers = [("Nats-Expected-Stream", "no.stream")];
                    wire::put_with_headers(out, &check.unused, &reply, &headers, b"");
                }
            }
        }
    }

    fn recheck(&mut self, now_ms: u64, out: &mut BytesMut) {
        for stream in 0..self.checks.len() {
            let Some(check) = self.checks.get_mut(stream) else { return };
            check.silent_since_ms.get_or_insert(now_ms);
            let (seen, (subject, words)) = (check.seen, api::info(&check.name));
            let reply = self.reply(StreamRequest { stream, verb: None, seen });
            wire::put_request(out, &subject, &reply, &words);
        }
    }

    // Answers.

    pub(crate) fn on_answer(
        &mut self,
        message: Message,
        now_ms: u64,
        out: &mut BytesMut,
        events: &mut VecDeque<Event>,
    ) -> Action {
        let token = message.subject().strip_prefix(self.inbox.as_bytes());
        let Some(number) = token.and_then(RequestNumber::read) else { return Action::Continue };
        let Some(request) = self.stream_requests.remove(&number.key) else {
            self.on_ticket(number, message, now_ms, out, events);
            return Action::Continue;
        };
        let Some(verb) = request.verb else { return self.on_recheck(request, &message, now_ms) };
        let Some(check) = self.checks.get_mut(request.stream) else { return Action::Continue };
        let verbs = check.on_answer(verb, &message, now_ms);
        self.probe(request.stream, &verbs, out);
        self.decide(now_ms, out, events)
    }

    /// Decides once all streams are checked, or one of them cannot be used.
    fn decide(&mut self, now_ms: u64, out: &mut BytesMut, events: &mut VecDeque<Event>) -> Action {
        if let Some(why) = self.checks.iter().find_map(Check::why_not) {
            let why: Box<str> = why.into();
            return self.is_off(why, now_ms);
        }
        let is_new = matches!(self.state, State::Checking { .. } | State::Off { .. });
        if is_new
            && !self.may_be_presumed()
            && let Some(check) = self.checks.iter().find(|check| check.has_no_responder)
        {
            let why = check.trouble().into();
            return self.is_off(why, now_ms);
        }
        if !self.checks.iter().all(Check::fits) {
            return Action::Continue;
        }
        let epochs = Some(self.epochs_of_streams());
        match self.state {
            State::Checking { .. } => {
                self.epochs = epochs;
                self.is_on(now_ms);
            }
            State::Presumed { .. } if self.epochs == epochs => {
                self.is_on(now_ms);
                self.up(now_ms, out, events);
            }
            State::Presumed { .. } => {
                return Action::Reconnect("the broker's streams have changed".into());
            }
            State::Off { .. } => {
                return Action::Reconnect("the broker can store histories now".into());
            }
            State::On | State::Away => {}
        }
        Action::Continue
    }

    fn is_on(&mut self, now_ms: u64) {
        (self.state, self.may_presume) = (State::On, true);
        self.next_recheck_ms = Some(self.later(now_ms, RECHECK_EVERY_MS));
    }

    fn is_off(&mut self, why: Box<str>, now_ms: u64) -> Action {
        self.checks.iter_mut().for_each(Check::end);
        self.stream_requests.clear();
        self.next_recheck_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
        match self.state {
            State::Checking { .. } | State::Off { .. } => {
                self.state = State::Off { why, is_final: false };
                Action::Continue
            }
            // Streams were reported as valid.
            _ => Action::Reconnect(why),
        }
    }

    /// A random time around this delay, so that not all nodes ask at once.
    fn later(&mut self, now_ms: u64, ms: u64) -> u64 {
        now_ms + ms * 3 / 4 + self.random.u64(..=ms / 2)
    }

    fn on_recheck(&mut self, request: StreamRequest, message: &Message, now_ms: u64) -> Action {
        let Some(check) = self.checks.get_mut(request.stream) else {
            return Action::Continue;
        };
        match api::read::<StreamInfo>(message) {
            Ok(info) if check.is_still(&info, request.seen) => check.silent_since_ms = None,
            Err(failure) if failure.is_passing() => return Action::Continue,
            Ok(_) => {
                let why = format!("the stream {} has changed", check.name);
                return Action::Reconnect(why.into());
            }
            Err(failure) => {
                let why = format!("the stream {} does not exist: {failure}", check.name);
                return Action::Reconnect(why.into());
            }
        }
        if self.checks.iter().all(|it| it.silent_since_ms.is_none()) {
            self.next_recheck_ms = Some(self.later(now_ms, RECHECK_EVERY_MS));
        }
        Action::Continue
    }

    /// A stream has republished a message with this number.
    pub(crate) fn on_republished(&mut self, subject: &[u8], seq: u64) {
        let Some(config) = &self.config else { return };
        let Some(stream) = config.stream_of(&self.prefix, b".b.", subject) else { return };
        self.saw(stream, seq);
        let is_back = self.checks.get_mut(stream).is_some_and(|it| it.on_republished(seq));
        if is_back {
            // A stream republishes in order: it was recreated, or two interests of this node
            // overlap.
            let soon_ms = self.last_recheck_ms + RECHECK_ANEW_MS;
            self.next_recheck_ms = self.next_recheck_ms.map(|it| it.min(soon_ms));
        }
    }

    fn saw(&mut self, stream: usize, seq: u64) {
        if let Some(check) = self.checks.get_mut(stream) {
            check.saw(seq);
        }
    }

    // Time.

    /// Does what is due; `out` is the output, if there is a link.
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
            self.probe(stream, &verbs, out);
        }
        match self.state {
            State::Checking { until_ms } if until_ms <= now_ms => self.give_up_checking(now_ms),
            State::Presumed { until_ms } if until_ms <= now_ms => {
                self.may_presume = false;
                return Action::Reconnect(self.trouble().into());
            }
            _ if self.next_recheck_ms.is_some_and(|it| it <= now_ms) => {
                return self.tick_recheck(now_ms, out);
            }
            _ => {}
        }
        Action::Continue
    }

    fn tick_recheck(&mut self, now_ms: u64, out: &mut BytesMut) -> Action {
        match self.state {
            State::On => {
                let is_over = |since_ms| since_ms + PRESUME_MS <= now_ms;
                let mut checks = self.checks.iter();
                if let Some(check) = checks.find(|it| it.silent_since_ms.is_some_and(is_over)) {
                    let why = format!("no response for the stream {}", check.name);
                    self.may_presume = false;
                    return Action::Reconnect(why.into());
                }
                (self.next_recheck_ms, self.last_recheck_ms) =
                    (Some(now_ms + RECHECK_AGAIN_MS), now_ms);
                self.stream_requests.clear();
                self.recheck(now_ms, out);
            }
            State::Off { is_final: false, .. } => {
                self.next_recheck_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
                self.stream_requests.clear();
                self.check_all(now_ms, out);
            }
            _ => self.next_recheck_ms = None,
        }
        Action::Continue
    }

    /// The check has taken too long: the link must not wait for it.
    fn give_up_checking(&mut self, now_ms: u64) {
        if self.may_be_presumed() {
            self.state = State::Presumed { until_ms: now_ms + PRESUME_MS };
            return;
        }
        let why = self.trouble().into();
        self.state = State::Off { why, is_final: false };
        self.next_recheck_ms = Some(self.later(now_ms, RETRY_EVERY_MS));
    }

    /// Whether unchanged streams may be presumed while there is no answer.
    fn may_be_presumed(&self) -> bool {
        self.epochs.is_some() && self.may_presume
    }

    /// Why it is not known whether the streams are valid.
    fn trouble(&self) -> String {
        self.checks.iter().find(|it| !it.fits()).map(Check::trouble).unwrap_or_default()
    }

    pub(crate) fn next_tick_ms(&self) -> Option<u64> {
        let until_ms = match self.state {
            State::Checking { until_ms } | State::Presumed { until_ms } => Some(until_ms),
            _ => None,
        };
        let checks = self.checks.iter().filter_map(Check::next_tick_ms);
        checks.chain(until_ms).chain(self.next_recheck_ms).chain(self.tickets.next_ms).min()
    }

    /// The epochs of all streams, the same on every node.
    fn epochs_of_streams(&self) -> Epochs {
        let histories = self.config.as_ref().map_or(0, |it| it.streams.get());
        let (kept, log) = self.checks.split_at(histories.min(self.checks.len()));
        Epochs { kept: epoch_of(kept), log: epoch_of(log) }
    }
}

/// The epoch of some streams; `None` without any.
fn epoch_of(checks: &[Check]) -> Option<u64> {
    let mut text = String::new();
    for check in checks {
        let (identity, set_back) = check.identity().unwrap_or_default();
        for part in [&*check.name, " ", identity, " ", set_back, "\n"] {
            text.push_str(part);
        }
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let epoch = digest.as_ref().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    (!checks.is_empty()).then_some(epoch)
}

/// Whether a server's version is known to be too old.
fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|it| it.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < VERSION_MIN,
        _ => false,
    }
}
