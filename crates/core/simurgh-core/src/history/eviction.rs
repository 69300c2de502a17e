//! Removal: by age in a sweep, topics without messages, and by size.

use core::cmp::Reverse;

use simurgh_channel::HistoryRule;
use simurgh_history::{Dropped, Place};
use simurgh_proto::topic::Pattern;

use super::holdings::user;
use super::kept_topics::{KeptTopics, Slot, hash_at, name_at, own_bytes};
use simurgh_data::prelude::*;

/// Topics that are compared to find the least recently used, and that are looked at to find as many
/// of the client that holds most.
const SAMPLE: usize = 32;
const LOOKED_AT_MAX: usize = 512;

impl KeptTopics {
    /// Keeps by other rules from now on. What fits stays; a sweep drops the rest. Topics without a
    /// rule are forgotten.
    pub(super) fn change_rules(&mut self, rules: Vec<(Pattern, HistoryRule)>) {
        let is_gone = |(old, _): &(Pattern, HistoryRule)| rules.iter().all(|(new, _)| new != old);
        let some_are_gone = self.rules.iter().any(is_gone);
        self.has_rules |= !rules.is_empty();
        self.rules = rules;
        self.last.clear();
        if !some_are_gone || self.has_engine_numbers {
            return;
        }
        for at in 0..self.slots.len() {
            if name_at(&self.slots, at as u32).is_none_or(|name| self.rule(name).is_some()) {
                continue;
            }
            let purged = self.slots.get_mut(at).and_then(|slot| Some(slot.as_mut()?.topic.purge()));
            self.count(purged.unwrap_or_default());
            self.forget(at);
        }
        // If they get a rule again, messages in between are missing: clients must be told.
        self.clock = Place::new(self.clock.seq.saturating_add(1));
        self.forgotten.forget_all(self.clock);
    }

    /// Sweeps some of the topics for what is too old: each counts, and each dropped message.
    /// Returns whether that was the last of a round.
    pub(super) fn sweep(&mut self, count: usize, now_ms: u64) -> bool {
        let mut done = 0;
        while done < count {
            if self.sweep_slot >= self.slots.len() {
                self.sweep_slot = 0;
                self.give_back();
                return true;
            }
            done += 1 + self.enforce_age(self.sweep_slot, now_ms);
            self.sweep_slot += 1;
        }
        false
    }

    /// Returns how many messages are dropped.
    fn enforce_age(&mut self, at: usize, now_ms: u64) -> usize {
        let Some(name) = self.slots.get(at).and_then(|it| Some(Rc::clone(&it.as_ref()?.name)))
        else {
            return 0;
        };
        let limits = self.limits(&name);
        let Some(Some(slot)) = self.slots.get_mut(at) else { return 0 };
        let dropped = slot.topic.enforce(&limits, now_ms);
        // Its position is remembered for as long again: until then a client can be told that it has
        // missed nothing.
        let is_over = slot.topic.is_empty()
            && now_ms.saturating_sub(slot.used_ms) > limits.age_ms.saturating_mul(2);
        if slot.topic.is_empty() {
            self.unlist_filled(at);
        }
        let count = dropped.count();
        self.count(dropped);
        if is_over && !self.has_engine_numbers {
            self.forget(at);
        }
        count
    }

    pub(super) fn forget(&mut self, at: usize) {
        self.unlist_filled(at);
        let Some(mut slot) = self.slots.get_mut(at).and_then(Option::take) else { return };
        self.holdings.release(slot.client, &mut slot.counted);
        self.own_bytes = self.own_bytes.saturating_sub(own_bytes(&slot.name));
        self.forgotten.note(&slot.name, slot.topic.ring().position());
        self.by_name.take(&slot.name, |it| *it == at as u32);
        self.free.push(Reverse(at as u32));
        if self.by_name.is_empty() {
            (self.slots, self.free, self.filled) = Default::default();
            (self.sweep_slot, self.forget_slot, self.evict_next) = (0, 0, 0);
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
        if self.filled.len() < self.filled.capacity() / 4 {
            self.filled.shrink_to_fit();
        }
        self.by_name.give_room_back(|by, at| hash_at(by, &self.slots, *at));
    }

    /// Has the least recently used of some topics drop the older half of its messages. Returns how
    /// many topics it has looked at: none, if no topic has messages.
    pub(super) fn evict(&mut self) -> usize {
        let mut search = Search::new(self.holdings.large(self.bytes + self.own_bytes));
        let mut emptied = 0;
        while !search.is_over(self.filled.len()) {
            self.evict_next = (self.evict_next + 1) % self.filled.len();
            let Some(&at) = self.filled.get(self.evict_next) else { break };
            match self.slots.get(at as usize) {
                Some(Some(slot)) if !slot.topic.is_empty() => search.look_at(slot, at as usize),
                _ if emptied == LOOKED_AT_MAX => break,
                _ => {
                    emptied += 1;
                    self.unlist_filled(at as usize);
                }
            }
        }
        let found = search.found().unwrap_or(usize::MAX);
        if let Some(Some(slot)) = self.slots.get_mut(found) {
            let dropped = slot.topic.evict_half();
            slot.count(&mut self.holdings);
            if slot.topic.is_empty() {
                self.unlist_filled(found);
            }
            self.count(dropped);
        }
        search.looked_at + emptied
    }

    /// Forgets topics until they take no more than this in addition to their messages. Topics that
    /// a broker numbers end when no member here wants them.
    pub(super) fn forget_over(&mut self, own_bytes_max: u64) {
        while self.own_bytes > own_bytes_max && !self.has_engine_numbers {
            let Some(at) = self.least_used() else { return };
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

    fn least_used(&mut self) -> Option<usize> {
        let mut search = Search::new(self.holdings.large(self.bytes + self.own_bytes));
        for _ in 0..self.slots.len() {
            self.forget_slot = (self.forget_slot + 1) % self.slots.len();
            if let Some(Some(slot)) = self.slots.get(self.forget_slot) {
                search.look_at(slot, self.forget_slot);
            }
            if search.is_over(self.by_name.len()) {
                break;
            }
        }
        search.found()
    }
}

/// Looks for the least recently used of some topics: of the client that holds a large part of all,
/// if there is one and some of its topics are found; those without messages first.
struct Search {
    large: Option<u32>,
    looked_at: usize,
    of_large: usize,
    oldest: Option<(bool, bool, u64, usize)>,
}

impl Search {
    fn new(large: Option<u32>) -> Self {
        Self { large, looked_at: 0, of_large: 0, oldest: None }
    }

    fn is_over(&self, topics: usize) -> bool {
        self.looked_at >= topics.min(LOOKED_AT_MAX) || self.of_large == SAMPLE
    }

    fn look_at(&mut self, slot: &Slot, at: usize) {
        let is_others = self.large.is_some_and(|client| user(slot.client) != client);
        let seen = (is_others, !slot.topic.is_empty(), slot.used_ms, at);
        if self.oldest.is_none_or(|oldest| seen < oldest) {
            self.oldest = Some(seen);
        }
        self.looked_at += 1;
        self.of_large += usize::from(!is_others);
    }

    fn found(&self) -> Option<usize> {
        self.oldest.map(|(.., at)| at)
    }
}
