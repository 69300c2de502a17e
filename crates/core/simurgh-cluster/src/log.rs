//! The log of notices in the broker: sixteen partitions, each on a subject of its own. Only purges
//! remove records.
//!
//! # Appending
//! Records are gathered in envelopes, and one envelope of each partition is in flight: so records
//! stay in order, also if the adapter repeats an envelope.
//!
//! # Following
//! One node follows a partition as a rule, and reads mostly its own records. So no node subscribes
//! to the subjects. A follower fetches what is behind the last message that it has read, the
//! *anchor*: when the broker has confirmed an append of this node, and once a second for those of
//! others. Each fetch begins with the anchor. If the anchor is missing, another node has purged,
//! and messages may be missing: the follower reads the log from the beginning. A follower of an
//! empty log has no anchor, so the first records are reported as a log that was read again.
//!
//! Copies of the stream may lag behind. So the leader is asked before the log is reported as read,
//! and if an answer lacks the anchor, or an append that was confirmed before the request.

use bytes::Bytes;
use simurgh_data::prelude::*;
use simurgh_history::Epoch;
use simurgh_notices::PARTITIONS;

use crate::adapter::{Event, Fetched, Received, Ticket};
use crate::envelope::{Draft, EncodeError, Envelope, Item, ItemPayload};
use crate::history::{GATHERED_BYTES_MAX, ITEMS_MAX};
use crate::node_id::NodeId;
use crate::time::SECOND;

/// The most envelopes of an answer, and their bytes: more than two envelopes have, so that each
/// answer has one behind the anchor.
pub(crate) const PAGE_COUNT: u32 = 1_000;
pub(crate) const PAGE_BYTES: usize = 4 << 20;
/// How often a log is fetched for records of other nodes, and after a request without an answer.
const AGAIN_NS: u64 = SECOND;
/// A place is the number of an envelope, and in so many bits the place in it.
const INDEX_BITS: u32 = ITEMS_MAX.ilog2();
/// Marks the tickets of the log among all of a node; the lower bits have partition and use.
const MARK: u64 = 1 << 63;
const TICKET_STEP: u64 = PARTITIONS as u64 * USES;
const USES: u64 = 4;

/// A request to the log. Partitions are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogCommand {
    /// Read a partition from its beginning, and follow it.
    Follow(u8),
    /// Follow it no more. Records that are not appended yet are dropped.
    Leave(u8),
    /// Append records in this order. The first is never in an envelope with earlier ones.
    Append(u8, Vec<Vec<u8>>),
    /// Remove the records before a place. It may fail, and may leave those of one envelope.
    Purge(u8, u64),
    /// Read the records behind a place again.
    Read(u8, u64),
}

/// An event of the log. Places grow within an epoch; those of one partition have gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A followed partition was read. Reported again if records may be missing or the epoch is
    /// another: earlier events of the partition are void, appends without an outcome may be.
    Begun {
        /// The partition.
        partition: u8,
        /// It changes when the broker loses the log.
        epoch: Epoch,
        /// All its records, in order, with their places.
        records: Vec<(u64, Bytes)>,
    },
    /// The next record of a followed partition.
    Next {
        /// The partition.
        partition: u8,
        /// The place.
        place: u64,
        /// The record.
        record: Bytes,
    },
    /// The answer to [`LogCommand::Read`]: records that were reported before.
    Again {
        /// The partition.
        partition: u8,
        /// Some records behind the place, in order.
        records: Vec<(u64, Bytes)>,
        /// Whether no reported record follows them.
        is_all: bool,
    },
    /// Records of this partition were not appended, or that is unknown.
    AppendFailed(u8),
    /// The other nodes that are not gone: after each change, and once a second. Times are those
    /// of [`Time::ns`](crate::Time).
    Peers {
        /// The nodes.
        peers: Vec<simurgh_notices::Peer>,
        /// Whether this node may coordinate: it does not drain.
        is_candidate: bool,
    },
}

/// The use of a ticket.
const FOLLOW: u64 = 0;
const READ: u64 = 1;
const APPEND: u64 = 2;
const PURGE: u64 = 3;

