//! Presence (PROTOCOL §10): channels' effects, homes' events, and clients' views, as in phoenix.js.

use std::collections::{HashMap, VecDeque};

use crate::kit::delivery::Delivery;
use crate::kit::presence::{EVENTS, KEYS, Meta, PhxRef, PresenceEvent, letter_of};
use crate::kit::{NONE, payload};
use simurgh_core::{ChannelId, Reason, SharedPush};

use super::home::{Room, Rules};
use super::{Action, Call, Life, Model};

/// Numbers of the events among those of broadcasts, by their order in [`EVENTS`].
const FIRST: u8 = 50;
/// Bits of [`Chan::intercepts`](super::Chan::intercepts) besides the number of other events.
pub(crate) const INTERCEPTS_DIFF: u8 = 4;
pub(crate) const INTERCEPTS_STATE: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresenceAction {
    Track(u8, u32),
    Update(u8, u32),
    Untrack(u8),
    Ask,
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) topic: u8,
    /// `None` for a question from outside.
    pub(crate) does: Option<(u32, PresenceAction)>,
}

/// An event of presence, recorded once for all receivers.
#[derive(Debug)]
struct Record {
    said: u32,
    word: u8,
    /// The version of the home before it; `None` if a shard sends it by itself.
    version: Option<u32>,
    told: PresenceEvent,
}

#[derive(Debug, Default)]
pub(crate) struct View {
    /// Whether its topic's home knows it and has to be notified of its end, and whether it was.
    tracks: bool,
    has_ended: bool,
    is_named: bool,
    is_synced: bool,
    numbers: Vec<u32>,
    pending: Vec<u32>,
    version: u32,
    count: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Presence {
    pub(crate) rules: Rules,
    pub(crate) rooms: Vec<Room>,
    pub(crate) posted: Vec<Posted>,
    /// Pushes for several channels: their records and their receivers.
    pushes: Vec<(Vec<u32>, Vec<u32>)>,
    records: Vec<Record>,
    /// The answers of shards to members that ask, by topic: as posted, and as in use.
    answers: Vec<(u8, Vec<u32>)>,
    kept_answers: HashMap<(usize, u8), Vec<u32>>,
    names: HashMap<ChannelId, u32>,
    numbers: HashMap<PhxRef, u32>,
    refs: Vec<Option<PhxRef>>,
    sizes: Vec<usize>,
    /// What has to be posted in the current step, and whether it may be left out.
    due: VecDeque<(u32, PresenceAction, bool)>,
    /// Channels that have ended in the step, or for which an end was posted.
    parted: Vec<u32>,
    telling: Vec<u8>,
    /// By shard: the entries that it keeps, and how many were refused there.
    pub(crate) kept: Vec<u64>,
    pub(crate) refused: Vec<u64>,
    ended: Vec<bool>,
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
    pub(crate) fn new(rules: Rules, topics: usize, shards: usize) -> Self {
        let rooms = (0..topics).map(|_| Room::default()).collect();
        let counts = vec![0; shards];
        let ended = vec![false; shards];
        Self { rules, rooms, kept: counts.clone(), refused: counts, ended, ..Self::default() }
    }

    pub(crate) fn next_number(&mut self) -> u32 {
        self.refs.push(None);
        self.sizes.push(0);
        self.refs.len() as u32 - 1
    }

    pub(crate) fn weigh(&mut self, number: u32, bytes: usize) {
        self.sizes[number as usize] = bytes;
    }

    /// The number of a broadcast's payload, and the letter of its event.
    pub(super) fn said(&self, record: u32) -> Option<(u32, u8)> {
        self.records.get(record as usize).map(|it| (it.said, it.word))
    }

    fn record(&mut self, text: &str, word: u8, version: Option<u32>, told: PresenceEvent) -> u32 {
        let said = payload::said(text.as_bytes());
        self.records.push(Record { said, word, version, told });
        self.records.len() as u32 - 1
    }

    /// Checks that states and refs map one to one.
    fn name_states(&mut self, told: &PresenceEvent) -> Result<(), String> {
        for Meta { number, phx_ref, .. } in told.metas() {
            let Some(place) = self.refs.get_mut(*number as usize) else {
                return Err(format!("tells of {number}, which nobody has"));
            };
            let known = *place.get_or_insert(*phx_ref);
            let owner = *self.numbers.entry(*phx_ref).or_insert(*number);
            if known != *phx_ref || owner != *number {
                return Err(format!("{number} and {owner} share a phx_ref, or one has two"));
            }
        }
        Ok(())
    }

    pub(crate) fn unrest(&self, is_live: &impl Fn(u32) -> bool) -> Option<String> {
        let rooms = self.rooms.iter().filter(|it| it.home.is_some() && !it.is_gone);
        let what = rooms.filter_map(|it| it.unrest(&self.rules, is_live)).next()?;
        Some(format!("a topic has not told {what}"))
    }

    pub(crate) fn home_ends(&mut self, shard: usize) {
        self.ended[shard] = true;
        for room in self.rooms.iter_mut().filter(|it| it.home == Some(shard)) {
            let home = room.home;
            *room = Room::default();
            (room.home, room.is_gone) = (home, true);
        }
    }

    pub(super) fn restart(&mut self) {
        self.rooms.iter_mut().for_each(|it| *it = Room::default());
        self.kept.fill(0);
        self.refused.fill(0);
        self.ended.fill(false);
        self.names.clear();
        self.kept_answers.clear();
    }
}

impl Model {
    /// A callback changes its channel's presences: the core has to post that to the topic's home.
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
        let is_seeing = matches!(call, Call::HandleOut(_));
        if !is_closing || is_seeing {
            // It may be catching up before its socket closes for another reason.
            self.presence.due.push_back((chan, does, is_closing));
        }
    }

