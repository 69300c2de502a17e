//! How many members a topic has on all shards, without a lock: a table of atomic counters.
//!
//! A slot holds a tag of the topic's hash and a count. Shards only ever add and subtract. If two
//! shards claim different slots for a new topic at the same time, each counts in its own until one
//! of them is empty. If no slot nearby is free, the topic is not counted. Both only make the number
//! a little too small, and only whether joins are announced depends on it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots; 8 bytes each, touched when first used.
const SLOTS: usize = 1 << 16;
/// How far from its first slot a topic may be stored.
const REACH: usize = 16;

pub struct MemberCounts {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl MemberCounts {
    /// An empty table; without `counting` (no user socket needs it) it holds no memory.
    pub fn new(counting: bool) -> Self {
        let slots = if counting { SLOTS } else { 0 };
        Self { slots: (0..slots).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    pub fn is_counting(&self) -> bool {
        !self.slots.is_empty()
    }

    pub fn count(&self, topic: &str) -> u32 {
        let (tag, window) = self.window(topic);
        window
            .map(|slot| slot.load(Relaxed))
            .find(|&value| (value >> 32) as u32 == tag && value as u32 > 0)
            .map_or(0, |value| value as u32)
    }

    pub fn add(&self, topic: &str) {
        if self.change(topic, |count| count.checked_add(1)) {
            return;
        }
        let (tag, window) = self.window(topic);
        for slot in window {
            let value = slot.load(Relaxed);
            let fresh = u64::from(tag) << 32 | 1;
            if value as u32 == 0 && slot.compare_exchange(value, fresh, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    pub fn subtract(&self, topic: &str) {
        self.change(topic, |count| count.checked_sub(1));
    }

    fn change(&self, topic: &str, step: impl Fn(u32) -> Option<u32>) -> bool {
        let (tag, window) = self.window(topic);
        for slot in window {
            let changed = slot.fetch_update(Relaxed, Relaxed, |value| {
                let is_ours = (value >> 32) as u32 == tag && value as u32 > 0;
                let count = is_ours.then(|| step(value as u32)).flatten()?;
                Some(u64::from(tag) << 32 | u64::from(count))
            });
            if changed.is_ok() {
                return true;
            }
        }
        false
    }

    fn window(&self, topic: &str) -> (u32, impl Iterator<Item = &AtomicU64>) {
        let hash = self.hasher.hash_one(topic);
        let first = hash as usize % SLOTS;
        let slots = (first..first + REACH).filter_map(|slot| self.slots.get(slot % SLOTS));
        ((hash >> 32) as u32, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_counted_separately_across_threads() {
        let member_counts = MemberCounts::new(true);
        std::thread::scope(|scope| {
            member_counts.add("rooms:a");
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        member_counts.add("rooms:a");
                        member_counts.add("rooms:b");
                        member_counts.subtract("rooms:b");
                    }
                });
            }
        });
        assert_eq!(member_counts.count("rooms:a"), 4001);
        assert_eq!(member_counts.count("rooms:b"), 0);
        assert_eq!(member_counts.count("rooms:c"), 0);
    }

    #[test]
    fn slot_is_reused_when_its_topic_is_empty() {
        let member_counts = MemberCounts::new(true);
        for topic in 0..4 * SLOTS {
            let topic = format!("rooms:{topic}");
            member_counts.add(&topic);
            assert_eq!(member_counts.count(&topic), 1);
            member_counts.subtract(&topic);
            assert_eq!(member_counts.count(&topic), 0);
        }
    }

    #[test]
    fn without_counting_no_memory_is_used() {
        let member_counts = MemberCounts::new(false);
        member_counts.add("rooms:a");
        assert_eq!(member_counts.count("rooms:a"), 0);
    }
}
