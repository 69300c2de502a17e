//! Questions that wait: in order, within a count and a size, each until its deadline.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a waiting question; later ones have higher numbers.
pub(crate) type Ticket = u64;

struct Waiting<T> {
    item: T,
    bytes: usize,
    deadline_ms: u64,
}

/// All questions wait equally long at most, so the first has the first deadline.
pub(crate) struct Queue<T> {
    waiting: BTreeMap<Ticket, Waiting<T>>,
    /// Those that may be sent. The others wait for the answer of an equal question.
    ready: BTreeSet<Ticket>,
    next: Ticket,
    bytes: usize,
    count_max: usize,
    bytes_max: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        let (waiting, ready) = (BTreeMap::new(), BTreeSet::new());
        Self { waiting, ready, next: 0, bytes: 0, count_max, bytes_max }
    }

    /// Adds a question that is not yet ready. Returns it if the queue is full.
    pub(crate) fn push(&mut self, item: T, bytes: usize, deadline_ms: u64) -> Result<Ticket, T> {
        if self.is_full() || bytes > self.bytes_max - self.bytes {
            return Err(item);
        }
        let ticket = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.waiting.insert(ticket, Waiting { item, bytes, deadline_ms });
        Ok(ticket)
    }

    /// The question may be sent, in its place.
    pub(crate) fn make_ready(&mut self, ticket: Ticket) {
        if self.waiting.contains_key(&ticket) {
            self.ready.insert(ticket);
        }
    }

    /// Takes the first question that may be sent.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.ready.first().copied().and_then(|ticket| self.remove(ticket))
    }

    /// Takes the first question if its deadline has passed.
    pub(crate) fn pop_late(&mut self, now_ms: u64) -> Option<T> {
        let (&ticket, first) = self.waiting.first_key_value()?;
        if first.deadline_ms > now_ms { None } else { self.remove(ticket) }
    }

    /// Takes the first question, ready or not.
    pub(crate) fn pop_any(&mut self) -> Option<T> {
        self.waiting
            .first_key_value()
            .map(|(&ticket, _)| ticket)
            .and_then(|first| self.remove(first))
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let removed = self.waiting.remove(&ticket)?;
        self.ready.remove(&ticket);
        self.bytes -= removed.bytes;
        Some(removed.item)
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.waiting.get_mut(&ticket).map(|waiting| &mut waiting.item)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn first_deadline_ms(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(_, first)| first.deadline_ms)
    }

    /// Whether as many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.count_max
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// All questions that wait, and whether each may be sent.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&T, bool)> {
        let waiting = self.waiting.iter();
        waiting.map(|(ticket, waiting)| (&waiting.item, self.ready.contains(ticket)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push(queue: &mut Queue<u32>, item: u32) -> Option<Ticket> {
        let ticket = queue.push(item, 10, u64::from(item) + 100).ok()?;
        queue.make_ready(ticket);
        Some(ticket)
    }

    #[test]
    fn questions_leave_in_the_order_of_arrival() {
        let mut queue = Queue::new(10, 1000);
        let tickets: Vec<_> = (0..4).filter_map(|item| push(&mut queue, item)).collect();
        assert_eq!(queue.remove(tickets[1]), Some(1));
        assert_eq!(
            [queue.pop(), queue.pop(), queue.pop(), queue.pop()],
            [Some(0), Some(2), Some(3), None]
        );
        assert_eq!(queue.remove(tickets[0]), None);
    }

    #[test]
    fn count_and_bytes_are_bounded_and_given_back() {
        let mut queue = Queue::new(3, 25);
        let first = push(&mut queue, 0).unwrap();
        push(&mut queue, 1).unwrap();
        assert_eq!(push(&mut queue, 2), None, "30 bytes");
        queue.remove(first);
        assert!(push(&mut queue, 3).is_some());
        let mut queue = Queue::new(1, 1000);
        push(&mut queue, 0).unwrap();
        assert_eq!(push(&mut queue, 1), None);
    }

    #[test]
    fn question_that_is_not_ready_waits_and_keeps_its_place() {
        let mut queue = Queue::new(10, 1000);
        let held = queue.push(0, 1, 100).unwrap();
        push(&mut queue, 1);
        push(&mut queue, 2);
        assert_eq!(queue.pop(), Some(1));
        queue.make_ready(held);
        assert_eq!([queue.pop(), queue.pop()], [Some(0), Some(2)]);
        queue.make_ready(held);
        assert!(!queue.has_ready(), "a question that is gone stays gone");
    }

    #[test]
    fn question_leaves_at_its_deadline() {
        let mut queue = Queue::new(10, 1000);
        queue.push(7, 1, 100).unwrap();
        assert_eq!(queue.first_deadline_ms(), Some(100));
        assert_eq!(queue.pop_late(99), None);
        assert_eq!(queue.pop_late(100), Some(7));
        assert_eq!(queue.first_deadline_ms(), None);
    }

    proptest! {
        #[test]
        fn bytes_and_count_are_those_of_waiting_questions(
            steps in prop::collection::vec((0..4_u8, 0..20_u64), 0..200)
        ) {
            let mut queue = Queue::new(8, 100);
            for (step, number) in steps {
                match step {
                    0 => drop(queue.push(number, number as usize, number)),
                    1 => drop(queue.remove(number)),
                    2 => queue.make_ready(number),
                    _ => drop(queue.pop()),
                }
                let bytes: usize = queue.waiting.values().map(|waiting| waiting.bytes).sum();
                prop_assert_eq!(queue.bytes, bytes);
                prop_assert!(queue.len() <= 8 && bytes <= 100);
                prop_assert!(queue.ready.iter().all(|ticket| queue.waiting.contains_key(ticket)));
            }
        }
    }
}