    pub(crate) fn presence_posted(
        &mut self,
        channel: ChannelId,
        topic: Option<u8>,
        home: usize,
        does: PresenceAction,
    ) -> u32 {
        let chan = match does {
            PresenceAction::End => self.presence.names.get(&channel).copied(),
            _ => self.due_of(channel, does),
        };
        let its_topic = chan.and_then(|it| self.chan(it)).map(|it| it.topic);
        let (Some(chan), true) = (chan, its_topic == topic) else {
            self.fail("presence", format!("{does:?} of {channel:?} on {topic:?}, for {chan:?}"));
            return NONE;
        };
        if let Some(view) = self.chan_mut(chan).map(|it| &mut it.view) {
            view.tracks = true;
            if does == PresenceAction::End && std::mem::replace(&mut view.has_ended, true) {
                self.fail("presence", format!("channel {chan} ends twice"));
            }
        }
        if does == PresenceAction::End {
            self.presence.parted.push(chan);
        }
        self.presence_goes(topic.unwrap_or_default(), home, Some((chan, does)))
    }

    pub(crate) fn presence_names(&mut self, channel: ChannelId, chan: u32) {
        let before = self.presence.names.insert(channel, chan);
        if before.is_some_and(|it| it != chan) {
            self.fail("presence", format!("{channel:?} is channel {chan}, and was {before:?}"));
        }
        self.chans[chan as usize].view.is_named = true;
    }

    fn due_of(&mut self, channel: ChannelId, does: PresenceAction) -> Option<u32> {
        while let Some((chan, next, may_fail)) = self.presence.due.pop_front() {
            // The effect of another channel, left out because its socket closes, may look the same.
            // Only a channel without effects since its join function is unknown.
            let is_named = self.chan(chan).is_some_and(|it| it.view.is_named);
            let known = match self.presence.names.get(&channel) {
                Some(known) => *known,
                None if is_named => NONE,
                None => chan,
            };
            if next == does && known == chan {
                self.presence_names(channel, chan);
                return Some(chan);
            }
            if !may_fail {
                self.fail("presence", format!("{does:?} of {known} where {next:?} is next"));
                return None;
            }
        }
        None
    }

    /// A mail to the home of a topic, which stays the same.
    pub(crate) fn presence_goes(
        &mut self,
        topic: u8,
        home: usize,
        does: Option<(u32, PresenceAction)>,
    ) -> u32 {
        let has_ended = self.presence.ended.get(home).copied().unwrap_or(true);
        let Some(room) = self.presence.rooms.get_mut(usize::from(topic)) else { return NONE };
        room.is_gone |= has_ended;
        room.questions += usize::from(does.is_none() && !room.is_gone);
        let known = *room.home.get_or_insert(home);
        if known != home {
            self.fail("presence", format!("topic {topic} is kept by {home}, not {known}"));
        }
        self.presence.posted.push(Posted { topic, does });
        self.presence.posted.len() as u32 - 1
    }

