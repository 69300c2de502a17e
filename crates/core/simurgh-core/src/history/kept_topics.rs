//! The topics whose histories a shard keeps.

use crate::seeded_state::HashSet;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use core::hash::BuildHasher;
use simurgh_data::prelude::*;

use simurgh_channel::{
    Broadcast, HistoryConfig, HistoryPage, HistoryRule, HistoryTopic, HistoryTopics, Kept,
    KeptMark, Missed, MissedRequest, Range,
};
use simurgh_history::{
    Dropped, Epoch, GapReason, Ids, KeptTopic, Limits, Place, Position, Ring, Since, Stored,
};
use simurgh_proto::topic::Pattern;

use super::answer::{ANSWERS_MAX, Request, missed, page};
use super::content::value;
use super::holdings::{Holdings, is_same};
use super::last_positions::LastPositions;
use crate::name_table::NameTable;
use crate::seeded_state::SeededState;

/// Bytes that a topic takes in addition to its name and messages: its record, its places in the
/// tables, and the allocator's overhead.
const TOPIC_BYTES: usize = 240;
/// In [`Slot::filled_at`]: not listed as having messages.
const NOT_FILLED: u32 = u32::MAX;

/// The topics whose histories a shard keeps.
#[derive(derive_more::Debug)]
#[debug("KeptTopics {{ topics: {}, .. }}", by_name.len())]
pub struct KeptTopics {
    /// The first rule that matches a topic counts.
    pub(super) rules: Vec<(Pattern, HistoryRule)>,
    /// There is a rule, or was one: mail for it may still be on its way.
    pub(super) has_rules: bool,
    /// Secret: it keys the table of names.
    pub(super) seed: u64,
    /// A broker assigns the numbers: topics stay while they are followed.
    pub(super) has_engine_numbers: bool,
    pub(super) by_name: NameTable<u32>,
    pub(super) slots: Vec<Option<Box<Slot>>>,
    /// The lowest slots are used first, so that the last can be freed.
    pub(super) free: BinaryHeap<Reverse<u32>>,
    /// The last place assigned in any topic. A topic that was forgotten continues behind it, so
    /// that no number is repeated.
    pub(super) clock: Place,
    pub(super) forgotten: LastPositions,
    /// The last place of topics that were forgotten because there were too many.
    pub(super) evicted_through: Place,
    /// Bytes of topics in addition to their messages.
    pub(super) own_bytes: u64,
    /// Bytes of topics that one client alone has made and filled.
    pub(super) holdings: Holdings,
    pub(super) messages: usize,
    pub(super) bytes: u64,
    /// Counts of messages that are not kept any more, or never were.
    dropped: Dropped,
    pub(super) too_large: u64,
    /// The slots of topics with messages, and perhaps some that have become empty.
    pub(super) filled: Vec<u32>,
    pub(super) sweep_slot: usize,
    pub(super) forget_slot: usize,
    pub(super) evict_next: usize,
    pub(super) events: HashSet<Arc<str>, SeededState>,
    pub(super) last: Vec<(Request, Arc<Missed>)>,
}

pub(super) struct Slot {
    pub(super) name: Rc<str>,
    pub(super) topic: KeptTopic<Kept>,
    pub(super) used_ms: u64,
    /// The client that made the topic, while nobody else has published on it; 0: of all.
    pub(super) client: u64,
    /// Bytes of it that count in its client's holding.
    pub(super) counted: u64,
    /// Its place among the topics with messages.
    pub(super) filled_at: u32,
}

impl Slot {
    /// Counts it as large as it is now.
    pub(super) fn count(&mut self, holdings: &mut Holdings) {
        let bytes = own_bytes(&self.name) + self.topic.ring().bytes();
        holdings.count(self.client, &mut self.counted, bytes);
    }
}

pub(super) fn name_at(slots: &[Option<Box<Slot>>], at: u32) -> Option<&str> {
    Some(&slots.get(at as usize)?.as_ref()?.name)
}

