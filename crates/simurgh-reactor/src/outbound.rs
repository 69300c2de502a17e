//! What goes out: the outbox of a turn, which all connections share, and the queue that a
//! connection owns only while its peer is slow.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::rc::Rc;

use crate::handler::Key;

/// Most spans or chunks that go into one write call.
pub(crate) const SLICES_MAX: usize = 64;
/// What the arena keeps of its memory from turn to turn.
const ARENA_KEPT_BYTES: usize = 256 << 10;
/// Most spans that wait for the flush.
const SPANS_MAX: usize = 16 << 10;

/// Bytes that many connections of a shard are sent: one allocation and one reference count,
/// however many hold on to it.
#[derive(Clone)]
pub struct Shared(Rc<dyn AsRef<[u8]>>);

impl Shared {
    /// Wraps bytes of any kind without copying them: a `Vec<u8>`, an `Arc<[u8]>` …
    pub fn new(bytes: impl AsRef<[u8]> + 'static) -> Self {
        Self(Rc::new(bytes))
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl From<Vec<u8>> for Shared {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.as_bytes().len())
    }
}

/// A piece of what a turn writes to a connection.
struct Span {
    /// Where in the arena; not used if `shared` is there.
    start: usize,
    len: usize,
    shared: Option<Shared>,
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

/// All that this turn writes, before it is flushed.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) arena: Vec<u8>,
    spans: Vec<Span>,
    pub(crate) dirty: Vec<Dirty>,
}

impl Outbox {
    /// Adds `arena[start..]` to what connection `key`, whose entry is `entry`, is written.
    pub(crate) fn add_written(&mut self, entry: &mut u32, key: Key, start: usize) {
        let len = self.arena.len().saturating_sub(start);
        if len == 0 {
            return;
        }
        if let Some(dirty) = self.dirty.get(entry_index(*entry))
            && let Some(last) = self.spans.get_mut(dirty.last as usize)
            && last.shared.is_none()
            && last.start + last.len == start
        {
            last.len += len;
            return;
        }
        self.add(entry, key, Span { start, len, shared: None, next: NO_SPAN });
    }

    /// Adds a shared frame behind what is already there.
    pub(crate) fn add_shared(&mut self, entry: &mut u32, key: Key, frame: Shared) {
        let len = frame.as_bytes().len();
        self.add(entry, key, Span { start: 0, len, shared: Some(frame), next: NO_SPAN });
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

    /// The outbox has grown so far that it should be written before the turn's end.
    pub(crate) fn is_full(&self, arena_bytes_max: usize) -> bool {
        self.arena.len() > arena_bytes_max || self.spans.len() > SPANS_MAX
    }

    /// The spans of `dirty`, in order.
    pub(crate) fn spans(&self, dirty: Dirty) -> impl Iterator<Item = Piece<'_>> {
        let mut next = dirty.first;
        std::iter::from_fn(move || {
            let span = self.spans.get(next as usize)?;
            next = span.next;
            Some(match &span.shared {
                Some(shared) => Piece::Shared(shared),
                None => {
                    Piece::Bytes(self.arena.get(span.start..span.start + span.len).unwrap_or(&[]))
                }
            })
        })
    }

    /// The only span of `dirty`, if it has one only: the usual case.
    pub(crate) fn single(&self, dirty: Dirty) -> Option<Piece<'_>> {
        (dirty.first == dirty.last).then(|| self.spans(dirty).next()).flatten()
    }

    /// Forgets all after a flush; `dirty` is the emptied list, kept for its memory.
    pub(crate) fn reset(&mut self, dirty: Vec<Dirty>) {
        self.dirty = dirty;
        self.spans.clear();
        self.arena.clear();
        if self.arena.capacity() > ARENA_KEPT_BYTES {
            self.arena.shrink_to(ARENA_KEPT_BYTES / 4);
        }
    }
}

fn entry_index(entry: u32) -> usize {
    (entry as usize).wrapping_sub(1)
}

/// One span as it is written.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Bytes(&'a [u8]),
    Shared(&'a Shared),
}

impl<'a> Piece<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Shared(shared) => shared.as_bytes(),
        }
    }
}

enum Chunk {
    Owned(Vec<u8>),
    Shared(Shared),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Owned(bytes) => bytes,
            Chunk::Shared(shared) => shared.as_bytes(),
        }
    }
}

/// What a slow peer has not taken yet.
#[derive(Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are already written.
    offset: usize,
    bytes: usize,
    /// The first chunk is the rest of something the peer has got the beginning of.
    begun: bool,
}