    pub(crate) fn presence_came(&mut self, shard: usize, number: u32) {
        let Presence { posted, rooms, rules, kept, refused, sizes, .. } = &mut self.presence;
        let size = |number: u32| sizes.get(number as usize).copied().unwrap_or_default();
        let Some(Posted { topic, does }) = posted.get(number as usize).copied() else { return };
        let Some(room) = rooms.get_mut(usize::from(topic)) else { return };
        let Some((chan, does)) = does else { return };
        let before = room.entries.len();
        let is_taken = match does {
            PresenceAction::Track(key, number) => {
                let entries_max = rules.config.channel_entries_max;
                room.track(chan, key, (number, size(number)), entries_max)
            }
            PresenceAction::Update(key, number) => room.update(chan, key, (number, size(number))),
            PresenceAction::Untrack(key) => room.untrack(chan, key),
            PresenceAction::Ask => {
                room.ask(chan);
                true
            }
            PresenceAction::End => {
                room.end(chan);
                true
            }
        };
        let (after, counts) = (room.entries.len(), &mut self.findings.counts);
        counts.count("presences", u64::from(is_taken && matches!(does, PresenceAction::Track(..))));
        counts.count("presences refused", u64::from(!is_taken));
        if let (Some(kept), Some(refused)) = (kept.get_mut(shard), refused.get_mut(shard)) {
            *kept = (*kept + after as u64).saturating_sub(before as u64);
            *refused += u64::from(!is_taken);
        }
        self.note(|| format!("home {shard} hears of channel {chan}: {does:?}, taken: {is_taken}"));
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
        let now_ns = self.now.ns;
        let told = PresenceEvent::read(event, text);
        let Some((told, word)) = told.zip(letter_of(event)) else {
            self.fail("presence", format!("{event} {text}"));
            return NONE;
        };
        let named = self.presence.name_states(&told);
        let Presence { rooms, rules, refs, .. } = &mut self.presence;
        let Some(room) = rooms.get_mut(usize::from(topic)) else { return NONE };
        let ref_of = |number: u32| refs.get(number as usize).copied().flatten();
        let (was_summary, counts) = (room.is_summary, &mut self.findings.counts);
        let is_right = named.and_then(|()| match (&told, chans) {
            (PresenceEvent::Diff { joins, leaves }, None) => {
                counts.count("diffs of presence", 1);
                room.says_diff(joins, leaves, rules, now_ns, ref_of)
            }
            (PresenceEvent::State(metas), None) => room.says_state(metas, rules, now_ns),
            (PresenceEvent::State(metas), Some(chans)) => {
                counts.count("lists pushed", 1);
                room.says_state_to(metas, chans, rules)
            }
            (PresenceEvent::Summary { count, keys, sample }, _) => {
                counts.count("summaries", 1);
                room.says_summary((*count, *keys, sample), chans, rules, now_ns)
            }
            (PresenceEvent::Diff { .. }, Some(_)) => Err("tells a diff to some".to_owned()),
        });
        counts.count(
            "changes between lists and summaries",
            u64::from(was_summary != room.is_summary),
        );
        let version = room.version;
        if let Err(wrong) = is_right {
            let context = room.said(&told);
            self.fail("presence", format!("topic {topic} {wrong}: {context}"));
        }
        self.note(|| format!("topic {topic} tells {chans:?} (None: all) {event} {text}"));
        self.presence.telling.push(topic);
        self.presence.record(text, word, Some(version), told)
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
            let named = self.presence.name_states(&told);
            let Presence { rooms, rules, .. } = &self.presence;
            let room = rooms.get(usize::from(topic));
            let is_right = room.is_some_and(|it| it.is_answer(&told, rules));
            if !is_right || named.is_err() {
                self.fail("presence", format!("topic {topic} has members told {event} {text}"));
            }
            records.push(self.presence.record(text, word, None, told));
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

    /// A channel ends: its home, if it has the channel, must be notified in this step.
    pub(super) fn presence_ends(&mut self, chan: u32) {
        if self.chan(chan).is_some_and(|it| it.view.tracks) {
            self.presence.parted.push(chan);
        }
    }

    pub(super) fn check_presence(&mut self) {
        if let Some((chan, does, _)) = self.presence.due.iter().find(|(.., may_fail)| !may_fail) {
            self.findings
                .fail("presence", format!("{does:?} of channel {chan} has not been posted"));
        }
        self.presence.due.clear();
        while let Some(chan) = self.presence.parted.pop() {
            let has_ended = self.chan(chan).is_some_and(|it| it.view.has_ended);
            if self.is_live(chan) == has_ended {
                let text = format!("channel {chan}: its home is told of its end: {has_ended}");
                self.fail("presence", text);
            }
        }
        while let Some(topic) = self.presence.telling.pop() {
            if self.presence.rooms.get(usize::from(topic)).is_some_and(Room::is_owed) {
                self.fail("presence", format!("topic {topic} does not tell its number"));
            }
        }
    }

    /// The client of a channel receives an event, and applies it to its view.
    pub(super) fn presence_heard(&mut self, chan: u32, record: u32) {
        let records = &self.presence.records;
        let Some(Record { version, told, .. }) = records.get(record as usize) else { return };
        let Some(view) = self.chans.get_mut(chan as usize).map(|it| &mut it.view) else { return };
        let is_late = version.is_some_and(|version| match told {
            PresenceEvent::Diff { .. } => version <= view.version,
            PresenceEvent::State(_) => version < view.version,
            PresenceEvent::Summary { .. } => false,
        });
        view.version = version.map_or(view.version, |it| it.max(view.version));
        match told {
            PresenceEvent::Summary { count, .. } => view.count = Some(*count),
            PresenceEvent::Diff { .. } if !view.is_synced => view.pending.push(record),
            PresenceEvent::Diff { .. } => told.apply_to(&mut view.numbers),
            PresenceEvent::State(_) => {
                view.is_synced = true;
                told.apply_to(&mut view.numbers);
                for record in std::mem::take(&mut view.pending) {
                    if let Some(it) = records.get(record as usize) {
                        it.told.apply_to(&mut view.numbers);
                    }
                }
            }
        }
        if is_late {
            self.fail("presence", format!("channel {chan} hears what is older than a diff before"));
        }
    }

    /// Everything was sent: clients that have received the list have all presences.
    pub(super) fn presence_rests(&mut self) {
        let mut wrong = None;
        for (at, chan) in self.chans.iter().enumerate().filter(|(_, it)| it.life == Life::Live) {
            let is_there = self.conn(chan.conn).is_some_and(|it| it.is_open && !it.is_lost);
            let is_blind = chan.intercepts & (INTERCEPTS_DIFF | INTERCEPTS_STATE) != 0;
            let Some(room) = self.presence.rooms.get(usize::from(chan.topic)) else { continue };
            if !is_there || is_blind || room.home.is_none() || room.is_gone {
                continue;
            }
            let View { is_synced, numbers, count, .. } = &chan.view;
            let is_right = match room.is_summary {
                true => count.is_none_or(|it| it == room.entries.len()),
                false => !is_synced || room.is_known(numbers),
            };
            if !is_right {
                wrong = Some(format!(
                    "channel {at} knows {numbers:?}, {count:?} (summary: {}) of {:?}",
                    room.is_summary, room.entries
                ));
                break;
            }
        }
        if let Some(text) = wrong {
            return self.fail("presence", text);
        }
        self.presence.rooms.iter_mut().for_each(Room::rests);
    }

    /// Checks the answer to a question from outside.
    pub(crate) fn presence_answers(&mut self, topic: u8, counts: (usize, usize), json: &str) {
        self.counts.count("lists asked for outside", 1);
        let told = PresenceEvent::read("presence_state", json);
        let named = told.as_ref().map_or(Ok(()), |it| self.presence.name_states(it));
        let Presence { rooms, rules, .. } = &mut self.presence;
        let Some(room) = rooms.get_mut(usize::from(topic)) else { return };
        let answered = match &told {
            Some(PresenceEvent::State(metas)) => room.answers(counts, metas, rules),
            _ => Err(format!("answers {json}")),
        };
        if let Err(wrong) = named.and(answered) {
            self.fail("presence", format!("topic {topic} {wrong}: {json}"));
        }
    }
}

pub(crate) fn key_of(text: &str) -> u8 {
    KEYS.iter().position(|it| *it == text).unwrap_or(KEYS.len()) as u8
}
