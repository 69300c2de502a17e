//! Bytes that many connections are sent, and their order.
//!
//! Frames that all receivers get one after the other form a chain. A receiver that is behind by
//! thousands of frames keeps only the first and the last ([`Run`]), so a slow peer costs the same
//! however much it is behind, and all slow peers together keep what was sent once.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

/// Bytes that many connections of a shard are sent: one allocation and one reference count, and a
/// link to what follows them ([`Shared::follow`]).
///
/// A frame may consist of parts ([`Shared::go_on_in`]), each of them a `Shared`; the frame is then
/// its first part.
#[derive(Clone, derive_more::Debug)]
#[debug("Shared({} bytes)", self.as_bytes().len())]
pub struct Shared(Rc<Frame<dyn AsRef<[u8]>>>);

struct Frame<B: ?Sized> {
    next: OnceCell<Shared>,
    /// Another part of the same frame follows.
    goes_on: Cell<bool>,
    /// The counter of its bytes, and their number.
    counted: Option<(Rc<Cell<usize>>, usize)>,
    bytes: B,
}

impl Shared {
    /// Wraps bytes of any kind without copying them: a `Vec<u8>`, an `Arc<[u8]>` …
    #[inline]
    pub fn new(bytes: impl AsRef<[u8]> + 'static) -> Self {
        Self::of(bytes, None)
    }

    /// Wraps bytes that are counted in `count` until they are dropped.
    #[inline]
    pub fn counted(bytes: impl AsRef<[u8]> + 'static, count: &Rc<Cell<usize>>) -> Self {
        let len = bytes.as_ref().len();
        count.set(count.get() + len);
        Self::of(bytes, Some((Rc::clone(count), len)))
    }

    fn of(bytes: impl AsRef<[u8]> + 'static, counted: Option<(Rc<Cell<usize>>, usize)>) -> Self {
        let (next, goes_on) = (OnceCell::new(), Cell::new(false));
        Self(Rc::new(Frame { next, goes_on, counted, bytes }))
    }

