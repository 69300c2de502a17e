//! Kept topics: between this node, the engine and what is remembered of both.

use bytes::Bytes;

use super::{Cluster, LinkState, LocalNode, Notice, Time};
use crate::adapter::{Adapter, Event, Generation, Number};
use crate::envelope::{Envelope, Kind};
use crate::history::{
    HistoryCounts, HistoryEvent, HistorySink, Id, Keeping, Next, Retention, StoreError, StoreItem,
    StoredAt,
};
use crate::subject::{Interest, Space};

/// Of more topics than that all are looked at when something of them may be lost.
const LOST_MAX: usize = 4_096;

impl<L: LocalNode> HistorySink for L {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        LocalNode::history(self, topic, what);
    }

    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, StoreError>) {
        LocalNode::stored(self, topic, number, outcome);
    }
}

impl<A: Adapter> Cluster<A> {
    /// What is kept of a topic is wanted here: it is followed from now on, until its interest ends
    /// some time after the last of these calls, and after its last member.
    pub fn follow(
        &mut self,
        topic: &str,
        wants: Retention,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        self.interests.expect(topic, time.ns);
        if !self.keep(topic, wants) {
            LocalNode::history(local, topic, HistoryEvent::Unknown);
        }
        self.tell_kept(local);
    }

    /// What the engine has of a topic that is followed is asked of those who certainly have all: a
    /// copy that lags behind may have been asked when it began.
    pub fn check_topic(&mut self, topic: &str) {
        if let Some(keeping) = &mut self.keeping {
            keeping.look_at(topic);
        }
    }

