//! The queue of broadcasts to store: gathered by topic, one envelope of each in flight, within
//! bounds.
//!
//! While an envelope of a topic is in flight, further broadcasts gather in the next one: so a
//! repeated envelope cannot follow a later one, and a crowd pays once. A broadcast with its
//! publisher's id is sent alone, because a broker knows only ids of whole envelopes.

use alloc::collections::BTreeMap;
use core::time::Duration;

use bytes::Bytes;
use simurgh_history::{NotKept, StoredAt};
use twox_hash::XxHash3_128;

use super::HistoryConfig;
use super::counts::HistoryCounts;
use super::events::{HistorySink, StoreItem};
use super::own_envelopes::OwnEnvelopes;
use crate::adapter::Ticket;
use crate::envelope::{Draft, EncodeError};
use crate::node_id::NodeId;
use crate::subject::{Prefix, Space, Subject, push_token};
use crate::table::{Named, Table};
use simurgh_data::prelude::*;

/// The most broadcasts of an envelope.
pub(crate) const ITEMS_MAX: usize = 64;
/// The most bytes of an envelope with several broadcasts.
pub(crate) const GATHERED_BYTES_MAX: usize = 64 << 10;
/// An envelope that has waited for so long takes no more broadcasts, so that all have about the
/// same time to wait.
const GATHERED_NS: u64 = 1_000_000_000;
/// The longest id that is written out; a longer one is replaced by a hash.
const ID_BYTES_MAX: usize = 128;
/// Bytes that a waiting envelope counts in addition to its own.
pub(super) const STORE_BYTES: usize = size_of::<Batch>() + size_of::<Open>() + 128;
/// How many places in `ready` may be stale.
const SPARE: usize = 64;
/// Bytes that a broadcast counts in addition to its own.
const NUMBER_BYTES: usize = 8;

pub(crate) enum Storing<'a> {
    Item(StoreItem<'a>),
    /// The purge of everything before it.
    Forget(u64),
}

impl Storing<'_> {
    pub(super) const fn number(&self) -> u64 {
        match self {
            Self::Item(store) => store.number,
            Self::Forget(number) => *number,
        }
    }
}

pub(crate) struct Outgoing {
    pub(crate) to: Subject,
    pub(crate) id: Box<str>,
    pub(crate) age: Option<Duration>,
    pub(crate) envelope: Bytes,
    pub(crate) ticket: Ticket,
    n: u64,
}

pub(super) type Answer = Result<(u64, bool), NotKept>;

#[derive(Debug)]
struct Batch {
    ticket: Ticket,
    draft: Draft,
    numbers: Vec<u64>,
    id: Option<Box<str>>,
    age: Option<Duration>,
    since_ns: u64,
    bytes: usize,
    is_forget: bool,
}

#[derive(Debug)]
struct Queue {
    topic: Box<str>,
    waiting: VecDeque<Batch>,
    in_flight: Option<Ticket>,
    is_ready: bool,
}

