//! Memberships: the server's side of joined channels, in one slab for all connections of a shard.

use simurgh_channel::{NO_MEMBERSHIP, ShardChannel};
use simurgh_data::{Key, PAGE_SLOTS, Page, SlotAllocator};
use simurgh_proto::message::OwnedRef;

use super::topics::TopicId;
use simurgh_data::prelude::*;

/// One joined channel. An idle one costs this record, its 16 bytes in the topic's table, and the
/// application's channel.
pub(crate) struct Membership {
    pub(super) holds: Holds,
    /// The join_ref of pushes, `phx_close` and `phx_error`: the client's, or the join's ref if it
    /// gave none (PROTOCOL §3).
    pub(crate) join_ref: OwnedRef,
    pub(crate) conn: Key,
    pub(crate) topic: TopicId,
    pub(crate) at: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
    pub(crate) generation: u32,
    pub(super) flags: u16,
}

pub(crate) enum Holds {
    Channel(Box<dyn ShardChannel>),
    /// A channel's subscription to a further topic: the membership of that channel. `None` for the
    /// socket itself, and while a callback of the channel runs.
    Relay(u32),
}

impl Holds {
    pub(crate) const NOTHING: Self = Self::Relay(NO_MEMBERSHIP);
}

impl Default for Holds {
    fn default() -> Self {
        Self::NOTHING
    }
}

pub(crate) struct Subscriber {
    pub(crate) holds: Holds,
    pub(crate) join_ref: OwnedRef,
    /// Its deliveries go to its channel, or to a socket within the process.
    pub(crate) via_channel: bool,
    pub(crate) flags: u16,
}

impl Subscriber {
    pub(crate) fn through(holds: Holds, flags: u16) -> Self {
        Self { holds, join_ref: OwnedRef::NULL, via_channel: true, flags }
    }
}

const _: () = assert!(size_of::<Membership>() <= 64, "a membership is budgeted at 64 bytes");

pub(crate) const WITHOUT_JOIN_REF: u16 = 1;
/// The socket's own subscription to its id, for `disconnect`.
pub(crate) const SOCKET_ID: u16 = 2;
pub(crate) const RELAY: u16 = 4;
/// Counted among the topic's members over all shards.
pub(crate) const COUNTED: u16 = 8;
/// Broadcasts are being delivered to it through application code, whose messages do not bring it up
/// to date again.
pub(crate) const DELIVERING: u16 = 16;
/// Nothing has happened on its channel since the last pass of hibernation.
const QUIET: u16 = 32;
const HIBERNATES: u16 = 64;
const FREE: u16 = 128;
pub(crate) const BEHIND: u16 = 256;
pub(crate) const HAS_RELAYS: u16 = 512;
/// Its socket is not read because its channel wants no more messages for now.
pub(crate) const HOLDS: u16 = 1024;
pub(crate) const TRACKS: u16 = 2048;
pub(crate) const POSITIONS: u16 = 4096;
/// Its deliveries go to its channel, or to a socket within the process.
pub(crate) const VIA_CHANNEL: u16 = 8192;
/// Its deliveries wait until it has all it has missed.
pub(crate) const CATCHING_UP: u16 = 16384;

impl Membership {
    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_joined(&self) -> bool {
        !self.is(SOCKET_ID | RELAY)
    }

    pub(crate) fn channel(&self) -> Option<&dyn ShardChannel> {
        match &self.holds {
            Holds::Channel(channel) => Some(&**channel),
            Holds::Relay(_) => None,
        }
    }

    pub(super) fn take_channel(&mut self) -> Option<Box<dyn ShardChannel>> {
        match core::mem::replace(&mut self.holds, Holds::NOTHING) {
            Holds::Channel(channel) => Some(channel),
            relay @ Holds::Relay(_) => {
                self.holds = relay;
                None
            }
        }
    }

    pub(crate) fn relay_for(&self) -> Option<u32> {
        match self.holds {
            Holds::Relay(channel) if self.is(RELAY) => Some(channel),
            _ => None,
        }
    }

    /// Otherwise the membership has the ref of the join.
    pub(crate) fn has_given_join_ref(&self) -> bool {
        !self.is(WITHOUT_JOIN_REF)
    }
}

/// The slab. Slots are reused; pages never move, and are freed when they are empty.
#[derive(Default)]
pub(crate) struct Memberships {
    /// Filled from the lowest slot; empty if a page was freed.
    pages: Vec<Page<Membership>>,
    slots: SlotAllocator,
    /// The first generation of new slots: more than any slot of a freed page has had.
    first_generation: u32,
    awake: usize,
    hibernating: usize,
}

impl Memberships {
    pub(super) fn end(&self) -> u32 {
        self.slots.end() as u32
    }

    pub(super) fn awake(&self) -> usize {
        self.awake
    }

    pub(super) fn hibernating(&self) -> usize {
        self.hibernating
    }

