//! Topics with a history: what this node stores and follows in the broker's streams.
//!
//! # Data flow
//! ```text
//!  store, forget ──► StoreQueue: gathers by topic; one envelope of each in flight
//!                       │ next                          ▲ Stored, NotStored
//!                       ▼                               │
//!                    Adapter::store ──► broker ─────────┤
//!                                         │ to all nodes with the topic, this node included
//!                                         ▼
//!                    Received with the broker's number, and that of the one before it
//!                       │
//!                       ▼
//!  follow ─────────► Topics: in order ───────────────────────────────► HistorySink::history
//!                       │ hole, fill, check            ▲ Fetched
//!                       ▼                              │
//!                    Adapter::fetch ──► broker ────────┘
//! ```
//! # Two numbers
//! The broker numbers envelopes over all topics, so the numbers of one topic have holes, and each
//! envelope has the number of the one before it on its topic. The position of a broadcast is
//! (number, place in the envelope). A node recognizes its own messages by the number that it has
//! given their envelope, however they arrive: by themselves, before or after the answer to the
//! store, or by a fetch ([`OwnEnvelopes`]). Duplicates are recognized by the broker's number alone:
//! an envelope that is sent again over another link has a known id, and is not published again.
//!
//! # Phases of a topic
//! *Waiting*, until its interest is in force. *Filling*: the broker's messages are fetched, and
//! those that arrive meanwhile wait. *Live*: a message is delivered if the one before it was the
//! last delivered. Otherwise there is a *hole*: the message waits, and those between are fetched.
//!
//! A topic begins with the number behind which nothing is missing. To know that, the broker is
//! asked behind which number nothing is too old ([`watermarks`]).
//!
//! An answer may be of a copy that lags behind. It has the number up to which it is complete; if
//! that is too low, the request is repeated after 50, 200 and 1,000 ms, the last time at the
//! leader. Messages still missing are lost: a *gap* is reported before anything newer.
//!
//! Over a new link, and after a loss, a topic is uncertain until the broker was asked for its last
//! number. That is done for a thousand topics at once, and slowly for all topics all the time,
//! since no message follows a lost last one. [`Topics::may_have_missed`] explains the conclusions
//! if the broker has removed messages meanwhile.
//!
//! Numbers never go back within an epoch. With a new epoch all topics are filled again.
//!
//! # Bounds
//! Stores wait in at most [`HistoryConfig::waiting_bytes`] and at most [`HistoryConfig::wait_ns`];
//! a topic's queue has [`HistoryConfig::queue_count`] messages; one turn checks some thousand
//! topics at most.
//!
//! # Invalid envelopes
//! A stored envelope that is malformed, of another kind or of another topic has its number in the
//! chain and is counted. An envelope of a topic that is not followed here is left to the plain
//! broadcasts.

mod catch_up;
mod checks;
mod counts;
mod delivery;
mod events;
mod fetches;
mod fill;
mod own_envelopes;
mod request;
mod store_queue;
#[cfg(test)]
pub(crate) mod tests;
mod topic;
mod topics;
mod watermarks;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_history::NotKept;

pub use self::counts::HistoryCounts;
pub(crate) use self::events::HistorySink;
pub use self::events::{HistoryEvent, HistoryItem, StoreItem};
pub(crate) use self::store_queue::{GATHERED_BYTES_MAX, ITEMS_MAX, Outgoing, Storing};
pub(crate) use self::topic::TopicId;

use self::own_envelopes::OwnEnvelopes;
use self::store_queue::{Answer, StoreQueue};
use self::topics::{ShardContext, Topics};
use crate::adapter::{Fetch, Fetched, NotStored, Number, Ticket};
use crate::envelope::Envelope;
use crate::node_id::NodeId;
use crate::subject::{Prefix, Space, Subject};
use crate::time::{SECOND, Time};
use simurgh_data::prelude::*;

/// The most purges that wait; the broker removes the rest by its own limits.
const PURGES_MAX: usize = 1_024;

/// Bounds of topics with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// The most envelopes in flight to be stored, over all topics.
    pub in_flight_max: usize,
    /// The most bytes that are not stored yet, in flight or not.
    pub waiting_bytes: usize,
    /// How long something may wait until it is stored, in nanoseconds: less than the caller waits
    /// for the answer, so that the caller learns that it is not stored.
    pub wait_ns: u64,
    /// The most topics that are fetched at a time; an answer has a megabyte at most.
    pub fetches_max: usize,
    /// The most messages of a topic that wait until those before them are fetched,
    pub queue_count: usize,
    /// and the most bytes.
    pub queue_bytes: usize,
    /// How often each topic's last number is checked, in nanoseconds: three times in the shortest
    /// age of a history, if that is more often,
    pub round_ns: u64,
    /// and for how many topics in a second at most.
    pub round_rate: u32,
}

