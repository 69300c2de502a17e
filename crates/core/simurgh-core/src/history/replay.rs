//! Replays: what a client has missed that is too much to be sent at once. It is sent in parts, as
//! the socket takes them, and other broadcasts of the topic wait until the end.
//!
//! Nothing is held for a slow member: each part is requested from the topic's home when it is
//! needed. The last answer is in order with what the home passes on, so it ends exactly where the
//! log of this shard continues. What the channel does meanwhile is queued as behind a broadcast
//! that is to be kept, and its socket is not read.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use simurgh_channel::{
    Broadcast, ChannelId, HistoryMail, Mail, Missed, MissedRequest, Node, Requester, home_shard,
};
use simurgh_data::{Key, Next};
use simurgh_history::{GAP, Since, encode_gap};

use super::replays::Replay;
use crate::barrier::{Barrier, Queued};
use crate::core::Core;
use crate::registry::VIA_CHANNEL;
use crate::socket::{Phase, Speaker};
use crate::sockets::Sockets;

/// Members in one turn.
const VISITED_MAX: usize = 1024;
/// How often replays continue while nothing else happens.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl<N: Node> Core<N> {
    pub(super) fn answer_missed(&mut self, out: &mut impl Sockets, ask: &MissedRequest) {
        let Some((missed, own)) = self.missed(out, ask) else { return };
        match ask.requester {
            // By mail, other broadcasts would be kept before it arrives.
            Requester::Member(channel) if ask.shard == self.shard => {
                self.portion_came(out, channel, &missed);
            }
            _ => self.post_missed(ask, missed, own),
        }
    }

    /// Requests the next parts for members whose sockets have taken most of the last; and handles
    /// requests that wait for a broker.
    pub(crate) fn go_on_replaying(&mut self, out: &mut impl Sockets) -> Next {
        if self.history.is_none() {
            return Next::Idle;
        }
        let tended = self.expire_pending(out);
        let Some(history) = &self.history else { return Next::Idle };
        let looked_at = history.replays.queue.len().min(VISITED_MAX);
        let few = self.node.config().history.portion.bytes / 2;
        for _ in 0..looked_at {
            let Some(history) = &mut self.history else { break };
            let Some(channel) = history.replays.queue.pop_front() else { break };
            let Some(replay) = history.replays.get(channel) else { continue };
            let (conn, ticket) = (replay.conn, replay.ticket);
            if self.ends_behind(channel) {
                self.confirmed(out, channel, ticket);
            } else if out.queued(conn) as u64 <= few {
                self.request_portion(channel);
            } else if let Some(history) = &mut self.history {
                history.replays.queue.push_back(channel);
            }
        }
        let left = self.history.as_ref().is_some_and(|it| !it.replays.queue.is_empty());
        let next = if left { Next::After(POLL_INTERVAL) } else { Next::Idle };
        next.sooner(tended, out.now())
    }

    fn request_portion(&mut self, channel: ChannelId) {
        let Some(topic) = self.registry.member(channel.membership).map(|it| it.topic) else {
            return;
        };
        let Some(topic) = self.registry.topic(topic).map(|it| Box::from(&*it.name)) else { return };
        let Some(history) = &mut self.history else { return };
        let Some(replay) = history.replays.get_mut(channel) else { return };
        replay.is_asked = true;
        let (since, partial) = (Since::After(replay.through), replay.partial);
        let home = home_shard(&topic, self.node.shards());
        let (shard, requester) = (self.shard, Requester::Member(channel));
        let (torn, is_away) = (false, false);
        let ask =
            MissedRequest { topic, since, partial, torn, is_away, client: 0, shard, requester };
        // By mail also to this shard, so that others get their turn.
        self.node.post(home, Mail::History(HistoryMail::RequestMissed(Box::new(ask))));
    }

    pub(super) fn portion_came(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        missed: &Arc<Missed>,
    ) {
        let speaker = self.live(channel).and_then(|it| self.speaker(out, it));
        let (Some(speaker), Some(history)) = (speaker, &mut self.history) else { return };
        let replay = history.replays.get_mut(channel).filter(|it| it.is_asked);
        let Some(replay) = replay else { return };
        replay.is_asked = false;
        let word = missed.gap.map(|gap| {
            self.metrics.count_resume(Some(gap));
            let mut payload = Vec::new();
            encode_gap(&mut payload, gap);
            (GAP, payload)
        });
        self.send_portion(out, &speaker, speaker.client, missed, word);
        let Some(history) = &mut self.history else { return };
        let Some(replay) = history.replays.get_mut(channel) else { return };
        replay.through = missed.through;
        if missed.more || self.ends_behind(channel) {
            if let Some(history) = &mut self.history {
                history.replays.queue.push_back(channel);
            }
        } else {
            self.end_replay(out, channel);
        }
    }

    fn end_replay(&mut self, out: &mut impl Sockets, channel: ChannelId) {
        let (Some(membership), Some(history)) = (self.live(channel), &mut self.history) else {
            return;
        };
        let Some(Replay { through, ticket, .. }) =
            history.replays.by_membership.remove(&channel.membership)
        else {
            return;
        };
        self.registry.catches_up(membership, false);
        self.fanout.note_told(&mut self.registry, membership, through);
        self.confirmed(out, channel, ticket);
    }

    /// What a channel has waited for under this number is over.
    pub(super) fn confirmed(&mut self, out: &mut impl Sockets, channel: ChannelId, ticket: u32) {
        let history = self.history.as_mut();
        let barrier = history.and_then(|it| it.barriers.lower(channel, ticket));
        if let Some(barrier) = barrier {
            self.resume_channel(out, channel, barrier);
        }
    }

    /// Carries out what has waited, up to the next broadcast that must be kept.
    pub(super) fn resume_channel(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        mut barrier: Barrier,
    ) {
        let Some(speaker) = self.live(channel).and_then(|it| self.speaker(out, it)) else {
            return;
        };
        self.resume_reading(out, speaker.conn);
        while let Some(later) = barrier.next() {
            match later {
                // Messages of a handle to a channel that has ended are dropped.
                later if self.live(channel).is_none() => self.application.drop_guarded(later),
                Queued::Effect(effect) => self.apply(out, &speaker, vec![effect]),
                Queued::Broadcast(broadcast) => self.deliver_late(out, &speaker, &broadcast),
                Queued::End(reason) => {
                    self.end_channel(out, channel.membership, reason);
                    self.end_if_stopped(out, channel);
                }
            }
            if self.waits(channel) {
                if let Some(history) = &mut self.history {
                    history.barriers.wait_again(channel, barrier);
                }
                break;
            }
        }
        self.end_if_stopped(out, channel);
        self.read_again(out, speaker.conn);
    }

    fn deliver_late(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        broadcast: &Arc<Broadcast>,
    ) {
        let Some(membership) = self.live(speaker.id) else { return };
        match self.registry.member(membership).is_some_and(|it| it.is(VIA_CHANNEL)) {
            true => self.deliver_intercepted(out, membership, speaker.conn, broadcast),
            false => self.fanout.deliver_one(out, speaker.conn, broadcast, false),
        }
    }

    /// A socket waits for something that may take long.
    pub(super) fn waits_on(&mut self, out: &mut impl Sockets, key: Key) {
        let tick = out.now().tick;
        if let Some(socket) = out.socket_mut(key).filter(|it| it.phase == Phase::Waiting) {
            socket.enter(Phase::Waiting, tick);
        }
    }
}
