//! The presences of the topics that a shard keeps, and when their members hear of them.
//!
//! A topic's changes are gathered for an interval and told as one `presence_diff`, the first after
//! a quiet while at once. Whoever asked for the list meanwhile shares one `presence_state`, as it
//! was when that diff was made; it reaches them in portions, a turn each, and always before the
//! next diff: what a client makes of both is what stands here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use simurgh_presence::{Owner, PhxRefs, Table};

use super::call::{PresenceCall, PresenceConfig, PresenceList, SharedEvent};
use super::say::Say;
use crate::clock::nanoseconds;
use crate::id::ChannelId;

/// What an entry adds to its key and meta, in a list: its ref, and what it replaced.
const ENTRY_BYTES: usize = 96;

/// A list that is empty.
const NOBODY: &str = "{}";

/// The presences of the topics that a shard keeps.
pub(crate) struct Home {
    owner: Owner,
    /// Nobody's to guess.
    seed: u64,
    /// No two of its refs are alike, also if nobody was present in between.
    refs: PhxRefs,
    topics: HashMap<Rc<str>, Topic>,
    /// When topics are to be looked at; one that has been meanwhile is passed over.
    due: BinaryHeap<Reverse<(u64, Rc<str>)>>,
    /// Entries of all topics.
    entries: usize,
}

struct Topic {
    table: Table<ChannelId>,
    /// Who wants the list, from the next time on that changes are told.
    asking: VecDeque<ChannelId>,
    /// The list as it was then, and who is still to get it.
    state: Option<Arc<[SharedEvent]>>,
    getting: VecDeque<ChannelId>,
    /// Whether somebody has got it already.
    is_shared: bool,
    /// When changes were told last.
    told_ns: Option<u64>,
    due_ns: Option<u64>,
    is_summary: bool,
    /// The number that all members know, if all know one, and when they were told.
    summary: (Option<usize>, u64),
}

/// What was made of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// It has as many as it may have, or the key is tracked already, or not.
    Refused,
}

impl Home {
    /// One without presences.
    pub(crate) fn new(owner: Owner, seed: u64) -> Self {
        let (topics, due) = (HashMap::new(), BinaryHeap::new());
        Self { owner, seed, refs: PhxRefs::new(owner), topics, due, entries: 0 }
    }

    /// Entries of all topics.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Whether nobody is present anywhere and nothing is to be told.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Does what a channel wants done.
    pub(super) fn call(
        &mut self,
        name: &str,
        (channel, call): (ChannelId, PresenceCall),
        config: &PresenceConfig,
        now_ns: u64,
    ) -> Taken {
        if !self.topics.contains_key(name) {
            match call {
                PresenceCall::End => return Taken::Yes,
                // There is nothing to be changed.
                PresenceCall::Untrack(_) | PresenceCall::Update(..) => return Taken::Refused,
                PresenceCall::Track(..) | PresenceCall::PushState => {}
            }
            self.topics.insert(name.into(), Topic::new(self.owner, self.seed));
        }
        let Some(topic) = self.topics.get_mut(name) else { return Taken::Refused };
        let before = topic.table.len();
        let refs = &mut self.refs;
        let is_taken = topic.call(channel, call, config, || refs.next(now_ns / 1000));
        self.entries = self.entries + topic.table.len() - before;
        self.look_soon(name, config, now_ns);
        if is_taken { Taken::Yes } else { Taken::Refused }
    }

    /// Who is present.
    pub(super) fn list(&self, name: &str, config: &PresenceConfig, seed: u64) -> PresenceList {
        let Some(topic) = self.topics.get(name) else {
            return PresenceList { json: NOBODY.into(), ..PresenceList::default() };
        };
        let (entries, keys) = (topic.table.len(), topic.table.keys());
        // Not as members are shown it: they would be told of all that came and went since.
        let keys_max = if entries > config.list_max { config.sample } else { keys };
        PresenceList { entries, keys, json: topic.sample(keys_max, seed) }
    }

