//! Checks one stream, creates or changes it, and decides whether it may be used.
//!
//! ```text
//! INFO ─► not there ─► CREATE ─┐
//!   └──► another shape ─► UPDATE ┴─► as it should be ─► three harmless questions ─► fits
//! ```

use std::time::Duration;

use serde_json::Value;

use super::api::{self, Failure, Request, StreamInfo};
use super::compare::{self, Verdict};
use crate::wire::Message;

/// Time after which a request without an answer is repeated.
const AGAIN_MS: u64 = 1_000;
/// Time after which a stream on several servers that seems to be set back is checked again: a new
/// leader may not have caught up yet.
const DOUBT_MS: u64 = 500;
/// How often that is done.
const DOUBTS_MAX: u32 = 3;
/// The most attempts to create or change a stream.
const CHANGES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Info,
    Create,
    Update,
    /// Tests whether any server with the stream may be asked.
    TryDirect,
    /// Tests whether its leader may be asked.
    TryLeader,
    /// Tests whether the node may store to it.
    TryStore,
}

/// The requests that only test permissions.
pub(super) const TRIES: [Verb; 3] = [Verb::TryDirect, Verb::TryLeader, Verb::TryStore];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    Requested {
        verb: Verb,
        again_ms: u64,
    },
    /// The requests of [`TRIES`] without an answer.
    Trying {
        left: Vec<Verb>,
        again_ms: u64,
    },
    Fits,
    Refused(Box<str>),
}

#[derive(Debug, Default)]
pub(super) struct Check {
    pub(super) name: Box<str>,
    /// A subject of the stream that no topic has.
    pub(super) unused: Box<str>,
    expected: Value,
    updated: Value,
    may_change: bool,
    step: Step,
    changes: u32,
    doubts: u32,
    /// The state of the stream at the last check.
    found: Option<Found>,
    pub(super) seen: u64,
    /// The number of the last republished message over this link.
    republished: u64,
    /// The highest number seen at the time of the request.
    seen_at_ask: u64,
    /// Time since which checks for changes were not answered.
    pub(super) silent_since_ms: Option<u64>,
    /// Why the last request had no useful answer.
    trouble: Option<String>,
    /// The broker has answered the last `INFO` with "no responders": JetStream is not enabled.
    pub(super) has_no_responder: bool,
    /// How this node found it set back, if that cannot be written into its metadata.
    set_back: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    identity: String,
    replicas: u64,
    storage: String,
    age: Option<Duration>,
}

impl Check {
    pub(super) fn new(name: String, unused: String, expected: Value, may_change: bool) -> Self {
        let (name, unused) = (name.into(), unused.into());
        Self { name, unused, expected, may_change, ..Self::default() }
    }

    pub(super) fn begin(&mut self, now_ms: u64) -> Vec<Verb> {
        (self.changes, self.doubts, self.trouble) = (0, 0, None);
        (self.silent_since_ms, self.republished, self.has_no_responder) = (None, 0, false);
        self.ask(Verb::Info, now_ms)
    }

    pub(super) fn end(&mut self) {
        self.step = Step::Idle;
    }

    fn ask(&mut self, verb: Verb, now_ms: u64) -> Vec<Verb> {
        self.seen_at_ask = self.seen;
        self.step = Step::Requested { verb, again_ms: now_ms + AGAIN_MS };
        vec![verb]
    }

    /// A request; `None` for `TryStore`, which needs an envelope.
    pub(super) fn request(&self, verb: Verb) -> Option<Request> {
        let (name, unused) = (&self.name, &self.unused);
        Some(match verb {
            Verb::Info => api::info(name),
            Verb::Create => api::create(name, self.expected.clone()),
            Verb::Update => api::update(name, self.updated.clone()),
            Verb::TryDirect => api::none_direct(name, unused),
            Verb::TryLeader => api::none_of_leader(name, unused),
            Verb::TryStore => return None,
        })
    }

    pub(super) fn on_answer(&mut self, verb: Verb, message: &Message, now_ms: u64) -> Vec<Verb> {
        match (&self.step, verb) {
            (Step::Requested { verb: asked, .. }, Verb::Info | Verb::Create | Verb::Update)
                if *asked == verb =>
            {
                match api::read::<StreamInfo>(message) {
                    Ok(info) => self.is_there(verb, &info, now_ms),
                    Err(failure) => self.has_failed(verb, &failure, now_ms),
                }
            }
            (Step::Trying { .. }, Verb::TryDirect | Verb::TryLeader | Verb::TryStore) => {
                self.tried(verb, message, now_ms);
                Vec::new()
            }
            // The answer to a repeated request.
            _ => Vec::new(),
        }
    }

