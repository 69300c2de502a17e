//! Topics with a history: between this node, the broker and the module `history`.

use bytes::Bytes;
use simurgh_history::{NotKept, Retention, StoredAt};

use super::counts::count;
use super::{Cluster, LinkState, LocalNode, Notice, Time};
use crate::adapter::{Adapter, Event, Number};
use crate::envelope::{Envelope, Kind};
use crate::history::{HistoryCounts, HistoryEvent, HistorySink, Next, StoreItem, Storing, TopicId};
use crate::subject::{Interest, Space};
use simurgh_data::prelude::*;

/// If more topics than this may have lost something, all are checked.
const LOST_MAX: usize = 4_096;

impl<L: LocalNode> HistorySink for L {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        LocalNode::history(self, topic, what);
    }

    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        LocalNode::stored(self, topic, number, outcome);
    }
}

impl<A: Adapter + ?Sized> Cluster<A> {
    /// Follows a topic until its interest ends, some time after the last of these calls and after
    /// its last member.
    pub fn follow(
        &mut self,
        topic: &str,
        wants: Retention,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        self.interests.expect(topic, time.ns);
        if !self.keep(topic, wants) {
            LocalNode::history(local, topic, HistoryEvent::Unavailable);
        }
        self.report_history(local);
    }

    /// Has a followed topic checked at the leader: it may have begun with a copy that lagged
    /// behind.
    pub fn check_topic(&mut self, topic: &str) {
        if let Some(history) = &mut self.history {
            history.follows.check_at_leader(topic);
        }
    }