    /// When a topic is to be looked at next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// The next topic whose time has come, if there is one.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Rc<str>> {
        while self.next_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            let Reverse((due_ns, name)) = self.due.pop()?;
            if let Some(topic) = self.topics.get_mut(&name)
                && topic.due_ns == Some(due_ns)
            {
                topic.due_ns = None;
                return Some(name);
            }
        }
        None
    }

    /// What members of a topic whose time has come are to hear; payloads may have so many bytes.
    pub(super) fn tell(
        &mut self,
        name: &str,
        config: &PresenceConfig,
        bytes_max: usize,
        now_ns: u64,
    ) -> Vec<Say> {
        let mut said = Vec::new();
        let Some(topic) = self.topics.get_mut(name) else { return said };
        if topic.next_ns(config).is_some_and(|next_ns| next_ns <= now_ns) {
            topic.tell(config, bytes_max, now_ns, &mut said);
        }
        topic.hand_out(config, &mut said);
        if topic.is_done() {
            self.topics.remove(name);
            if self.topics.is_empty() {
                // What a crowd needed is given back.
                (self.topics, self.due) = (HashMap::new(), BinaryHeap::new());
            }
        } else {
            self.look_soon(name, config, now_ns);
        }
        said
    }

    /// Puts off a topic whose time has come.
    pub(super) fn put_off(&mut self, name: Rc<str>, until_ns: u64) {
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.due_ns = Some(until_ns);
            self.due.push(Reverse((until_ns, name)));
        }
    }

    fn look_soon(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        let Some((name, topic)) = self.topics.get_key_value(name) else { return };
        let next_ns = match topic.getting.is_empty() {
            true => topic.next_ns(config),
            // In the next turn.
            false => Some(now_ns + 1),
        };
        let Some(next_ns) = next_ns else { return };
        if topic.due_ns.is_none_or(|due_ns| next_ns < due_ns) {
            let name = Rc::clone(name);
            self.put_off(name, next_ns);
        }
    }
}

impl Topic {
    fn new(owner: Owner, seed: u64) -> Self {
        Self {
            table: Table::alone(owner, seed),
            asking: VecDeque::new(),
            state: None,
            getting: VecDeque::new(),
            is_shared: false,
            told_ns: None,
            due_ns: None,
            is_summary: false,
            summary: (None, 0),
        }
    }

    fn call(
        &mut self,
        channel: ChannelId,
        call: PresenceCall,
        config: &PresenceConfig,
        new_ref: impl FnOnce() -> simurgh_presence::PhxRef,
    ) -> bool {
        let table = &mut self.table;
        match call {
            PresenceCall::Track(..) if table.tracked(channel) >= config.channel_entries_max => {
                false
            }
            PresenceCall::Track(key, meta) => table.track(channel, &key, meta, new_ref()).is_ok(),
            PresenceCall::Update(key, meta) => table.update(channel, &key, meta, new_ref()).is_ok(),
            PresenceCall::Untrack(key) => table.untrack(channel, &key),
            PresenceCall::End => {
                table.untrack_all(channel);
                true
            }
            PresenceCall::PushState => {
                // Twice in one interval is the same list.
                if self.asking.back() != Some(&channel) {
                    self.asking.push_back(channel);
                }
                true
            }
        }
    }

    /// When there is something to be told.
    fn next_ns(&self, config: &PresenceConfig) -> Option<u64> {
        let after = |time_ns: u64, pause| Some(time_ns.saturating_add(nanoseconds(pause)));
        let told_ns = self.told_ns.map_or(Some(0), |told_ns| after(told_ns, config.interval));
        let (counted, counted_ns) = self.summary;
        if self.is_summary && self.asking.is_empty() {
            // Who has said something else may have made the list short enough.
            let is_same = counted == Some(self.table.len()) && !self.table.has_changes();
            return match is_same {
                true => None,
                false => after(counted_ns, config.summary_interval).max(told_ns),
            };
        }
        if !self.table.has_changes() && self.asking.is_empty() && !self.table.is_empty() {
            return None;
        }
        told_ns
    }

    /// Tells what has changed since the last time.
    fn tell(
        &mut self,
        config: &PresenceConfig,
        bytes_max: usize,
        now_ns: u64,
        said: &mut Vec<Say>,
    ) {
        // Whoever has not got the last list yet gets this one.
        self.asking.extend(self.getting.drain(..));
        self.state = None;
        self.told_ns = Some(now_ns);
        let was_summary = self.is_summary;
        self.is_summary = self.is_too_long(config, bytes_max);
        let diff = self.table.take_diff();
        if self.is_summary {
            return self.tell_summary(was_summary, config, now_ns, said);
        }
        let diff = diff.map(|diff| {
            let mut json = Vec::with_capacity(diff.encoded_bytes());
            diff.encode(&mut json);
            text(json)
        });
        // From a sample back to a list, or by more than fits: everybody gets it anew.
        let is_oversize = diff.as_ref().is_some_and(|diff| diff.len() > bytes_max);
        if was_summary || is_oversize {
            self.asking.clear();
            if !was_summary {
                // A client without a list adds the diffs that it has kept to the first it gets,
                // also what has left since.
                said.push(Say::All("presence_state", NOBODY.into()));
            }
            return said.push(Say::All("presence_state", self.list()));
        }
        said.extend(diff.map(|diff| Say::All("presence_diff", diff)));
        if !self.asking.is_empty() {
            self.state = Some([("presence_state", self.list().into())].into());
            self.is_shared = false;
            self.getting = std::mem::take(&mut self.asking);
        }
    }

