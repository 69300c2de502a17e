//! The order in which the home of each topic stores its broadcasts: the first listener that gets a
//! broadcast is at its topic's home, which passes it on. All others must get the same.

use simurgh_core::Position;
use simurgh_history::{Epoch, Place};

use crate::kit::NONE;
use crate::world::ledger::{BroadcastInfo, Entry, Ledger};

#[derive(Debug, Default)]
pub(crate) struct Order {
    topics: Vec<TopicOrder>,
}

#[derive(Debug, Default)]
struct TopicOrder {
    /// How many of the broadcasts that its home has stored each shard has received.
    heard: Vec<usize>,
    home: Option<usize>,
    /// That of the first position, which all others have.
    epoch: Option<Epoch>,
    is_purged: bool,
}

impl Order {
    pub(crate) fn new(topics: usize, shards: usize) -> Self {
        let topic = || TopicOrder { heard: vec![0; shards], ..TopicOrder::default() };
        Self { topics: (0..topics).map(|_| topic()).collect() }
    }

    pub(crate) fn purge(&mut self, topic: usize) {
        self.topics.get_mut(topic).into_iter().for_each(|it| it.is_purged = true);
    }

    pub(crate) fn is_purged(&self, topic: usize) -> bool {
        self.topics.get(topic).is_some_and(|it| it.is_purged)
    }
}

impl Ledger {
    /// The broadcasts that the home of a topic has stored.
    fn stored(&self, topic: usize) -> &[Entry] {
        let epoch = self.order.topics.get(topic).and_then(|it| it.epoch);
        epoch.and_then(|epoch| self.log.of(epoch, topic)).unwrap_or_default()
    }

    /// The place of the last that is stored.
    pub(crate) fn head(&self, topic: usize) -> Place {
        self.stored(topic).last().map_or(Place::ZERO, |it| it.place)
    }

    /// A node without an engine has started again, with the histories of some topics.
    pub(crate) fn restart(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.counts.count("restarts", 1);
        self.sessions.handles.clear();
        for (number, topic) in self.order.topics.iter_mut().enumerate() {
            if !is_kept(number) {
                let heard = vec![0; topic.heard.len()];
                *topic = TopicOrder { heard, ..TopicOrder::default() };
                self.log.forget(number);
            }
        }
    }

    /// The listener of a shard receives a broadcast.
    pub(crate) fn note_heard(
        &mut self,
        shard: usize,
        topic: usize,
        id: u32,
        bytes: usize,
        position: Option<Position>,
    ) {
        let Some(at) = position else {
            return self.fail("stored", format!("#{id} comes to shard {shard} without a position"));
        };
        self.note(|| format!("shard {shard} receives #{id} at {at} of topic {topic}"));
        let entry = Entry { place: at.place, id, at_ns: self.now_ns, bytes: bytes as u64 };
        let Some(it) = self.order.topics.get_mut(topic) else { return };
        let Some(count) = it.heard.get_mut(shard) else { return };
        *count += 1;
        let (count, home) = (*count, *it.home.get_or_insert(shard));
        let epoch = *it.epoch.get_or_insert(at.epoch);
        let stored = self.stored(topic);
        let (known, last) = (stored.get(count - 1).copied(), stored.last().copied());
        if let Some(known) = known {
            if (epoch, known.place, known.id) != (at.epoch, at.place, id) {
                let text = format!("shard {shard} receives #{id} at {at}, where {known:?} is next");
                self.fail("stored", text);
            }
            return;
        }
        if home != shard || epoch != at.epoch || last.is_some_and(|it| it.place >= at.place) {
            let text = format!("#{id} is stored by shard {shard} ({home}) at {at} behind {last:?}");
            return self.fail("stored", text);
        }
        let is_again = self.log.add(epoch, topic, self.plan.topics.rooms, entry);
        self.counts.count("stored", 1);
        let made = self.broadcasts.get(id as usize);
        if is_again || made.is_none_or(|it| it.topic != topic) {
            return self.fail("stored", format!("#{id} is stored twice, or is of no such topic"));
        }
        self.check_order(id, topic);
    }

    /// Broadcasts of a channel's callbacks are stored in the order in which they were made.
    fn check_order(&mut self, id: u32, topic: usize) {
        let chan_of = |id: u32| {
            let made: &BroadcastInfo = self.broadcasts.get(id as usize)?;
            Some(made.chan).filter(|it| *it != NONE && !made.is_optional)
        };
        let Some(chan) = chan_of(id) else { return };
        let mut earlier = self.stored(topic).iter().rev().skip(1).take(40);
        let before = earlier.find(|it| chan_of(it.id) == Some(chan)).filter(|it| it.id > id);
        if let Some(before) = before {
            let text = format!("channel {chan}: #{id} is stored behind #{}", before.id);
            self.fail("order", text);
        }
    }

    /// Everything was delivered: what channels broadcast is stored, and each shard has it.
    pub(crate) fn check_stored(&mut self, unconfirmed: u64) {
        let is_lost = |(id, it): (usize, &BroadcastInfo)| {
            it.chan != NONE && !it.is_optional && !self.log.has(id as u32)
        };
        let lost = self.broadcasts.iter().enumerate().position(is_lost);
        if let Some(id) = lost.filter(|_| unconfirmed == 0) {
            self.fail("kept", format!("#{id} was broadcast, and is not stored"));
        }
        let is_unheard = |(topic, it): (usize, &TopicOrder)| {
            it.heard.iter().any(|count| *count != self.stored(topic).len())
        };
        if let Some(topic) = self.order.topics.iter().enumerate().position(is_unheard) {
            self.fail("kept", format!("a shard has not received all of topic {topic}"));
        }
    }
}
