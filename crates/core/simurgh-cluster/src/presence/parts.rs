//! Parts of what other nodes tell, put together.

use std::collections::VecDeque;

use super::{Part, PresenceUpdate};
use crate::envelope::EnvelopeError;
use crate::node_id::NodeId;

/// So many wholes are put together at a time. Nodes send the parts of a whole behind each other,
/// so there is hardly more than one of each node.
pub const UNFINISHED_MAX: usize = 256;

/// What a part and a whole are counted with beside their bytes.
const PART_COST: usize = 16;
const WHOLE_COST: usize = 128;

/// Puts parts together to what was cut, whatever order they come in, and how often.
///
/// What was begun and never ends, because a part was lost, stays until newer ones need its place:
/// it is bounded in bytes and in number, and the oldest goes first. Whoever misses something finds
/// that out by the next delta, as if all of it had been lost, and asks.
#[derive(Debug)]
pub struct PresenceParts {
    bytes_max: usize,
    bytes: usize,
    dropped: u64,
    /// The oldest in front.
    unfinished: VecDeque<Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    origin: NodeId,
    is_snapshot: bool,
    checksum: u32,
    topic: Box<str>,
    /// As it is counted.
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

    /// Puts a part in its place; bytes that this adds.
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
    /// Holds at most so many bytes. A whole that is longer is never put together.
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, dropped: 0, unfinished: VecDeque::new() }
    }

    /// Takes a part; what it told, if that was the last that was missing.
    ///
    /// # Errors
    /// All parts are here, and they are not what was cut, or what was cut is wrong.
    pub fn take(&mut self, part: Part<'_>) -> Result<Option<PresenceUpdate>, EnvelopeError> {
        if part.parts == 1 {
            return part.told(part.bytes).map(Some);
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
            return part.told(&parts.concat()).map(Some);
        }
        while self.bytes > self.bytes_max {
            self.drop_oldest();
        }
        Ok(None)
    }

    /// Forgets what a node has begun, since it is gone.
    pub fn forget(&mut self, origin: NodeId) {
        self.unfinished.retain(|it| it.origin != origin);
        self.bytes = self.unfinished.iter().map(|it| it.bytes).sum();
    }

    /// Bytes that are held.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many wholes are not complete.
    pub fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// How many were dropped before they were complete, since the beginning.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A place for the whole of this part.
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
