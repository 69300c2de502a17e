//! Clients that resume: what they have missed is requested from their topic's home, and sent behind
//! the join's reply.
//!
//! What is too much to be sent at once is a *replay*: it is sent in parts, as the socket takes
//! them, and other broadcasts of the topic wait until the end. Nothing is held for a slow member:
//! each part is requested from the topic's home when it is needed. The last answer is in order with
//! what the home passes on, so it ends exactly where the log of this shard continues. What the
//! channel does meanwhile is queued as behind a broadcast that is to be kept, and its socket is not
//! read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{
    Broadcast, ChannelId, HistoryMail, Kept, Mail, Missed, MissedRequest, Node, Requester,
    home_shard,
};
use simurgh_history::{
    AT, GAP, GapReason, Position, RESUMED, Resume, Since, encode_gap, encode_resumed,
};
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Serializer, ServerMessage};
use simurgh_reactor::{Key, Next, Now, Run};

use super::Histories;
use super::answer::ANSWERS_MAX;
use super::departures::{Left, Rejoin};
use crate::barrier::Barriers;
use crate::fanout::Registry;
use crate::frames::{kept, send};
use crate::registry::{POSITIONS, VIA_CHANNEL};
use crate::socket::Speaker;
use crate::sockets::Sockets;
use crate::wire::Wire;

/// Fixed, so that clients keep their numbers over a restart. Finding an id with another client's
/// number only keeps the finder's own broadcasts from that client.
const CLIENT_SEED: u64 = 0x5349_4d55_5247_4800;
/// Members in one turn.
const VISITED_MAX: usize = 1024;
/// How often replays continue while nothing else happens.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What a client that resumes has missed.
pub(crate) struct Resumption {
    pub(crate) client: u64,
    /// The client joins for the first time, with this id, if that must be proved later.
    new: Option<Option<String>>,
    pub(crate) partial: bool,
    pub(crate) missed: Arc<Missed>,
    own: usize,
}

pub(crate) enum Recovery {
    Now(Resumption),
    /// The topic's home answers by mail. `is_new`: for [`Histories::resumption`].
    Later {
        is_new: bool,
    },
}

/// Members that get what they have missed in parts.
#[derive(Debug, Default)]
pub(super) struct Replays {
    by_membership: HashMap<u32, Replay>,
    /// Those whose next part is still to be requested; some may be gone.
    queue: VecDeque<ChannelId>,
}

#[derive(Debug)]
struct Replay {
    channel: ChannelId,
    conn: Key,
    /// The position up to which it has all.
    through: Position,
    partial: bool,
    /// The ticket that its channel waits for.
    ticket: u32,
    is_asked: bool,
}

impl Replays {
    pub(super) fn len(&self) -> usize {
        self.by_membership.len()
    }

    fn get(&self, channel: ChannelId) -> Option<&Replay> {
        self.by_membership.get(&channel.membership).filter(|it| it.channel == channel)
    }

    fn get_mut(&mut self, channel: ChannelId) -> Option<&mut Replay> {
        self.by_membership.get_mut(&channel.membership).filter(|it| it.channel == channel)
    }

    fn remove(&mut self, membership: u32) {
        self.by_membership.remove(&membership);
        if self.by_membership.is_empty() {
            *self = Self::default();
        }
    }
}

/// Joins.
impl<N: Node> Histories<N> {
    /// Requests what a client that joins has missed. The answer of another shard, or with a broker,
    /// is for this ticket.
    pub(crate) fn join(
        &mut self,
        conn: Key,
        ticket: u32,
        topic: &str,
        resume: &Resume,
        now: Now,
    ) -> Recovery {
        let (since, torn) = match self.departures.floor(conn, topic, resume, now.tick) {
            Rejoin::After(since) => (since, false),
            Rejoin::Torn(sent) => (Since::After(sent), true),
        };
        let (since, is_proved) = match self.is_only_own(topic) {
            true => self.own_since(topic, resume, since),
            false => (since, true),
        };
        let ask = MissedRequest {
            topic: topic.into(),
            since,
            partial: self.wants_part(topic, resume),
            torn,
            is_away: false,
            client: client(resume),
            shard: self.shard,
            requester: Requester::Join(conn, ticket),
        };
        // A broker's messages are sent to this shard by mail, and the answer is in order with them.
        if self.confirms(topic) {
            self.post_request(ask);
            return Recovery::Later { is_new: !is_proved };
        }
        let (missed, own) = self.kept_missed(now, &ask);
        Recovery::Now(self.resumption(topic, resume, !is_proved, missed, own))
    }

