//! Presence (PROTOCOL §10): channels' effects, what homes send, and clients' views.
//!
//! The model knows at once what channels track. Homes receive it by mail, so that events are
//! compared with earlier effects, and clients have the exact list once everything is delivered.

use std::collections::HashMap;

use crate::kit::delivery::Delivery;
use crate::kit::presence::{EVENTS, Meta, PresenceEvent, letter_of};
use crate::kit::presences::{self, Presences};
use crate::kit::{NONE, payload};
use simurgh_core::{ChannelId, PresenceConfig, Reason, SharedPush};

use super::{Action, Call, Conn, Life, Model};

/// Numbers of the events among those of broadcasts, by their order in [`EVENTS`].
const FIRST: u8 = 50;
/// Bits of [`Chan::intercepts`](super::Chan::intercepts) besides the number of other events.
pub(crate) const INTERCEPTS_DIFF: u8 = 4;
pub(crate) const INTERCEPTS_STATE: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresenceAction {
    Track(u32),
    Update(u32),
    Untrack(u8),
    Ask,
}

/// An event of presence, recorded once for all receivers.
#[derive(Debug)]
struct Record {
    said: u32,
    word: u8,
    told: PresenceEvent,
    /// The list of a client that has received all events up to this one, if it is known.
    list: Option<Vec<u32>>,
}

/// A channel's view, and whether it has asked for the list.
#[derive(Debug, Default)]
pub(crate) struct View {
    view: presences::View,
    has_asked: bool,
}

/// The events that the home has sent to all members of a topic.
#[derive(Clone, Debug)]
struct Told {
    /// The list; `None` where it is unknown, or too long.
    numbers: Option<Vec<u32>>,
    /// When the last diff was sent, unless its home may have forgotten that.
    diff_ns: Option<u64>,
}

