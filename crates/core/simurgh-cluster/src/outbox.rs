//! The queue of envelopes for the adapter: bounded, so that a slow or missing broker costs a known
//! amount of memory and nothing waits for it.
//!
//! Each [`Class`] has its own queue and bound. Plain envelopes may be lost: beyond their bound or
//! their time the oldest are dropped, since newer ones are worth more. Control and presence
//! envelopes are refused when there is no room, so that the caller knows.

use core::ops::AddAssign;

use bytes::Bytes;

use crate::envelope::resent;
use crate::subject::Subject;
use simurgh_data::prelude::*;

#[cfg(test)]
mod tests;

/// Bytes that an envelope counts in addition to its own and those of its subject: its place in the
/// queue, and the overhead of three allocations.
pub const OUTBOX_ENTRY_BYTES: usize = size_of::<Entry>() + 72;
const PIECE: usize = 64;
const CLASSES: usize = 4;

/// The class of an envelope. Classes are handed over in this order, and each in the order of its
/// calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Beats, hellos, disconnects and their answers: refused when full.
    Control,
    /// Changes of presences, and states: refused when full.
    Presence,
    /// Calls between nodes and their answers: refused when full.
    Call,
    /// Broadcasts of topics without history: the oldest are dropped when full, or after their time.
    Plain,
}

/// Bounds of an outbox, in bytes of envelopes and subjects with [`OUTBOX_ENTRY_BYTES`] for each
/// envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// For control envelopes.
    pub control_bytes: usize,
    /// For presence envelopes.
    pub presence_bytes: usize,
    /// For calls and their answers.
    pub call_bytes: usize,
    /// For plain envelopes.
    pub plain_bytes: usize,
    /// How long a plain envelope may wait, in nanoseconds.
    pub plain_age_ns: u64,
}

impl Default for OutboxConfig {
    /// 1 MB; 1 MB; 32 MB; 8 MB and 2 s.
    fn default() -> Self {
        Self {
            control_bytes: 1 << 20,
            presence_bytes: 1 << 20,
            call_bytes: 32 << 20,
            plain_bytes: 8 << 20,
            plain_age_ns: 2_000_000_000,
        }
    }
}

/// Plain envelopes that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// To make room for newer ones.
    pub by_bytes: u64,
    /// Because they had waited too long.
    pub by_age: u64,
}

impl AddAssign for Dropped {
    fn add_assign(&mut self, more: Self) {
        self.by_bytes += more.by_bytes;
        self.by_age += more.by_age;
    }
}

/// Why an envelope was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// Its class is full.
    #[error("no room for another {0:?} envelope")]
    Full(Class),
    /// It is larger than the bound of its class.
    #[error("an envelope larger than the outbox")]
    TooLarge,
}

#[derive(Debug)]
struct Entry {
    to: Subject,
    envelope: Bytes,
    since_ns: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        cost(&self.to, &self.envelope)
    }
}

fn cost(to: &Subject, envelope: &Bytes) -> usize {
    to.as_str().len() + envelope.len() + OUTBOX_ENTRY_BYTES
}

/// A queue in pieces, so that growing copies nothing and memory is freed as it empties.
#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<VecDeque<Entry>>,
    len: usize,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, entry: Entry) {
        self.len += 1;
        self.bytes += entry.bytes();
        if let Some(last) = self.pieces.back_mut()
            && last.len() < PIECE
        {
            return last.push_back(entry);
        }
        let mut piece = VecDeque::with_capacity(PIECE);
        piece.push_back(entry);
        self.pieces.push_back(piece);
    }

    fn front(&self) -> Option<&Entry> {
        self.pieces.front()?.front()
    }

    fn pop(&mut self) -> Option<Entry> {
        let piece = self.pieces.front_mut()?;
        let entry = piece.pop_front()?;
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        self.len -= 1;
        self.bytes -= entry.bytes();
        Some(entry)
    }
}

/// The queues of all classes.
#[derive(Debug)]
pub struct Outbox {
    queues: [Queue; CLASSES],
    config: OutboxConfig,
}

