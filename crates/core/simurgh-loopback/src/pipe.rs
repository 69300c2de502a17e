//! One direction of a link: a queue whose items arrive in order after a delay.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Pipe<T> {
    /// Items with their times of arrival, which never decrease.
    items: VecDeque<(u64, T)>,
    last_at_ns: u64,
}

impl<T> Default for Pipe<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), last_at_ns: 0 }
    }
}

impl<T> Pipe<T> {
    pub(super) fn push(&mut self, at_ns: u64, item: T) {
        self.last_at_ns = self.last_at_ns.max(at_ns);
        self.items.push_back((self.last_at_ns, item));
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.items.back_mut().map(|(_, item)| item)
    }

    pub(super) fn next_at_ns(&self) -> Option<u64> {
        self.items.front().map(|(at_ns, _)| *at_ns)
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        self.items.pop_front().map(|(_, item)| item)
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
    }
}