impl Named for Queue {
    fn name(&self) -> &str {
        &self.topic
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    queue: u32,
    since_ns: u64,
    due_ns: u64,
    in_flight: Option<InFlight>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    n: u64,
    bytes: usize,
    has_id: bool,
    is_forget: bool,
}

pub(crate) struct StoreQueue {
    me: NodeId,
    prefix: Prefix,
    config: HistoryConfig,
    queues: Table<Queue>,
    /// Topics that have something to send and nothing in flight; some do not exist any more.
    ready: VecDeque<u32>,
    /// By ticket, so in the order of age.
    open: BTreeMap<Ticket, Open>,
    /// Envelopes in flight whose publishers have stopped waiting.
    late: BTreeMap<Ticket, Open>,
    in_flight: usize,
    refused: Option<Outgoing>,
    bytes: usize,
}

impl StoreQueue {
    pub(super) fn new(me: NodeId, prefix: Prefix, config: HistoryConfig, seed: u64) -> Self {
        Self {
            me,
            prefix,
            config,
            queues: Table::new(seed),
            ready: VecDeque::new(),
            open: BTreeMap::new(),
            late: BTreeMap::new(),
            in_flight: 0,
            refused: None,
            bytes: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.late.is_empty()
    }

    #[cfg(test)]
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Adds an item; `ticket` is for a new envelope, and larger than any before.
    pub(super) fn push(
        &mut self,
        topic: &str,
        what: &Storing<'_>,
        ticket: Ticket,
        now_ns: u64,
    ) -> Result<(), NotKept> {
        let bytes = match what {
            Storing::Item(store) => store.item.encoded_bytes() + NUMBER_BYTES,
            Storing::Forget(_) => 0,
        };
        if self.bytes + bytes > self.config.waiting_bytes {
            return Err(NotKept::Full);
        }
        if let Storing::Item(store) = what
            && self.joins(topic, store, now_ns)
        {
            self.bytes += bytes;
            return Ok(());
        }
        let bytes = bytes + topic.len() + STORE_BYTES;
        if self.bytes + bytes > self.config.waiting_bytes {
            return Err(NotKept::Full);
        }
        let gathered = self.gathered(topic, what, ticket, (bytes, now_ns));
        let gathered = gathered.map_err(|error| NotKept::Refused(error.to_string().into()))?;
        let due_ns = now_ns.saturating_add(self.config.wait_ns);
        let at = self.queues.find(topic).unwrap_or_else(|| {
            self.queues.insert(Queue {
                topic: topic.into(),
                waiting: VecDeque::new(),
                in_flight: None,
                is_ready: false,
            })
        });
        let Some(queue) = self.queues.get_mut(at) else { return Err(NotKept::Full) };
        queue.waiting.push_back(gathered);
        self.make_ready(at);
        let open = Open { queue: at, since_ns: now_ns, due_ns, in_flight: None };
        self.open.insert(ticket, open);
        self.bytes += bytes;
        Ok(())
    }

    fn gathered(
        &self,
        topic: &str,
        what: &Storing<'_>,
        ticket: Ticket,
        (bytes, since_ns): (usize, u64),
    ) -> Result<Batch, EncodeError> {
        let me = self.me;
        let (draft, id, age) = match what {
            Storing::Item(store) => {
                let id = store.id.map(|id| publisher_id(topic, id));
                (Draft::broadcast(me, topic, &store.item)?, id, store.age)
            }
            Storing::Forget(_) => (Draft::forget(me, topic)?, None, None),
        };
        let is_forget = matches!(what, Storing::Forget(_));
        let numbers = vec![what.number()];
        Ok(Batch { ticket, draft, numbers, id, age, since_ns, bytes, is_forget })
    }

    fn joins(&mut self, topic: &str, store: &StoreItem<'_>, now_ns: u64) -> bool {
        let at = self.queues.find(topic);
        let queue = at.and_then(|at| self.queues.get_mut(at));
        let Some(last) = queue.and_then(|it| it.waiting.back_mut()) else { return false };
        let bytes = store.item.encoded_bytes();
        let may = store.id.is_none()
            && last.id.is_none()
            && !last.is_forget
            && last.age == store.age
            && last.draft.items() < ITEMS_MAX
            && last.draft.len() + bytes <= GATHERED_BYTES_MAX
            && now_ns.saturating_sub(last.since_ns) < GATHERED_NS;
        if !may || last.draft.push(&store.item).is_err() {
            return false;
        }
        last.numbers.push(store.number);
        last.bytes += bytes + NUMBER_BYTES;
        true
    }

    /// The next envelope to hand over; a new one gets the number after `last`.
    pub(super) fn next(&mut self, last: &mut u64, sent: &mut OwnEnvelopes) -> Option<Outgoing> {
        if let Some(refused) = self.refused.take() {
            return Some(refused);
        }
        while self.in_flight < self.config.in_flight_max {
            let at = self.ready.pop_front()?;
            let Some(queue) = self.queues.get_mut(at) else { continue };
            if !core::mem::take(&mut queue.is_ready) || queue.in_flight.is_some() {
                continue;
            }
            let Some(next) = queue.waiting.pop_front() else { continue };
            let Batch { ticket, draft, numbers, id, age, bytes, is_forget, .. } = next;
            *last += 1;
            let n = *last;
            queue.in_flight = Some(ticket);
            self.in_flight += 1;
            if let Some(open) = self.open.get_mut(&ticket) {
                open.in_flight = Some(InFlight { n, bytes, has_id: id.is_some(), is_forget });
            }
            sent.add(n, numbers);
            let to = self.prefix.topic(Space::Store, &queue.topic);
            let id = id.unwrap_or_else(|| format!("{}-{n}", self.me).into());
            return Some(Outgoing { to, id, age, envelope: draft.numbered(n), ticket, n });
        }
        None
    }

    pub(super) fn give_back(&mut self, outgoing: Outgoing) {
        self.refused = Some(outgoing);
    }

    pub(super) fn topic_of(&self, ticket: Ticket) -> Option<&str> {
        let open = self.open.get(&ticket).or_else(|| self.late.get(&ticket))?;
        self.queues.get(open.queue).map(|it| &*it.topic)
    }

    /// Reports an answer to the publishers, and makes the topic's next envelope ready. Returns
    /// whether it was a purge.
    pub(super) fn answered(
        &mut self,
        ticket: Ticket,
        (answer, epoch): (&Answer, u64),
        (is_followed, now_ns): (bool, u64),
        (sent, counts): (&mut OwnEnvelopes, &mut HistoryCounts),
        sink: &mut impl HistorySink,
    ) -> Option<bool> {
        let is_late = self.late.contains_key(&ticket);
        let open = self.open.remove(&ticket).or_else(|| self.late.remove(&ticket))?;
        let InFlight { n, bytes, has_id, is_forget } = open.in_flight?;
        let queue = self.queues.get_mut(open.queue)?;
        if !is_late {
            counts.store_time.add(Duration::from_nanos(now_ns.saturating_sub(open.since_ns)));
            let outcome = |index: u16| match answer {
                Ok((seq, is_duplicate)) => {
                    // An id made by this node is repeated only if the adapter repeats the envelope.
                    let is_duplicate = *is_duplicate && has_id;
                    Ok(StoredAt { epoch, seq: *seq, index, is_duplicate })
                }
                Err(why) => Err(why.clone()),
            };
            for (index, number) in (0..=u16::MAX).zip(sent.numbers(n)) {
                let outcome = outcome(index);
                counts.add(&outcome);
                sink.stored(&queue.topic, *number, outcome);
            }
        }
        sent.answered(n, is_followed, now_ns);
        queue.in_flight = None;
        self.make_ready(open.queue);
        self.in_flight -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(is_forget)
    }

    /// Answers what has waited too long: what was never sent is refused and will not be sent; the
    /// rest may be stored or not.
    pub(super) fn expire(
        &mut self,
        now_ns: u64,
        (sent, counts): (&mut OwnEnvelopes, &mut HistoryCounts),
        sink: &mut impl HistorySink,
    ) {
        while let Some(first) = self.open.first_entry()
            && first.get().due_ns <= now_ns
        {
            let (ticket, open) = first.remove_entry();
            let refused = self.refused.take_if(|it| it.ticket == ticket);
            let Some(queue) = self.queues.get_mut(open.queue) else { continue };
            if let Some(in_flight) = open.in_flight
                && refused.is_none()
            {
                report(
                    &queue.topic,
                    sent.numbers(in_flight.n),
                    &NotKept::Unconfirmed,
                    counts,
                    sink,
                );
                self.late.insert(ticket, open);
                continue;
            }
            let why = NotKept::Refused("the broker has stored nothing for too long".into());
            if let Some(Outgoing { n, .. }) = refused {
                report(&queue.topic, sent.numbers(n), &why, counts, sink);
                sent.remove(n);
                queue.in_flight = None;
                self.in_flight -= 1;
                self.bytes = self.bytes.saturating_sub(open.in_flight.map_or(0, |it| it.bytes));
            } else if let Some(gathered) = queue.waiting.pop_front_if(|it| it.ticket == ticket) {
                report(&queue.topic, &gathered.numbers, &why, counts, sink);
                self.bytes = self.bytes.saturating_sub(gathered.bytes);
            }
            self.make_ready(open.queue);
        }
    }

    /// Makes a topic ready if it has something to send and nothing in flight; forgets it if it has
    /// nothing.
    fn make_ready(&mut self, at: u32) {
        let Some(queue) = self.queues.get_mut(at) else { return };
        if queue.in_flight.is_some() {
            return;
        }
        if queue.waiting.is_empty() {
            self.queues.remove(at);
        } else if !core::mem::replace(&mut queue.is_ready, true) {
            self.ready.push_back(at);
        }
        if self.ready.len() > 2 * self.queues.len() + SPARE {
            self.forget_stale();
        }
    }

    /// Keeps each ready topic once, and no other.
    fn forget_stale(&mut self) {
        let queues = &mut self.queues;
        self.ready
            .retain(|at| queues.get_mut(*at).is_some_and(|it| core::mem::take(&mut it.is_ready)));
        for at in &self.ready {
            if let Some(queue) = queues.get_mut(*at) {
                queue.is_ready = true;
            }
        }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.open.first_key_value().map(|(_, it)| it.due_ns)
    }
}

fn report(
    topic: &str,
    numbers: &[u64],
    why: &NotKept,
    counts: &mut HistoryCounts,
    sink: &mut impl HistorySink,
) {
    for number in numbers {
        let outcome = Err(why.clone());
        counts.add(&outcome);
        sink.stored(topic, *number, outcome);
    }
}

/// The id of an envelope with a publisher's id: different in each topic, and valid for brokers.
fn publisher_id(topic: &str, id: &str) -> Box<str> {
    let mut text = String::from("i:");
    push_token(&mut text, topic);
    text.push('.');
    push_token(&mut text, id);
    if text.len() > ID_BYTES_MAX {
        // No text has this byte in it.
        let both = [topic.as_bytes(), id.as_bytes()].join(&0xff);
        text = format!("i:={:032x}", XxHash3_128::oneshot(&both));
    }
    text.into()
}