#[derive(Debug)]
pub(crate) enum LogRequest {
    Fetch { behind: u64, from_leader: bool },
    Append(u64, Bytes),
    Purge(u64),
}

pub(crate) const fn partition_of(ticket: Ticket) -> u8 {
    (ticket.0 / USES % PARTITIONS as u64) as u8
}

#[derive(Debug, Default)]
struct Partition {
    follow: Option<Follow>,
    read: Option<Read>,
    /// Envelopes to append, with their numbers of this node. The first may be in flight.
    appends: VecDeque<(u64, Bytes)>,
    append: Option<Ticket>,
    purge: Option<u64>,
}

#[derive(Debug, Default)]
struct Follow {
    /// The number of the last message that was read; 0, if there is none.
    anchor: u64,
    /// It was read to its end, and reported.
    is_live: bool,
    /// The records that were read before.
    records: Vec<(u64, Bytes)>,
    /// The number of the last append of this node; the same when the log was requested.
    wanted: u64,
    asked: u64,
    from_leader: bool,
    due_ns: u64,
    ticket: Option<Ticket>,
}

#[derive(Debug)]
struct Read {
    behind: u64,
    due_ns: u64,
    ticket: Option<Ticket>,
}

impl Partition {
    fn followed() -> Self {
        Self { follow: Some(Follow::default()), ..Self::default() }
    }
}

/// The partitions that this node follows, and what it appends.
#[derive(Debug, Default)]
pub(crate) struct Log {
    partitions: [Partition; PARTITIONS as usize],
    tickets: u64,
    /// The epoch of the broker's log, over the last link and the last one with a log.
    epoch: Option<u64>,
    known_epoch: Option<u64>,
    pub(crate) events: VecDeque<LogEvent>,
    /// When the other nodes are reported.
    pub(crate) peers_ns: u64,
}

impl Log {
    /// Takes a command; `n` is the number of this node's last envelope.
    pub(crate) fn command(&mut self, command: LogCommand, me: NodeId, n: &mut u64) {
        let (LogCommand::Follow(at)
        | LogCommand::Leave(at)
        | LogCommand::Append(at, _)
        | LogCommand::Purge(at, _)
        | LogCommand::Read(at, _)) = command;
        let Some(partition) = self.partitions.get_mut(usize::from(at)) else { return };
        match command {
            LogCommand::Follow(_) => *partition = Partition::followed(),
            LogCommand::Leave(_) => *partition = Partition::default(),
            LogCommand::Append(_, records) => match gathered(me, n, &records) {
                Ok(envelopes) => partition.appends.extend(envelopes),
                Err(_) => self.events.push_back(LogEvent::AppendFailed(at)),
            },
            LogCommand::Purge(_, before) => partition.purge = Some(before >> INDEX_BITS),
            LogCommand::Read(_, behind) => {
                partition.read = Some(Read { behind, due_ns: 0, ticket: None });
            }
        }
    }

    /// There is a link, to a broker whose log has this epoch.
    pub(crate) fn up(&mut self, epoch: Option<u64>) {
        self.epoch = epoch;
        let before = self.known_epoch;
        self.known_epoch = epoch.or(before);
        if before.is_none() || before == self.known_epoch {
            return;
        }
        // Places are of another epoch, and late answers are ignored.
        for partition in &mut self.partitions {
            let is_followed = partition.follow.is_some();
            *partition = if is_followed { Partition::followed() } else { Partition::default() };
        }
    }

    /// The next request, which [`taken`](Self::taken) notes.
    pub(crate) fn next(&self, now_ns: u64) -> Option<(Ticket, LogRequest)> {
        self.epoch?;
        let mut numbered = (0..).zip(&self.partitions);
        numbered.find_map(|(at, partition)| {
            let (using, request) = partition.next(now_ns)?;
            Some((Ticket(MARK + self.tickets * TICKET_STEP + at * USES + using), request))
        })
    }