impl Outbox {
    /// An empty outbox.
    pub fn new(config: OutboxConfig) -> Self {
        Self { queues: Default::default(), config }
    }

    /// Adds an envelope. Returns how many plain ones were dropped for it or for their age. An
    /// envelope counts by its length, even if it is part of a larger buffer.
    ///
    /// # Errors
    /// There is no room for it. A plain one is refused only if it is larger than the bound.
    pub fn push(
        &mut self,
        class: Class,
        to: Subject,
        envelope: Bytes,
        now_ns: u64,
    ) -> Result<Dropped, OutboxError> {
        let bytes = cost(&to, &envelope);
        let bound = self.bound(class);
        if bytes > bound {
            return Err(OutboxError::TooLarge);
        }
        let mut dropped = Dropped::default();
        if class == Class::Plain {
            dropped = self.expire(now_ns);
        } else if self.queue(class).bytes + bytes > bound {
            return Err(OutboxError::Full(class));
        }
        let queue = &mut self.queues[class as usize];
        while queue.bytes + bytes > bound && queue.pop().is_some() {
            dropped.by_bytes += 1;
        }
        queue.push(Entry { to, envelope, since_ns: now_ns });
        Ok(dropped)
    }

    /// The next envelope to hand over, after [`expire`](Self::expire). It stays until
    /// [`pop`](Self::pop), so that an envelope that the adapter does not take keeps its place.
    pub fn front(&self) -> Option<(Class, &Subject, &Bytes)> {
        let entry = |class| self.queue(class).front().map(|it| (class, &it.to, &it.envelope));
        let classes = [Class::Control, Class::Presence, Class::Call, Class::Plain];
        classes.into_iter().find_map(entry)
    }

    /// Removes what [`front`](Self::front) shows.
    pub fn pop(&mut self) -> Option<(Class, Subject, Bytes)> {
        let (class, ..) = self.front()?;
        let entry = self.queues[class as usize].pop()?;
        Some((class, entry.to, entry.envelope))
    }

    /// Marks what waits in a class as [`Flags::RESENT`](crate::Flags::RESENT).
    pub fn mark_resent(&mut self, class: Class) {
        for entry in self.queues[class as usize].pieces.iter_mut().flatten() {
            entry.envelope = resent(core::mem::take(&mut entry.envelope));
        }
    }

    /// Drops the plain envelopes that have waited too long.
    pub fn expire(&mut self, now_ns: u64) -> Dropped {
        let mut dropped = Dropped::default();
        while self.next_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.queues[Class::Plain as usize].pop();
            dropped.by_age += 1;
        }
        dropped
    }

    /// When [`expire`](Self::expire) will drop something.
    pub fn next_ns(&self) -> Option<u64> {
        let oldest = self.queue(Class::Plain).front()?;
        Some(oldest.since_ns.saturating_add(self.config.plain_age_ns))
    }

    /// The bytes of all classes, as they are counted.
    pub fn bytes(&self) -> usize {
        self.queues.iter().map(|it| it.bytes).sum()
    }

    /// The bytes of a class, as they are counted.
    pub fn bytes_of(&self, class: Class) -> usize {
        self.queue(class).bytes
    }

    /// How many envelopes a class has.
    pub fn len_of(&self, class: Class) -> usize {
        self.queue(class).len
    }

    /// How many envelopes all classes have.
    pub fn len(&self) -> usize {
        self.queues.iter().map(|it| it.len).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more bytes a class has room for.
    pub const fn room(&self, class: Class) -> usize {
        self.bound(class).saturating_sub(self.queue(class).bytes)
    }

    const fn queue(&self, class: Class) -> &Queue {
        &self.queues[class as usize]
    }

    const fn bound(&self, class: Class) -> usize {
        match class {
            Class::Control => self.config.control_bytes,
            Class::Presence => self.config.presence_bytes,
            Class::Call => self.config.call_bytes,
            Class::Plain => self.config.plain_bytes,
        }
    }
}