impl Default for HistoryConfig {
    /// 512; 16 MB; 8.5 s; 32; 1,024; 1 MB; 30 s; 2,000.
    fn default() -> Self {
        Self {
            in_flight_max: 512,
            waiting_bytes: 16 << 20,
            wait_ns: 8 * SECOND + SECOND / 2,
            fetches_max: 32,
            queue_count: 1_024,
            queue_bytes: 1 << 20,
            round_ns: 30 * SECOND,
            round_rate: 2_000,
        }
    }
}

/// A notice for the operator about the broker's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryNotice {
    /// The broker stores nothing, so stores are refused.
    Nothing,
    /// The broker's streams are new: all positions are void.
    Remade,
    /// The broker has not removed the purged messages of a topic. The nodes have.
    NotPurged(Box<str>, NotStored),
}

pub(crate) enum Next {
    Fetch(Ticket, Fetch),
    Purge(Ticket, Subject, u64),
    Store(Outgoing),
}

/// The topics with a history on this node.
pub(crate) struct History {
    me: NodeId,
    prefix: Prefix,
    pub(crate) stores: StoreQueue,
    sent: OwnEnvelopes,
    pub(crate) follows: Topics,
    pub(crate) counts: HistoryCounts,
    ticket: u64,
    /// Topics with the number before which the broker is to remove everything.
    purges: VecDeque<(Box<str>, u64)>,
    purging: HashMap<Ticket, (Box<str>, u64), FixedState>,
    pub(crate) notices: VecDeque<HistoryNotice>,
    has_nothing: bool,
}

impl History {
    pub(crate) fn new(config: HistoryConfig, me: NodeId, prefix: &Prefix, seed: u64) -> Self {
        Self {
            me,
            prefix: prefix.clone(),
            stores: StoreQueue::new(me, prefix.clone(), config.clone(), seed),
            sent: OwnEnvelopes::default(),
            follows: Topics::new(prefix.clone(), config, seed),
            counts: HistoryCounts::default(),
            ticket: 0,
            purges: VecDeque::new(),
            purging: HashMap::with_hasher(FixedState::with_seed(seed)),
            notices: VecDeque::new(),
            has_nothing: false,
        }
    }

    pub(crate) fn push(
        &mut self,
        topic: &str,
        what: &Storing<'_>,
        now_ns: u64,
        sink: &mut impl HistorySink,
    ) {
        self.ticket += 1;
        if let Err(why) = self.stores.push(topic, what, Ticket(self.ticket), now_ns) {
            let outcome = Err(why);
            self.counts.add(&outcome);
            sink.stored(topic, what.number(), outcome);
        }
    }

    /// There is a link, to a broker that stores this epoch, or nothing.
    pub(crate) fn up(&mut self, kept: Option<u64>, now_ns: u64) {
        let Some(epoch) = kept else {
            if !core::mem::replace(&mut self.has_nothing, true) {
                self.notices.push_back(HistoryNotice::Nothing);
            }
            return self.follows.down(true, now_ns);
        };
        self.has_nothing = false;
        if self.follows.era > 0 && self.follows.known_epoch != epoch {
            self.notices.push_back(HistoryNotice::Remade);
            // In another epoch these numbers belong to messages that were not purged.
            self.purges.clear();
        }
        self.follows.up(epoch, now_ns);
    }

