//! The queue that a connection has only while its peer is slow.

use std::collections::VecDeque;
use std::io::IoSlice;

use simurgh_data::Run;

use crate::outbound::{Piece, fill};

/// A peer that takes less than this in the allowed time counts as not reading: otherwise one that
/// takes a byte now and then would stay for ever.
const PROGRESS_BYTES: usize = 16 << 10;
/// For a peer that is cut, larger rests of a frame that has begun are dropped.
const REST_BYTES_MAX: usize = 64 << 10;

enum Chunk {
    Owned(Vec<u8>),
    Run(Run),
}

pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    /// With TLS: records, or what is left of them, that come before the chunks.
    sealed: Vec<u8>,
    /// Bytes of the first part of the first frame that are already written.
    offset: usize,
    bytes: usize,
    /// Bytes of the chunks that are not shared.
    owned: usize,
    begun: bool,
    /// When the peer last made progress, in nanoseconds of served time.
    moved_ns: u64,
    taken: usize,
}

impl Queue {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            sealed: Vec::new(),
            offset: 0,
            bytes: 0,
            owned: 0,
            begun: false,
            moved_ns: now_ns,
            taken: 0,
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of heap that dropping it certainly frees.
    pub(crate) const fn owned(&self) -> usize {
        self.owned
    }

