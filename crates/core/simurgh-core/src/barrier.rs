//! Channels that wait until their broadcast is kept, or until their clients have what they missed.
//! Their effects meanwhile are queued, so an `ok` means that the broadcast is kept
//! (docs/HISTORY.md). Their sockets are not read.

use crate::seeded_state::HashMap;
use hashbrown::hash_map::Entry;
use simurgh_data::prelude::*;

use simurgh_channel::{Broadcast, ChannelId, Effect, Reason, Reply, ReplyRef};
use simurgh_data::Key;
use simurgh_proto::message::{OwnedRef, Ref};

use crate::socket::{Phase, Socket};
use crate::sockets::Sockets;

/// Broadcasts and effects that may wait behind a replay.
const WAITING_MAX: usize = 1024;

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
    /// The callback that broadcast, and the message that it was handling.
    call: u64,
    message: Option<OwnedRef>,
    /// What waits, each with the callback that did it.
    queue: VecDeque<(u64, Queued)>,
}

/// In place of a callback's number: none did it.
const NO_CALL: u64 = u64::MAX;

impl Barrier {
    /// The next that waited, and the callback that did it.
    pub(crate) fn next(&mut self) -> Option<(u64, Queued)> {
        let next = self.queue.pop_front()?;
        self.message.take_if(|_| next.0 != self.call);
        Some(next)
    }