impl Default for Told {
    fn default() -> Self {
        Self { numbers: Some(Vec::new()), diff_ns: None }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Presence {
    pub(crate) config: PresenceConfig,
    /// Of one payload.
    bytes_max: usize,
    pub(crate) all: Presences,
    /// Calls that may have been made by channels whose sockets close.
    pub(crate) perhaps: u64,
    /// A shard has ended, and what its homes knew is lost.
    pub(crate) is_partial: bool,
    told: Vec<Told>,
    /// Pushes for several channels: their records and their receivers.
    pushes: Vec<(Vec<u32>, Vec<u32>)>,
    records: Vec<Record>,
    /// The answers of shards to members that ask, by topic: as posted, and as in use.
    answers: Vec<(u8, Vec<u32>)>,
    kept_answers: HashMap<(usize, u8), Vec<u32>>,
    names: HashMap<ChannelId, u32>,
    /// The channel and the record of the current delivery.
    pub(crate) heard: Option<(u32, u32)>,
}

pub(crate) fn event_of(name: &str) -> Option<u8> {
    EVENTS.iter().position(|(it, _)| *it == name).map(|at| FIRST + at as u8)
}

pub(crate) fn does_intercept(intercepts: u8, event: u8) -> bool {
    match event.checked_sub(FIRST) {
        Some(0) => intercepts & INTERCEPTS_DIFF != 0,
        Some(1) => intercepts & INTERCEPTS_STATE != 0,
        Some(2) => false,
        _ => event < intercepts & 3,
    }
}

impl Presence {
    pub(crate) fn new(config: PresenceConfig, bytes_max: usize, topics: usize) -> Self {
        Self { config, bytes_max, told: vec![Told::default(); topics], ..Self::default() }
    }

    /// The number of a broadcast's payload, and the letter of its event.
    pub(super) fn said(&self, record: u32) -> Option<(u32, u8)> {
        self.records.get(record as usize).map(|it| (it.said, it.word))
    }

    /// Checks an event for all members of a topic, or for some.
    fn check(&mut self, topic: u8, told: &PresenceEvent, is_for_all: bool, now_ns: u64) -> Wrong {
        self.all.check(usize::from(topic), told)?;
        let Some(it) = self.told.get_mut(usize::from(topic)) else { return Ok(()) };
        let numbers = |metas: &[Meta]| -> Vec<u32> {
            let mut numbers: Vec<u32> = metas.iter().map(|it| it.number).collect();
            numbers.sort_unstable();
            numbers
        };
        match told {
            PresenceEvent::Diff { .. } if !is_for_all => Err("some are sent a diff".to_owned()),
            PresenceEvent::Diff { joins, leaves } => {
                let before_ns = it.diff_ns.replace(now_ns).filter(|it| *it != now_ns);
                let passed_ns = before_ns.map(|it| now_ns.saturating_sub(it));
                if passed_ns.is_some_and(|it| u128::from(it) < self.config.interval.as_nanos()) {
                    return Err(format!("the next diff is sent after {passed_ns:?} ns"));
                }
                let is_live = |number: u32| self.all.get(number).is_some_and(|it| it.is_live);
                if leaves.iter().any(|it| is_live(it.number)) {
                    return Err("somebody leaves who is present".to_owned());
                }
                let Some(list) = &mut it.numbers else {
                    it.diff_ns = None;
                    return Ok(());
                };
                let is_known = |number: u32| list.contains(&number);
                let is_right = leaves.iter().all(|it| is_known(it.number))
                    && !joins.iter().any(|it| is_known(it.number));
                told.apply_to(list);
                list.sort_unstable();
                if list.is_empty() {
                    // The home retains nothing of it, so the time of the last event is unknown.
                    it.diff_ns = None;
                }
                if is_right { Ok(()) } else { Err(format!("before, {list:?} were present")) }
            }
            PresenceEvent::State(metas) if is_for_all => {
                let list = Some(numbers(metas)).filter(|it| !it.is_empty());
                (it.numbers, it.diff_ns) = (list, None);
                Ok(())
            }
            PresenceEvent::State(metas) => match &it.numbers {
                Some(list) if *list != numbers(metas) => {
                    Err(format!("some are sent another list than all: {list:?}"))
                }
                _ => Ok(()),
            },
            PresenceEvent::Summary { count, keys, sample } => {
                if it.numbers.is_some() {
                    return Err("a list becomes a number without an empty list".to_owned());
                }
                let sampled = sample.iter().fold(0_u32, |mask, it| mask | 1 << it.key).count_ones();
                let is_right = keys <= count && sampled as usize == self.config.sample.min(*keys);
                if is_right { Ok(()) } else { Err("the sample is wrong".to_owned()) }
            }
        }
    }

    fn record(&mut self, text: &str, word: u8, told: PresenceEvent, list: Option<Vec<u32>>) -> u32 {
        let said = payload::said(text.as_bytes());
        self.records.push(Record { said, word, told, list });
        self.records.len() as u32 - 1
    }

    pub(super) fn restart(&mut self) {
        self.told.fill(Told::default());
        (self.all.refused, self.perhaps, self.is_partial) = (0, 0, false);
        self.names.clear();
        self.kept_answers.clear();
    }
}

type Wrong = Result<(), String>;

impl Model {
    /// A callback changes its channel's presences.
    pub(super) fn presents(
        &mut self,
        chan: u32,
        conn: u32,
        call: Call,
        does: PresenceAction,
        early: bool,
    ) {
        let is_closing = self.now.closing.contains(&conn) && !early;
        if call == Call::Terminate(Reason::Closed) || !self.is_live(chan) {
            return;
        }
        if is_closing && !matches!(call, Call::HandleOut(_)) {
            return;
        }
        let Presence { all, config, perhaps, .. } = &mut self.presence;
        let entries_max = config.channel_entries_max;
        match does {
            // It may be catching up before its socket closes for another reason.
            PresenceAction::Track(number) | PresenceAction::Update(number) if is_closing => {
                *perhaps += 1;
                all.may_send(number);
            }
            _ if is_closing => *perhaps += 1,
            PresenceAction::Track(number) => all.track(number, false, entries_max),
            PresenceAction::Update(number) => all.track(number, true, entries_max),
            PresenceAction::Untrack(key) => all.untrack(chan, key),
            PresenceAction::Ask => self.chans[chan as usize].view.has_asked = true,
        }
    }

    pub(crate) fn presence_names(&mut self, channel: ChannelId, chan: u32) {
        let before = self.presence.names.insert(channel, chan);
        if before.is_some_and(|it| it != chan) {
            self.fail("presence", format!("{channel:?} is channel {chan}, and was {before:?}"));
        }
    }

    /// A home pushes an event to some members of a topic; returns the number of the push.
    pub(crate) fn presence_pushes(&mut self, push: &SharedPush) -> u32 {
        let names = &self.presence.names;
        let known = |it: &ChannelId| names.get(it).copied().unwrap_or(NONE);
        let chans: Vec<u32> = push.channels().iter().map(known).collect();
        let first = chans.first().and_then(|it| self.chan(*it));
        let Some(topic) = first.map(|it| it.topic) else {
            self.fail("presence", format!("{push:?} is for nobody who has asked"));
            return NONE;
        };
        let says = |(event, text)| self.presence_says(topic, event, text, Some(&chans));
        let records = push.events().map(says).collect();
        self.presence.pushes.push((records, chans));
        self.presence.pushes.len() as u32 - 1
    }

    /// A home sends an event, to all members or to some; returns the number of the record.
    pub(crate) fn presence_says(
        &mut self,
        topic: u8,
        event: &str,
        text: &str,
        chans: Option<&[u32]>,
    ) -> u32 {
        let told = PresenceEvent::read(event, text);
        let Some((told, word)) = told.zip(letter_of(event)) else {
            self.fail("presence", format!("{event} {text}"));
            return NONE;
        };
        let count = match &told {
            PresenceEvent::Diff { .. } => "diffs of presence",
            PresenceEvent::State(_) => "lists pushed",
            PresenceEvent::Summary { .. } => "summaries",
        };
        self.counts.count(count, 1);
        let now_ns = self.now.ns;
        if let Err(wrong) = self.presence.check(topic, &told, chans.is_none(), now_ns) {
            self.fail("presence", format!("topic {topic}, {event} {text}: {wrong}"));
        }
        self.note(|| format!("topic {topic} tells {chans:?} (None: all) {event} {text}"));
        let list = self.presence.told.get(usize::from(topic)).and_then(|it| it.numbers.clone());
        self.presence.record(text, word, told, list)
    }

    /// A home posts a shard's answers to members that ask, or that there are none; their number.
    pub(crate) fn answers_go<'a>(
        &mut self,
        topic: u8,
        events: Option<impl Iterator<Item = (&'static str, &'a str)>>,
    ) -> u32 {
        let mut records = Vec::new();
        for (event, text) in events.into_iter().flatten() {
            let told = PresenceEvent::read(event, text);
            let Some((told, word)) = told.zip(letter_of(event)) else { continue };
            let is_right = match &told {
                PresenceEvent::State(metas) => metas.is_empty(),
                PresenceEvent::Summary { .. } => true,
                PresenceEvent::Diff { .. } => false,
            };
            if !is_right || self.presence.all.check(usize::from(topic), &told).is_err() {
                self.fail("presence", format!("topic {topic} has members told {event} {text}"));
            }
            records.push(self.presence.record(text, word, told, None));
        }
        self.note(|| format!("topic {topic} has members told who ask: {records:?}"));
        self.presence.answers.push((topic, records));
        self.presence.answers.len() as u32 - 1
    }

    pub(crate) fn keeps_answers(&mut self, shard: usize, number: u32) {
        let Some((topic, records)) = self.presence.answers.get(number as usize) else { return };
        let key = (shard, *topic);
        match records.as_slice() {
            [] => drop(self.presence.kept_answers.remove(&key)),
            records => drop(self.presence.kept_answers.insert(key, records.to_vec())),
        }
    }

    /// The answer of its own shard to a channel that asks for the list, if the shard has it.
    pub(super) fn answers_to(&self, chan: u32) -> Option<Vec<Action>> {
        let it = self.chan(chan)?;
        let shard = self.conn(it.conn)?.shard;
        let records = self.presence.kept_answers.get(&(shard, it.topic))?;
        let say = |&record: &u32| {
            let (said, word) = self.presence.said(record)?;
            Some(Action::Say { chan, word, said, record })
        };
        Some(records.iter().filter_map(say).collect())
    }

    pub(crate) fn pushes_to_some(&mut self, number: u32) {
        let Some((records, chans)) = self.presence.pushes.get(number as usize) else { return };
        let said = records.iter().filter_map(|record| {
            let (said, word) = self.presence.said(*record)?;
            Some((*record, said, word))
        });
        let say = |chan| {
            said.clone().map(move |(record, said, word)| Action::Say { chan, word, said, record })
        };
        let effects = chans.iter().flat_map(|&chan| say(chan)).collect();
        self.told_some(effects);
    }

    /// A home or an interceptor sends an event of presence, after what was accepted before this.
    pub(super) fn says_presence(&mut self, call: Call, effect: Action, seq: u64) {
        let Action::Say { chan, word, said, record } = effect else { return };
        let Some(it) = self.chan(chan).filter(|it| it.life == Life::Live) else { return };
        let (conn, topic, join_ref) = (it.conn, it.topic, it.join_ref);
        let line = Delivery::event(word, join_ref, said);
        if matches!(call, Call::HandleOut(_)) {
            return self.expect_out(conn, topic, line, seq, false);
        }
        if self.now.closing.contains(&conn) {
            return;
        }
        self.presence.heard = Some((chan, record)).filter(|_| record != NONE);
        self.say_behind(chan, line, seq);
        self.presence.heard = None;
    }

    /// Whether channels that end by a home's push come before its next receiver.
    pub(super) fn are_ending(&self, next: u32) -> bool {
        let has_channels = |it: &u32| self.conn(*it).is_some_and(|it| !it.channels.is_empty());
        self.now.ending.iter().any(|it| *it != next && self.is_live(*it))
            || self.now.closing.iter().any(has_channels)
    }

    /// The client of a channel receives an event, and applies it to its view.
    pub(super) fn presence_heard(&mut self, chan: u32, record: u32) {
        let records = &self.presence.records;
        let Some(Record { told, list, .. }) = records.get(record as usize) else { return };
        let Some(it) = self.chans.get_mut(chan as usize) else { return };
        // An interceptor may have got any part of what was broadcast in the step in which it ended.
        let is_blind = it.intercepts & (INTERCEPTS_DIFF | INTERCEPTS_STATE) != 0
            || (it.intercepts > 0 && it.life != Life::Live);
        let view = &mut it.view.view;
        view.receive(told);
        let list = list.as_ref().filter(|_| view.has_state && view.count.is_none() && !is_blind);
        if let Some(list) = list.filter(|it| view.sorted() != **it) {
            let text = format!("channel {chan} knows {view:?} after {told:?}, not {list:?}");
            self.fail("presence", text);
        }
    }

    /// A presence that a client or a shard does not know although everything is delivered.
    pub(crate) fn presence_unrest(&self, kept: u64, refused: u64) -> Option<String> {
        let Presence { all, config, perhaps, is_partial, .. } = &self.presence;
        if *is_partial {
            return None;
        }
        if kept != all.live() as u64 || !(all.refused..=all.refused + perhaps).contains(&refused) {
            let (live, expected) = (all.live(), all.refused);
            return Some(format!("{kept} of {live} presences, {refused} of {expected} refused"));
        }
        let topics = 0..self.topics.names.len();
        let lists: Vec<_> = topics.map(|it| (all.of(it), all.size(it).1)).collect();
        let chans = self.chans.iter().enumerate().filter(|(_, it)| it.life == Life::Live);
        let is_wrong = |(_, chan): &(usize, &super::Chan)| {
            let is_there = |it: &Conn| it.is_open && !it.is_lost;
            let is_blind = chan.intercepts & (INTERCEPTS_DIFF | INTERCEPTS_STATE) != 0;
            let list = lists.get(usize::from(chan.topic));
            let Some((list, bytes)) = list.filter(|_| !is_blind) else { return false };
            if !self.conn(chan.conn).is_some_and(is_there) {
                return false;
            }
            let View { view, has_asked } = &chan.view;
            let (len, max) = (list.len(), config.list_max);
            // Each state has some more bytes on the wire than in its meta.
            let may_be_long =
                len > max - max / 10 || bytes + 100 * len > self.presence.bytes_max / 2;
            let is_right = match view.count {
                Some(count) => count == len && may_be_long,
                None if view.has_state => view.sorted() == *list && len <= max,
                None => !has_asked,
            };
            !is_right
        };
        let (number, chan) = chans.into_iter().find(is_wrong)?;
        let list = lists.get(usize::from(chan.topic));
        Some(format!("channel {number} knows {:?} of {list:?}", chan.view))
    }

    /// Checks the answer to a question from outside.
    pub(crate) fn presence_answers(&mut self, topic: u8, json: &str) {
        self.counts.count("lists asked for outside", 1);
        let told = PresenceEvent::read("presence_state", json);
        let all = &mut self.presence.all;
        if told.is_none_or(|it| all.check(usize::from(topic), &it).is_err()) {
            self.fail("presence", format!("topic {topic} is answered with {json}"));
        }
    }
}