    /// How long the peer has made no progress, nanoseconds.
    pub(crate) const fn stands_for(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.moved_ns)
    }

    /// Appends `piece` without its first `written` bytes. Shared frames are not copied.
    pub(crate) fn push(&mut self, piece: Piece<'_>, written: usize) {
        let Some(rest) = piece.len().checked_sub(written).filter(|rest| *rest > 0) else { return };
        let first = self.chunks.is_empty();
        self.bytes += rest;
        match piece {
            Piece::Run(run) => {
                if let Some(Chunk::Run(last)) = self.chunks.back_mut()
                    && last.append(run)
                {
                    return;
                }
                let mut run = run.clone();
                let (mut skip, mut goes_on) = (written, false);
                while skip >= run.first().as_bytes().len() && skip > 0 {
                    let (part, more) = (run.first().as_bytes().len(), run.first().goes_on());
                    if !run.advance() {
                        break;
                    }
                    skip -= part;
                    goes_on = more;
                }
                debug_assert!(first || written == 0, "only what comes first can have begun");
                if first {
                    self.begun = skip > 0 || goes_on;
                    self.offset = skip;
                }
                self.chunks.push_back(Chunk::Run(run));
            }
            Piece::Bytes(bytes) => {
                let Some(bytes) = bytes.get(written..) else { return };
                if first {
                    self.begun = written > 0;
                }
                self.owned += bytes.len();
                let begun = self.begun && self.chunks.len() == 1;
                match self.chunks.back_mut() {
                    Some(Chunk::Owned(last)) if !begun && last.len() + bytes.len() <= 4096 => {
                        last.extend_from_slice(bytes);
                    }
                    _ => self.chunks.push_back(Chunk::Owned(bytes.to_vec())),
                }
            }
        }
    }

    /// Appends records of TLS.
    pub(crate) fn push_sealed(&mut self, records: &[u8]) {
        self.sealed.extend_from_slice(records);
        self.bytes += records.len();
        self.owned += records.len();
    }

    pub(crate) fn has_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    pub(crate) fn sealed(&self) -> &[u8] {
        &self.sealed
    }

    /// So many bytes of the records are written.
    pub(crate) fn advance_sealed(&mut self, written: usize, now_ns: u64) {
        self.sealed.drain(..written.min(self.sealed.len()));
        if self.sealed.is_empty() {
            self.sealed = Vec::new();
        }
        self.bytes = self.bytes.saturating_sub(written);
        self.owned = self.owned.saturating_sub(written);
        self.note_taken(written, now_ns);
    }

    /// Fills `slices` with what to write next, as [`fill`] does; returns how many were filled, and
    /// their bytes.
    pub(crate) fn slices<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        bytes_max: usize,
    ) -> (usize, usize) {
        let pieces = self.chunks.iter().flat_map(|chunk| {
            match chunk {
                Chunk::Owned(bytes) => Piece::Bytes(bytes),
                Chunk::Run(run) => Piece::Run(run),
            }
            .slices()
        });
        let mut skip = self.offset;
        let mut rest = pieces.map(|it| it.get(std::mem::take(&mut skip)..).unwrap_or(&[]));
        fill(slices, &mut rest, bytes_max)
    }

    fn note_taken(&mut self, written: usize, now_ns: u64) {
        self.taken += written;
        if self.taken >= PROGRESS_BYTES {
            (self.taken, self.moved_ns) = (0, now_ns);
        }
    }

    pub(crate) fn advance(&mut self, written: usize, now_ns: u64) {
        self.note_taken(written, now_ns);
        self.skip(written);
    }

    /// So many bytes of the chunks are written, or sealed.
    pub(crate) fn skip(&mut self, mut written: usize) {
        self.bytes = self.bytes.saturating_sub(written);
        while let Some(chunk) = self.chunks.front_mut() {
            let frame = match chunk {
                Chunk::Owned(bytes) => bytes.len(),
                Chunk::Run(run) => run.first().as_bytes().len(),
            };
            let left = frame.saturating_sub(self.offset);
            if written < left {
                self.begun |= written > 0;
                self.offset += written;
                return;
            }
            written -= left;
            self.offset = 0;
            self.begun = matches!(chunk, Chunk::Run(run) if run.first().goes_on());
            let is_whole = match chunk {
                Chunk::Run(run) => !run.advance(),
                Chunk::Owned(bytes) => {
                    self.owned = self.owned.saturating_sub(bytes.len());
                    true
                }
            };
            if is_whole {
                self.chunks.pop_front();
            }
        }
    }

    /// Drops all except the rest of a begun frame, and appends `last_frame`; drops everything and
    /// returns `false` if that rest is too long to be kept.
    pub(crate) fn cut(&mut self, last_frame: Vec<u8>) -> bool {
        self.chunks.truncate(usize::from(self.begun));
        if let Some(Chunk::Run(run)) = self.chunks.front_mut() {
            run.truncate();
        }
        if !self.begun {
            self.offset = 0;
        }
        self.count();
        let is_kept = self.bytes <= REST_BYTES_MAX;
        if !is_kept {
            *self = Self::new(self.moved_ns);
        } else if !last_frame.is_empty() {
            self.chunks.push_back(Chunk::Owned(last_frame));
            self.count();
        }
        is_kept
    }

    fn count(&mut self) {
        let len = |chunk: &Chunk| match chunk {
            Chunk::Owned(bytes) => (bytes.len(), bytes.len()),
            Chunk::Run(run) => (run.len(), 0),
        };
        let add = |(all, owned), (more, more_owned)| (all + more, owned + more_owned);
        let (all, owned) = self.chunks.iter().map(len).fold((0, 0), add);
        let sealed = self.sealed.len();
        (self.bytes, self.owned) = (all.saturating_sub(self.offset) + sealed, owned + sealed);
    }
}

#[cfg(test)]
mod tests {
    use simurgh_data::Shared;

    use super::*;