    /// Whether there are more entries than a list takes, or more bytes than a reader does. A tenth
    /// less than makes it one ends it, or it would change to and fro.
    fn is_too_long(&self, config: &PresenceConfig, bytes_max: usize) -> bool {
        let limit = |max: usize| if self.is_summary { max - max / 10 } else { max };
        let entries = self.table.len();
        let entry_max = config.meta_bytes_max + 2 * config.key_bytes_max + ENTRY_BYTES;
        entries > limit(config.list_max)
            || (entries.saturating_mul(entry_max) > limit(bytes_max)
                && self.table.state_bytes() > limit(bytes_max))
    }

    /// In place of a list that is too long: an empty one, so that nobody keeps an old one, and how
    /// many there are.
    fn tell_summary(
        &mut self,
        was_summary: bool,
        config: &PresenceConfig,
        now_ns: u64,
        said: &mut Vec<Say>,
    ) {
        let asking: Vec<ChannelId> = std::mem::take(&mut self.asking).into();
        let mut to_asking: Vec<SharedEvent> = Vec::new();
        if !was_summary {
            said.push(Say::All("presence_state", NOBODY.into()));
        } else if !asking.is_empty() {
            to_asking.push(("presence_state", NOBODY.into()));
        }
        let (counted, counted_ns) = self.summary;
        let is_due = now_ns.saturating_sub(counted_ns) >= nanoseconds(config.summary_interval);
        let summary = self.summary(config, now_ns);
        let mut to_all = None;
        let is_known = counted == Some(self.table.len());
        if !was_summary || (is_due && !is_known) {
            self.summary = (Some(self.table.len()), now_ns);
            to_all = Some(Say::All("presence_summary", summary));
        } else if !asking.is_empty() {
            // Even if it soon is again what the others know: these are to hear of it.
            self.summary.0 = counted.filter(|_| is_known);
            to_asking.push(("presence_summary", summary.into()));
        }
        if !to_asking.is_empty() {
            said.push(Say::Some(to_asking.into(), asking));
        }
        said.extend(to_all);
    }

    /// The next portion of those who are to get the list.
    fn hand_out(&mut self, config: &PresenceConfig, said: &mut Vec<Say>) {
        let Some(state) = self.state.clone().filter(|_| !self.getting.is_empty()) else { return };
        let bytes = state.iter().map(|(_, json)| json.len()).sum::<usize>();
        let count = (config.turn_bytes / bytes.max(1)).clamp(1, self.getting.len());
        let channels = self.getting.drain(..count).collect();
        if self.getting.is_empty() {
            (self.state, self.getting) = (None, VecDeque::new());
        }
        said.push(match std::mem::replace(&mut self.is_shared, true) {
            false => Say::Some(state, channels),
            true => Say::Again(state, channels),
        });
    }

    /// Whether nothing of it is left to be kept or told.
    fn is_done(&self) -> bool {
        self.table.is_empty()
            && !self.table.has_changes()
            && self.asking.is_empty()
            && self.getting.is_empty()
    }

    fn list(&mut self) -> String {
        let mut json = Vec::new();
        self.table.encode_state(&mut json);
        text(json)
    }

    fn sample(&self, keys_max: usize, seed: u64) -> String {
        let mut json = Vec::new();
        self.table.encode_sample(keys_max, seed, &mut json);
        text(json)
    }

    fn summary(&self, config: &PresenceConfig, seed: u64) -> String {
        let (count, keys) = (self.table.len(), self.table.keys());
        let sample = self.sample(config.sample, seed);
        format!("{{\"count\":{count},\"keys\":{keys},\"sample\":{sample}}}")
    }
}

/// Encoders write keys and metas, which are text.
fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap_or_else(|_| NOBODY.into())
}