    /// What a client resumes with; `own`: how many of all messages it has sent itself.
    pub(crate) fn resumption(
        &self,
        topic: &str,
        resume: &Resume,
        is_new: bool,
        missed: Arc<Missed>,
        own: usize,
    ) -> Resumption {
        let new = is_new.then(|| resume.id.clone());
        let (client, partial) = (client(resume), self.wants_part(topic, resume));
        Resumption { client, new, partial, missed, own }
    }

    /// Whether a client wants an incomplete answer. With histories for own messages only, whose the
    /// rest is cannot be shown to it.
    fn wants_part(&self, topic: &str, resume: &Resume) -> bool {
        resume.partial && !self.is_only_own(topic)
    }

    fn post_request(&self, ask: MissedRequest) {
        let home = home_shard(&ask.topic, self.node.shards());
        self.node.post(home, Mail::History(HistoryMail::RequestMissed(Box::new(ask))));
    }

    /// What a client has missed of a topic of this shard, and how much of it the client has sent
    /// itself.
    pub(super) fn kept_missed(&mut self, now: Now, ask: &MissedRequest) -> (Arc<Missed>, usize) {
        let now_ms = self.node.unix_ms(now.ns);
        self.kept.missed(ask, &self.node.config().history, now_ms)
    }

    pub(crate) fn has_seen(&mut self, registry: &Registry, membership: u32, broadcast: &Broadcast) {
        if let Some(position) = broadcast.position()
            && registry.member(membership).is_some_and(|it| it.is(POSITIONS))
        {
            self.departures.has_seen(membership, position);
        }
    }

    /// A channel whose client receives positions is about to end. The client may join again on the
    /// same connection: it has what was sent on it by now.
    pub(crate) fn note_left(&mut self, registry: &Registry, speaker: &Speaker, now: Now) {
        let Some(it) = registry.member(speaker.id.membership) else { return };
        if !it.is(POSITIONS) {
            return;
        }
        let intercepts = it.is(VIA_CHANNEL);
        let topic = registry.topic(it.topic).and_then(|it| it.deliveries.told.as_deref());
        let (last, gap) = (topic.map(|it| it.last), topic.and_then(|it| it.gap));
        let own = self.departures.gap(speaker.id.membership);
        // The later of its own position, sent as it joined, and that of all members.
        let is_later =
            |own: &Position| gap.is_none_or(|gap| gap.epoch == own.epoch && gap.place <= own.place);
        let gap = own.filter(is_later).or(gap);
        let seen = self.departures.leaves(speaker.id.membership);
        let told = self.replays.get(speaker.id).map(|replay| replay.through);
        let position = if intercepts { seen } else { told.or(last) };
        // A client that was sent the unknown position was sent nothing.
        let unknown = self.followed.as_ref().map(|followed| followed.unknown_position.epoch);
        if let Some(position) = position.filter(|it| Some(it.epoch) != unknown) {
            let how = Left { intercepts, gap };
            self.departures.note(speaker.conn, &speaker.topic, position, now.tick, how);
        }
    }

    /// A member that receives positions has left. Those of a closed socket are not noted.
    pub(crate) fn left(&mut self, membership: u32) {
        self.departures.leaves(membership);
        self.replays.remove(membership);
    }
}