    fn is_there(&mut self, verb: Verb, info: &StreamInfo, now_ms: u64) -> Vec<Verb> {
        if !info.is_of_leader() {
            // The request is repeated in time.
            return Vec::new();
        }
        match compare::judge(&self.expected, &info.config, self.may_change) {
            Verdict::Fits => {}
            Verdict::Refused(why) => {
                let action =
                    if self.may_change { "cannot be used" } else { "has the wrong settings" };
                self.refuse(format!("the stream {} {action}: {why}", self.name));
                return Vec::new();
            }
            Verdict::Change(_) if self.changes >= CHANGES_MAX => {
                self.refuse(format!(
                    "the stream {} does not keep the settings of {verb:?}: \
                    something else changes it",
                    self.name
                ));
                return Vec::new();
            }
            Verdict::Change(config) => {
                return self.update(config, now_ms);
            }
        }
        if self.is_set_back(info) {
            if info.replicas() > 1 && self.doubts < DOUBTS_MAX {
                self.doubts += 1;
                self.step = Step::Requested { verb: Verb::Info, again_ms: now_ms + DOUBT_MS };
                return Vec::new();
            }
            if self.may_change && self.changes < CHANGES_MAX {
                return self.update(compare::set_back(&info.config), now_ms);
            }
            self.set_back = format!("{} {}", self.seen_at_ask, info.state.last_seq);
            self.seen = info.state.last_seq;
        }
        self.settle(info);
        self.step = Step::Trying { left: TRIES.to_vec(), again_ms: now_ms + AGAIN_MS };
        TRIES.to_vec()
    }

    fn update(&mut self, config: Value, now_ms: u64) -> Vec<Verb> {
        self.changes += 1;
        self.updated = config;
        self.ask(Verb::Update, now_ms)
    }

    /// Whether it is the same stream with less than was seen of it: it was restored from a copy, or
    /// its server lost unwritten data.
    fn is_set_back(&self, info: &StreamInfo) -> bool {
        self.is_same(info) && info.state.last_seq < self.seen_at_ask
    }

    fn settle(&mut self, info: &StreamInfo) {
        if !self.is_same(info) {
            self.seen = info.state.last_seq;
            self.set_back.clear();
        }
        self.seen = self.seen.max(info.state.last_seq);
        let storage = info.config["storage"].as_str().unwrap_or("file").to_owned();
        let age = info.config["max_age"].as_u64().filter(|ns| *ns > 0).map(Duration::from_nanos);
        let identity = identity(info);
        self.found = Some(Found { identity, replicas: info.replicas(), storage, age });
    }

    fn has_failed(&mut self, verb: Verb, failure: &Failure, now_ms: u64) -> Vec<Verb> {
        let name = &self.name;
        match (verb, failure.err_code) {
            (Verb::Info, api::NO_STREAM) if self.may_change && self.changes < CHANGES_MAX => {
                self.changes += 1;
                return self.ask(Verb::Create, now_ms);
            }
            (Verb::Info, api::NO_STREAM) => {
                let expected = &self.expected;
                self.refuse(format!("the stream {name} does not exist: create it with {expected}"));
            }
            // Another node has created it first.
            (Verb::Create, api::NAME_IN_USE) => return self.ask(Verb::Info, now_ms),
            // Repeated: a cluster of servers that is starting does not answer yet.
            _ if failure.is_passing() => {
                self.has_no_responder = verb == Verb::Info && failure.is_nobody();
                self.trouble = Some(failure.to_string());
                if let Step::Requested { again_ms, .. } = &mut self.step {
                    *again_ms = now_ms + AGAIN_MS / 2;
                }
            }
            _ => {
                let done = match verb {
                    Verb::Create => "created",
                    Verb::Update => "changed",
                    _ => "read",
                };
                self.refuse(format!("the stream {name} cannot be {done}: {failure}"));
            }
        }
        Vec::new()
    }