/// The hash of the name at a place.
pub(super) fn hash_at(by: &SeededState, slots: &[Option<Box<Slot>>], at: u32) -> u64 {
    by.hash_one(name_at(slots, at).unwrap_or_default())
}

impl KeptTopics {
    pub(super) fn new(rules: Vec<(Pattern, HistoryRule)>, epoch: Epoch, seed: u64) -> Self {
        Self {
            has_rules: !rules.is_empty(),
            rules,
            seed,
            has_engine_numbers: false,
            by_name: NameTable::new(seed),
            slots: Vec::new(),
            free: BinaryHeap::new(),
            clock: Place::ZERO,
            forgotten: LastPositions::new(epoch, seed),
            evicted_through: Place::ZERO,
            own_bytes: 0,
            holdings: Holdings::default(),
            messages: 0,
            bytes: 0,
            dropped: Dropped::default(),
            too_large: 0,
            filled: Vec::new(),
            sweep_slot: 0,
            forget_slot: 0,
            evict_next: 0,
            events: HashSet::with_hasher(SeededState::new(seed)),
            last: Vec::new(),
        }
    }

    pub(super) fn place(&self, name: &str) -> Option<u32> {
        self.by_name.find(name, |at| name_at(&self.slots, *at) == Some(name)).copied()
    }

    pub(super) fn slot_mut(&mut self, topic: &str) -> Option<&mut Slot> {
        let at = self.place(topic)?;
        self.slots.get_mut(at as usize)?.as_deref_mut()
    }

    /// Whether several clients have published on a topic, or none alone.
    pub(super) fn is_of_all(&self, topic: &str) -> bool {
        let slot = self.place(topic).and_then(|at| self.slots.get(at as usize)?.as_ref());
        slot.is_some_and(|slot| slot.client == 0)
    }

    pub(super) fn rule(&self, topic: &str) -> Option<&HistoryRule> {
        let found = self.rules.iter().find(|(pattern, _)| pattern.matches(topic));
        found.map(|(_, rule)| rule)
    }

    pub(super) fn has_rules(&self) -> bool {
        self.has_rules
    }

    pub(super) fn counts(&self) -> (usize, usize, u64) {
        (self.by_name.len(), self.messages, self.bytes)
    }

    /// Counts since the beginning; and messages that were too large.
    pub(super) fn losses(&self) -> (Dropped, u64) {
        (self.dropped, self.too_large)
    }

    /// Keeps a broadcast at the next place of its topic. Returns it as it is passed on, unless one
    /// with the same id was kept before.
    pub(super) fn store(
        &mut self,
        mut broadcast: Broadcast,
        id: Option<&str>,
        sender: u64,
        client: u64,
        now_ms: u64,
    ) -> (Position, Option<Arc<Broadcast>>) {
        let limits = self.limits(&broadcast.topic);
        let at = self.open(&broadcast.topic, client);
        let events = &mut self.events;
        let Some(Some(slot)) = self.slots.get_mut(at as usize) else {
            return (self.now_at(&broadcast.topic), None);
        };
        slot.used_ms = now_ms;
        if !is_same(slot.client, client) {
            self.holdings.release(slot.client, &mut slot.counted);
            slot.client = 0;
        }
        if let Some(position) = id.and_then(|id| slot.topic.stored(id, now_ms)) {
            return (position, None);
        }
        slot.topic.ring_mut().advance(self.clock);
        let ring = slot.topic.ring();
        let position = ring.position_of(Place::new(ring.head().seq.saturating_add(1)));
        broadcast.kept = Some(Box::new(KeptMark { position, sender, is_notice: false }));
        let broadcast = Arc::new(broadcast);
        let (content, bytes) = value(events, &broadcast);
        match slot.topic.store(Kept { sender, content }, bytes, id, now_ms, &limits) {
            Stored::New(position, dropped) => {
                self.clock = position.place;
                self.messages += 1;
                self.bytes += bytes as u64;
                self.too_large += u64::from(bytes as u64 > limits.bytes);
                slot.count(&mut self.holdings);
                self.count(dropped);
                self.list_filled(at);
                (position, Some(broadcast))
            }
            Stored::Duplicate(position) => (position, None),
        }
    }

