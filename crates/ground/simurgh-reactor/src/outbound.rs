//! Output: the outbox of a turn, which all connections share, and the output of local connections.

use std::io::IoSlice;

use simurgh_data::{Key, Run, Shared};

/// The most bytes written to one connection before the next gets a turn.
pub(crate) const DRAIN_BYTES_MAX: usize = 64 << 10;
/// The most pieces in one write call.
pub(crate) const SLICES_MAX: usize = 64;
/// The most memory that the arena keeps between turns.
const ARENA_KEPT_BYTES: usize = 256 << 10;
/// The most memory that the output of local connections keeps between turns.
const LOCAL_KEPT_BYTES: usize = 256 << 10;
/// The most spans that wait for the flush.
const SPANS_MAX: usize = 16 << 10;
/// A turn that produces more bytes than this for all its connections writes in between.
const TURN_BYTES_MAX: usize = 4 << 20;

struct Span {
    /// The offset in the arena; unused if `run` is there.
    start: usize,
    len: usize,
    run: Option<Run>,
    /// The next span of the same connection; `u32::MAX`: none.
    next: u32,
}

const NO_SPAN: u32 = u32::MAX;

/// A connection with something to write at the flush.
#[derive(Clone, Copy)]
pub(crate) struct Dirty {
    pub(crate) key: Key,
    first: u32,
    last: u32,
}

#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) arena: Vec<u8>,
    spans: Vec<Span>,
    pub(crate) dirty: Vec<Dirty>,
    run_bytes: usize,
    /// Bytes that this turn has added.
    pub(crate) turn_bytes: usize,
}

impl Outbox {
    /// Adds `arena[start..]` to the output of connection `key`, whose entry is `entry`.
    pub(crate) fn add_written(&mut self, entry: &mut u32, key: Key, start: usize) {
        let len = self.arena.len().saturating_sub(start);
        if len == 0 {
            return;
        }
        self.turn_bytes += len;
        if let Some(dirty) = self.dirty.get(entry_index(*entry))
            && let Some(last) = self.spans.get_mut(dirty.last as usize)
            && last.run.is_none()
            && last.start + last.len == start
        {
            last.len += len;
            return;
        }
        self.add(entry, key, Span { start, len, run: None, next: NO_SPAN });
    }

    /// Adds a run after the output so far.
    pub(crate) fn add_run(&mut self, entry: &mut u32, key: Key, run: Run) {
        let len = run.len();
        self.run_bytes += len;
        self.turn_bytes += len;
        self.add(entry, key, Span { start: 0, len, run: Some(run), next: NO_SPAN });
    }

    fn add(&mut self, entry: &mut u32, key: Key, span: Span) {
        let index = self.spans.len() as u32;
        self.spans.push(span);
        if let Some(dirty) = self.dirty.get_mut(entry_index(*entry)) {
            if let Some(last) = self.spans.get_mut(dirty.last as usize) {
                last.next = index;
            }
            dirty.last = index;
        } else {
            self.dirty.push(Dirty { key, first: index, last: index });
            *entry = self.dirty.len() as u32;
        }
    }

    /// Whether the outbox should be flushed before the turn's end.
    pub(crate) fn is_full(&self) -> bool {
        self.arena.len() + self.run_bytes > TURN_BYTES_MAX || self.spans.len() > SPANS_MAX
    }

    pub(crate) fn spans(&self, dirty: Dirty) -> impl Iterator<Item = Piece<'_>> {
        let mut next = dirty.first;
        std::iter::from_fn(move || {
            let span = self.spans.get(next as usize)?;
            next = span.next;
            Some(match &span.run {
                Some(run) => Piece::Run(run),
                None => {
                    Piece::Bytes(self.arena.get(span.start..span.start + span.len).unwrap_or(&[]))
                }
            })
        })
    }

    /// The bytes for `dirty`, if they are contiguous: the usual case.
    pub(crate) fn single(&self, dirty: Dirty) -> Option<&[u8]> {
        let only = (dirty.first == dirty.last).then(|| self.spans(dirty).next()).flatten()?;
        match only {
            Piece::Bytes(bytes) => Some(bytes),
            Piece::Run(run) => run.single().map(Shared::as_bytes),
        }
    }

    pub(crate) fn reset(&mut self, dirty: Vec<Dirty>) {
        self.dirty = dirty;
        self.spans.clear();
        self.run_bytes = 0;
        self.arena.clear();
        if self.arena.capacity() > ARENA_KEPT_BYTES {
            self.arena.shrink_to(ARENA_KEPT_BYTES / 4);
        }
    }
}