    fn tried(&mut self, verb: Verb, message: &Message, now_ms: u64) {
        let outcome = match verb {
            Verb::TryDirect => match message.status() {
                Some(api::STATUS_NOBODY) => Err(Failure::nobody()),
                _ => Ok(()),
            },
            Verb::TryLeader => match api::read::<api::Got>(message) {
                Err(failure) if !failure.is_no_message() => Err(failure),
                _ => Ok(()),
            },
            _ => match api::read::<api::PubAck>(message) {
                Err(failure) if !failure.is_other_stream() => Err(failure),
                _ => Ok(()),
            },
        };
        let Step::Trying { left, again_ms } = &mut self.step else { return };
        match outcome {
            // Servers that were just given a stream do not answer yet.
            Err(failure) if failure.is_passing() => {
                *again_ms = now_ms + AGAIN_MS / 4;
                self.trouble = Some(failure.to_string());
            }
            Err(failure) => {
                let what = match verb {
                    Verb::TryStore => "written",
                    _ => "read",
                };
                self.refuse(format!("the stream {} cannot be {what}: {failure}", self.name));
            }
            Ok(()) => {
                left.retain(|it| *it != verb);
                if left.is_empty() {
                    self.step = Step::Fits;
                }
            }
        }
    }

    pub(super) fn refuse(&mut self, why: String) {
        self.step = Step::Refused(why.into());
    }

    /// The requests to repeat now.
    pub(super) fn tick(&mut self, now_ms: u64) -> Vec<Verb> {
        match &mut self.step {
            Step::Requested { again_ms, .. } if *again_ms <= now_ms => {
                // Starts with INFO: a stream may have been created without an answer.
                self.ask(Verb::Info, now_ms)
            }
            Step::Trying { left, again_ms } if *again_ms <= now_ms => {
                *again_ms = now_ms + AGAIN_MS;
                left.clone()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn next_tick_ms(&self) -> Option<u64> {
        match self.step {
            Step::Requested { again_ms, .. } | Step::Trying { again_ms, .. } => Some(again_ms),
            _ => None,
        }
    }

    pub(super) fn saw(&mut self, seq: u64) {
        self.seen = self.seen.max(seq);
    }

    /// Notes a republished message. Returns whether its number is not higher than the last.
    pub(super) fn on_republished(&mut self, seq: u64) -> bool {
        std::mem::replace(&mut self.republished, seq) >= seq
    }

    /// The number up to which every answer from now on is complete; 0 if unknown.
    pub(super) fn certain(&self) -> u64 {
        if self.replicas() == 1 { self.seen } else { 0 }
    }

    pub(super) fn replicas(&self) -> u64 {
        self.found.as_ref().map_or(1, |it| it.replicas)
    }

    /// Age at which it removes messages; none if unlimited or unknown.
    pub(super) fn age(&self) -> Option<Duration> {
        self.found.as_ref().and_then(|it| it.age)
    }

    pub(super) fn storage(&self) -> &str {
        self.found.as_ref().map_or("file", |it| &it.storage)
    }

    pub(super) fn fits(&self) -> bool {
        self.step == Step::Fits
    }

    pub(super) fn why_not(&self) -> Option<&str> {
        match &self.step {
            Step::Refused(why) => Some(why),
            _ => None,
        }
    }

    pub(super) fn trouble(&self) -> String {
        let words = self.trouble.as_deref().unwrap_or("JetStream does not respond");
        format!("the stream {}: {words}", self.name)
    }

    pub(super) fn identity(&self) -> Option<(&str, &str)> {
        self.found.as_ref().map(|it| (&*it.identity, &*self.set_back))
    }

    /// Whether an INFO is of the same stream, with everything that was seen of it.
    pub(super) fn is_still(&self, info: &StreamInfo, seen: u64) -> bool {
        !info.is_of_leader() || (self.is_same(info) && info.state.last_seq >= seen)
    }

    fn is_same(&self, info: &StreamInfo) -> bool {
        self.found.as_ref().is_some_and(|it| it.identity == identity(info))
    }
}

/// When the stream was created, its first number, and how often it was set back. The first
/// remaining number would not identify it: it grows as the oldest messages are removed.
fn identity(info: &StreamInfo) -> String {
    let first = info.config["first_seq"].as_u64().unwrap_or(0);
    format!("{} {first} {}", info.created, compare::set_backs(&info.config))
}
