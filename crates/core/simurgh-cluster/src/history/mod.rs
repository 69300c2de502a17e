//! Kept topics: what this node has the engine store, and what it follows of what the engine keeps.
//!
//! # The way of the data
//! ```text
//!  store, forget ──► StoreQueue: gathers by topic; one envelope of each under way
//!                       │ next                          ▲ Stored, NotStored
//!                       ▼                               │
//!                    Adapter::store ──► engine ─────────┤
//!                                         │ to all who want the topic, this node included
//!                                         ▼
//!                    Received with the engine's number, and that of the one before it
//!                       │
//!                       ▼
//!  follow ─────────► Topics: in order ───────────────────────────────► HistorySink::kept
//!                       │ hole, fill, check            ▲ Fetched
//!                       ▼                              │
//!                    Adapter::fetch ──► engine ────────┘
//! ```
//! # Two numbers
//! The engine numbers envelopes, over all topics: so those of one topic have holes, and each comes
//! with the number of the one before it. What is told stands at (number, place in its envelope).
//! Whether a message is this node's own is known by the number that this node has given its
//! envelope, whichever way it comes: by itself, before or after the answer to its store, or found
//! by a fetch ([`OwnEnvelopes`]). It is judged by the engine's number alone: what is sent again
//! over another link has an id that the engine knows, and is not published again.
//!
//! # What a topic goes through
//! *Waiting*, until the engine sends it (its interest is in force). *Filling*: what the engine has
//! is fetched, what comes meanwhile waits. *Live*: what comes is told if the one before it was the
//! last that was told. If it was not, there is a *hole*: it waits, and what is between is fetched.
//!
//! What a topic begins with is told with the number behind which nothing is missing. For that the
//! engine is asked what is young ([`watermarks`]).
//!
//! An answer may be of a copy that lags behind. It says up to which number it is complete; one that
//! does not reach what is needed is asked for again after 50, 200 and 1,000 ms, the last time of
//! the leader. What is not there then is nowhere any more: a *gap* is told before anything newer.
//!
//! After a link was made, or something lost, nothing of a topic is certain until the engine has
//! been asked for its last number. That is done of a thousand topics at once, and of all of them
//! slowly for ever, since nothing follows a lost last message. See [`Topics::may_have_missed`] for
//! what is concluded where the engine has removed messages meanwhile.
//!
//! Numbers never go back within an epoch. With another epoch everything is filled anew.
//!
//! # Bounds
//! What is not stored waits in as many bytes as [`HistoryConfig::waiting_bytes`] and not longer
//! than [`HistoryConfig::wait_ns`]; a topic's queue has [`HistoryConfig::queue_count`] messages; a
//! turn looks at some thousand topics, however many there are.
//!
//! # What is passed over
//! A stored envelope that cannot be read, is of another kind or of another topic: it has its number
//! in the chain, and is counted. An envelope of a topic that is not followed here is no business of
//! this room: it is plain to this node.

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

use std::collections::VecDeque;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

pub use self::counts::HistoryCounts;
pub(crate) use self::events::HistorySink;
pub use self::events::{
    HistoryEvent, HistoryItem, HistoryPosition, Retention, StoreError, StoreItem, StoredAt,
};
pub(crate) use self::store_queue::Outgoing;
pub(crate) use self::topic::TopicId;

use self::own_envelopes::OwnEnvelopes;
use self::store_queue::{Answer, StoreQueue, StoreQueueConfig, What};
use self::topics::{Context, Topics};
use crate::adapter::{Fetch, Fetched, NotStored, Number, Ticket};
use crate::envelope::Envelope;
use crate::node_id::NodeId;
use crate::subject::{Prefix, Space, Subject};
use crate::time::{SECOND, Time};

/// What the engine is to forget and was not told yet; of more it forgets by its own limits.
const PURGES_MAX: usize = 1_024;

/// Bounds of what is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Envelopes to be stored that may be under way, over all topics.
    pub in_flight_max: usize,
    /// Bytes of all that is not stored yet, under way or not.
    pub waiting_bytes: usize,
    /// How long something may wait until it is stored, in nanoseconds: less than whoever asks waits
    /// for the answer, so that they are told that it is not stored.
    pub wait_ns: u64,
    /// Topics that may be fetched at a time; an answer has a megabyte at most.
    pub fetches_max: usize,
    /// Messages of a topic that wait until what is before them was fetched.
    pub queue_count: usize,
    /// The same, in bytes.
    pub queue_bytes: usize,
    /// How often each topic's last number is asked for, in nanoseconds: all of them three times in
    /// the shortest age of a history, if that is more often,
    pub round_ns: u64,
    /// and of how many in a second at most.
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

/// What whoever runs the node should know of what is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryNotice {
    /// The engine keeps nothing: what is to be stored is refused.
    Nothing,
    /// What the engine keeps is not what it kept before: all positions are void.
    Remade,
    /// The engine has not forgotten what it was to forget of a topic. The nodes have.
    NotPurged(Box<str>, NotStored),
}

