//! Messages of a broker about topics with their home on this shard, which has a copy of the last
//! broadcasts and passes new ones on; and requests to the broker.
//!
//! They are passed on by mail, to this shard too, and so are answers: on all shards mail is in the
//! order of the numbers, and an answer covers exactly what was before it.

use simurgh_channel::engine::{behind, nothing_up_to, place, weight};
use simurgh_channel::{
    Broadcast, Charge, FromEngine, HistoryMail, KeepRequest, KeptAt, KeptFor, KeptItem, Mail, Node,
    NotKept, Posted, StoreRequest, ToCluster,
};
use simurgh_data::Now;
use simurgh_history::{AT, Epoch, GAP, GapReason, Place, Position, StoredAt, encode_gap};

use super::Histories;
use super::followed::{StrayPositions, TopicState};
use super::stores::Pending;
use crate::application::ask;
use simurgh_data::prelude::*;

struct Begun {
    epoch: u64,
    floor: u64,
    purged: u64,
    head: u64,
    messages: Vec<KeptItem>,
}

impl<N: Node> Histories<N> {
    /// A message of the broker about a topic; its weight was charged to this shard.
    pub(super) fn engine_message(&mut self, now: Now, topic: &str, what: FromEngine) {
        self.node.discharge(usize::from(self.shard), weight(&what) + topic.len());
        let is_kept = self.kept.rule(topic).is_some();
        let Some(followed) = self.followed.as_mut().filter(|_| is_kept) else { return };
        let has_begun = self.kept.head(topic).is_some();
        match what {
            FromEngine::Begun { epoch, floor, purged, head, messages } => {
                self.begin_topic(now, topic, Begun { epoch, floor, purged, head, messages });
            }
            FromEngine::Next(item) => self.deliver_next(now, topic, item, true),
            FromEngine::Gap { through } => {
                let position = self.kept.lose(topic, behind(through));
                if let Some(position) = position {
                    self.metrics.history_gaps.add(1);
                    self.send_gap_notices(topic, Some(GapReason::Lost), position);
                }
            }
            FromEngine::Purged { seq, index } => self.kept.purge_at(topic, place(seq, index)),
            FromEngine::Unknown => {
                let state = if has_begun { TopicState::Unknown } else { TopicState::Requested };
                followed.open(topic).state = state;
            }
            FromEngine::Unavailable => {
                followed.open(topic).state = TopicState::Unavailable;
            }
            FromEngine::Known if has_begun => followed.open(topic).state = TopicState::Live,
            FromEngine::Known => {}
            FromEngine::Ended => {
                let head = self.kept.head(topic);
                self.kept.end(topic);
                if followed.ends(topic, head, now.ns) {
                    self.follow(topic, now.ns);
                }
            }
        }
        self.keep_within_bounds();
        self.answer_ready(now, topic);
    }

    fn begin_topic(&mut self, now: Now, topic: &str, begun: Begun) {
        let Begun { epoch, floor, purged, head, mut messages } = begun;
        let now_ms = self.node.unix_ms(now.ns);
        let Some(followed) = &self.followed else { return };
        let (epoch, mut floor) = (Epoch::from_seed(epoch), behind(floor));
        let head_before = self.kept.head(topic);
        let was_at = followed.topics.get(topic).and_then(|topic| topic.was_at);
        let before = head_before.or(was_at);
        let same = before.filter(|it| it.epoch == epoch);
        // The answer is of a copy that does not have yet what was here before.
        if let Some(before) = same.filter(|it| it.place.seq > head) {
            floor = before.place;
            messages.clear();
        }
        let goes_on = same.is_some_and(|it| it.place >= floor);
        // If the topic is in a new epoch, members receive a notice of that, and what is new. A
        // broadcast that this node has just made is new, though it is already there.
        let is_new = |it: &KeptItem| match same {
            Some(before) => it.place() > before.place,
            None => it.mine.is_some_and(|number| followed.stores.has(number)),
        };
        let new = messages.iter().position(is_new).unwrap_or(messages.len());
        let is_empty = messages.is_empty();
        if !goes_on || head_before.is_none() {
            let begins_at = (epoch, floor, behind(purged));
            self.kept.begin(topic, begins_at, messages.len(), now_ms);
        }
        let mut messages = messages.into_iter();
        for item in messages.by_ref().take(new) {
            self.deliver_next(now, topic, item, false);
        }
        match same.filter(|_| goes_on) {
            // Members are at that position.
            Some(before) => self.kept.reaches(topic, before.place),
            None => {
                if is_empty {
                    self.kept.reaches(topic, nothing_up_to(head));
                }
                self.send_new_position(topic, before, is_empty && floor == Place::ZERO);
            }
        }
        for item in messages {
            self.deliver_next(now, topic, item, true);
        }
        if let Some(followed) = self.followed.as_mut().map(|followed| followed.open(topic)) {
            (followed.state, followed.was_at) = (TopicState::Live, None);
            followed.stray = StrayPositions::None;
        }
    }

