//! Memberships: the server's side of each joined channel, in one slab for all connections of a
//! shard.

use simurgh_proto::message::{OwnedRef, Ref};
use simurgh_reactor::Key;

use super::conn::NO_MEMBERSHIP;
use super::topics::TopicId;
use crate::channel::Channel;

/// One joined channel. An idle one costs this record, its 16 bytes in the topic's table, and
/// whatever the application's channel holds.
pub(crate) struct Membership {
    /// Absent while one of its callbacks runs.
    pub(crate) channel: Option<Box<dyn Channel>>,
    /// What pushes, `phx_close` and `phx_error` bear: the client's join_ref, or the join's ref if
    /// it gave none (PROTOCOL §3).
    pub(crate) join_ref: OwnedRef,
    pub(crate) conn: Key,
    pub(crate) topic: TopicId,
    /// Place in the topic's subscriber table.
    pub(crate) at: u32,
    /// Next membership of the same socket.
    pub(crate) next: u32,
    /// Tells this membership from earlier ones in the same slot.
    pub(crate) generation: u32,
    /// Where this is a channel's subscription to a further topic: the membership of that channel.
    pub(crate) relay_for: u32,
    pub(crate) flags: u8,
}

const _: () = assert!(size_of::<Membership>() <= 72, "a membership is budgeted at 72 bytes");

/// The client gave no join_ref.
pub(crate) const WITHOUT_JOIN_REF: u8 = 1;
/// The socket itself, subscribed to its id, to hear `disconnect`.
pub(crate) const SOCKET_ID: u8 = 2;
/// A subscription of a channel to a further topic.
pub(crate) const RELAY: u8 = 4;
/// Counted in the census.
pub(crate) const COUNTED: u8 = 8;
/// Broadcasts are being delivered to it through application code; what that code writes does not
/// bring it up to date again.
pub(crate) const DELIVERING: u8 = 16;
/// The slot is free.
const FREE: u8 = 128;

impl Membership {
    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether this is a channel the client joined.
    pub(crate) fn is_joined(&self) -> bool {
        !self.is(SOCKET_ID | RELAY)
    }

    /// The join_ref as the client gave it.
    pub(crate) fn given_join_ref(&self) -> Ref<'_> {
        if self.is(WITHOUT_JOIN_REF) { Ref::Null } else { self.join_ref.as_ref() }
    }
}

/// The slab. Slots are reused, last freed first; pages never move.
#[derive(Default)]
pub(crate) struct Memberships {
    pages: super::pages::Pages<Membership>,
    free: Option<u32>,
}

impl Memberships {
    pub(crate) fn get(&self, id: u32) -> Option<&Membership> {
        self.pages.get(id as usize).filter(|membership| !membership.is(FREE))
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Membership> {
        self.pages.get_mut(id as usize).filter(|membership| !membership.is(FREE))
    }

    /// Stores a membership and names it; its generation is set here.
    pub(crate) fn insert(&mut self, mut membership: Membership) -> u32 {
        match self.free {
            Some(id) => {
                if let Some(slot) = self.pages.get_mut(id as usize) {
                    // A free slot's `next` is the next free slot.
                    self.free = (slot.next != NO_MEMBERSHIP).then_some(slot.next);
                    membership.generation = slot.generation;
                    *slot = membership;
                }
                id
            }
            None => {
                membership.generation = 0;
                self.pages.push(membership);
                self.pages.len() as u32 - 1
            }
        }
    }

    /// Frees the slot; the channel must have been taken out before, since its drop is the
    /// application's.
    pub(crate) fn remove(&mut self, id: u32) -> Option<OwnedRef> {
        let free = self.free.unwrap_or(NO_MEMBERSHIP);
        let slot = self.get_mut(id)?;
        let join_ref = std::mem::take(&mut slot.join_ref);
        slot.flags = FREE;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = free;
        self.free = Some(id);
        Some(join_ref)
    }
}