    /// Takes the channel out for a callback, which ends its hibernation.
    pub(super) fn wake(&mut self, id: u32) -> Option<Box<dyn ShardChannel>> {
        let it = self.get_mut(id)?;
        let channel = it.take_channel();
        let has_slept = it.is(HIBERNATES);
        it.flags &= !(QUIET | HIBERNATES);
        if has_slept {
            self.awake += 1;
            self.hibernating -= 1;
        }
        channel
    }

    /// Hibernates the channel, and returns it, if nothing has happened on it since the last call.
    pub(super) fn send_to_sleep(&mut self, id: u32) -> Option<&mut dyn ShardChannel> {
        let it = self.get_mut(id)?;
        if !it.is_joined() || it.is(HIBERNATES) {
            return None;
        }
        if !it.is(QUIET) {
            it.flags |= QUIET;
            return None;
        }
        it.flags |= HIBERNATES;
        self.awake -= 1;
        self.hibernating += 1;
        match &mut self.get_mut(id)?.holds {
            Holds::Channel(channel) => Some(&mut **channel),
            Holds::Relay(_) => None,
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Membership> {
        let page = self.pages.get(id as usize / PAGE_SLOTS)?;
        page.get(id as usize % PAGE_SLOTS).filter(|membership| !membership.is(FREE))
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Membership> {
        let page = self.pages.get_mut(id as usize / PAGE_SLOTS)?;
        page.get_mut(id as usize % PAGE_SLOTS).filter(|membership| !membership.is(FREE))
    }

    /// Stores a membership and sets its generation. Returns it if no memory or number is left.
    pub(super) fn insert(&mut self, mut membership: Membership) -> Result<u32, Membership> {
        let is_joined = membership.is_joined();
        let Some((id, is_new)) = self.slots.allocate() else { return Err(membership) };
        let index = id as usize / PAGE_SLOTS;
        if is_new && index == self.pages.len() {
            self.pages.push(Page::new());
        }
        let Some(page) = self.pages.get_mut(index) else { return Err(membership) };
        match page.get_mut(id as usize % PAGE_SLOTS) {
            Some(slot) => {
                membership.generation = slot.generation;
                *slot = membership;
            }
            None => {
                membership.generation = self.first_generation;
                if let Err(membership) = page.push(membership) {
                    self.slots.free(id);
                    return Err(membership);
                }
            }
        }
        self.awake += usize::from(is_joined);
        Ok(id)
    }

    /// Frees the slot; the channel must have been taken out before, since its drop is application
    /// code.
    pub(super) fn remove(&mut self, id: u32) -> Option<OwnedRef> {
        let slot = self.get_mut(id)?;
        let join_ref = core::mem::take(&mut slot.join_ref);
        let (is_joined, hibernates) = (slot.is_joined(), slot.is(HIBERNATES));
        slot.flags = FREE;
        slot.generation = slot.generation.wrapping_add(1);
        let generation = slot.generation;
        self.first_generation = self.first_generation.max(generation);
        match hibernates {
            true => self.hibernating -= 1,
            false => self.awake -= usize::from(is_joined),
        }
        if self.slots.free(id)
            && let Some(page) = self.pages.get_mut(id as usize / PAGE_SLOTS)
        {
            *page = Page::new();
        }
        Some(join_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { slot: 0, generation: 0 };

    fn insert(members: &mut Memberships) -> u32 {
        let new = Membership {
            holds: Holds::NOTHING,
            join_ref: OwnedRef::NULL,
            conn: KEY,
            topic: TopicId::default(),
            at: 0,
            next: NO_MEMBERSHIP,
            previous: NO_MEMBERSHIP,
            generation: 0,
            flags: 0,
        };
        members.insert(new).ok().unwrap()
    }

    #[test]
    fn generations_continue_after_a_page_was_freed() {
        let mut members = Memberships::default();
        let ids: Vec<u32> = (0..4 * PAGE_SLOTS).map(|_| insert(&mut members)).collect();
        ids.iter().for_each(|id| assert!(members.remove(*id).is_some()));
        for _ in 0..4 * PAGE_SLOTS {
            let id = insert(&mut members);
            assert!(members.get(id).unwrap().generation > 0, "{id} answers to an old name");
        }
        assert_eq!(members.pages.len() * PAGE_SLOTS, members.end() as usize, "each page once");
    }

    #[test]
    fn empty_page_is_freed() {
        let mut members = Memberships::default();
        (0..4 * PAGE_SLOTS).for_each(|_| assert!(insert(&mut members) < 4 * PAGE_SLOTS as u32));
        let middle = PAGE_SLOTS as u32..3 * PAGE_SLOTS as u32;
        middle.clone().for_each(|id| assert!(members.remove(id).is_some()));
        let lens = members.pages.iter().map(|page| page.len());
        assert_eq!(Vec::from_iter(lens), [PAGE_SLOTS, PAGE_SLOTS, 0, PAGE_SLOTS], "room is kept");
        let left = (0..members.end()).filter(|id| members.get(*id).is_some());
        assert!(left.eq((0..middle.start).chain(middle.end..members.end())));
    }
}