/// Answers.
impl<N: Node> Histories<N> {
    /// Informs a member that has just joined how it resumes.
    pub(crate) fn send_resumed(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        resumption: &Resumption,
    ) {
        let Resumption { new, missed, own, .. } = resumption;
        // If nothing is known of a topic, there is no first join to prove.
        let first = new.as_ref().filter(|_| missed.gap != Some(GapReason::Unavailable));
        let key = first.map(|id| self.own_key(&speaker.topic, id.as_deref(), missed.after));
        self.metrics.count_resume(missed.gap);
        let mut payload = Vec::new();
        let count = missed.count.saturating_sub(*own);
        encode_resumed(&mut payload, missed.gap, count, key.as_deref());
        // A client without the proof may prove its first join the next time.
        if new.is_some() && missed.gap.is_some() {
            self.departures.has_gap(speaker.id.membership, missed.after);
        }
        self.send_event(out, speaker, missed, RESUMED, payload);
    }

    fn send_event(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        missed: &Missed,
        event: &str,
        payload: Vec<u8>,
    ) {
        // A client with a position of another epoch receives it again.
        if missed.gap.is_some_and(|gap| gap != GapReason::Epoch) {
            self.departures.has_gap(speaker.id.membership, missed.after);
        }
        let payload = String::from_utf8(payload).unwrap_or_default();
        let message = Message {
            join_ref: speaker.join_ref.as_ref(),
            msg_ref: kept::ref_of(missed.after),
            topic: (&*speaker.topic).into(),
            event: event.into(),
            payload: Payload::from_json(payload),
        };
        send(out, &self.metrics, speaker.conn, ServerMessage::Event(message));
    }

    /// Sends a member missed messages, without its own. Those of a channel that intercepts are only
    /// counted: the core delivers them.
    pub(crate) fn send_portion(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        client: u64,
        missed: &Arc<Missed>,
        intercepts: bool,
    ) {
        let is_own = |kept: &Kept| client != 0 && kept.sender == client;
        let own = missed.messages.iter().filter(|(_, kept)| is_own(kept)).count();
        let count = (missed.messages.len() - own) as u64;
        self.metrics.resume_messages.add(count);
        let Some(serializer) = speaker.wire.serializer().filter(|_| !intercepts) else { return };
        self.metrics.messages_out.add(count);
        if own == 0 {
            if let Some(run) = self.encoded(out, speaker, serializer, missed) {
                out.send_later(speaker.conn, run);
            }
            return;
        }
        out.send_with(speaker.conn, |out| {
            for (position, it) in missed.messages.iter().filter(|(_, it)| !is_own(it)) {
                let named = (&*speaker.topic, it.content.event());
                let _ = kept::encode(out, serializer, named, &it.content.payload(), *position);
            }
            // The client's own broadcast advances its position, too.
            if let Some((position, _)) = missed.messages.last().filter(|(_, it)| is_own(it)) {
                let join_ref = speaker.join_ref.as_ref();
                let topic = &speaker.topic;
                let _ = kept::notice(out, serializer, &join_ref, topic, AT, *position);
            }
        });
    }

    /// The frames of missed messages, for all clients that missed the same.
    fn encoded(
        &mut self,
        out: &impl Sockets,
        speaker: &Speaker,
        serializer: Serializer,
        missed: &Arc<Missed>,
    ) -> Option<Run> {
        if missed.messages.is_empty() {
            return None;
        }
        let encoded = self.encoded.get_mut(usize::from(speaker.wire == Wire::V2))?;
        if let Some((_, run)) = encoded.iter().find(|(of, _)| Arc::ptr_eq(of, missed)) {
            return Some(run.clone());
        }
        let mut bytes = Vec::new();
        for (position, it) in &missed.messages {
            let named = (&*speaker.topic, it.content.event());
            let made =
                kept::encode(&mut bytes, serializer, named, &it.content.payload(), *position);
            self.metrics.errors_encode.add(u64::from(made.is_err()));
        }
        let run = Run::of(&out.share(bytes));
        encoded.truncate(ANSWERS_MAX - 1);
        encoded.insert(0, (Arc::clone(missed), run.clone()));
        Some(run)
    }
}

/// Replays.
impl<N: Node> Histories<N> {
    pub(crate) fn replays(&self) -> usize {
        self.replays.len()
    }

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

/// The number of a client, the same on all shards.
fn client(resume: &Resume) -> u64 {
    resume.id_hash(CLIENT_SEED).unwrap_or(0)
}
