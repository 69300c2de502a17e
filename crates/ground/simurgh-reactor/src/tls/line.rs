//! Connections whose handshakes can go on: they wait in line, unread.

use std::collections::VecDeque;
use std::sync::Arc;

use simurgh_data::Key;
use simurgh_tls::Handshake;
use simurgh_tls::rustls::ServerConfig;

use super::{BOXED, Boxed, NEW, NONE, NUMBER, Tls};

/// Handshakes under way: each has 10 to 80 kB.
const UNDER_WAY_MAX: usize = 2048;
/// A handshake under way for so long is given up if others wait.
const PATIENCE_NS: u64 = 1_000_000_000;
/// How long a handshake may wait to begin. Half of the time that a client has for its request by
/// default: if all waited longer, none would be in time, and they would come back for ever.
const WAIT_NS: u64 = 5_000_000_000;

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
    fn next(&mut self) -> Option<Key> {
        let may_begin = self.under_way < UNDER_WAY_MAX;
        self.begun.pop_front().or_else(|| Some(self.new.pop_front_if(|_| may_begin)?.0))
    }
}

impl Tls {
    pub(crate) fn next_in_line(&mut self) -> Option<Key> {
        self.line.next()
    }

    /// Whether a handshake can go on.
    pub(crate) fn has_work(&self) -> bool {
        !self.line.begun.is_empty()
            || (!self.line.new.is_empty() && self.line.under_way < UNDER_WAY_MAX)
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
        self.line.oldest.push_back((key, now_ns));
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
        let is_late = |it: &mut (Key, u64)| now_ns.saturating_sub(it.1) >= WAIT_NS;
        if let Some((key, _)) = self.line.new.pop_front_if(is_late) {
            return Some(key);
        }
        while let Some((key, since_ns)) = self.line.oldest.front().copied() {
            let is_shaking = self.shaking(key).is_some();
            let is_full = self.line.under_way >= UNDER_WAY_MAX && !self.line.new.is_empty();
            let is_old = now_ns.saturating_sub(since_ns) >= PATIENCE_NS;
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

    /// The settings of a connection whose handshake has not begun.
    pub(crate) fn config_of_new(&self, key: Key) -> Option<Arc<ServerConfig>> {
        let place = self.place(key);
        let config = self.configs.get((place & NUMBER) as usize)?.as_ref();
        config.filter(|_| place & !NUMBER == NEW).map(Arc::clone)
    }

    pub(crate) fn line_up(&mut self, key: Key, now_ns: u64) {
        match self.place(key) & !NUMBER {
            NEW => self.line.new.push_back((key, now_ns)),
            _ => self.line.begun.push_back(key),
        }
    }
}
