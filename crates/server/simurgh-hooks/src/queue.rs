//! Questions that wait: in order, within a count and a size, each until its deadline. No client
//! address can take all places.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Number of a waiting question; later ones have higher numbers.
pub(crate) type Ticket = u64;

/// Questions that one address may always have.
const SHARE_LEAST: usize = 8;

struct Waiting<T> {
    item: T,
    client: IpAddr,
    bytes: usize,
    deadline_ms: u64,
}

/// Questions of one client address that wait or are in flight.
#[derive(Clone, Copy, Default)]
struct Share {
    questions: usize,
    bytes: usize,
}

/// All questions wait equally long at most, so the first has the first deadline.
pub(crate) struct Queue<T> {
    waiting: BTreeMap<Ticket, Waiting<T>>,
    /// Those that may be sent. The others wait for the answer of an equal question.
    ready: BTreeSet<Ticket>,
    next: Ticket,
    /// Of questions that wait or are in flight.
    bytes: usize,
    bytes_max: usize,
    shares: HashMap<IpAddr, Share>,
}

impl<T> Queue<T> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (waiting, ready) = (BTreeMap::new(), BTreeSet::new());
        Self { waiting, ready, next: 0, bytes: 0, bytes_max, shares: HashMap::new() }
    }

    /// Whether one more question may wait where `count_max` may. Once half of the places or bytes
    /// are taken, an address has no more than a quarter.
    pub(crate) fn has_place(&self, client: IpAddr, bytes: usize, count_max: usize) -> bool {
        let own = self.shares.get(&client).copied().unwrap_or_default();
        let (count, all) = (self.waiting.len(), self.bytes.saturating_add(bytes));
        let is_scarce = count >= count_max / 2 || all > self.bytes_max / 2;
        let has_share = own.questions < count_max / 4 && own.bytes + bytes <= self.bytes_max / 4;
        let has_place = count < count_max && all <= self.bytes_max;
        has_place && (!is_scarce || has_share || own.questions < SHARE_LEAST)
    }

    /// Adds a question that is not yet ready.
    pub(crate) fn push(&mut self, item: T, client: IpAddr, bytes: usize, until_ms: u64) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.bytes += bytes;
        let share = self.shares.entry(client).or_default();
        share.questions += 1;
        share.bytes += bytes;
        self.waiting.insert(ticket, Waiting { item, client, bytes, deadline_ms: until_ms });
        ticket
    }

    /// A question of this client and size, which was popped, has its answer.
    pub(crate) fn release(&mut self, client: IpAddr, bytes: usize) {
        self.bytes -= bytes;
        let Some(share) = self.shares.get_mut(&client) else { return };
        share.questions -= 1;
        share.bytes -= bytes;
        if share.questions == 0 {
            self.shares.remove(&client);
        }
    }

    /// The question may be sent, in its place.
    pub(crate) fn make_ready(&mut self, ticket: Ticket) {
        if self.waiting.contains_key(&ticket) {
            self.ready.insert(ticket);
        }
    }

    /// Takes the first question that may be sent. It counts until [`Self::release`].
    pub(crate) fn pop(&mut self) -> Option<T> {
        let ticket = self.ready.pop_first()?;
        Some(self.waiting.remove(&ticket)?.item)
    }

    /// Takes the first question, ready or not, if its deadline is not later.
    pub(crate) fn pop_late(&mut self, now_ms: u64) -> Option<T> {
        let (&ticket, first) = self.waiting.first_key_value()?;
        if first.deadline_ms > now_ms { None } else { self.remove(ticket) }
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let removed = self.waiting.remove(&ticket)?;
        self.ready.remove(&ticket);
        self.release(removed.client, removed.bytes);
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
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn push(queue: &mut Queue<u32>, item: u32) -> Ticket {
        let ticket = queue.push(item, CLIENT, 10, u64::from(item) + 100);
        queue.make_ready(ticket);
        ticket
    }

    #[test]
    fn questions_leave_in_the_order_of_arrival() {
        let mut queue = Queue::new(1000);
        let tickets: Vec<_> = (0..4).map(|item| push(&mut queue, item)).collect();
        assert_eq!(queue.remove(tickets[1]), Some(1));
        assert_eq!(
            [queue.pop(), queue.pop(), queue.pop(), queue.pop()],
            [Some(0), Some(2), Some(3), None]
        );
        assert_eq!(queue.remove(tickets[0]), None);
    }

    #[test]
    fn count_and_bytes_are_bounded_and_given_back() {
        let mut queue = Queue::new(25);
        let first = push(&mut queue, 0);
        push(&mut queue, 1);
        assert!(!queue.has_place(CLIENT, 10, 3), "30 bytes");
        queue.remove(first);
        assert!(queue.has_place(CLIENT, 10, 3) && queue.has_place(CLIENT, 10, 2));
        assert!(!queue.has_place(CLIENT, 10, 1));
        queue.pop();
        assert!(queue.has_place(CLIENT, 10, 1) && !queue.has_place(CLIENT, 16, 1), "in flight");
        queue.release(CLIENT, 10);
        assert!(queue.has_place(CLIENT, 25, 1) && queue.shares.is_empty());
    }

    #[test]
    fn address_has_a_quarter_once_half_of_the_places_or_bytes_are_taken() {
        let other = IpAddr::V4(Ipv4Addr::BROADCAST);
        let mut queue = Queue::new(1_000_000);
        while queue.has_place(CLIENT, 10, 100) {
            push(&mut queue, 0);
        }
        assert_eq!(queue.len(), 50);
        let mut few = 0;
        while queue.has_place(other, 10, 100) {
            queue.push(0, other, 10, 100);
            few += 1;
        }
        assert_eq!(few, 25);
        let mut queue = Queue::new(10_000);
        while queue.has_place(CLIENT, 100, 1_000_000) {
            queue.push(0, CLIENT, 100, 100);
        }
        assert_eq!(queue.len(), 50);
        assert!(queue.has_place(other, 2_500, 1_000_000));
    }

    #[test]
    fn question_that_is_not_ready_waits_and_keeps_its_place() {
        let mut queue = Queue::new(1000);
        let held = queue.push(0, CLIENT, 1, 100);
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
        let mut queue = Queue::new(1000);
        queue.push(7, CLIENT, 1, 100);
        assert_eq!(queue.first_deadline_ms(), Some(100));
        assert_eq!(queue.pop_late(99), None);
        assert_eq!(queue.pop_late(100), Some(7));
        assert_eq!(queue.first_deadline_ms(), None);
    }

    proptest! {
        #[test]
        fn bytes_and_shares_are_those_of_questions_without_an_answer(
            steps in prop::collection::vec((0..5_u8, 0..20_u64), 0..200)
        ) {
            let mut queue = Queue::new(100);
            let mut in_flight = Vec::new();
            for (step, number) in steps {
                let client = IpAddr::from([192, 0, 2, number as u8 % 4]);
                match step {
                    0 if queue.has_place(client, number as usize, 8) => {
                        queue.push((client, number as usize), client, number as usize, number);
                    }
                    1 => drop(queue.remove(number)),
                    2 => queue.make_ready(number),
                    3 => in_flight.extend(queue.pop()),
                    _ => in_flight.pop().into_iter().for_each(|(client, bytes)| {
                        queue.release(client, bytes);
                    }),
                }
                let waiting = queue.waiting.values().map(|waiting| waiting.bytes);
                let bytes: usize = waiting.chain(in_flight.iter().map(|(_, bytes)| *bytes)).sum();
                prop_assert_eq!(queue.bytes, bytes);
                let shared: usize = queue.shares.values().map(|share| share.bytes).sum();
                prop_assert_eq!(shared, bytes);
                let questions: usize = queue.shares.values().map(|share| share.questions).sum();
                prop_assert_eq!(questions, queue.len() + in_flight.len());
                prop_assert!(queue.len() <= 8 && bytes <= 100);
                prop_assert!(queue.ready.iter().all(|ticket| queue.waiting.contains_key(ticket)));
            }
        }
    }
}