    /// What a client has missed, as much as is sent at once; and how many of all these messages it
    /// has sent itself.
    pub(super) fn missed(
        &mut self,
        ask: &MissedRequest,
        config: &HistoryConfig,
        now_ms: u64,
    ) -> (Arc<Missed>, usize) {
        let limits = self.limits(&ask.topic);
        let at = self.place(&ask.topic);
        let slot = at.and_then(|at| self.slots.get_mut(at as usize)?.as_deref_mut());
        let Some(slot) = slot else {
            return (Arc::new(self.nothing(&ask.topic, ask.since, ask.torn)), 0);
        };
        slot.used_ms = now_ms;
        let dropped = slot.topic.enforce(&limits, now_ms);
        let ring = slot.topic.ring();
        let asked = Request::of(ask, &slot.name, ring);
        let found = self.last.iter().find(|(last, _)| *last == asked);
        let missed = match found {
            Some((_, missed)) => Arc::clone(missed),
            None => {
                let missed = Arc::new(missed(ring, ask, config));
                self.last.truncate(ANSWERS_MAX - 1);
                self.last.insert(0, (asked, Arc::clone(&missed)));
                missed
            }
        };
        let own = match ask.client {
            0 => 0,
            client => {
                let end = ring.len();
                let all = ring.entries(end.saturating_sub(missed.count)..end);
                all.filter(|it| it.value.sender == client).count()
            }
        };
        self.count(dropped);
        (missed, own)
    }

    fn nothing(&self, topic: &str, since: Since, torn: bool) -> Missed {
        let (last, head) = (self.forgotten.head(topic), self.now_at(topic));
        let gap = match since {
            Since::Now | Since::Newest(_) => None,
            Since::After(it) if it.epoch != head.epoch || it.place > head.place => {
                Some(GapReason::Epoch)
            }
            Since::After(it) if it.place >= last.place => None,
            // Others behind it may have been dropped at the same age.
            Since::After(it) if it.place < self.evicted_through => Some(GapReason::Evicted),
            Since::After(_) => Some(GapReason::Expired),
            Since::Unknown => Some(GapReason::Epoch),
        };
        let (gap, messages) = (gap.or(torn.then_some(GapReason::Lost)), Vec::new());
        Missed { gap, after: head, through: head, more: false, count: 0, messages }
    }

    fn now_at(&self, topic: &str) -> Position {
        let Position { epoch, place } = self.forgotten.head(topic);
        Position { epoch, place: self.clock.max(place) }
    }

    /// Reads a part of a topic's history. This does not count as a use of it.
    pub(super) fn read(&mut self, topic: &str, range: &Range, now_ms: u64) -> HistoryPage {
        let limits = self.limits(topic);
        let since = range.since.map_or(Since::Now, Since::After);
        let Some(slot) = self.slot_mut(topic) else {
            let Missed { gap, through: head, .. } = self.nothing(topic, since, false);
            return HistoryPage { gap, first: None, position: head, messages: Vec::new() };
        };
        let dropped = slot.topic.enforce(&limits, now_ms);
        let page = page(slot.topic.ring(), range);
        self.count(dropped);
        page
    }

    /// Forgets what is kept of a topic. Returns its last position.
    pub(super) fn purge(&mut self, topic: &str, now_ms: u64) -> Position {
        let Some(slot) = self.slot_mut(topic) else { return self.now_at(topic) };
        slot.used_ms = now_ms;
        let dropped = slot.topic.purge();
        let position = slot.topic.ring().position();
        self.last.clear();
        self.count(dropped);
        position
    }