    /// Has the broker store a broadcast of this node, for all nodes that follow the topic, this one
    /// included. [`LocalNode::stored`] always gets the outcome.
    pub fn store(
        &mut self,
        topic: &str,
        store: StoreItem<'_>,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        match &mut self.history {
            Some(history) => history.push(topic, &Storing::Item(store), time.ns, local),
            None => LocalNode::stored(local, topic, store.number, Err(nothing())),
        }
    }

    /// Has all nodes forget the stored messages of a topic up to now. [`LocalNode::stored`] always
    /// gets the outcome with this number, which must differ from those of stores.
    pub fn forget(&mut self, topic: &str, number: u64, time: Time, local: &mut impl LocalNode) {
        match &mut self.history {
            Some(history) => history.push(topic, &Storing::Forget(number), time.ns, local),
            None => LocalNode::stored(local, topic, number, Err(nothing())),
        }
    }

    /// The counters of topics with a history; `None` if there are no such topics.
    pub fn history_counts(&self) -> Option<&HistoryCounts> {
        self.history.as_deref().map(|it| &it.counts)
    }

    /// How many topics are followed.
    pub fn followed(&self) -> usize {
        self.history.as_deref().map_or(0, |it| it.follows.table.len())
    }

    /// How many bytes wait to be stored.
    pub fn store_bytes(&self) -> usize {
        self.history.as_deref().map_or(0, |it| it.stores.bytes())
    }

    /// Follows a topic that is subscribed to. Returns `false` if that is impossible.
    pub(super) fn keep(&mut self, topic: &str, wants: Retention) -> bool {
        let Some(history) = &mut self.history else { return false };
        if !self.interests.keep(topic) {
            return false;
        }
        if let Some(id) = history.follows.begin(topic, wants) {
            self.history_waiters.push(id.number());
        }
        true
    }

    /// Reports some of the waiting events, and all notices.
    pub(super) fn report_history(&mut self, local: &mut impl LocalNode) {
        let Some(history) = &mut self.history else { return };
        history.report_link_loss(local);
        while let Some(notice) = history.notices.pop_front() {
            self.notices.push_back(Notice::History(notice));
        }
        while self.notices.len() > super::NOTICES_MAX {
            self.notices.pop_front();
        }
    }

    pub(super) fn tick_history(&mut self, time: Time, local: &mut impl LocalNode) {
        let Some(history) = &mut self.history else { return };
        while let Some(topic) = self.interests.poll_ended() {
            history.follows.end(&topic, local);
        }
        history.tick(time, local);
    }

    pub(super) fn history_next_ns(&self) -> Option<u64> {
        let may_ask = self.state != LinkState::Away && !self.is_storage_full;
        self.history.as_ref()?.next_ns(may_ask)
    }

    pub(super) fn history_lost(&mut self, interests: &[Interest], time: Time) {
        let Self { history: Some(history), interests: all, .. } = self else { return };
        let of_broadcasts = interests.iter().filter(|it| it.space() == Some(Space::Broadcast));
        let topics: Vec<&str> = of_broadcasts
            .flat_map(|it| all.topics_of(it))
            .filter(|it| history.follows.table.find(it).is_some())
            .take(LOST_MAX + 1)
            .collect();
        match topics.len() {
            0 => {}
            len if len > LOST_MAX => history.lost_any(time.ns),
            _ => history.lost(topics.into_iter(), time.ns),
        }
    }

    pub(super) fn begin_followed(&mut self) {
        let Some(history) = &mut self.history else { return };
        while let Some(number) = self.history_waiters.pop() {
            history.follows.in_force(TopicId::of_number(number));
        }
    }

    /// Receives an envelope with the broker's numbers. They show whether it is a duplicate; its
    /// publisher's number does not.
    pub(super) fn receive_kept(
        &mut self,
        bytes: &Bytes,
        (number, at_ms): (Number, u64),
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) => envelope,
            // It leaves a hole in its topic, and is skipped when that is fetched.
            Err(error) => return self.counts.count_unreadable(error),
        };
        let kind = envelope.header.kind;
        if !matches!(kind, Kind::Broadcast | Kind::Forget) {
            self.counts.broken += 1;
            return;
        }
        count(&mut self.counts.received, kind);
        if let Some(history) = &mut self.history
            && history.receive(&envelope, (bytes, number, at_ms), time, local)
        {
            return;
        }
        // The storing node declares a history for this topic, and this one does not: members get it
        // as a plain broadcast.
        self.deliver_broadcasts(envelope.topic, envelope.items(), local);
    }

    pub(super) fn history_answered(
        &mut self,
        event: Event,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let Some(history) = &mut self.history else { return };
        match event {
            Event::Stored { ticket, seq, is_duplicate } => {
                history.stored(ticket, Ok((seq, is_duplicate)), time, local);
            }
            Event::NotStored { ticket, why } => history.stored(ticket, Err(why), time, local),
            Event::Fetched { ticket, kept } => history.fetched(ticket, kept, time, local),
            Event::Since { ticket, behind } => {
                history.follows.watermark_answered(ticket, behind, time)
            }
            Event::Purged { ticket, why } => history.purged(ticket, why),
            _ => {}
        }
    }

    /// Hands over requests and stores, as many as the adapter takes. Returns whether there were
    /// any.
    pub(super) fn settle_history(&mut self, time: Time) -> bool {
        let mut has_said = false;
        let Some(history) = &mut self.history else { return false };
        while self.state != LinkState::Away && !self.is_storage_full {
            let Some(next) = history.next(&mut self.n, time.ns) else { break };
            let is_taken = match &next {
                Next::Fetch(ticket, fetch) => self.adapter.fetch(fetch.clone(), *ticket),
                Next::Purge(ticket, of, before) => self.adapter.purge(of, *before, *ticket),
                Next::Store(it) => {
                    self.adapter.store(&it.to, &it.id, it.age, it.envelope.clone(), it.ticket)
                }
            };
            if is_taken.is_err() {
                self.is_storage_full = true;
                history.not_taken(next);
                break;
            }
            if let Next::Store(_) = next {
                history.counts.handed_over += 1;
            }
            has_said = true;
        }
        has_said
    }
}

fn nothing() -> NotKept {
    NotKept::Refused("this node stores no histories".into())
}
