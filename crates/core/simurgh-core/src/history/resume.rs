//! Clients that resume: what they have missed is requested from their topic's home, and sent behind
//! the join's reply.

use simurgh_channel::{Broadcast, HistoryMail, Kept, Mail, Missed, MissedRequest, Node, Requester};
use simurgh_data::{Key, Now, Run};
use simurgh_history::{AT, GapReason, Position, RESUMED, Resume, Since, encode_resumed};
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Serializer, ServerMessage};

use super::Histories;
use super::answer::ANSWERS_MAX;
use super::departures::{Left, Rejoin};
use crate::fanout::Registry;
use crate::frames::{kept, send};
use crate::registry::{POSITIONS, VIA_CHANNEL};
use crate::socket::Speaker;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// Fixed, so that clients keep their numbers over a restart. Finding an id with another client's
/// number only keeps the finder's own broadcasts from that client.
const CLIENT_SEED: u64 = 0x5349_4d55_5247_4800;

/// Between a position and its signature: no position contains it.
const MARK: char = '~';

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
            false => (self.first_shown(topic, since), true),
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
        if self.confirms(self.node.home(topic)) {
            self.post_request(ask);
            return Recovery::Later { is_new: !is_proved };
        }
        let (missed, own) = self.kept_missed(now, &ask);
        Recovery::Now(self.resumption(topic, resume, !is_proved, missed, own))
    }

    /// The newest messages for a client that joins for the first time, if the topic's rule shows
    /// them.
    fn first_shown(&self, topic: &str, since: Since) -> Since {
        match (since, self.kept.rule(topic).map_or(0, |rule| rule.on_join)) {
            (Since::Now, 0) => Since::Now,
            (Since::Now, count) => Since::Newest(count),
            (other, _) => other,
        }
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

    pub(super) fn post_request(&self, ask: MissedRequest) {
        let home = self.node.home(&ask.topic);
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
        let topic = registry.topic(it.topic).and_then(|it| it.deliveries.told());
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

    pub(super) fn send_event(
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
        let (topic, mut frames) = (&*speaker.topic, Vec::new());
        for (position, it) in missed.messages.iter().filter(|(_, it)| !is_own(it)) {
            let named = (topic, it.content.event());
            let _ = kept::encode(&mut frames, serializer, named, &it.content.payload(), *position);
        }
        // The client's own broadcast advances its position, too.
        if let Some((position, _)) = missed.messages.last().filter(|(_, it)| is_own(it)) {
            let join_ref = speaker.join_ref.as_ref();
            let _ = kept::notice(&mut frames, serializer, &join_ref, topic, AT, *position);
        }
        if speaker.wire.has_deflate() {
            out.compress(topic, &mut frames);
        }
        out.send_with(speaker.conn, |out| out.extend_from_slice(&frames));
    }

    /// The frames of missed messages, for all clients that missed the same.
    fn encoded(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        serializer: Serializer,
        missed: &Arc<Missed>,
    ) -> Option<Run> {
        if missed.messages.is_empty() {
            return None;
        }
        let wire = speaker.wire;
        let mut made = self.encoded.iter();
        if let Some((.., run)) = made.find(|(w, of, _)| *w == wire && Arc::ptr_eq(of, missed)) {
            return Some(run.clone());
        }
        let mut bytes = Vec::new();
        for (position, it) in &missed.messages {
            let named = (&*speaker.topic, it.content.event());
            let made =
                kept::encode(&mut bytes, serializer, named, &it.content.payload(), *position);
            self.metrics.errors_encode.add(u64::from(made.is_err()));
        }
        if wire.has_deflate() {
            out.compress(&speaker.topic, &mut bytes);
        }
        let run = Run::of(&out.share(bytes));
        self.encoded.truncate(2 * ANSWERS_MAX - 1);
        self.encoded.insert(0, (wire, Arc::clone(missed), run.clone()));
        Some(run)
    }
}

/// The number of a client, the same on all shards.
fn client(resume: &Resume) -> u64 {
    resume.id_hash(CLIENT_SEED).unwrap_or(0)
}

/// Histories of which a client gets only what is later than its first join: the join is proved by a
/// key that the client was given, and sends again.
impl<N: Node> Histories<N> {
    pub(super) fn is_only_own(&self, topic: &str) -> bool {
        self.kept.rule(topic).is_some_and(|rule| rule.only_own)
    }

    /// The part of such a topic that a client may be given, by its request; and whether its first
    /// join is proved.
    pub(super) fn own_since(&self, topic: &str, resume: &Resume, since: Since) -> (Since, bool) {
        let Some(first) = self.first_join(topic, resume) else {
            // Without a proof it joins for the first time now.
            let since = if since == Since::Now { since } else { Since::Unknown };
            return (since, false);
        };
        match since {
            Since::After(seen) if seen.epoch == first.epoch && seen.place < first.place => {
                (Since::After(first), true)
            }
            other => (other, true),
        }
    }

    fn first_join(&self, topic: &str, resume: &Resume) -> Option<Position> {
        let (position, proof) = resume.key.as_deref()?.split_once(MARK)?;
        let is_ours =
            self.node.is_signed(&signed_text(topic, resume.id.as_deref(), position), proof);
        Position::parse(position).filter(|_| is_ours)
    }

    pub(super) fn own_key(&self, topic: &str, id: Option<&str>, position: Position) -> String {
        let position = position.to_string();
        let proof = self.node.sign(&signed_text(topic, id, &position));
        format!("{position}{MARK}{proof}")
    }
}

/// The signed text. Ids and positions have no NUL, so it can be split in one way only.
fn signed_text(topic: &str, id: Option<&str>, position: &str) -> String {
    format!("history\0{position}\0{}\0{topic}", id.unwrap_or_default().replace('\0', ""))
}
