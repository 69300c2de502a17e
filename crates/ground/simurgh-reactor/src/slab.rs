//! The connections of a shard, in pages that never move.
//!
//! A growing `Vec` would copy two hundred thousand records at once and hold both copies meanwhile;
//! pages are added one at a time, and freed when they are empty. A slot is reused with a new
//! generation, so a key that outlived its connection finds nothing.

use std::os::fd::OwnedFd;

use simurgh_data::{Key, PAGE_SLOTS, SlotAllocator};

use crate::page::Page;
use crate::queue::Queue;

pub(crate) type Flags = u16;

pub(crate) const HELD: Flags = 1;
/// The kernel may have input that no event will announce again.
pub(crate) const UNREAD: Flags = 1 << 1;
/// In the list of sockets to read without an event.
pub(crate) const LISTED: Flags = 1 << 2;
/// The peer has closed its sending half; what it sent before may still be unread.
pub(crate) const PEER_SHUT: Flags = 1 << 3;
/// `close` was asked for: no input, no further output.
pub(crate) const CLOSING: Flags = 1 << 4;
/// `shutdown_write` was asked for: no further output.
pub(crate) const SHUT: Flags = 1 << 5;
pub(crate) const CLOSE_SCHEDULED: Flags = 1 << 6;
pub(crate) const MUTE: Flags = 1 << 7;
/// The queue passed its limit.
pub(crate) const OVER: Flags = 1 << 8;
/// Opened from here, and the handshake has not ended.
pub(crate) const CONNECTING: Flags = 1 << 9;
pub(crate) const RESETS: Flags = 1 << 10;
pub(crate) const BLOCKED: Flags = 1 << 11;
pub(crate) const WRITABLE: Flags = 1 << 12;
/// Its state is in [`crate::tls::Tls`].
pub(crate) const TLS: Flags = 1 << 13;
/// The TLS handshake has not ended; it also has the flag `TLS`.
pub(crate) const SHAKING: Flags = 1 << 14;
/// In the line of handshakes that can go on.
pub(crate) const IN_LINE: Flags = 1 << 15;

pub(crate) const NO_SEND: Flags = CLOSING | SHUT | CLOSE_SCHEDULED | MUTE | OVER;
pub(crate) const NO_READ: Flags = CLOSING | CLOSE_SCHEDULED | MUTE | OVER;

pub(crate) struct Socket<T> {
    /// `None` for a local connection, whose other end is the handler.
    pub(crate) fd: Option<OwnedFd>,
    generation: u32,
    /// Entry in the outbox, plus one; 0: nothing pending.
    pub(crate) span: u32,
    pub(crate) flags: Flags,
    _mark: Mark,
    /// Only while the peer is slow.
    pub(crate) queue: Option<Box<Queue>>,
    pub(crate) data: T,
}

/// A byte with one valid value: the others mark vacant slots.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Mark {
    Used,
}

enum Slot<T> {
    Vacant { generation: u32 },
    Used(Socket<T>),
}

// The budget besides the protocol's record: descriptor 4, generation 4, span 4, flags 2, mark 1
// (+1), queue pointer 8. A vacant slot and a local connection cost nothing more: they use invalid
// values of the mark, and the descriptor's invalid value -1.
const _: () = assert!(size_of::<Slot<[u64; 8]>>() == 24 + 64);
const _: () = assert!(size_of::<Slot<[u8; 3]>>() == 32);

