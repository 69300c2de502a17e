//! Puts parts of presence messages together.

use super::{Part, PresenceUpdate};
use crate::envelope::EnvelopeError;
use crate::node_id::NodeId;
use simurgh_data::prelude::*;

/// The most incomplete wholes. Nodes send the parts of a whole one after the other, so there is
/// hardly more than one of each node.
pub const UNFINISHED_MAX: usize = 256;

/// Bytes that a part and a whole count in addition to their own.
const PART_COST: usize = 16;
const WHOLE_COST: usize = 128;

/// Puts parts together, in whatever order and however often they arrive.
///
/// A whole with a lost part stays until newer ones need its place: both bytes and number are
/// bounded, and the oldest is dropped first. A node that misses a change notices it by the next
/// delta and requests it.
#[derive(Debug)]
pub struct PresenceParts {
    bytes_max: usize,
    bytes: usize,
    dropped: u64,
    unfinished: VecDeque<Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    origin: NodeId,
    is_snapshot: bool,
    checksum: u32,
    topic: Box<str>,
    bytes: usize,
    missing: u16,
    parts: Box<[Option<Box<[u8]>>]>,
}

impl Unfinished {
    fn new(part: &Part<'_>) -> Self {
        let parts = usize::from(part.parts);
        Self {
            origin: part.origin,
            is_snapshot: part.is_snapshot,
            checksum: part.checksum,
            topic: part.topic.into(),
            bytes: WHOLE_COST + part.topic.len() + parts * PART_COST,
            missing: part.parts,
            parts: vec![None; parts].into(),
        }
    }

    fn has(&self, part: &Part<'_>) -> bool {
        self.checksum == part.checksum
            && self.origin == part.origin
            && self.is_snapshot == part.is_snapshot
            && self.parts.len() == usize::from(part.parts)
            && *self.topic == *part.topic
    }

    /// Adds a part. Returns the bytes that this adds.
    fn put(&mut self, part: &Part<'_>) -> usize {
        let place = self.parts.get_mut(usize::from(part.part));
        let Some(place) = place.filter(|place| place.is_none()) else { return 0 };
        *place = Some(part.bytes.into());
        self.missing = self.missing.saturating_sub(1);
        self.bytes += part.bytes.len();
        part.bytes.len()
    }
}

impl PresenceParts {
    /// Holds at most so many bytes. A longer whole is never completed.
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, dropped: 0, unfinished: VecDeque::new() }
    }

    /// Takes a part. Returns the message if that was its last missing part.
    ///
    /// # Errors
    /// The whole is complete and malformed.
    pub fn take(&mut self, part: Part<'_>) -> Result<Option<PresenceUpdate>, EnvelopeError> {
        if part.parts == 1 {
            return part.decode(part.bytes).map(Some);
        }
        let at = self.unfinished.iter().position(|it| it.has(&part));
        let at = at.unwrap_or_else(|| self.begin(&part));
        let Some(whole) = self.unfinished.get_mut(at) else { return Ok(None) };
        self.bytes += whole.put(&part);
        if whole.missing == 0
            && let Some(whole) = self.unfinished.remove(at)
        {
            self.bytes -= whole.bytes;
            let parts: Vec<&[u8]> = whole.parts.iter().flatten().map(AsRef::as_ref).collect();
            return part.decode(&parts.concat()).map(Some);
        }
        while self.bytes > self.bytes_max {
            self.drop_oldest();
        }
        Ok(None)
    }

    /// Forgets the parts of a node that is gone.
    pub fn forget(&mut self, origin: NodeId) {
        self.unfinished.retain(|it| it.origin != origin);
        self.bytes = self.unfinished.iter().map(|it| it.bytes).sum();
    }

    /// The bytes held.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many wholes are incomplete.
    pub fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Whether no whole is incomplete.
    pub fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// How many wholes were dropped before they were complete.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn begin(&mut self, part: &Part<'_>) -> usize {
        while self.unfinished.len() >= UNFINISHED_MAX {
            self.drop_oldest();
        }
        let whole = Unfinished::new(part);
        self.bytes += whole.bytes;
        self.unfinished.push_back(whole);
        self.unfinished.len() - 1
    }

    fn drop_oldest(&mut self) {
        match self.unfinished.pop_front() {
            Some(whole) => {
                self.bytes -= whole.bytes;
                self.dropped += 1;
            }
            None => self.bytes = 0,
        }
    }
}
