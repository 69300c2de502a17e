//! One followed topic.

use bytes::Bytes;

use crate::adapter::{Number, Received, Ticket};
use crate::envelope::{Envelope, Header, Kind};
use crate::subject::Bucket;
use crate::table::Named;
use simurgh_data::Slab;
use simurgh_data::prelude::*;

/// The most streams of a broker, each with its own numbers: by the first digit of buckets.
pub(super) const STREAMS: usize = 16;

/// A followed topic; when it is followed again it has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TopicId {
    pub(super) at: u32,
    pub(super) serial: u32,
}

impl TopicId {
    pub(crate) const fn number(self) -> u64 {
        (self.serial as u64) << 32 | self.at as u64
    }

    pub(crate) const fn of_number(number: u64) -> Self {
        Self { at: number as u32, serial: (number >> 32) as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its interest is not in force yet.
    Waiting,
    /// The broker's messages are being fetched.
    Filling,
    Live,
}

/// The last report: whether the topic is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Nothing,
    Known,
    Unknown,
    Unavailable,
}

#[derive(Debug)]
pub(crate) struct Topic {
    pub(super) name: Box<str>,
    /// The last number on its subject that was delivered or given up.
    pub(super) last: u64,
    /// Up to this number a gap or completeness was reported.
    pub(super) reach: u64,
    pub(super) job: Option<Box<Job>>,
    pub(super) serial: u32,
    pub(super) era: u32,
    /// The last round in which certainly nothing was missing.
    pub(super) round: u32,
    /// When its last message was stored, in seconds of this node's clock.
    pub(super) stored_s: i32,
    /// Its place in the table of retentions.
    pub(super) wants: u16,
    /// How often messages of it may have been lost on a link that did not break; wraps around.
    pub(super) lost: u8,
    pub(super) stage: Stage,
    pub(super) reported: Reported,
    /// `last` is the number of a message, and not one behind that.
    pub(super) is_message: bool,
    /// Messages behind `last` may be missing, up to an unknown number.
    pub(super) is_suspect: bool,
}

const _: () = assert!(Slab::<Topic>::SLOT_BYTES <= 64);

impl Named for Topic {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Topic {
    pub(super) fn has_waiting(&self, seq: u64) -> bool {
        let first = self.job.as_ref().and_then(|it| it.queue.front());
        first.is_some_and(|it| it.number.seq < seq)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Listed,
    Request(Ticket),
    /// The request is to be made later.
    Pausing,
}

/// The work on a topic with missing messages.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) phase: Phase,
    /// Waiting messages by number, each once.
    pub(super) queue: VecDeque<Waiting>,
    pub(super) bytes: usize,
    /// The highest number for which the queue had no room.
    pub(super) dropped: u64,
    /// A number that the broker has had; 0, if none is known.
    pub(super) needed: u64,
    /// An answer must reach the last known number, or contain it.
    pub(super) is_confirm: bool,
    /// Answers that did not reach what is needed.
    pub(super) attempts: u8,
    /// Requests without an answer.
    pub(super) failures: u8,
    pub(super) from_leader: bool,
    pub(super) is_further: bool,
    /// The next request leaves out the last known message: both do not fit in a page.
    pub(super) skips_last: bool,
    /// A message that should have arrived by itself did not.
    pub(super) is_hole: bool,
    pub(super) has_gap: bool,
    pub(super) fill: Fill,
}

impl Job {
    /// Queues a message, or remembers its number if there is no room.
    pub(super) fn wait(&mut self, waiting: Waiting, (count_max, bytes_max): (usize, usize)) {
        let seq = waiting.number.seq;
        let place = self.queue.partition_point(|it| it.number.seq < seq);
        if self.queue.get(place).is_some_and(|it| it.number.seq == seq) {
            return;
        }
        let bytes = self.bytes + waiting.envelope.len();
        // Once a message was left out, those behind it are useless.
        if self.dropped > 0 || self.queue.len() >= count_max || bytes > bytes_max {
            self.dropped = self.dropped.max(seq);
            return;
        }
        self.bytes = bytes;
        self.queue.insert(place, waiting);
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let first = self.queue.pop_front()?;
        self.bytes -= first.envelope.len();
        Some(first)
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: Number,
    pub(super) at_ms: u64,
    pub(super) envelope: Bytes,
}

/// The broker's messages of a topic that has not begun yet, added page by page.
#[derive(Debug, Default)]
pub(super) struct Fill {
    pub(super) messages: VecDeque<Received>,
    bytes: usize,
    /// Messages in all pages.
    seen: usize,
    pub(super) through: u64,
    /// Messages up to this number were left out; 0, if none.
    floor: u64,
    /// The number of the last purge; 0, if there is none.
    pub(super) purged: u64,
}

impl Fill {
    /// Adds a page, and keeps the newest of all messages, so many and so many bytes. `follows`:
    /// nothing can be missing between.
    pub(super) fn add(
        &mut self,
        name: &str,
        (page, follows): (Vec<Received>, bool),
        (count, bytes): (usize, usize),
    ) {
        if !follows {
            *self = Self { through: self.through, purged: self.purged, ..Self::default() };
        }
        for message in page {
            let Some(number) = message.stored.filter(|it| it.seq > self.through) else { continue };
            self.through = number.seq;
            self.seen += 1;
            if is_forget(name, &message.envelope) {
                (self.messages, self.bytes) = (VecDeque::new(), 0);
                (self.floor, self.purged) = (number.seq, number.seq);
                continue;
            }
            self.bytes += message.envelope.len();
            self.messages.push_back(message);
            while self.messages.len() > count.max(1)
                || (self.bytes > bytes && self.messages.len() > 1)
            {
                let Some(oldest) = self.messages.pop_front() else { break };
                self.bytes -= oldest.envelope.len();
                self.floor = oldest.stored.map_or(self.floor, |it| it.seq);
            }
        }
    }

    /// Whether nothing can be missing before a page of a broker that had this number: a broker
    /// removes the oldest first, so while the last known message is there, nothing behind it was
    /// removed.
    pub(super) fn precedes(&self, page: &[Received], head: u64) -> bool {
        let first = page.first().and_then(|it| it.stored).map(|it| it.seq);
        let is_older = first.is_none() && (1..self.through).contains(&head);
        self.through == 0 || first == Some(self.through) || is_older
    }

    /// Up to which number messages may be missing, if all up to `head` was fetched. `young`: the
    /// number behind which nothing is too old, if that is known and everything was fetched;
    /// `count`: if fewer are there, nothing else was removed.
    pub(super) fn floor(&self, head: u64, young: Option<u64>, count: usize) -> u64 {
        let floor = match self.messages.front().and_then(|it| it.stored) {
            _ if self.floor > 0 => return self.floor,
            Some(first) => first.seq.saturating_sub(1),
            None => head,
        };
        let young = young.filter(|_| self.seen < count);
        young.map_or(floor, |it| it.min(floor))
    }
}

pub(super) fn is_forget(name: &str, bytes: &[u8]) -> bool {
    let header = Header::read(bytes);
    header.is_ok_and(|it| it.kind == Kind::Forget)
        && Envelope::decode(bytes).is_ok_and(|it| it.topic == name)
}

/// The stream of a topic, in a broker with `STREAMS`.
pub(super) fn stream_of(topic: &str) -> usize {
    Bucket::of(topic).number() >> 8
}
