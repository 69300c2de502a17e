//! The table of a stack's connections. The place of a connection is its address and port.

use simurgh_reactor::Key;

use super::tcp::Tcp;
use crate::connection::NO_KEY;

/// A connection, or a free place.
pub(super) struct Record {
    pub(super) tcp: Tcp,
    /// The connection's user. [`NO_KEY`] once that has closed it; in a free place, the slot is the
    /// next free place.
    pub(super) key: Key,
    /// In the list of connections with something to send.
    pub(super) is_listed: bool,
    /// Its timer is in the heap, maybe for an earlier connection of this place.
    pub(super) has_timer: bool,
    is_used: bool,
}

// A client costs this and 32 bytes in the reactor, but no descriptor and no kernel memory.
const _: () = assert!(size_of::<Record>() <= 56);

/// Connections in pages that never move; a freed place is reused next.
pub(super) struct Table {
    pages: Vec<Box<[Record]>>,
    /// The first free place, or [`NO_PLACE`].
    free: u32,
    len: usize,
    /// The first sequence number of places that were never used.
    first: u32,
}

/// Records in a page: as many as fit in 64 KiB.
const PAGE: usize = (64 << 10) / size_of::<Record>();
const NO_PLACE: u32 = u32::MAX;
/// More than what may be under way of the connection before.
const SEQUENCE_GAP: u32 = 1 << 17;

impl Table {
    pub(super) fn new(first: u32) -> Self {
        Self { pages: Vec::new(), free: NO_PLACE, len: 0, first }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of places, used or not.
    pub(super) fn places(&self) -> u32 {
        u32::try_from(self.pages.len() * PAGE).unwrap_or(NO_PLACE)
    }

    /// A new connection, in one of the first `places` places; `None`: all are used.
    ///
    /// Its sequence numbers follow those of the connection that had the place before, so that a
    /// server which still remembers that one accepts the new one (RFC 9293 §3.6.1).
    pub(super) fn add(&mut self, key: Key, remote: u16, places: u32) -> Option<u32> {
        if self.free == NO_PLACE {
            let (first, end) = (self.places(), self.places().checked_add(PAGE as u32)?.min(places));
            if first >= end {
                return None;
            }
            self.pages.push((first..end).map(|at| Record::free(self.first, at + 1)).collect());
            if let Some(last) = self.place(end - 1) {
                last.key.slot = NO_PLACE;
            }
            self.free = first;
        }
        let index = self.free;
        let record = self.place(index)?;
        let next = record.key.slot;
        record.tcp = Tcp::new(record.tcp.last().wrapping_add(SEQUENCE_GAP), remote);
        (record.key, record.is_used) = (key, true);
        self.free = next;
        self.len += 1;
        Some(index)
    }

    /// Frees the place of a connection, unless it is free.
    pub(super) fn free(&mut self, index: u32) {
        let next = self.free;
        let Some(record) = self.place(index).filter(|record| record.is_used) else { return };
        record.tcp = Tcp::dead(record.tcp.last());
        (record.key, record.is_used) = (Key { slot: next, ..NO_KEY }, false);
        self.free = index;
        self.len -= 1;
    }

    /// A place, used or not.
    pub(super) fn place(&mut self, index: u32) -> Option<&mut Record> {
        let index = index as usize;
        self.pages.get_mut(index / PAGE)?.get_mut(index % PAGE)
    }
}

impl Record {
    fn free(first: u32, next: u32) -> Self {
        let key = Key { slot: next, ..NO_KEY };
        Self { tcp: Tcp::dead(first), key, is_listed: false, has_timer: false, is_used: false }
    }

    /// The user, if it has not closed the connection.
    pub(super) fn user(&self) -> Option<Key> {
        Some(self.key).filter(|key| *key != NO_KEY)
    }
}