    /// Sends members with positions of another beginning of a topic the new one, and why; unless
    /// the topic never had a message.
    fn send_new_position(&mut self, topic: &str, before: Option<Position>, is_quiet: bool) {
        let Some(position) = self.kept.head(topic) else { return };
        let followed = self.followed.as_mut().map(|followed| followed.open(topic));
        let stray = followed.map_or(StrayPositions::None, |topic| topic.stray);
        let gap = match before {
            Some(before) if before.epoch != position.epoch => Some(GapReason::Epoch),
            Some(_) => Some(GapReason::Unavailable),
            // As far as is known it has no members: one may have joined so late, on a shard that
            // stood still, that its position is forgotten.
            None if stray == StrayPositions::None => Some(GapReason::Unavailable),
            None => stray.gap(position.epoch, is_quiet),
        };
        let is_known = before.is_some() || stray != StrayPositions::None;
        self.metrics.history_gaps.add(u64::from(gap.is_some() && is_known));
        self.send_gap_notices(topic, gap, position);
    }

    /// The next broadcast of a topic; `is_new`: members get it.
    fn deliver_next(&mut self, now: Now, topic: &str, item: KeptItem, is_new: bool) {
        let now_ms = self.node.unix_ms(now.ns);
        self.open_topic(topic);
        let Some(Position { epoch, .. }) = self.kept.head(topic) else { return };
        let position = Position { epoch, place: item.place() };
        let pending = item.mine.zip(self.followed.as_mut());
        let pending = pending.and_then(|(number, followed)| followed.stores.take(number));
        let broadcast = self.kept.append(item, now_ms);
        self.metrics.history_kept.add(u64::from(broadcast.is_some()));
        let broadcast = broadcast.filter(|_| is_new);
        let (mut charge, mut apart) = (None, None);
        if let Some(pending) = pending {
            charge = pending.charge.clone();
            match (&pending.kept_for, &broadcast) {
                (KeptFor::Channel { channel, ticket, .. }, Some(broadcast)) => {
                    let shard = usize::from(channel.shard);
                    let posted = Posted::new(Arc::clone(broadcast), charge.clone());
                    let mail = HistoryMail::Kept(*channel, *ticket, posted);
                    self.node.post_weighed(shard, broadcast.weight(), Mail::History(mail));
                    self.node.discharge(usize::from(self.shard), pending.weight);
                    apart = Some(shard);
                }
                _ => self.end_store(pending, Ok(KeptAt { position, is_duplicate: false })),
            }
        }
        if let Some(broadcast) = broadcast {
            self.pass_on(&broadcast, charge, apart);
        }
    }

    fn pass_on(
        &self,
        broadcast: &Arc<Broadcast>,
        charge: Option<Arc<Charge>>,
        apart: Option<usize>,
    ) {
        for shard in (0..self.node.shards()).filter(|it| Some(*it) != apart) {
            self.node.post_charged(shard, Posted::new(Arc::clone(broadcast), charge.clone()));
        }
    }

    /// Sends members that receive positions a gap up to this position, or none.
    fn send_gap_notices(&self, topic: &str, gap: Option<GapReason>, position: Position) {
        let mut payload = Vec::new();
        let event = match gap {
            Some(gap) => {
                encode_gap(&mut payload, gap);
                GAP
            }
            None => {
                payload.extend_from_slice(b"{}");
                AT
            }
        };
        let json = String::from_utf8(payload).unwrap_or_default();
        let notice = Arc::new(Broadcast::notice(topic, event, json, position));
        for shard in 0..self.node.shards() {
            let posted = Posted::new(Arc::clone(&notice), None);
            let mail = Mail::History(HistoryMail::Notice(posted));
            self.node.post_weighed(shard, notice.weight(), mail);
        }
    }
}

