//! Listeners outside of channels: each gets in order what its shard accepts on its topic while it
//! listens, except broadcasts that leave it out.

use std::collections::VecDeque;

use super::Model;

/// Added to the number of a listener that a broadcast leaves out.
pub(crate) const LISTENER: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct ListenerState {
    pub(crate) shard: usize,
    pub(crate) topic: u8,
    pub(crate) is_told: bool,
    is_on: bool,
    is_gone: bool,
    pending: VecDeque<u32>,
}

impl Model {
    pub(crate) fn new_listener(&mut self, shard: usize, topic: u8) -> u32 {
        self.listeners.push(ListenerState { shard, topic, ..ListenerState::default() });
        self.listeners.len() as u32 - 1
    }

    pub(crate) fn listens(&mut self, number: u32) {
        let Some(it) = self.listeners.get_mut(number as usize) else { return };
        it.is_on = true;
        let (shard, topic) = (it.shard, it.topic);
        self.shards[shard].listeners.push((topic, number));
    }

    pub(crate) fn unlistens(&mut self, number: u32) {
        let Some(it) = self.listeners.get_mut(number as usize) else { return };
        it.is_on = false;
        let shard = it.shard;
        self.shards[shard].listeners.retain(|(_, it)| *it != number);
        self.now.listeners.push(number);
    }

    pub(super) fn expect_listeners(&mut self, shard: usize, topic: u8, id: u32, except: u32) {
        let Some(it) = self.shards.get(shard).filter(|it| !it.listeners.is_empty()) else { return };
        let is_for = |(its, number): &&(u8, u32)| *its == topic && except != LISTENER + number;
        for (_, number) in it.listeners.iter().filter(is_for) {
            if let Some(it) = self.listeners.get_mut(*number as usize) {
                it.pending.push_back(id);
                self.now.listeners.push(*number);
            }
        }
    }

    pub(crate) fn heard(&mut self, number: u32, id: u32) {
        self.counts.count("heard by listeners", 1);
        let next = self.listeners.get_mut(number as usize).and_then(|it| it.pending.pop_front());
        if next != Some(id) {
            self.fail("listener", format!("listener {number} hears {id} where {next:?} is next"));
        }
    }

    pub(crate) fn listener_gone(&mut self, number: u32) {
        let it = self.listeners.get_mut(number as usize);
        if it.is_none_or(|it| std::mem::replace(&mut it.is_gone, true)) {
            self.fail("listener", format!("listener {number} is gone twice"));
        }
    }

    /// A core returns: listeners have received what it accepted, and those due to end have ended.
    pub(super) fn check_listeners(&mut self) {
        while let Some(number) = self.now.listeners.pop() {
            let Some(it) = self.listeners.get(number as usize) else { continue };
            if !it.pending.is_empty() || it.is_on == it.is_gone {
                let ListenerState { is_on, is_gone, pending, .. } = it;
                let text = format!("{number} (on: {is_on}, gone: {is_gone}) misses {pending:?}");
                self.fail("listener", text);
            }
        }
    }

    pub(crate) fn listeners_left(&self, has_ended: impl Fn(usize) -> bool) -> usize {
        self.listeners.iter().filter(|it| !it.is_gone && !has_ended(it.shard)).count()
    }
}