impl Queue {
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends `piece` without its first `written` bytes. A shared frame is referred to, not
    /// copied; small pieces are gathered.
    pub(crate) fn push(&mut self, piece: Piece<'_>, written: usize) {
        let Some(rest) = piece.bytes().get(written..).filter(|rest| !rest.is_empty()) else {
            return;
        };
        if self.chunks.is_empty() {
            self.begun = written > 0;
        }
        self.bytes += rest.len();
        match piece {
            Piece::Shared(shared) => {
                if self.chunks.is_empty() {
                    self.offset = written;
                }
                debug_assert!(self.offset == 0 || self.chunks.is_empty() || written == 0);
                self.chunks.push_back(Chunk::Shared(shared.clone()));
            }
            Piece::Bytes(_) => {
                let begun = self.begun && self.chunks.len() == 1;
                match self.chunks.back_mut() {
                    Some(Chunk::Owned(last)) if !begun && last.len() + rest.len() <= 4096 => {
                        last.extend_from_slice(rest);
                    }
                    _ => self.chunks.push_back(Chunk::Owned(rest.to_vec())),
                }
            }
        }
    }

    /// Fills `slices` with what to write next; returns how many were filled.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slot, chunk) in slices.iter_mut().zip(&self.chunks) {
            let skip = if filled == 0 { self.offset } else { 0 };
            *slot = IoSlice::new(chunk.bytes().get(skip..).unwrap_or(&[]));
            filled += 1;
        }
        filled
    }

    /// Forgets the first `written` bytes.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.bytes = self.bytes.saturating_sub(written);
        while let Some(chunk) = self.chunks.front() {
            let left = chunk.bytes().len().saturating_sub(self.offset);
            if written < left {
                if written > 0 {
                    self.begun = true;
                }
                self.offset += written;
                return;
            }
            written -= left;
            self.chunks.pop_front();
            self.offset = 0;
            self.begun = false;
        }
    }

    /// Drops all but the rest of what has begun, and appends `farewell`.
    pub(crate) fn cut(&mut self, farewell: Vec<u8>) {
        self.chunks.truncate(usize::from(self.begun));
        if !self.begun {
            self.offset = 0;
        }
        if !farewell.is_empty() {
            self.chunks.push_back(Chunk::Owned(farewell));
        }
        let total: usize = self.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        self.bytes = total.saturating_sub(self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(queue: &Queue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = queue.slices(&mut slices);
        slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    const KEY: Key = Key { slot: 7, generation: 3 };

    #[test]
    fn spans_chain_in_order_and_neighbours_grow_together() {
        let (mut outbox, mut entry, mut other) = (Outbox::default(), 0, 0);
        outbox.arena.extend(b"ab");
        outbox.add_written(&mut entry, KEY, 0);
        outbox.arena.extend(b"cd");
        outbox.add_written(&mut entry, KEY, 2);
        assert!(outbox.single(outbox.dirty[0]).is_some());
        outbox.arena.extend(b"XX");
        outbox.add_written(&mut other, Key { slot: 8, generation: 0 }, 4);
        outbox.add_shared(&mut entry, KEY, Shared::from(b"-shared-".to_vec()));
        outbox.arena.extend(b"ef");
        outbox.add_written(&mut entry, KEY, 6);
        assert_eq!((entry, other, outbox.dirty.len()), (1, 2, 2));
        let written: Vec<u8> =
            outbox.spans(outbox.dirty[0]).flat_map(|piece| piece.bytes().to_vec()).collect();
        assert_eq!(written, b"abcd-shared-ef");
        assert_eq!(outbox.spans(outbox.dirty[0]).count(), 3);
    }

    #[test]
    fn a_queue_keeps_order_and_references_shared_frames() {
        let shared = Shared::from(b"shared".to_vec());
        let mut queue = Queue::default();
        queue.push(Piece::Shared(&shared), 2);
        queue.push(Piece::Bytes(b"one"), 0);
        queue.push(Piece::Bytes(b"two"), 0);
        queue.push(Piece::Shared(&shared), 0);
        assert_eq!((content(&queue), queue.bytes()), (b"aredonetwoshared".to_vec(), 16));
        assert_eq!(queue.chunks.len(), 3, "small pieces are gathered");
        assert_eq!(Rc::strong_count(&shared.0), 3);
        queue.advance(5);
        assert_eq!(content(&queue), b"netwoshared");
        queue.advance(11);
        assert_eq!((queue.bytes(), queue.chunks.len()), (0, 0));
        assert_eq!(Rc::strong_count(&shared.0), 1);
    }

    #[test]
    fn a_cut_finishes_what_has_begun_and_nothing_else() {
        let mut begun = Queue::default();
        begun.push(Piece::Bytes(b"first"), 2);
        begun.push(Piece::Bytes(b"second"), 0);
        begun.cut(b"bye".to_vec());
        assert_eq!((content(&begun), begun.bytes()), (b"rstbye".to_vec(), 6));

        let mut whole = Queue::default();
        whole.push(Piece::Bytes(b"first"), 0);
        whole.cut(b"bye".to_vec());
        assert_eq!((content(&whole), whole.bytes()), (b"bye".to_vec(), 3));

        let mut later = Queue::default();
        later.push(Piece::Shared(&Shared::from(b"frame".to_vec())), 0);
        later.push(Piece::Shared(&Shared::from(b"other".to_vec())), 0);
        later.advance(1);
        later.cut(b"bye".to_vec());
        assert_eq!((content(&later), later.bytes()), (b"ramebye".to_vec(), 7));
    }
}
