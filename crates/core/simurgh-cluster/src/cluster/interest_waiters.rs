//! Callers that wait until an interest is in force.

use crate::adapter::Generation;
use simurgh_data::prelude::*;

#[derive(Debug, Default)]
pub(super) struct InterestWaiters {
    /// Not passed to the adapter yet.
    new: Vec<u64>,
    /// With the number of the change that has their interest, in order.
    waiting: VecDeque<(Generation, u64)>,
    ready: VecDeque<u64>,
    /// The last change that was passed to the adapter.
    pub(super) last_change: Generation,
    in_force: Generation,
}

impl InterestWaiters {
    /// Adds a caller that waits for an interest, which the adapter has or is about to get.
    pub(super) fn push(&mut self, number: u64) {
        self.new.push(number);
    }

    /// Adds a caller that need not wait.
    pub(super) fn give(&mut self, number: u64) {
        self.ready.push_back(number);
    }

    pub(super) fn changes_sent(&mut self) {
        let last_change = self.last_change;
        self.waiting.extend(self.new.drain(..).map(|number| (last_change, number)));
        self.in_force(self.in_force);
    }

    pub(super) fn in_force(&mut self, generation: Generation) {
        self.in_force = self.in_force.max(generation);
        while let Some((_, number)) = self.waiting.pop_front_if(|it| it.0 <= self.in_force) {
            self.ready.push_back(number);
        }
    }

    /// Ends all waiting.
    pub(super) fn give_all(&mut self) {
        self.ready.extend(self.waiting.drain(..).map(|it| it.1));
        self.ready.extend(self.new.drain(..));
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }
}