    /// Messages of these topics may be lost; some of the topics are not followed.
    pub(crate) fn lost<'a>(&mut self, topics: impl Iterator<Item = &'a str>, now_ns: u64) {
        self.follows.note_loss(now_ns);
        topics.for_each(|topic| self.follows.mark_lost(topic));
    }

    pub(crate) fn lost_any(&mut self, now_ns: u64) {
        self.follows.note_loss(now_ns);
        self.follows.check_all();
    }

    /// Receives a message with the broker's numbers. Returns whether its topic is followed.
    pub(crate) fn receive(
        &mut self,
        envelope: &Envelope<'_>,
        (bytes, number, at_ms): (&Bytes, Number, u64),
        time: Time,
        sink: &mut impl HistorySink,
    ) -> bool {
        let Some(at) = self.follows.table.find(envelope.topic) else { return false };
        if self.follows.epoch.is_none() {
            // The epoch of its number is not known yet; over a new link all topics are fetched.
            return true;
        }
        self.follows.note_time(time.ns);
        let Self { me, sent, counts, follows, .. } = self;
        let mut context = ShardContext { me: *me, time, sent, counts, sink };
        follows.arrive(at, envelope, (bytes, number, at_ms), &mut context);
        true
    }

    pub(crate) fn stored(
        &mut self,
        ticket: Ticket,
        answer: Result<(u64, bool), NotStored>,
        time: Time,
        sink: &mut impl HistorySink,
    ) {
        let answer: Answer = answer.map_err(|why| match why {
            NotStored::Unconfirmed => NotKept::Unconfirmed,
            NotStored::Refused(why) => NotKept::Refused(why),
        });
        let Some(topic) = self.stores.topic_of(ticket).map(Box::<str>::from) else { return };
        let is_followed = self.follows.table.find(&topic).is_some();
        let done = self.stores.answered(
            ticket,
            (&answer, self.follows.known_epoch),
            (is_followed, time.ns),
            (&mut self.sent, &mut self.counts),
            sink,
        );
        let (Some(is_forget), Ok((seq, _))) = (done, answer) else { return };
        self.follows.expect(&topic, seq, time.ns);
        if is_forget && self.purges.len() < PURGES_MAX {
            self.purges.push_back((topic, seq));
        }
    }

    pub(crate) fn fetched(
        &mut self,
        ticket: Ticket,
        fetched: Option<Fetched>,
        time: Time,
        sink: &mut impl HistorySink,
    ) {
        let Self { me, sent, counts, follows, .. } = self;
        let mut context = ShardContext { me: *me, time, sent, counts, sink };
        follows.fetched(ticket, fetched, &mut context);
    }

    pub(crate) fn purged(&mut self, ticket: Ticket, why: Option<NotStored>) {
        if let Some((topic, _)) = self.purging.remove(&ticket)
            && let Some(why) = why
        {
            self.counts.purges_failed += 1;
            self.notices.push_back(HistoryNotice::NotPurged(topic, why));
        }
    }

    /// The next request for the adapter. `n` is the number of this node's last envelope.
    pub(crate) fn next(&mut self, n: &mut u64, now_ns: u64) -> Option<Next> {
        let ticket = Ticket(self.ticket + 1);
        if let Some(fetch) = self.follows.next_fetch(ticket, now_ns) {
            self.ticket += 1;
            return Some(Next::Fetch(ticket, fetch));
        }
        if let Some((topic, before)) = self.purges.pop_front() {
            self.ticket += 1;
            let subject = self.prefix.topic(Space::Store, &topic);
            self.purging.insert(ticket, (topic, before));
            return Some(Next::Purge(ticket, subject, before));
        }
        self.stores.next(n, &mut self.sent).map(Next::Store)
    }

    /// The adapter did not take a request: it becomes the next again.
    pub(crate) fn not_taken(&mut self, next: Next) {
        match next {
            Next::Fetch(ticket, _) => self.follows.not_taken(ticket),
            Next::Purge(ticket, ..) => self.purges.extend(self.purging.remove(&ticket)),
            Next::Store(outgoing) => self.stores.give_back(outgoing),
        }
    }

    pub(crate) fn tick(&mut self, time: Time, sink: &mut impl HistorySink) {
        self.follows.note_time(time.ns);
        self.stores.expire(time.ns, (&mut self.sent, &mut self.counts), sink);
        self.sent.expire(time.ns);
        self.follows.end_pauses(time.ns);
        self.follows.end_watermark_waits(time.ns);
        self.follows.fetch_late(time.ns);
        self.follows.advance_round(time.ns);
        self.report_link_loss(sink);
    }

    pub(crate) fn report_link_loss(&mut self, sink: &mut impl HistorySink) {
        self.follows.report_link_loss(sink);
        self.follows.forget_loss();
    }

    /// When it is due next; `may_ask`: whether the adapter takes requests.
    pub(crate) fn next_ns(&self, may_ask: bool) -> Option<u64> {
        let due_ns = [self.stores.next_ns(), self.sent.next_ns(), self.follows.next_ns(may_ask)];
        due_ns.into_iter().flatten().min()
    }
}
