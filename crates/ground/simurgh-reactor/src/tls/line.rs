//! Connections whose handshakes can go on: they wait in line, unread.

use std::collections::VecDeque;
use std::sync::Arc;

use simurgh_data::{Key, Slab};
use simurgh_tls::Handshake;
use simurgh_tls::rustls::ServerConfig;

use super::{BOXED, Boxed, NEW, NONE, NUMBER, PLANNED, Plan, Tls};

/// Handshakes under way: each has 10 to 80 kB.
const UNDER_WAY_MAX: usize = 2048;
/// A handshake under way for so long is given up if others wait.
const TIMEOUT_NS: u64 = 1_000_000_000;
/// How long a handshake may wait to begin. Half of the time that a client has for its request by
/// default: if all waited longer, none would be in time, and they would come back for ever.
const WAIT_NS: u64 = 5_000_000_000;

/// Once the oldest has waited this long to begin, the newest begins first: its peer still waits,
/// while peers that waited for seconds may be gone when the answer comes.
const BEHIND_NS: u64 = 1_000_000_000;

/// Connections whose handshakes can go on.
#[derive(Default)]
pub(super) struct Line {
    begun: VecDeque<Key>,
    /// With the time since when they wait.
    new: VecDeque<(Key, u64)>,
    /// Handshakes under way, the oldest first; some may be done.
    oldest: VecDeque<(Key, u64)>,
    pub(super) under_way: usize,
}

impl Line {
    /// The next to go on: those that have begun come first.
    fn next(&mut self, under_way_max: usize, now_ns: u64) -> Option<Key> {
        if let Some(key) = self.begun.pop_front() {
            return Some(key);
        }
        let (_, since_ns) = self.new.front().filter(|_| self.under_way < under_way_max)?;
        let is_behind = now_ns.saturating_sub(*since_ns) >= BEHIND_NS;
        let (key, _) = if is_behind { self.new.pop_back() } else { self.new.pop_front() }?;
        if self.new.is_empty() {
            // The memory of a crowd that came at once.
            self.new = VecDeque::new();
        }
        Some(key)
    }
}

impl Tls {
    /// A client gives up no handshake by itself: the caller of `Io::connect` has its own timeout.
    fn is_client(&self) -> bool {
        self.configs.is_empty()
    }

    fn under_way_max(&self) -> usize {
        if self.is_client() { usize::MAX } else { UNDER_WAY_MAX }
    }

    pub(crate) fn next_in_line(&mut self, now_ns: u64) -> Option<Key> {
        self.line.next(self.under_way_max(), now_ns)
    }

    /// Whether a handshake can go on.
    pub(crate) fn has_work(&self) -> bool {
        !self.line.begun.is_empty()
            || (!self.line.new.is_empty() && self.line.under_way < self.under_way_max())
    }

    pub(crate) fn under_way(&self) -> usize {
        self.line.under_way
    }

    /// Whether the bytes of a connection may begin with a header.
    pub(crate) fn may_have_header(&self, key: Key) -> bool {
        self.has_header && self.place(key) & !NUMBER == NEW
    }

    pub(crate) fn shaking(&mut self, key: Key) -> Option<&mut Handshake> {
        let place = self.place(key);
        match self.boxed.get_mut(place & NUMBER).filter(|_| place & !NUMBER == BOXED)? {
            Boxed::Shaking(handshake) => Some(handshake),
            Boxed::Stock(_) => None,
        }
    }

    pub(crate) fn begin(&mut self, key: Key, handshake: Handshake, now_ns: u64) {
        let number = self.boxed.insert(Boxed::Shaking(Box::new(handshake)));
        self.set_place(key, BOXED | number);
        self.line.under_way += 1;
        if !self.is_client() {
            self.line.oldest.push_back((key, now_ns));
        }
    }