pub(crate) struct Slab<T> {
    /// Filled from the lowest slot; empty where a page was freed.
    pages: Vec<Page<Slot<T>>>,
    slots: SlotAllocator,
    len: usize,
    /// The first generation of new slots: higher than that of any slot of a freed page.
    first_generation: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { pages: Vec::new(), slots: SlotAllocator::new(), len: 0, first_generation: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&Socket<T>> {
        match self.slot(key.slot) {
            Some(Slot::Used(socket)) if socket.generation == key.generation => Some(socket),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Socket<T>> {
        match self.slot_mut(key.slot) {
            Some(Slot::Used(socket)) if socket.generation == key.generation => Some(socket),
            _ => None,
        }
    }

    /// Takes a vacant slot, on a new page if there is none. The caller fills it with
    /// [`Slab::insert`] or returns it with [`Slab::unreserve`]. `None` only when four billion slots
    /// are used.
    pub(crate) fn reserve(&mut self) -> Option<Key> {
        let (slot, is_new) = self.slots.allocate()?;
        let (index, at) = (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS);
        if is_new && index == self.pages.len() {
            self.pages.push(Page::new());
        }
        let page = self.pages.get_mut(index)?;
        if at == page.len()
            && page.push(Slot::Vacant { generation: self.first_generation }).is_err()
        {
            // No memory is left.
            self.slots.free(slot);
            return None;
        }
        match page.get(at) {
            Some(&Slot::Vacant { generation }) => Some(Key { slot, generation }),
            _ => None,
        }
    }

    /// Returns a key of [`Slab::reserve`].
    pub(crate) fn unreserve(&mut self, key: Key) {
        if let Some(Slot::Vacant { .. }) = self.slot(key.slot) {
            self.vacate(key);
        }
    }

    /// Vacates a slot for the next generation; returns its content.
    fn vacate(&mut self, key: Key) -> Option<Slot<T>> {
        let generation = key.generation.wrapping_add(1);
        let was = std::mem::replace(self.slot_mut(key.slot)?, Slot::Vacant { generation });
        self.first_generation = self.first_generation.max(generation);
        if self.slots.free(key.slot)
            && let Some(page) = self.pages.get_mut(key.slot as usize / PAGE_SLOTS)
        {
            *page = Page::new();
        }
        Some(was)
    }

    pub(crate) fn insert(&mut self, key: Key, fd: Option<OwnedFd>, data: T, flags: Flags) {
        let (generation, _mark) = (key.generation, Mark::Used);
        if let Some(slot @ Slot::Vacant { .. }) = self.slot_mut(key.slot) {
            *slot = Slot::Used(Socket { fd, generation, span: 0, flags, _mark, queue: None, data });
            self.len += 1;
        } else {
            debug_assert!(false, "only a reserved slot is filled");
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Socket<T>> {
        self.get(key)?;
        self.len -= 1;
        match self.vacate(key)? {
            Slot::Used(socket) => Some(socket),
            Slot::Vacant { .. } => None,
        }
    }

    /// The used slots of the next `records` slots from `cursor` on, which advances and is 0 again
    /// after the last slot. `visit` may read and change the record.
    pub(crate) fn visit(
        &mut self,
        cursor: &mut u32,
        records: usize,
        mut visit: impl FnMut(Key, &mut Socket<T>),
    ) {
        let slots = self.slots.end();
        let first = *cursor as usize;
        let end = first.saturating_add(records).min(slots);
        for slot in first..end {
            let slot = slot as u32;
            if let Some(Slot::Used(socket)) = self.slot_mut(slot) {
                visit(Key { slot, generation: socket.generation }, socket);
            }
        }
        *cursor = if end >= slots { 0 } else { end as u32 };
    }

    /// The key of the connection in a slot.
    pub(crate) fn key_at(&self, slot: u32) -> Option<Key> {
        match self.slot(slot)? {
            Slot::Used(socket) => Some(Key { slot, generation: socket.generation }),
            Slot::Vacant { .. } => None,
        }
    }

    #[inline]
    fn slot(&self, slot: u32) -> Option<&Slot<T>> {
        self.pages.get(slot as usize / PAGE_SLOTS)?.get(slot as usize % PAGE_SLOTS)
    }

    #[inline]
    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot<T>> {
        self.pages.get_mut(slot as usize / PAGE_SLOTS)?.get_mut(slot as usize % PAGE_SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn add(slab: &mut Slab<u32>, data: u32) -> Key {
        let key = slab.reserve().unwrap();
        slab.insert(key, Some(fd()), data, 0);
        key
    }

    #[test]
    fn reused_slot_rejects_the_old_key() {
        let mut slab = Slab::new();
        let old = add(&mut slab, 1);
        assert_eq!(slab.remove(old).unwrap().data, 1);
        let new = add(&mut slab, 2);
        assert_eq!(old.slot, new.slot);
        assert_ne!(old.generation, new.generation);
        assert!(slab.get(old).is_none() && slab.get_mut(old).is_none());
        assert!(slab.remove(old).is_none());
        assert_eq!(slab.get(new).unwrap().data, 2);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn pages_are_released_after_many_removals_and_old_keys_stay_invalid() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..5000).map(|data| add(&mut slab, data)).collect();
        for key in &keys {
            assert!(slab.remove(*key).is_some());
        }
        let held = slab.pages.iter().filter(|page| !page.is_empty()).count();
        assert!(held <= 2, "{held} empty pages");
        let new: Vec<Key> = (0..5000).map(|data| add(&mut slab, data)).collect();
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
        assert!(new.iter().all(|key| slab.get(*key).is_some()));
        assert_eq!(slab.pages.len(), 5000_usize.div_ceil(PAGE_SLOTS));
    }

    #[test]
    fn reserved_slot_is_given_to_no_other_connection() {
        let mut slab = Slab::new();
        let reserved = slab.reserve().unwrap();
        let other = add(&mut slab, 1);
        assert_ne!(reserved.slot, other.slot);
        slab.remove(other);
        slab.insert(reserved, Some(fd()), 2, 0);
        assert_eq!(slab.get(reserved).unwrap().data, 2);
        let given_up = slab.reserve().unwrap();
        slab.unreserve(given_up);
        let again = slab.reserve().unwrap();
        assert_eq!(again.slot, given_up.slot);
        assert_ne!(again.generation, given_up.generation);
    }

    #[test]
    fn pages_are_added_and_visited_in_slices() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..700).map(|data| add(&mut slab, data)).collect();
        assert_eq!(slab.pages.len(), 700_usize.div_ceil(PAGE_SLOTS));
        slab.remove(keys[3]);
        let (mut cursor, mut seen, mut slices) = (0, Vec::new(), 0);
        loop {
            slab.visit(&mut cursor, 100, |key, socket| seen.push((key, socket.data)));
            slices += 1;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!((seen.len(), slices), (699, slab.slots.end().div_ceil(100)));
        assert!(seen.iter().all(|(key, data)| keys[*data as usize] == *key));
    }
}