/// What the adapter is to do.
pub(crate) enum Next {
    Fetch(Ticket, Fetch),
    Purge(Ticket, Subject, u64),
    Store(Outgoing),
}

/// This node's part in what is kept.
pub(crate) struct History {
    me: NodeId,
    prefix: Prefix,
    stores: StoreQueue,
    sent: OwnEnvelopes,
    follows: Topics,
    counts: HistoryCounts,
    ticket: u64,
    /// Topics of which the engine is to forget what is older than a number.
    purges: VecDeque<(Box<str>, u64)>,
    purging: HashMap<Ticket, (Box<str>, u64), FixedState>,
    notices: VecDeque<HistoryNotice>,
    /// It was told that the engine keeps nothing.
    has_nothing: bool,
}

impl History {
    pub(crate) fn new(config: HistoryConfig, me: NodeId, prefix: &Prefix, seed: u64) -> Self {
        let stores = StoreQueueConfig {
            me,
            prefix: prefix.clone(),
            in_flight_max: config.in_flight_max,
            waiting_bytes: config.waiting_bytes,
            wait_ns: config.wait_ns,
        };
        Self {
            me,
            prefix: prefix.clone(),
            stores: StoreQueue::new(stores, seed),
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

    // This node.

    /// A topic is followed from now on: what it is known by until its interest is in force, if it
    /// was not followed before.
    pub(crate) fn follow(&mut self, topic: &str, wants: Retention) -> Option<TopicId> {
        self.follows.begin(topic, wants)
    }

    /// A topic's interest has ended.
    pub(crate) fn ended(&mut self, topic: &str, told: &mut impl HistorySink) {
        self.follows.end(topic, told);
    }

    pub(crate) fn store(
        &mut self,
        topic: &str,
        store: StoreItem<'_>,
        now_ns: u64,
        told: &mut impl HistorySink,
    ) {
        self.push(topic, &What::Broadcast(store), store.number, now_ns, told);
    }

    pub(crate) fn forget(
        &mut self,
        topic: &str,
        number: u64,
        now_ns: u64,
        told: &mut impl HistorySink,
    ) {
        self.push(topic, &What::Forget(number), number, now_ns, told);
    }

    fn push(
        &mut self,
        topic: &str,
        what: &What<'_>,
        number: u64,
        now_ns: u64,
        told: &mut impl HistorySink,
    ) {
        let ticket = self.next_ticket();
        if let Err(why) = self.stores.push(topic, what, ticket, now_ns) {
            let outcome = Err(why);
            self.counts.add(&outcome);
            told.stored(topic, number, outcome);
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.ticket += 1;
        Ticket(self.ticket)
    }

    // The engine.

    /// There is a link, to an engine that keeps this, or nothing.
    pub(crate) fn up(&mut self, kept: Option<u64>, now_ns: u64) {
        let Some(epoch) = kept else {
            if !std::mem::replace(&mut self.has_nothing, true) {
                self.notices.push_back(HistoryNotice::Nothing);
            }
            return self.follows.down(now_ns);
        };
        self.has_nothing = false;
        if self.follows.era > 0 && self.follows.known_epoch != epoch {
            self.notices.push_back(HistoryNotice::Remade);
            // Of another epoch these numbers are of what nobody wished to forget.
            self.purges.clear();
        }
        self.follows.up(epoch, now_ns);
    }

    pub(crate) fn down(&mut self, now_ns: u64) {
        self.follows.down(now_ns);
    }

    /// The engine sends what this topic has from now on.
    pub(crate) fn in_force(&mut self, id: TopicId) {
        self.follows.in_force(id);
    }

    pub(crate) fn is_followed(&self, topic: &str) -> bool {
        self.follows.table.find(topic).is_some()
    }

    /// What there is of a topic is to be asked of those who certainly have all.
    pub(crate) fn look_at(&mut self, topic: &str) {
        self.follows.confirm_at_leader(topic);
    }

    /// Something of these topics may be lost; some of them are not followed.
    pub(crate) fn lost<'a>(&mut self, topics: impl Iterator<Item = &'a str>, now_ns: u64) {
        self.follows.has_lost(now_ns);
        topics.for_each(|topic| self.follows.lose(topic));
    }

    /// Something of any topic may be lost.
    pub(crate) fn lost_any(&mut self, now_ns: u64) {
        self.follows.has_lost(now_ns);
        self.follows.look_at_all();
    }

    /// A message with the engine's numbers has come; whether its topic is followed.
    pub(crate) fn heard<T: HistorySink>(
        &mut self,
        envelope: &Envelope<'_>,
        (bytes, number, at_ms): (&Bytes, Number, u64),
        time: Time,
        told: &mut T,
    ) -> bool {
        let Some(at) = self.follows.table.find(envelope.topic) else { return false };
        if self.follows.epoch.is_none() {
            // It is not known yet of which epoch its number is; over a new link all is asked for.
            return true;
        }
        self.follows.is_here(time.ns);
        let Self { me, sent, counts, follows, .. } = self;
        let mut context = Context { me: *me, time, sent, counts, told };
        follows.arrive(at, envelope, (bytes, number, at_ms), &mut context);
        true
    }

    /// A store was answered.
    pub(crate) fn stored<T: HistorySink>(
        &mut self,
        ticket: Ticket,
        answer: Result<(u64, bool), NotStored>,
        time: Time,
        told: &mut T,
    ) {
        let answer: Answer = answer.map_err(|why| match why {
            NotStored::Unconfirmed => StoreError::Unconfirmed,
            NotStored::Refused(why) => StoreError::Refused(why),
        });
        let Some(topic) = self.stores.topic_of(ticket).map(Box::<str>::from) else { return };
        let is_followed = self.is_followed(&topic);
        let done = self.stores.answered(
            ticket,
            (&answer, self.follows.known_epoch),
            (is_followed, time.ns),
            (&mut self.sent, &mut self.counts),
            told,
        );
        let (Some(done), Ok((seq, _))) = (done, answer) else { return };
        self.follows.expect(&topic, seq, time.ns);
        if done.is_forget && self.purges.len() < PURGES_MAX {
            self.purges.push_back((topic, seq));
        }
    }

    /// A fetch was answered.
    pub(crate) fn fetched<T: HistorySink>(
        &mut self,
        ticket: Ticket,
        fetched: Option<Fetched>,
        time: Time,
        told: &mut T,
    ) {
        let Self { me, sent, counts, follows, .. } = self;
        let mut context = Context { me: *me, time, sent, counts, told };
        follows.fetched(ticket, fetched, &mut context);
    }

    /// The engine has said behind which number a log is young, or has not.
    pub(crate) fn since(&mut self, ticket: Ticket, behind: Option<u64>, time: Time) {
        self.follows.watermark_is(ticket, behind, time);
    }

    /// A purge was answered.
    pub(crate) fn purged(&mut self, ticket: Ticket, why: Option<NotStored>) {
        if let Some((topic, _)) = self.purging.remove(&ticket)
            && let Some(why) = why
        {
            self.counts.purges_failed += 1;
            self.notices.push_back(HistoryNotice::NotPurged(topic, why));
        }
    }

    /// What the adapter is to do next. `n` is the number of this node's last envelope.
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
        let is_new = self.stores.takes_number();
        let outgoing = self.stores.next(*n + 1, &mut self.sent)?;
        *n += u64::from(is_new);
        Some(Next::Store(outgoing))
    }

    /// The adapter has not taken it: it is the next again.
    pub(crate) fn not_taken(&mut self, next: Next) {
        match next {
            Next::Fetch(ticket, _) => self.follows.not_asked(ticket),
            Next::Purge(ticket, ..) => self.purges.extend(self.purging.remove(&ticket)),
            Next::Store(outgoing) => self.stores.give_back(outgoing),
        }
    }

    /// The adapter has taken an envelope to store.
    pub(crate) fn handed_over(&mut self) {
        self.counts.handed_over += 1;
    }

    // Time.

    /// Does what is due, and some of what has to be told.
    pub(crate) fn tick(&mut self, time: Time, told: &mut impl HistorySink) {
        self.follows.is_here(time.ns);
        self.stores.expire(time.ns, (&mut self.sent, &mut self.counts), told);
        self.sent.expire(time.ns);
        self.follows.end_pauses(time.ns);
        self.follows.end_watermark_waits(time.ns);
        self.follows.miss_late(time.ns);
        self.follows.go_round(time.ns);
        self.hush(told);
    }

    /// Tells some of what has to be told.
    pub(crate) fn hush(&mut self, told: &mut impl HistorySink) {
        self.follows.hush(told);
        self.follows.forget_loss();
    }

    /// When there is something to do, for who may ask the engine, or may not.
    pub(crate) fn next_ns(&self, may_ask: bool) -> Option<u64> {
        let due_ns = [self.stores.next_ns(), self.sent.next_ns(), self.follows.next_ns(may_ask)];
        due_ns.into_iter().flatten().min()
    }

    // Getters.

    /// Whether the engine has answered all that was to be stored.
    pub(crate) fn is_flushed(&self) -> bool {
        self.stores.is_empty()
    }

    pub(crate) fn counts(&self) -> &HistoryCounts {
        &self.counts
    }

    /// How many topics are followed.
    pub(crate) fn followed(&self) -> usize {
        self.follows.table.len()
    }

    /// Bytes of what is not stored yet.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.stores.bytes()
    }

    pub(crate) fn poll_notice(&mut self) -> Option<HistoryNotice> {
        self.notices.pop_front()
    }
}
