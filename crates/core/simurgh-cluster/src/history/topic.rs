//! What is remembered of one topic that is followed.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::adapter::{Number, Received, Ticket};
use crate::envelope::{Envelope, Header, Kind};
use crate::subject::Bucket;
use crate::table::{Named, Slot};

/// Streams that an engine may have, each with numbers of its own: by the first digit of buckets.
pub(super) const STREAMS: usize = 16;

/// A topic, as long as it is followed: another begin has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TopicId {
    pub(super) at: u32,
    pub(super) serial: u32,
}

impl TopicId {
    /// As one number.
    pub(crate) const fn number(self) -> u64 {
        (self.serial as u64) << 32 | self.at as u64
    }

    pub(crate) const fn of_number(number: u64) -> Self {
        Self { at: number as u32, serial: (number >> 32) as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The engine does not send it yet.
    Waiting,
    /// What the engine has is not known yet.
    Filling,
    /// What comes is judged by what was before.
    Live,
}

/// What was told of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Nothing,
    Known,
    Unknown,
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    /// The last number on its subject that is here, or was given up.
    pub(super) last: u64,
    /// Up to this one it was told that nothing is missing, or that something is.
    pub(super) reach: u64,
    /// What is fetched, and what waits for that.
    pub(super) job: Option<Box<Job>>,
    pub(super) serial: u32,
    /// Which of the engine's epochs all this is of.
    pub(super) era: u32,
    /// In which round it was certain last that nothing is missing.
    pub(super) round: u32,
    /// About when its last message was stored, in seconds of this node's clock.
    pub(super) stored_s: i32,
    /// Which of the rules.
    pub(super) wants: u16,
    /// How often something of it may have been lost on a link that stood; wraps around.
    pub(super) lost: u8,
    pub(super) stage: Stage,
    pub(super) told: Last,
    /// The last number is that of a message, and not one of others behind that.
    pub(super) is_message: bool,
    /// Something behind the last number may be missing, and it is not known up to which.
    pub(super) is_suspect: bool,
}

const _: () = assert!(size_of::<Slot<Topic>>() <= 64);

impl Named for Topic {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Topic {
    /// Whether something waits that is older than a number.
    pub(super) fn has_waiting(&self, seq: u64) -> bool {
        let first = self.job.as_ref().and_then(|it| it.queue.front());
        first.is_some_and(|it| it.number.seq < seq)
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody has asked.
    #[default]
    Idle,
    /// It is to be asked.
    Listed,
    Request(Ticket),
    /// It is to be asked later.
    Pausing,
}

/// What a topic has while something of it is missing.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) phase: Phase,
    /// What came and has to wait, by number, each once.
    pub(super) queue: VecDeque<Waiting>,
    pub(super) bytes: usize,
    /// The highest number that found no room in the queue.
    pub(super) dropped: u64,
    /// The engine has had this number, or says so; 0, if none is known.
    pub(super) needed: u64,
    /// An answer has to reach the last number that is known, or to have it.
    pub(super) is_confirm: bool,
    /// Answers that did not reach what is needed.
    pub(super) attempts: u8,
    /// Questions that were not answered at all.
    pub(super) failures: u8,
    pub(super) from_leader: bool,
    /// The next question is not the first: what the last one brought goes before.
    pub(super) is_further: bool,
    /// It is for what is behind the last that is known, without that: both do not fit in a page.
    pub(super) skips_last: bool,
    /// Something that comes by itself has not come.
    pub(super) is_hole: bool,
    pub(super) has_gap: bool,
    pub(super) fill: Fill,
}

impl Job {
    /// Lets a message wait; what finds no room is remembered by its number.
    pub(super) fn wait(&mut self, waiting: Waiting, (count_max, bytes_max): (usize, usize)) {
        let seq = waiting.number.seq;
        let place = self.queue.partition_point(|it| it.number.seq < seq);
        if self.queue.get(place).is_some_and(|it| it.number.seq == seq) {
            return;
        }
        let bytes = self.bytes + waiting.envelope.len();
        // Once something was left out, what follows it is no use either.
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

/// A message that came.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: Number,
    pub(super) at_ms: u64,
    pub(super) envelope: Bytes,
}

/// What the engine has of a topic that is not begun yet, page by page.
#[derive(Debug, Default)]
pub(super) struct Fill {
    pub(super) messages: VecDeque<Received>,
    bytes: usize,
    /// How many messages were seen.
    seen: usize,
    /// The last number that was seen.
    pub(super) through: u64,
    /// What is at or below this is not among the messages; 0, if all is.
    floor: u64,
    /// Up to which number all was forgotten by somebody's wish; 0, if there is none.
    pub(super) purged: u64,
}

impl Fill {
    /// Puts a page behind what there is, of which the newest stay: at most so many, and so many
    /// bytes. It `follows` if nothing can be missing between.
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

    /// Whether nothing can be missing between what there is and a page, of an engine that had this
    /// number: an engine removes the oldest first, so while the last that is known is there,
    /// nothing behind it was removed since.
    pub(super) fn precedes(&self, page: &[Received], head: u64) -> bool {
        let first = page.first().and_then(|it| it.stored).map(|it| it.seq);
        let is_older = first.is_none() && (1..self.through).contains(&head);
        self.through == 0 || first == Some(self.through) || is_older
    }

    /// At or below which number something may be missing, if all up to `head` was looked at.
    /// `young`: behind which nothing is too old to be there, if that is known and everything that
    /// is there was looked at; `count`: fewer are there only if nothing else was removed.
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

/// Whether this is a wish to forget what is kept of a topic.
pub(super) fn is_forget(name: &str, bytes: &[u8]) -> bool {
    let header = Header::read(bytes);
    header.is_ok_and(|it| it.kind == Kind::Forget)
        && Envelope::decode(bytes).is_ok_and(|it| it.topic == name)
}

/// Which of the engine's streams a topic is in, if it has as many as it may.
pub(super) fn stream_of(topic: &str) -> usize {
    Bucket::of(topic).number() >> 8
}