    /// The adapter has taken the next request.
    pub(crate) fn taken(&mut self, ticket: Ticket) {
        self.tickets += 1;
        let at = usize::from(partition_of(ticket));
        let Some(partition) = self.partitions.get_mut(at) else { return };
        match (ticket.0 % USES, &mut partition.follow, &mut partition.read) {
            (FOLLOW, Some(follow), _) => {
                (follow.ticket, follow.asked) = (Some(ticket), follow.wanted);
            }
            (READ, _, Some(read)) => read.ticket = Some(ticket),
            (APPEND, ..) => partition.append = Some(ticket),
            _ => partition.purge = None,
        }
    }

    /// Whether it is the ticket of one of its requests.
    pub(crate) const fn is_of_log(ticket: Ticket) -> bool {
        ticket.0 & MARK != 0
    }

    pub(crate) fn answered(&mut self, ticket: Ticket, answer: Event, now_ns: u64) {
        let at = partition_of(ticket);
        let epoch = Epoch::from_seed(self.known_epoch.unwrap_or_default());
        let Some(partition) = self.partitions.get_mut(usize::from(at)) else { return };
        match answer {
            Event::Fetched { kept, .. } if ticket.0 % USES == READ => {
                let answered = partition.read_again(ticket, kept, now_ns);
                let again = answered.map(|(records, is_all)| LogEvent::Again {
                    partition: at,
                    records,
                    is_all,
                });
                self.events.extend(again);
            }
            Event::Fetched { kept, .. } => {
                let Some(follow) = &mut partition.follow else { return };
                if follow.ticket != Some(ticket) {
                    return;
                }
                follow.ticket = None;
                match kept {
                    None => follow.due_ns = now_ns.saturating_add(AGAIN_NS),
                    Some(fetched) if follow.has_lost(&fetched) => {
                        *partition = Partition::followed()
                    }
                    Some(fetched) => follow.fetched(fetched, (at, epoch), now_ns, &mut self.events),
                }
            }
            Event::Stored { seq, .. } if partition.append == Some(ticket) => {
                partition.append = None;
                partition.appends.pop_front();
                if let Some(follow) = &mut partition.follow {
                    (follow.wanted, follow.due_ns) = (seq, 0);
                }
            }
            Event::NotStored { .. } if partition.append == Some(ticket) => {
                partition.append = None;
                partition.appends.clear();
                self.events.push_back(LogEvent::AppendFailed(at));
            }
            _ => {}
        }
    }

    /// When a request is due next; may be in the past.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.epoch?;
        self.partitions.iter().filter_map(Partition::next_ns).min()
    }
}

impl Partition {
    fn next(&self, now_ns: u64) -> Option<(u64, LogRequest)> {
        let Self { follow, read, appends, append, purge } = self;
        if let Some(follow) = follow
            && follow.ticket.is_none()
            && follow.due_ns <= now_ns
        {
            let (behind, from_leader) = (follow.anchor.saturating_sub(1), follow.from_leader);
            return Some((FOLLOW, LogRequest::Fetch { behind, from_leader }));
        }
        if let Some(Read { behind, due_ns, ticket: None }) = read
            && *due_ns <= now_ns
        {
            // The rest of the envelope of that place, too.
            let behind = (behind >> INDEX_BITS).saturating_sub(1);
            return Some((READ, LogRequest::Fetch { behind, from_leader: false }));
        }
        if let (None, Some((n, envelope))) = (append, appends.front()) {
            return Some((APPEND, LogRequest::Append(*n, envelope.clone())));
        }
        purge.map(|before| (PURGE, LogRequest::Purge(before)))
    }

    fn next_ns(&self) -> Option<u64> {
        let follow = self.follow.as_ref().filter(|it| it.ticket.is_none()).map(|it| it.due_ns);
        let read = self.read.as_ref().filter(|it| it.ticket.is_none()).map(|it| it.due_ns);
        let has_more = self.purge.is_some() || (self.append.is_none() && !self.appends.is_empty());
        [follow, read, has_more.then_some(0)].into_iter().flatten().min()
    }

