//! Channels that wait until their broadcast is kept. Their effects meanwhile are queued, so an
//! `ok` means that the broadcast is kept (docs/HISTORY.md).

use crate::seeded_state::HashMap;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hashbrown::hash_map::Entry;

use simurgh_channel::{Broadcast, ChannelId, Effect, Reason, Reply, ReplyRef};
use simurgh_data::Key;
use simurgh_proto::message::{OwnedRef, Ref};

#[derive(Debug)]
pub(crate) enum Queued {
    Effect(Effect),
    Broadcast(Arc<Broadcast>),
    End(Reason),
}

#[derive(Debug)]
pub(crate) struct Barrier {
    conn: Key,
    /// Distinguishes the awaited confirmation from that of an earlier broadcast.
    ticket: u32,
    /// The message that was being handled when the channel broadcast.
    message: Option<OwnedRef>,
    queue: VecDeque<Queued>,
    /// How many of the first in the queue the broadcasting callback itself did.
    own: usize,
}

impl Barrier {
    pub(crate) fn next(&mut self) -> Option<Queued> {
        let next = self.queue.pop_front()?;
        self.own = self.own.saturating_sub(1);
        Some(next)
    }

    /// The broadcast may not be kept: what its own callback did is dropped, except for the end of
    /// the channel. Returns the message to be answered, and what is dropped.
    pub(crate) fn fail(&mut self) -> (Option<OwnedRef>, Vec<Queued>) {
        let rest = self.queue.split_off(self.own.min(self.queue.len()));
        let own = core::mem::replace(&mut self.queue, rest).into_iter();
        let (ends, lost): (Vec<_>, Vec<_>) = own.partition(|it| matches!(it, Queued::End(_)));
        self.own = ends.len();
        ends.into_iter().rev().for_each(|it| self.queue.push_front(it));
        (self.message.take(), lost)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Barriers {
    by_channel: HashMap<ChannelId, Barrier>,
    by_socket: HashMap<Key, u16>,
    tickets: u32,
}

impl Barriers {
    #[inline]
    pub(crate) fn has(&self, channel: ChannelId) -> bool {
        !self.by_channel.is_empty() && self.by_channel.contains_key(&channel)
    }

    pub(crate) fn ends(&self, channel: ChannelId) -> bool {
        let queue = self.by_channel.get(&channel).map(|it| &it.queue);
        queue.is_some_and(|it| it.iter().any(|it| matches!(it, Queued::End(_))))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_channel.len() + self.by_socket.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn holds_socket(&self, conn: Key) -> bool {
        self.by_socket.contains_key(&conn)
    }

    pub(crate) fn next_ticket(&mut self) -> u32 {
        self.tickets = self.tickets.wrapping_add(1);
        self.tickets
    }

    /// A channel has broadcast, and waits for the confirmation with this number.
    pub(crate) fn raise(&mut self, conn: Key, channel: ChannelId, ticket: u32) {
        let barrier = Barrier { conn, ticket, message: None, queue: VecDeque::new(), own: 0 };
        self.by_channel.insert(channel, barrier);
        *self.by_socket.entry(conn).or_default() += 1;
    }

    pub(crate) fn note_message(&mut self, channel: ChannelId, message: &Ref<'_>) {
        if let Some(barrier) = self.by_channel.get_mut(&channel) {
            barrier.message = Some(message.into());
        }
    }

    /// A channel waits again: what waited before is queued behind what waits already.
    pub(crate) fn wait_again(&mut self, channel: ChannelId, before: Barrier) {
        if let Some(barrier) = self.by_channel.get_mut(&channel) {
            barrier.own += before.own;
            barrier.message = before.message;
            barrier.queue.extend(before.queue);
        }
    }

    /// Queues what the channel does next; `is_own`: the broadcasting callback did it.
    pub(crate) fn push(&mut self, channel: ChannelId, later: Queued, is_own: bool) {
        if let Some(barrier) = self.by_channel.get_mut(&channel) {
            barrier.queue.push_back(later);
            barrier.own += usize::from(is_own);
        }
    }

    pub(crate) fn awaits(&self, channel: ChannelId, ticket: u32) -> bool {
        self.by_channel.get(&channel).is_some_and(|it| it.ticket == ticket)
    }

    pub(crate) fn waiting(&self, channel: ChannelId) -> usize {
        self.by_channel.get(&channel).map_or(0, |it| it.queue.len())
    }

    pub(crate) fn lower(&mut self, channel: ChannelId, ticket: u32) -> Option<Barrier> {
        self.awaits(channel, ticket).then(|| self.take(channel))?
    }

    pub(crate) fn take(&mut self, channel: ChannelId) -> Option<Barrier> {
        let barrier = self.by_channel.remove(&channel)?;
        if let Entry::Occupied(mut count) = self.by_socket.entry(barrier.conn) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if self.by_channel.is_empty() {
            (self.by_channel, self.by_socket) = (HashMap::default(), HashMap::default());
        }
        Some(barrier)
    }
}

pub(crate) fn queued_reply(message: &Ref<'_>, reply: Reply) -> Queued {
    Queued::Effect(Effect::Reply(ReplyRef(message.into()), reply))
}