    /// The bytes; of a frame in parts, those of the first.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.bytes.as_ref()
    }

    /// Declares that every receiver of this gets `next` right after it. Only the first call counts.
    /// A chain must not be a circle: it would never be freed.
    pub fn follow(&self, next: &Self) {
        debug_assert!(!self.is(next), "nothing follows itself");
        let _ = self.last_part().0.next.set(next.clone());
    }

    /// Declares that `part` is of the same frame and follows this directly, so that large bytes
    /// need not be copied to add a few around them. Call it before the frame is sent, with a part
    /// that nothing follows yet.
    pub fn go_on_in(&self, part: &Self) {
        debug_assert!(self.0.next.get().is_none(), "what follows is said only once");
        self.0.goes_on.set(self.0.next.set(part.clone()).is_ok());
    }

    /// Whether another part of the same frame follows.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.0.goes_on.get()
    }

    /// This part and those after it, to the end of the frame.
    #[inline]
    fn parts(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |part| if part.goes_on() { part.next() } else { None })
    }

    /// The last part of the frame that this is, or is a part of.
    #[inline]
    pub fn last_part(&self) -> &Self {
        self.parts().last().unwrap_or(self)
    }

    #[inline]
    fn frame_bytes(&self) -> usize {
        self.parts().map(|part| part.as_bytes().len()).sum()
    }

    #[inline]
    fn next(&self) -> Option<&Self> {
        self.0.next.get()
    }

    #[inline]
    fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl<B: ?Sized> Drop for Frame<B> {
    /// Drops frames one after the other: recursion would overflow the stack on a long chain.
    fn drop(&mut self) {
        if let Some((count, len)) = &self.counted {
            count.set(count.get().saturating_sub(*len));
        }
        let mut next = self.next.take();
        while let Some(mut shared) = next {
            next = Rc::get_mut(&mut shared.0).and_then(|frame| frame.next.take());
        }
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

/// Consecutive frames of a chain: what one connection is sent of it.
#[derive(Clone, Debug)]
pub struct Run {
    first: Shared,
    last: Shared,
    bytes: usize,
}

impl Run {
    /// A single frame, with all its parts.
    #[inline]
    pub fn of(frame: &Shared) -> Self {
        let bytes = frame.frame_bytes();
        Self { first: frame.clone(), last: frame.last_part().clone(), bytes }
    }

    /// Appends `next` if [`Shared::follow`] has put it after the last frame; else `false`.
    #[inline]
    pub fn push(&mut self, next: &Shared) -> bool {
        let follows = self.last.next().is_some_and(|it| it.is(next));
        if follows {
            self.bytes += next.frame_bytes();
            self.last = next.last_part().clone();
        }
        follows
    }

    /// Appends `more` if it begins with the frame that follows the last one; else `false`.
    #[inline]
    pub fn append(&mut self, more: &Self) -> bool {
        let follows = self.last.next().is_some_and(|it| it.is(&more.first));
        if follows {
            self.bytes += more.bytes;
            self.last = more.last.clone();
        }
        follows
    }

    /// Bytes of all its frames.
    #[allow(clippy::len_without_is_empty, reason = "a run has at least one frame")]
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Its only frame, if it has no more and that is in one part.
    #[inline]
    pub fn single(&self) -> Option<&Shared> {
        self.first.is(&self.last).then_some(&self.first)
    }

    /// Its frames, in order, part by part.
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = &Shared> {
        let mut next = Some(&self.first);
        core::iter::from_fn(move || {
            let frame = next?;
            next = if frame.is(&self.last) { None } else { frame.next() };
            Some(frame)
        })
    }

    /// Its first part.
    #[inline]
    pub fn first(&self) -> &Shared {
        &self.first
    }

    /// Drops the first part; `false`, and nothing is done, if it is the only one.
    #[inline]
    pub fn advance(&mut self) -> bool {
        if self.first.is(&self.last) {
            return false;
        }
        let Some(next) = self.first.next().cloned() else { return false };
        self.bytes -= self.first.as_bytes().len();
        self.first = next;
        true
    }

    /// Drops all except the rest of the first frame.
    pub fn truncate(&mut self) {
        *self = Self::of(&self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn chain(frames: usize, count: &Rc<Cell<usize>>) -> Vec<Shared> {
        let frames: Vec<Shared> =
            (0..frames).map(|n| Shared::counted(format!("{n},").into_bytes(), count)).collect();
        for pair in frames.windows(2) {
            pair[0].follow(&pair[1]);
        }
        frames
    }

    fn text(run: &Run) -> String {
        run.frames().map(|it| String::from_utf8(it.as_bytes().to_vec()).unwrap()).collect()
    }

    #[test]
    fn run_is_extended_only_by_its_next_frame() {
        let frames = chain(5, &Rc::default());
        let mut run = Run::of(&frames[0]);
        assert!(run.single().is_some());
        assert!(!run.push(&frames[2]) && run.push(&frames[1]));
        assert!(run.single().is_none());
        let mut rest = Run::of(&frames[2]);
        assert!(rest.push(&frames[3]) && run.append(&rest) && !run.append(&rest));
        assert_eq!((text(&run).as_str(), run.len()), ("0,1,2,3,", 8));
        assert!(run.advance() && run.advance());
        assert_eq!((text(&run).as_str(), run.len()), ("2,3,", 4));
        run.truncate();
        assert_eq!((text(&run).as_str(), run.len(), run.advance()), ("2,", 2, false));
    }

    #[test]
    fn frame_in_parts_is_added_to_a_run_as_a_whole() {
        let count = Rc::default();
        let part = |text: &'static str| Shared::counted(text, &count);
        let (head, body, tail) = (part("<"), part("body"), part(">"));
        head.go_on_in(&body);
        body.go_on_in(&tail);
        let (before, after) = (part("a"), part("b"));
        before.follow(&head);
        head.follow(&after);
        let mut run = Run::of(&before);
        assert!(run.push(&head) && !run.push(&body) && run.push(&after));
        assert_eq!((text(&run).as_str(), run.len()), ("a<body>b", 8));
        assert!(run.advance());
        assert!(Run::of(&head).single().is_none());
        run.truncate();
        assert_eq!((text(&run).as_str(), run.len()), ("<body>", 6));
        assert!(run.advance());
        assert_eq!((text(&run).as_str(), run.len()), ("body>", 5));
        drop((head, body, tail, before, after));
        assert_eq!(count.get(), 6, "what stands behind the run is part of its chain");
        drop(run);
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn slow_reader_retains_following_frames_but_no_earlier_ones() {
        let count = Rc::default();
        let mut frames = chain(10, &count);
        let run = Run::of(&frames[4]);
        frames.clear();
        assert_eq!(count.get(), 2 * 6);
        drop(run);
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn long_chain_is_dropped_without_deep_recursion() {
        let count = Rc::default();
        let mut frames = chain(300_000, &count);
        let first = frames.swap_remove(0);
        drop(frames);
        assert!(count.get() > 300_000);
        drop(first);
        assert_eq!(count.get(), 0);
    }
}