    /// The records of an answer that were reported before, and whether those are all.
    fn read_again(
        &mut self,
        ticket: Ticket,
        fetched: Option<Fetched>,
        now_ns: u64,
    ) -> Option<(Vec<(u64, Bytes)>, bool)> {
        let anchor = self.follow.as_ref()?.anchor;
        let read = self.read.as_mut().filter(|it| it.ticket == Some(ticket))?;
        let messages = fetched.map(|it| it.messages).unwrap_or_default();
        let is_all = messages.last().is_some_and(|it| seq_of(it) >= anchor);
        let known = messages.iter().filter(|it| seq_of(it) <= anchor);
        let records = known.flat_map(records_of).filter(|(place, _)| *place > read.behind);
        let records: Vec<(u64, Bytes)> = records.collect();
        if records.is_empty() && !is_all {
            // There was no answer, or it is of a copy that lags behind.
            (read.ticket, read.due_ns) = (None, now_ns.saturating_add(AGAIN_NS));
            return None;
        }
        self.read = None;
        Some((records, is_all))
    }
}

impl Follow {
    /// Whether messages behind the anchor may have been removed before they were read.
    fn has_lost(&self, fetched: &Fetched) -> bool {
        self.from_leader && self.lacks_anchor(fetched)
    }

    fn lacks_anchor(&self, fetched: &Fetched) -> bool {
        self.anchor > 0 && fetched.messages.first().map(seq_of) != Some(self.anchor)
    }

    fn fetched(
        &mut self,
        fetched: Fetched,
        (partition, epoch): (u8, Epoch),
        now_ns: u64,
        events: &mut VecDeque<LogEvent>,
    ) {
        if self.lacks_anchor(&fetched) {
            (self.from_leader, self.due_ns) = (true, now_ns);
            return;
        }
        let Fetched { messages, is_all, .. } = fetched;
        let (before, is_confirmed) = (self.anchor, is_all && self.from_leader);
        self.anchor = messages.last().map_or(before, seq_of);
        let new = messages.iter().filter(|it| seq_of(it) > before).flat_map(records_of);
        if self.is_live && (before > 0 || self.anchor == 0) {
            let next = new.map(|(place, record)| LogEvent::Next { partition, place, record });
            events.extend(next);
        } else {
            self.records.extend(new);
            self.is_live = is_confirmed;
            if is_confirmed {
                let records = core::mem::take(&mut self.records);
                events.push_back(LogEvent::Begun { partition, epoch, records });
            }
        }
        let is_late = self.anchor < self.asked;
        let is_done = is_all && self.is_live && self.anchor >= self.wanted;
        let is_in_vain = is_confirmed && is_late;
        self.from_leader = is_all && !is_confirmed && (!self.is_live || is_late);
        let pause_ns = if is_done || is_in_vain { AGAIN_NS } else { 0 };
        self.due_ns = now_ns.saturating_add(pause_ns);
    }
}

fn seq_of(received: &Received) -> u64 {
    received.stored.map_or(0, |it| it.seq)
}

/// The records of a message with their places; none if it is malformed.
fn records_of(message: &Received) -> impl Iterator<Item = (u64, Bytes)> {
    let first = seq_of(message) << INDEX_BITS;
    let items = Envelope::decode(&message.envelope).map(|it| it.items());
    let numbered = (first..).zip(items.into_iter().flatten());
    numbered.map(|(place, item)| (place, message.envelope.slice_ref(item.payload.data())))
}

/// Envelopes of records, with their numbers.
fn gathered(
    me: NodeId,
    n: &mut u64,
    records: &[Vec<u8>],
) -> Result<Vec<(u64, Bytes)>, EncodeError> {
    let mut drafts: Vec<Draft> = Vec::new();
    for record in records {
        let item = Item::new("", ItemPayload::Binary(record));
        match drafts.last_mut() {
            Some(last)
                if last.items() < ITEMS_MAX
                    && last.len() + item.encoded_bytes() <= GATHERED_BYTES_MAX =>
            {
                last.push(&item)?;
            }
            _ => drafts.push(Draft::broadcast(me, "", &item)?),
        }
    }
    let numbered = drafts.into_iter().map(|draft| {
        *n += 1;
        (*n, draft.numbered(*n))
    });
    Ok(numbered.collect())
}