fn entry_index(entry: u32) -> usize {
    (entry as usize).wrapping_sub(1)
}

/// Fills `slices` with the next of `pieces`, up to `bytes_max`, which may cut a piece. Returns how
/// many are filled, and their bytes.
pub(crate) fn fill<'a>(
    slices: &mut [IoSlice<'a>],
    pieces: &mut impl Iterator<Item = &'a [u8]>,
    bytes_max: usize,
) -> (usize, usize) {
    let (mut filled, mut bytes) = (0, 0);
    for slot in slices {
        if bytes >= bytes_max {
            break;
        }
        let Some(piece) = pieces.next() else { break };
        let piece = piece.get(..bytes_max - bytes).unwrap_or(piece);
        *slot = IoSlice::new(piece);
        filled += 1;
        bytes += piece.len();
    }
    (filled, bytes)
}

#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Bytes(&'a [u8]),
    Run(&'a Run),
}

impl<'a> Piece<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Run(run) => run.len(),
        }
    }

    pub(crate) fn slices(self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, run) = match self {
            Piece::Bytes(bytes) => (Some(bytes), None),
            Piece::Run(run) => (None, Some(run)),
        };
        let frames = run.into_iter().flat_map(Run::frames).map(Shared::as_bytes);
        bytes.into_iter().chain(frames)
    }
}

/// What was sent to local connections, in order.
#[derive(Debug, Default)]
pub struct LocalOutput {
    bytes: Vec<u8>,
    /// The connection, and the end of its bytes in `bytes`.
    pieces: Vec<(Key, usize)>,
    taken: usize,
}

impl LocalOutput {
    /// The next output and its connection; it may be changed in place.
    #[allow(clippy::should_implement_trait, reason = "what it returns borrows from this")]
    pub fn next(&mut self) -> Option<(Key, &mut [u8])> {
        let start = self.taken.checked_sub(1).and_then(|last| self.pieces.get(last));
        let start = start.map_or(0, |(_, end)| *end);
        let (key, end) = *self.pieces.get(self.taken)?;
        self.taken += 1;
        Some((key, self.bytes.get_mut(start..end)?))
    }

    pub(crate) fn is_some(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(crate) fn add(&mut self, key: Key, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some((last, end)) if *last == key => *end = self.bytes.len(),
            _ => self.pieces.push((key, self.bytes.len())),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.taken = 0;
        self.bytes.clear();
        self.bytes.shrink_to(LOCAL_KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { slot: 7, generation: 3 };

    #[test]
    fn spans_are_chained_in_order_and_adjacent_ones_merge() {
        let (mut outbox, mut entry, mut other) = (Outbox::default(), 0, 0);
        outbox.arena.extend(b"ab");
        outbox.add_written(&mut entry, KEY, 0);
        outbox.arena.extend(b"cd");
        outbox.add_written(&mut entry, KEY, 2);
        assert_eq!(outbox.single(outbox.dirty[0]), Some(&b"abcd"[..]));
        outbox.arena.extend(b"XX");
        outbox.add_written(&mut other, Key { slot: 8, generation: 0 }, 4);
        let (one, two) = (Shared::from(b"-sha".to_vec()), Shared::from(b"red-".to_vec()));
        one.follow(&two);
        let mut run = Run::of(&one);
        assert!(run.push(&two));
        outbox.add_run(&mut entry, KEY, run);
        outbox.arena.extend(b"ef");
        outbox.add_written(&mut entry, KEY, 6);
        assert_eq!((entry, other, outbox.dirty.len()), (1, 2, 2));
        let pieces = || outbox.spans(outbox.dirty[0]);
        let written: Vec<u8> = pieces().flat_map(Piece::slices).flatten().copied().collect();
        assert_eq!(written, b"abcd-shared-ef");
        assert_eq!((pieces().count(), pieces().map(Piece::len).sum::<usize>()), (3, 14));
        assert_eq!(outbox.single(outbox.dirty[0]), None);
    }
}