    /// The broadcast may not be kept: what its own callback did is dropped, except for the end of
    /// the channel. Returns the message to be answered, and what is dropped.
    pub(crate) fn fail(&mut self) -> (Option<OwnedRef>, Vec<Queued>) {
        let (mut lost, mut reply) = (Vec::new(), None::<OwnedRef>);
        for (call, what) in core::mem::take(&mut self.queue) {
            match what {
                what if call != self.call => self.queue.push_back((call, what)),
                Queued::End(_) => self.queue.push_back((NO_CALL, what)),
                what => {
                    if let Queued::Effect(Effect::Reply(to, _)) = &what {
                        reply.get_or_insert_with(|| to.0.clone());
                    }
                    lost.push(what);
                }
            }
        }
        (self.message.take().or(reply), lost)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Barriers {
    by_channel: HashMap<ChannelId, Barrier>,
    by_socket: HashMap<Key, u16>,
    tickets: u32,
    calls: u64,
    /// The callback whose effects are being carried out.
    call: u64,
    /// Channels that stopped while they intercepted a broadcast, and why. They end once the message
    /// for which they were brought up to date is sent.
    stopped: Vec<(ChannelId, Reason)>,
}

impl Barriers {
    #[inline]
    pub(crate) fn has(&self, channel: ChannelId) -> bool {
        !self.by_channel.is_empty() && self.by_channel.contains_key(&channel)
    }

    /// Whether a channel ends once it has waited: it receives nothing more.
    #[inline]
    pub(crate) fn ends(&self, channel: ChannelId) -> bool {
        let queue = self.by_channel.get(&channel).map(|barrier| &barrier.queue);
        queue.is_some_and(|queue| queue.iter().any(|(_, it)| matches!(it, Queued::End(_))))
    }

    /// Whether a channel ends once it has waited, or after the current message.
    pub(crate) fn is_ending(&self, channel: ChannelId) -> bool {
        self.stopped.iter().any(|(it, _)| *it == channel) || self.ends(channel)
    }

    /// Ends a channel after the current message; the first reason counts.
    pub(crate) fn stop(&mut self, channel: ChannelId, reason: Reason) {
        if !self.is_ending(channel) {
            self.stopped.push((channel, reason));
        }
    }

    /// The current message is sent. Returns why a channel ends now. If it waits, it ends after
    /// that.
    #[inline]
    pub(crate) fn take_stopped(&mut self, channel: ChannelId) -> Option<Reason> {
        if self.stopped.is_empty() || self.has(channel) {
            return None;
        }
        let at = self.stopped.iter().position(|(it, _)| *it == channel)?;
        Some(self.stopped.swap_remove(at).1)
    }

    /// A membership has ended.
    pub(crate) fn left(&mut self, membership: u32) {
        self.stopped.retain(|(it, _)| it.membership != membership);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_channel.len() + self.by_socket.len() + self.stopped.len()
    }

    pub(crate) fn holds_socket(&self, conn: Key) -> bool {
        !self.by_socket.is_empty() && self.by_socket.contains_key(&conn)
    }

    /// Has a channel wait for a confirmation, and returns its number. The socket is not read
    /// meanwhile.
    pub(crate) fn raise(&mut self, out: &mut impl Sockets, conn: Key, channel: ChannelId) -> u32 {
        self.tickets = self.tickets.wrapping_add(1);
        let (ticket, tick) = (self.tickets, out.now().tick);
        let (call, queue) = (self.call, VecDeque::new());
        let barrier = Barrier { conn, ticket, call, message: None, queue };
        self.by_channel.insert(channel, barrier);
        *self.by_socket.entry(conn).or_default() += 1;
        let is_open = |socket: &&mut Socket| socket.phase == Phase::Open;
        if let Some(socket) = out.socket_mut(conn).filter(is_open) {
            socket.enter(Phase::Waiting, tick);
            out.hold(conn);
        }
        ticket
    }

    /// Whether something that a channel does is carried out now: if the channel waits, it is queued
    /// instead. The first end counts.
    #[inline]
    pub(crate) fn admit(&mut self, channel: ChannelId, what: Queued) -> Option<Queued> {
        if self.by_channel.is_empty() {
            return Some(what);
        }
        let Some(barrier) = self.by_channel.get_mut(&channel) else { return Some(what) };
        let is_end = |it: &Queued| matches!(it, Queued::End(_));
        if !is_end(&what) || !barrier.queue.iter().any(|(_, it)| is_end(it)) {
            barrier.queue.push_back((self.call, what));
        }
        None
    }

    /// The same for the end of a callback that handled this message: its answer, and the end of its
    /// channel.
    pub(crate) fn answer_later(
        &mut self,
        channel: ChannelId,
        message: Option<Ref<'_>>,
        reply: Option<Reply>,
        end: Option<Reason>,
    ) {
        if let Some(message) = message {
            let barrier = self.by_channel.get_mut(&channel);
            if let Some(barrier) = barrier.filter(|barrier| barrier.call == self.call) {
                barrier.message = Some((&message).into());
            }
            if let Some(reply) = reply {
                let reply = Effect::Reply(ReplyRef((&message).into()), reply);
                self.admit(channel, Queued::Effect(reply));
            }
        }
        if let Some(reason) = end {
            self.admit(channel, Queued::End(reason));
        }
    }

    /// Begins to carry out what a callback did: a new one, or one whose effects waited. Returns the
    /// one that goes on afterwards.
    #[inline]
    pub(crate) fn enter(&mut self, waited: Option<u64>) -> u64 {
        self.calls += 1;
        core::mem::replace(&mut self.call, waited.unwrap_or(self.calls))
    }

    #[inline]
    pub(crate) fn leave(&mut self, outer: u64) {
        self.call = outer;
    }

    /// Queues broadcasts without position for a member in a replay; `true` if too much waits.
    pub(crate) fn deliver_later(
        &mut self,
        channel: ChannelId,
        pending: Vec<Arc<Broadcast>>,
    ) -> bool {
        let Some(barrier) = self.by_channel.get_mut(&channel) else { return false };
        let unkept = pending.into_iter().filter(|it| it.kept.is_none());
        barrier.queue.extend(unkept.map(|it| (NO_CALL, Queued::Broadcast(it))));
        barrier.queue.len() > WAITING_MAX
    }

    /// A channel waits again: what waited before is queued behind what waits already.
    pub(crate) fn wait_again(&mut self, channel: ChannelId, before: Barrier) {
        if let Some(barrier) = self.by_channel.get_mut(&channel) {
            barrier.message = before.message;
            barrier.queue.extend(before.queue);
        }
    }

    pub(crate) fn awaits(&self, channel: ChannelId, ticket: u32) -> bool {
        self.by_channel.get(&channel).is_some_and(|it| it.ticket == ticket)
    }

    pub(crate) fn lower(&mut self, channel: ChannelId, ticket: u32) -> Option<Barrier> {
        self.awaits(channel, ticket).then(|| self.take(channel))?
    }

    pub(crate) fn take(&mut self, channel: ChannelId) -> Option<Barrier> {
        if !self.has(channel) {
            return None;
        }
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

    /// A channel has ended while it waited. Returns its effects since, in order.
    pub(crate) fn take_effects(&mut self, channel: ChannelId) -> Vec<Effect> {
        let queue = self.take(channel).map(|barrier| barrier.queue).unwrap_or_default();
        let effects = queue.into_iter().filter_map(|(_, it)| match it {
            Queued::Effect(effect) => Some(effect),
            Queued::Broadcast(_) | Queued::End(_) => None,
        });
        effects.collect()
    }

    /// A channel no longer waits: its socket may be read again, unless another wait has begun.
    pub(crate) fn resume_reading(&self, out: &mut impl Sockets, conn: Key) {
        let tick = out.now().tick;
        if self.holds_socket(conn) {
            return;
        }
        let Some(socket) = out.socket_mut(conn) else { return };
        let is_waited_for = socket.own.as_ref().is_some_and(|own| own.is_waited_for());
        if !is_waited_for && socket.phase == Phase::Waiting {
            socket.enter(Phase::Open, tick);
        }
    }
}
