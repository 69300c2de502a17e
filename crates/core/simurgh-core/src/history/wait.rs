//! Channels that wait for the confirmation that their broadcast is kept.

use alloc::sync::Arc;
use alloc::vec::Vec;

use simurgh_channel::{Broadcast, ChannelId, Effect, Node, Reason, Reply};
use simurgh_data::Key;
use simurgh_history::Position;
use simurgh_proto::message::Ref;

use super::replays::Replay;
use crate::barrier::{Queued, queued_reply};
use crate::core::Core;
use crate::socket::{Phase, Socket, Speaker};
use crate::sockets::Sockets;

/// Effects that may wait behind a replay.
const WAITING_MAX: usize = 1024;

impl<N: Node> Core<N> {
    #[inline]
    pub(crate) fn waits(&self, channel: ChannelId) -> bool {
        self.history.as_ref().is_some_and(|it| it.barriers.has(channel))
    }

    /// Whether a channel ends once it has waited: it receives nothing more.
    #[inline]
    pub(crate) fn ends_behind(&self, channel: ChannelId) -> bool {
        self.history.as_ref().is_some_and(|it| it.barriers.ends(channel))
    }

    /// Queues what a channel did; `is_own`: in the callback that broadcast.
    pub(crate) fn wait_behind(
        &mut self,
        channel: ChannelId,
        effects: impl Iterator<Item = Effect>,
        is_own: bool,
    ) {
        let Some(history) = &mut self.history else { return };
        for effect in effects {
            history.barriers.push(channel, Queued::Effect(effect), is_own);
        }
    }

    /// Queues the end of a callback: an answer to its message, the end of its channel.
    pub(crate) fn answer_behind(
        &mut self,
        channel: ChannelId,
        message: Option<Ref<'_>>,
        (reply, end): (Option<Reply>, Option<Reason>),
        is_own: bool,
    ) {
        let Some(history) = &mut self.history else { return };
        if let Some(message) = &message {
            if is_own {
                history.barriers.note_message(channel, message);
            }
            if let Some(reply) = reply {
                history.barriers.push(channel, queued_reply(message, reply), is_own);
            }
        }
        if let Some(reason) = end {
            history.barriers.push(channel, Queued::End(reason), is_own);
        }
    }

    pub(crate) fn end_behind(&mut self, channel: ChannelId, reason: Reason) {
        if let Some(history) = &mut self.history
            && !history.barriers.ends(channel)
        {
            history.barriers.push(channel, Queued::End(reason), false);
        }
    }

    /// A channel has ended while it waited. Returns its effects since, in order.
    pub(crate) fn take_waiting(&mut self, channel: ChannelId) -> Vec<Effect> {
        let barrier = self.history.as_mut().and_then(|it| it.barriers.take(channel));
        let mut effects = Vec::new();
        if let Some(mut barrier) = barrier {
            while let Some(later) = barrier.next() {
                effects.extend(match later {
                    Queued::Effect(effect) => Some(effect),
                    Queued::Broadcast(_) | Queued::End(_) => None,
                });
            }
        }
        effects
    }

    /// Has a channel wait for the confirmation with this number. Its socket is not read meanwhile.
    pub(super) fn raise(&mut self, out: &mut impl Sockets, speaker: &Speaker, ticket: u32) {
        let Some(history) = &mut self.history else { return };
        history.barriers.raise(speaker.conn, speaker.id, ticket);
        let tick = out.now().tick;
        let is_open = |socket: &&mut Socket| socket.phase == Phase::Open;
        if let Some(socket) = out.socket_mut(speaker.conn).filter(is_open) {
            socket.enter(Phase::Waiting, tick);
            out.hold(speaker.conn);
        }
    }

    /// A channel no longer waits: reads its socket again, unless another wait has begun meanwhile.
    pub(crate) fn resume_reading(&mut self, out: &mut impl Sockets, key: Key) {
        let tick = out.now().tick;
        if self.waits_on_history(key) {
            return;
        }
        let Some(socket) = out.socket_mut(key) else { return };
        if !socket.own.as_ref().is_some_and(|own| own.is_waited_for())
            && socket.phase == Phase::Waiting
        {
            socket.enter(Phase::Open, tick);
        }
    }

    pub(super) fn begin_replay(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        through: Position,
        partial: bool,
    ) {
        let Some(history) = &mut self.history else { return };
        let ticket = history.barriers.next_ticket();
        let (channel, conn) = (speaker.id, speaker.conn);
        let replay = Replay { channel, conn, through, partial, ticket, is_asked: false };
        history.replays.by_membership.insert(channel.membership, replay);
        history.replays.queue.push_back(channel);
        self.registry.catches_up(channel.membership, true);
        self.raise(out, speaker, ticket);
    }

    /// Queues a broadcast without position for a member in a replay; `true` if too much waits.
    pub(crate) fn deliver_later(
        &mut self,
        channel: ChannelId,
        pending: Vec<Arc<Broadcast>>,
    ) -> bool {
        let Some(history) = &mut self.history else { return false };
        for broadcast in pending.into_iter().filter(|it| it.kept.is_none()) {
            history.barriers.push(channel, Queued::Broadcast(broadcast), false);
        }
        history.barriers.waiting(channel) > WAITING_MAX
    }
}