    pub(crate) fn take_handshake(&mut self, key: Key) -> Option<Handshake> {
        let place = self.place(key);
        self.shaking(key)?;
        match self.boxed.remove(place & NUMBER)? {
            Boxed::Shaking(handshake) => {
                self.line.under_way -= 1;
                self.set_place(key, NONE);
                Some(*handshake)
            }
            Boxed::Stock(_) => None,
        }
    }

    /// A connection that has waited too long to begin, or the oldest handshake under way, if it is
    /// to be given up for others.
    pub(crate) fn overdue(&mut self, now_ns: u64) -> Option<Key> {
        if self.is_client() {
            return None;
        }
        let is_late = |it: &mut (Key, u64)| now_ns.saturating_sub(it.1) >= WAIT_NS;
        if let Some((key, _)) = self.line.new.pop_front_if(is_late) {
            return Some(key);
        }
        while let Some((key, since_ns)) = self.line.oldest.front().copied() {
            let is_shaking = self.shaking(key).is_some();
            let is_full = self.line.under_way >= UNDER_WAY_MAX && !self.line.new.is_empty();
            let is_old = now_ns.saturating_sub(since_ns) >= TIMEOUT_NS;
            if is_shaking && !(is_full && is_old) {
                return None;
            }
            self.line.oldest.pop_front();
            if is_shaking {
                return Some(key);
            }
        }
        None
    }

    /// Notes a client's handshake, which begins in its turn.
    pub(crate) fn plan(&mut self, key: Key, plan: Plan) {
        let number = self.plans.insert(plan);
        self.set_place(key, PLANNED | number);
    }

    pub(crate) fn take_plan(&mut self, key: Key) -> Option<Plan> {
        let place = self.place(key);
        let is_planned = place & !NUMBER == PLANNED;
        let plan = is_planned.then(|| self.plans.remove(place & NUMBER)).flatten()?;
        if self.plans.is_empty() {
            self.plans = Slab::new();
        }
        self.set_place(key, NONE);
        Some(plan)
    }

    /// The settings of a connection whose handshake has not begun.
    pub(crate) fn config_of_new(&self, key: Key) -> Option<Arc<ServerConfig>> {
        let place = self.place(key);
        let config = self.configs.get((place & NUMBER) as usize)?.as_ref();
        config.filter(|_| place & !NUMBER == NEW).map(Arc::clone)
    }

    pub(crate) fn line_up(&mut self, key: Key, now_ns: u64) {
        match self.place(key) & !NUMBER {
            NEW | PLANNED => self.line.new.push_back((key, now_ns)),
            _ => self.line.begun.push_back(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(since_ns: &[u64]) -> Line {
        let key = |slot| Key { slot, ..Key::default() };
        Line { new: (0..).map(key).zip(since_ns.iter().copied()).collect(), ..Line::default() }
    }

    fn order(mut line: Line, now_ns: u64) -> Vec<u32> {
        std::iter::from_fn(|| line.next(UNDER_WAY_MAX, now_ns)).map(|key| key.slot).collect()
    }

    #[test]
    fn oldest_begins_first_until_it_has_waited_for_a_second_and_then_the_newest() {
        assert_eq!(order(line(&[0, 1, 2]), BEHIND_NS - 1), [0, 1, 2]);
        assert_eq!(order(line(&[0, 1, 2]), BEHIND_NS + 2), [2, 1, 0]);
    }

    #[test]
    fn handshakes_that_have_begun_go_on_before_others_begin() {
        let mut line = line(&[0]);
        line.begun.push_back(Key { slot: 7, ..Key::default() });
        assert_eq!(order(line, 0), [7, 0]);
    }

    #[test]
    fn none_begins_while_the_most_are_under_way() {
        let mut line = line(&[0]);
        assert_eq!(line.next(0, 0), None);
        assert!(line.next(1, 0).is_some());
        assert_eq!(line.new.capacity(), 0, "the memory of a crowd is given back");
    }
}