    fn content(queue: &Queue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = queue.slices(&mut slices, usize::MAX).0;
        slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    fn run(frames: &[&str]) -> (Vec<Shared>, Run) {
        let frames: Vec<Shared> =
            frames.iter().map(|it| Shared::from(it.as_bytes().to_vec())).collect();
        let mut run = Run::of(&frames[0]);
        for pair in frames.windows(2) {
            pair[0].follow(&pair[1]);
            assert!(run.push(&pair[1]));
        }
        (frames, run)
    }

    #[test]
    fn queue_preserves_order_and_references_shared_frames() {
        let (_, shared) = run(&["shared"]);
        let mut queue = Queue::new(0);
        queue.push(Piece::Run(&shared), 2);
        queue.push(Piece::Bytes(b"one"), 0);
        queue.push(Piece::Bytes(b"two"), 0);
        queue.push(Piece::Run(&shared), 0);
        assert_eq!((content(&queue), queue.bytes()), (b"aredonetwoshared".to_vec(), 16));
        assert_eq!((queue.chunks.len(), queue.owned()), (3, 6), "small pieces are gathered");
        queue.advance(5, 0);
        assert_eq!(content(&queue), b"netwoshared");
        queue.advance(11, 0);
        assert_eq!((queue.bytes(), queue.chunks.len(), queue.owned()), (0, 0, 0));
    }

    #[test]
    fn consecutive_frames_of_a_chain_share_one_queue_entry() {
        let (frames, _) = run(&["a", "bb", "ccc", "dddd"]);
        let mut queue = Queue::new(0);
        let mut first = Run::of(&frames[0]);
        assert!(first.push(&frames[1]));
        queue.push(Piece::Run(&first), 2);
        queue.push(Piece::Run(&Run::of(&frames[2])), 0);
        queue.push(Piece::Run(&Run::of(&frames[3])), 0);
        assert_eq!((queue.chunks.len(), queue.bytes()), (1, 8));
        assert_eq!(content(&queue), b"bcccdddd");
        queue.advance(2, 0);
        assert_eq!(content(&queue), b"ccdddd");
        assert!(queue.cut(b"bye".to_vec()));
        assert_eq!((content(&queue), queue.bytes()), (b"ccbye".to_vec(), 5));
    }

    #[test]
    fn closing_a_queue_finishes_only_the_frame_in_progress() {
        let mut begun = Queue::new(0);
        begun.push(Piece::Bytes(b"first"), 2);
        begun.push(Piece::Bytes(b"second"), 0);
        assert!(begun.cut(b"bye".to_vec()));
        assert_eq!((content(&begun), begun.bytes()), (b"rstbye".to_vec(), 6));

        let mut whole = Queue::new(0);
        whole.push(Piece::Bytes(b"first"), 0);
        assert!(whole.cut(b"bye".to_vec()));
        assert_eq!((content(&whole), whole.bytes()), (b"bye".to_vec(), 3));

        let mut later = Queue::new(0);
        later.push(Piece::Run(&run(&["frame"]).1), 0);
        later.push(Piece::Run(&run(&["other"]).1), 0);
        later.advance(1, 0);
        assert!(later.cut(b"bye".to_vec()));
        assert_eq!((content(&later), later.bytes()), (b"ramebye".to_vec(), 7));

        let mut long = Queue::new(0);
        long.push(Piece::Bytes(&vec![7; 1 << 20]), 1);
        assert!(!long.cut(b"bye".to_vec()), "a megabyte is no rest");
        assert_eq!((long.bytes(), long.owned()), (0, 0));
    }

    #[test]
    fn closing_a_queue_keeps_all_parts_of_the_frame_in_progress() {
        let part = |text: &str| Shared::from(text.as_bytes().to_vec());
        let (head, body, tail, next) = (part("<"), part("body"), part(">"), part("next"));
        head.go_on_in(&body);
        body.go_on_in(&tail);
        head.follow(&next);
        let mut all = Run::of(&head);
        assert!(all.push(&next));
        for written in 0..10 {
            let mut at_once = Queue::new(0);
            at_once.push(Piece::Run(&all), written);
            let mut later = Queue::new(0);
            later.push(Piece::Run(&all), 0);
            later.advance(written, 0);
            let rest = match written {
                0 => "bye".to_owned(),
                1..6 => format!("{}bye", &"<body>"[written..]),
                6 => "bye".to_owned(),
                _ => format!("{}bye", &"<body>next"[written..]),
            };
            for mut queue in [at_once, later] {
                assert!(queue.cut(b"bye".to_vec()));
                assert_eq!(String::from_utf8(content(&queue)).unwrap(), rest, "{written}");
                assert_eq!(queue.bytes(), rest.len(), "{written}");
            }
        }
    }

    #[test]
    fn occasional_single_bytes_do_not_count_as_progress() {
        let mut queue = Queue::new(5);
        queue.push(Piece::Bytes(&vec![7; 1 << 20]), 0);
        queue.advance(1, 1_000);
        assert_eq!(queue.stands_for(1_005), 1_000);
        queue.advance(PROGRESS_BYTES, 2_000);
        assert_eq!(queue.stands_for(2_001), 1);
    }
}
