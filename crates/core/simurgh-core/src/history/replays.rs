//! Replays: what a client has missed that is too much to be sent at once. It is sent in parts, as
//! the socket takes them, and other broadcasts of the topic wait until the end.
//!
//! Nothing is held for a slow member: each part is requested from the topic's home when it is
//! needed. The last answer is in order with what the home passes on, so it ends exactly where the
//! log of this shard continues. What the channel does meanwhile is queued as behind a broadcast
//! that is to be kept, and its socket is not read.

use core::time::Duration;

use simurgh_channel::{ChannelId, Missed, MissedRequest, Node, Requester};
use simurgh_data::{Key, Next};
use simurgh_history::{GAP, Position, Since, encode_gap};

use super::Histories;
use super::resume::Resumption;
use crate::barrier::Barriers;
use crate::fanout::Registry;
use crate::seeded_state::HashMap;
use crate::socket::Speaker;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// Members in one turn.
const VISITED_MAX: usize = 1024;
/// How often replays continue while nothing else happens.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Members that get what they have missed in parts.
#[derive(Debug, Default)]
pub(super) struct Replays {
    by_membership: HashMap<u32, Replay>,
    /// Those whose next part is still to be requested; some may be gone.
    queue: VecDeque<ChannelId>,
}

#[derive(Debug)]
pub(super) struct Replay {
    channel: ChannelId,
    conn: Key,
    /// The position up to which it has all.
    pub(super) through: Position,
    partial: bool,
    /// The ticket that its channel waits for.
    ticket: u32,
    is_asked: bool,
}

impl Replays {
    pub(super) fn len(&self) -> usize {
        self.by_membership.len()
    }

    pub(super) fn get(&self, channel: ChannelId) -> Option<&Replay> {
        self.by_membership.get(&channel.membership).filter(|it| it.channel == channel)
    }

    fn get_mut(&mut self, channel: ChannelId) -> Option<&mut Replay> {
        self.by_membership.get_mut(&channel.membership).filter(|it| it.channel == channel)
    }

    pub(super) fn remove(&mut self, membership: u32) {
        self.by_membership.remove(&membership);
        if self.by_membership.is_empty() {
            *self = Self::default();
        }
    }
}

impl<N: Node> Histories<N> {
    /// A replay may take as long as it needs.
    pub(crate) fn is_replaying(&self, barriers: &Barriers, channel: ChannelId) -> bool {
        self.replays.get(channel).is_some_and(|replay| barriers.awaits(channel, replay.ticket))
    }

    pub(crate) fn begin_replay(&mut self, speaker: &Speaker, resumption: &Resumption, ticket: u32) {
        let Resumption { missed, partial, .. } = resumption;
        let (channel, conn, through, partial) =
            (speaker.id, speaker.conn, missed.through, *partial);
        let replay = Replay { channel, conn, through, partial, ticket, is_asked: false };
        self.replays.by_membership.insert(channel.membership, replay);
        self.replays.queue.push_back(channel);
    }

    /// Requests the next parts for members whose sockets have taken most of the last; and handles
    /// requests that wait for a broker. Returns channels that have ended, with their tickets.
    pub(crate) fn go_on(
        &mut self,
        out: &impl Sockets,
        registry: &Registry,
        barriers: &Barriers,
    ) -> (Next, Vec<(ChannelId, u32)>) {
        let (tended, mut ended) = (self.expire_pending(out.now()), Vec::new());
        let few = self.node.config().history.portion.bytes / 2;
        for _ in 0..self.replays.queue.len().min(VISITED_MAX) {
            let Some(channel) = self.replays.queue.pop_front() else { break };
            let Some(replay) = self.replays.get(channel) else { continue };
            if barriers.ends(channel) {
                ended.push((channel, replay.ticket));
            } else if out.queued(replay.conn) as u64 <= few {
                self.request_portion(registry, channel);
            } else {
                self.replays.queue.push_back(channel);
            }
        }
        let is_over = self.replays.queue.is_empty();
        let next = if is_over { Next::Idle } else { Next::After(POLL_INTERVAL) };
        (next.sooner(tended, out.now()), ended)
    }

    fn request_portion(&mut self, registry: &Registry, channel: ChannelId) {
        let member = registry.member(channel.membership);
        let topic = member.and_then(|it| Some(Box::from(&*registry.topic(it.topic)?.name)));
        let (Some(topic), Some(replay)) = (topic, self.replays.get_mut(channel)) else { return };
        replay.is_asked = true;
        let (since, partial) = (Since::After(replay.through), replay.partial);
        let (shard, requester) = (self.shard, Requester::Member(channel));
        let (torn, is_away) = (false, false);
        // By mail also to this shard, so that others get their turn.
        self.post_request(MissedRequest {
            topic,
            since,
            partial,
            torn,
            is_away,
            client: 0,
            shard,
            requester,
        });
    }

    /// A part has arrived for a member. Returns whether it was requested; a gap in it is sent.
    pub(crate) fn portion_came(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        missed: &Missed,
    ) -> bool {
        let replay = self.replays.get_mut(speaker.id).filter(|replay| replay.is_asked);
        let Some(replay) = replay else { return false };
        replay.is_asked = false;
        if let Some(gap) = missed.gap {
            self.metrics.count_resume(Some(gap));
            let mut payload = Vec::new();
            encode_gap(&mut payload, gap);
            self.send_event(out, speaker, missed, GAP, payload);
        }
        true
    }

    /// A part was sent. Returns the ticket of the channel if that was the last.
    pub(crate) fn portion_sent(
        &mut self,
        channel: ChannelId,
        missed: &Missed,
        is_ended: bool,
    ) -> Option<u32> {
        let replay = self.replays.get_mut(channel)?;
        replay.through = missed.through;
        if missed.more || is_ended {
            self.replays.queue.push_back(channel);
            return None;
        }
        self.replays.by_membership.remove(&channel.membership).map(|replay| replay.ticket)
    }
}