    /// Lists up to `limit` topics, of `places` slots at most.
    pub(super) fn list(&self, from: u32, limit: usize, places: usize) -> HistoryTopics {
        let end = (from as usize).saturating_add(places).min(self.slots.len());
        let mut topics = Vec::new();
        for at in from as usize..end {
            let Some(Some(slot)) = self.slots.get(at) else { continue };
            if topics.len() >= limit {
                return HistoryTopics { topics, next: Some(at as u32) };
            }
            let ring = slot.topic.ring();
            let (messages, bytes, position) = (ring.len(), ring.bytes(), ring.position());
            topics.push(HistoryTopic { name: (&*slot.name).into(), messages, bytes, position });
        }
        HistoryTopics { topics, next: (end < self.slots.len()).then_some(end as u32) }
    }

    pub(super) fn drain(&mut self) -> Vec<(Box<str>, KeptTopic<Kept>)> {
        let slots = core::mem::take(&mut self.slots).into_iter().flatten();
        self.by_name = NameTable::new(self.seed);
        (self.free, self.filled, self.last, self.events) = Default::default();
        (self.messages, self.bytes, self.own_bytes) = (0, 0, 0);
        self.holdings = Holdings::default();
        (self.sweep_slot, self.forget_slot, self.evict_next) = (0, 0, 0);
        slots.map(|slot| (Box::from(&*slot.name), slot.topic)).collect()
    }

    pub(super) fn open(&mut self, name: &str, client: u64) -> u32 {
        if let Some(at) = self.place(name) {
            return at;
        }
        // Older messages are behind its floor.
        let Position { epoch, place } = self.forgotten.head(name);
        let ring = Ring::new(epoch, place);
        let at = self.insert(name, KeptTopic::of(ring, Ids::new(self.seed)), 0);
        if let Some(Some(slot)) = self.slots.get_mut(at as usize) {
            slot.client = client;
        }
        at
    }

    pub(super) fn insert(&mut self, name: &str, topic: KeptTopic<Kept>, used_ms: u64) -> u32 {
        self.clock = self.clock.max(topic.ring().head());
        self.messages += topic.ring().len();
        self.bytes += topic.ring().bytes();
        self.own_bytes += own_bytes(name);
        let name: Rc<str> = name.into();
        let (client, counted, filled_at) = (0, 0, NOT_FILLED);
        let slot = Slot { name: Rc::clone(&name), topic, used_ms, client, counted, filled_at };
        let slot = Some(Box::new(slot));
        let at = self.free.pop().map_or(self.slots.len() as u32, |Reverse(at)| at);
        match self.slots.get_mut(at as usize) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        let Self { by_name, slots, .. } = self;
        by_name.find_or_insert_with(&name, |_| false, |by, at| hash_at(by, slots, *at), || at);
        self.list_filled(at);
        at
    }

    /// Lists a topic among those with messages.
    fn list_filled(&mut self, at: u32) {
        let Some(Some(slot)) = self.slots.get_mut(at as usize) else { return };
        if slot.filled_at == NOT_FILLED && !slot.topic.ring().is_empty() {
            slot.filled_at = self.filled.len() as u32;
            self.filled.push(at);
        }
    }

    pub(super) fn unlist_filled(&mut self, at: usize) {
        let Some(Some(slot)) = self.slots.get_mut(at) else { return };
        let filled_at = core::mem::replace(&mut slot.filled_at, NOT_FILLED);
        if filled_at == NOT_FILLED {
            return;
        }
        self.filled.swap_remove(filled_at as usize);
        let moved = self.filled.get(filled_at as usize);
        if let Some(Some(Some(slot))) = moved.map(|moved| self.slots.get_mut(*moved as usize)) {
            slot.filled_at = filled_at;
        }
    }

    pub(super) fn count(&mut self, dropped: Dropped) {
        self.messages = self.messages.saturating_sub(dropped.count());
        self.bytes = self.bytes.saturating_sub(dropped.bytes);
        self.dropped += dropped;
    }

    pub(super) fn limits(&self, topic: &str) -> Limits {
        let rule = self.rule(topic).copied().unwrap_or_default();
        let age_ms = rule.age.as_millis().try_into().unwrap_or(u64::MAX);
        Limits { count: rule.count, bytes: rule.bytes as u64, age_ms }
    }
}

pub(super) fn own_bytes(name: &str) -> u64 {
    (TOPIC_BYTES + name.len()) as u64
}