/// Requests to the broker that keeps broadcasts, and their outcomes. A broadcast counts for its
/// home and its publisher's flow until it is answered, so publishers that are faster than the
/// broker are held.
impl<N: Node> Histories<N> {
    pub(super) fn store_in_engine(&mut self, now: Now, keep: KeepRequest) {
        let KeepRequest { broadcast, charge, sender, client: _, id, kept_for } = keep;
        let (weight, asked_ns) = (broadcast.weight(), now.ns);
        let age = self.kept.rule(&broadcast.topic).map(|rule| rule.age);
        let pending = Pending { kept_for, charge, weight, asked_ns, is_stored: false };
        self.ask_engine(pending, |number| {
            ToCluster::Store(Box::new(StoreRequest { number, broadcast, sender, id, age }))
        });
    }

    pub(super) fn forget_in_engine(&mut self, now: Now, topic: Box<str>, kept_for: KeptFor) {
        let (charge, weight, asked_ns) = (None, 0, now.ns);
        let pending = Pending { kept_for, charge, weight, asked_ns, is_stored: false };
        self.ask_engine(pending, |number| ToCluster::Forget(topic, number));
    }

    fn ask_engine(&mut self, pending: Pending, what: impl FnOnce(u64) -> ToCluster) {
        let bytes_max = self.node.config().mailbox_bytes_max.saturating_mul(4);
        let is_full = self.node.charged(usize::from(self.shard)) > bytes_max;
        let noted = match self.followed.as_mut().filter(|_| !is_full) {
            Some(followed) => followed.stores.add(pending),
            None => Err(pending),
        };
        match noted {
            Ok(number) => self.send_to_engine(what(number)),
            Err(pending) => self.end_store(pending, Err(NotKept::Full)),
        }
    }

    pub(super) fn store_answered(
        &mut self,
        now: Now,
        number: u64,
        outcome: Result<StoredAt, NotKept>,
    ) {
        let Some(followed) = &mut self.followed else { return };
        let Some(pending) = followed.stores.unanswered(number) else { return };
        let outcome = outcome.map(|it| {
            let place = place(it.seq, it.index);
            let position = Position { epoch: Epoch::from_seed(it.epoch), place };
            KeptAt { position, is_duplicate: it.is_duplicate }
        });
        if let Ok(at) = &outcome
            && !at.is_duplicate
            && matches!(pending.kept_for, KeptFor::Channel { is_member: true, .. })
        {
            // The broadcast is delivered before what its channel does behind it.
            pending.is_stored = true;
            return followed.await_delivery(number, *at, now.ns);
        }
        let Some(pending) = followed.stores.take(number) else { return };
        if outcome.as_ref().is_ok_and(|it| it.is_duplicate) {
            self.metrics.history_duplicates.add(1);
        }
        self.end_store(pending, outcome);
    }

    pub(super) fn end_store(&mut self, pending: Pending, outcome: Result<KeptAt, NotKept>) {
        let Pending { kept_for, charge, weight, .. } = pending;
        self.node.discharge(usize::from(self.shard), weight);
        drop(charge);
        if let Err(NotKept::Refused(why)) = &outcome {
            tracing::debug!(%why, "a broadcast was not stored");
        }
        match kept_for {
            KeptFor::Nobody | KeptFor::Predecessor(_) => {}
            KeptFor::Caller(answer) => {
                ask::<N, _>(&self.metrics, || answer(outcome));
            }
            KeptFor::Channel { channel, ticket, .. } => {
                let why = outcome.err().filter(|it| *it != NotKept::LocalOnly);
                let word = HistoryMail::Confirmed(channel, ticket, why);
                self.node.post(usize::from(channel.shard), Mail::History(word));
            }
        }
    }

    pub(super) fn follow(&mut self, topic: &str, now_ns: u64) {
        let Some(wants) = self.retention(topic) else { return };
        if self.followed.as_mut().is_some_and(|followed| followed.is_to_follow(topic, now_ns))
            && let Some(cluster) = self.node.cluster()
        {
            cluster.send(ToCluster::Follow(topic.into(), wants));
        }
    }
}
