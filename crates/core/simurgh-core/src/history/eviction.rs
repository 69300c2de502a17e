//! Removal: by age in a sweep, topics without messages, and by size.

use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;

use simurgh_history::Dropped;

use super::kept_topics::{KeptTopics, Slot, name_at, own_bytes};

/// Topics that are compared to find the least recently used, and slots that are searched for them:
/// most topics may have no messages.
const SAMPLE: usize = 32;
const PLACES: usize = 2048;

impl KeptTopics {
    /// Sweeps some of the topics for what is too old. Returns whether that was the last of a round.
    pub(crate) fn sweep(&mut self, count: usize, now_ms: u64) -> bool {
        for _ in 0..count {
            if self.sweep_slot >= self.slots.len() {
                self.sweep_slot = 0;
                self.give_back();
                return true;
            }
            self.enforce_age(self.sweep_slot, now_ms);
            self.sweep_slot += 1;
        }
        false
    }

    fn enforce_age(&mut self, at: usize, now_ms: u64) {
        let Some(name) = self.slots.get(at).and_then(|it| Some(Rc::clone(&it.as_ref()?.name)))
        else {
            return;
        };
        let limits = self.limits(&name);
        let Some(Some(slot)) = self.slots.get_mut(at) else { return };
        let dropped = slot.topic.enforce(&limits, now_ms);
        // Its position is remembered for as long again: until then a client can be told that it has
        // missed nothing.
        let is_over = slot.topic.is_empty()
            && now_ms.saturating_sub(slot.used_ms) > limits.age_ms.saturating_mul(2);
        self.count(dropped);
        if is_over && !self.has_engine_numbers {
            self.forget(at);
        }
    }

    pub(super) fn forget(&mut self, at: usize) {
        let Some(mut slot) = self.slots.get_mut(at).and_then(Option::take) else { return };
        self.holdings.release(slot.client, &mut slot.counted);
        self.own_bytes = self.own_bytes.saturating_sub(own_bytes(&slot.name));
        self.forgotten.note(&slot.name, slot.topic.ring().position());
        self.by_name.remove(&slot.name, at as u32);
        self.free.push(Reverse(at as u32));
        if self.by_name.is_empty() {
            (self.slots, self.free) = Default::default();
            (self.sweep_slot, self.evict_slot) = (0, 0);
            self.last.clear();
            self.events = Default::default();
        }
    }

    /// Frees the last answers, unused names of events, and room of topics that are gone.
    fn give_back(&mut self) {
        // After many simultaneous joins, clients have missed something else.
        self.last = Vec::new();
        self.holdings.look_again();
        self.events.retain(|event| Arc::strong_count(event) > 1);
        let len = self.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        // The work is in proportion to the freed memory.
        if len < self.slots.capacity() / 4 {
            self.slots.truncate(len);
            self.slots.shrink_to_fit();
            self.free.retain(|Reverse(at)| (*at as usize) < len);
            self.free.shrink_to_fit();
        }
        self.by_name.give_room_back(|at| name_at(&self.slots, at));
    }

    /// Has the least recently used of some topics drop the older half of its messages.
    pub(crate) fn evict(&mut self) {
        let Some(at) = self.least_used(|slot| !slot.topic.ring().is_empty()) else { return };
        let Some(Some(slot)) = self.slots.get_mut(at) else { return };
        let dropped = slot.topic.evict_half();
        slot.count(&mut self.holdings);
        self.count(dropped);
    }

    /// Forgets topics until they take no more than this in addition to their messages. Topics that
    /// an engine numbers end when no member here wants them.
    pub(crate) fn forget_over(&mut self, own_bytes_max: u64) {
        while self.own_bytes > own_bytes_max && !self.has_engine_numbers {
            let Some(at) = self.least_used(|_| true) else { return };
            let Some(Some(slot)) = self.slots.get_mut(at) else { return };
            let mut dropped = Dropped::default();
            while !slot.topic.ring().is_empty() {
                dropped += slot.topic.evict_half();
            }
            self.evicted_through = self.evicted_through.max(slot.topic.ring().head());
            self.count(dropped);
            self.forget(at);
        }
    }

    /// The least recently used of some topics: of the client that holds a large part of all, if
    /// there is one and some of its topics are found; those without messages first.
    fn least_used(&mut self, is_meant: impl Fn(&Slot) -> bool) -> Option<usize> {
        let places = self.slots.len();
        let large = self.holdings.large(self.bytes + self.own_bytes);
        let mut oldest: Option<(bool, bool, u64, usize)> = None;
        let mut seen = 0;
        for _ in 0..places.min(PLACES) {
            self.evict_slot = if self.evict_slot + 1 >= places { 0 } else { self.evict_slot + 1 };
            let Some(Some(slot)) = self.slots.get(self.evict_slot) else { continue };
            if !is_meant(slot) {
                continue;
            }
            let is_others = large.is_some_and(|client| slot.client != client);
            let has_messages = !slot.topic.ring().is_empty();
            let found = (is_others, has_messages, slot.used_ms, self.evict_slot);
            if oldest.is_none_or(|oldest| found < oldest) {
                oldest = Some(found);
            }
            seen += usize::from(!is_others);
            if seen == SAMPLE {
                break;
            }
        }
        oldest.map(|(.., at)| at)
    }
}