    /// Has the engine keep a broadcast of this node, for all nodes that follow the topic, this one
    /// included. [`LocalNode::stored`] hears what has become of it, always.
    pub fn store(
        &mut self,
        topic: &str,
        store: StoreItem<'_>,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        match &mut self.keeping {
            Some(keeping) => keeping.store(topic, store, time.ns, local),
            None => LocalNode::stored(local, topic, store.number, Err(nothing())),
        }
    }

    /// Has everybody forget what is kept of a topic up to now. [`LocalNode::stored`] hears with
    /// this number what has become of it, always; it is a number as of a store.
    pub fn forget(&mut self, topic: &str, number: u64, time: Time, local: &mut impl LocalNode) {
        match &mut self.keeping {
            Some(keeping) => keeping.forget(topic, number, time.ns, local),
            None => LocalNode::stored(local, topic, number, Err(nothing())),
        }
    }

    /// What was counted of kept topics; none, if nothing is kept.
    pub fn history_counts(&self) -> Option<&HistoryCounts> {
        self.keeping.as_deref().map(Keeping::counts)
    }

    /// How many topics are followed.
    pub fn followed(&self) -> usize {
        self.keeping.as_deref().map_or(0, Keeping::followed)
    }

    /// Bytes of what is not stored yet.
    pub fn store_bytes(&self) -> usize {
        self.keeping.as_deref().map_or(0, Keeping::waiting_bytes)
    }

    /// Follows a topic of which there is an interest; `false`, if nothing can be kept of it.
    pub(super) fn keep(&mut self, topic: &str, wants: Retention) -> bool {
        let Some(keeping) = &mut self.keeping else { return false };
        if !self.interests.keep(topic) {
            return false;
        }
        if let Some(id) = keeping.follow(topic, wants) {
            self.keep_awaits.push(id.number());
        }
        true
    }

    /// Tells some of what has to be told.
    pub(super) fn tell_kept(&mut self, local: &mut impl LocalNode) {
        let Some(keeping) = &mut self.keeping else { return };
        keeping.hush(local);
        while let Some(notice) = keeping.poll_notice() {
            self.notices.push_back(Notice::History(notice));
        }
        while self.notices.len() > super::NOTICES_MAX {
            self.notices.pop_front();
        }
    }

    pub(super) fn tick_kept(&mut self, time: Time, local: &mut impl LocalNode) {
        let Some(keeping) = &mut self.keeping else { return };
        while let Some(topic) = self.interests.poll_ended() {
            keeping.ended(&topic, local);
        }
        keeping.tick(time, local);
    }

    pub(super) fn keep_next_ns(&self) -> Option<u64> {
        let may_ask = self.state != LinkState::Away && !self.keep_is_full;
        self.keeping.as_ref()?.next_ns(may_ask)
    }

    pub(super) fn keep_up(&mut self, kept: Option<u64>, time: Time) {
        self.keep_is_full = false;
        if let Some(keeping) = &mut self.keeping {
            keeping.up(kept, time.ns);
        }
    }

    pub(super) fn keep_down(&mut self, time: Time) {
        if let Some(keeping) = &mut self.keeping {
            keeping.down(time.ns);
        }
    }

    /// Something of these interests may be lost.
    pub(super) fn keep_lost(&mut self, interests: &[Interest], time: Time) {
        let Self { keeping: Some(keeping), interests: all, .. } = self else { return };
        let of_broadcasts = interests.iter().filter(|it| {
            matches!(
                it,
                Interest::Exact(Space::Broadcast, _) | Interest::Whole(Space::Broadcast, _)
            )
        });
        let topics: Vec<&str> = of_broadcasts
            .flat_map(|it| all.topics_of(it))
            .filter(|it| keeping.is_followed(it))
            .take(LOST_MAX + 1)
            .collect();
        match topics.len() {
            0 => {}
            len if len > LOST_MAX => keeping.lost_any(time.ns),
            _ => keeping.lost(topics.into_iter(), time.ns),
        }
    }

    /// The adapter has been told all interests, the last of them by this change.
    pub(super) fn keep_told(&mut self, generation: Generation) {
        self.keep_awaits.told = generation;
        self.keep_awaits.are_told();
        self.begin_kept();
    }

    pub(super) fn keep_in_force(&mut self, generation: Generation) {
        self.keep_awaits.in_force(generation);
        self.begin_kept();
    }

    fn begin_kept(&mut self) {
        let Some(keeping) = &mut self.keeping else { return };
        while let Some(number) = self.keep_awaits.pop() {
            keeping.in_force(Id::of_number(number));
        }
    }

    /// An envelope with the engine's numbers has come. Those say whether it came before, and not
    /// its publisher's.
    pub(super) fn heard_kept(
        &mut self,
        bytes: &Bytes,
        (number, at_ms): (Number, u64),
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) => envelope,
            // On its topic it is missed, and passed over when it is fetched.
            Err(error) => return self.counts.misunderstand(error),
        };
        let kind = envelope.header.kind;
        if !matches!(kind, Kind::Broadcast | Kind::Forget) {
            self.counts.broken += 1;
            return;
        }
        self.counts.receive(kind);
        if let Some(keeping) = &mut self.keeping
            && keeping.heard(&envelope, (bytes, number, at_ms), time, local)
        {
            return;
        }
        // Kept elsewhere, and not declared so here: members hear it as plain.
        self.hears_broadcasts(envelope.topic, envelope.items(), local);
    }

    /// An answer about what is kept.
    pub(super) fn keep_answered(&mut self, event: Event, time: Time, local: &mut impl LocalNode) {
        let Some(keeping) = &mut self.keeping else { return };
        match event {
            Event::Stored { ticket, seq, is_duplicate } => {
                keeping.stored(ticket, Ok((seq, is_duplicate)), time, local);
            }
            Event::NotStored { ticket, why } => keeping.stored(ticket, Err(why), time, local),
            Event::Fetched { ticket, kept } => keeping.fetched(ticket, kept, time, local),
            Event::Since { ticket, behind } => keeping.since(ticket, behind, time),
            Event::Purged { ticket, why } => keeping.purged(ticket, why),
            _ => {}
        }
    }

    /// Hands over what is to be asked and stored, as much as the adapter takes; whether there was
    /// something.
    pub(super) fn settle_kept(&mut self, time: Time) -> bool {
        let mut has_said = false;
        let Some(keeping) = &mut self.keeping else { return false };
        while self.state != LinkState::Away && !self.keep_is_full {
            let Some(next) = keeping.next(&mut self.n, time.ns) else { break };
            let is_taken = match &next {
                Next::Fetch(ticket, fetch) => self.adapter.fetch(fetch.clone(), *ticket),
                Next::Purge(ticket, of, before) => self.adapter.purge(of, *before, *ticket),
                Next::Store(it) => {
                    self.adapter.store(&it.to, &it.id, it.age, it.envelope.clone(), it.ticket)
                }
            };
            if is_taken.is_err() {
                self.keep_is_full = true;
                keeping.not_taken(next);
                break;
            }
            if let Next::Store(_) = next {
                keeping.handed_over();
            }
            has_said = true;
        }
        has_said
    }
}

fn nothing() -> StoreError {
    StoreError::Refused("nothing is kept on this node".into())
}
