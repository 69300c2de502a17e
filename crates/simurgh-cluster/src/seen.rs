//! Which envelopes of a node have been received, so that none is taken twice.

/// Numbers that a window spans.
pub const SEEN_NUMBERS: u64 = 1 << 16;

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: usize = (SEEN_NUMBERS / WORD_BITS) as usize;

/// What is known of an envelope by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has not been received before.
    New,
    /// It has been: drop it.
    Again,
    /// It was sent again, and is too old to tell whether it has been received: drop it, and count
    /// it as lost.
    TooOld,
}

/// The last 65,536 numbers of one publisher, and which of them have been received: a bit for each,
/// sliding with the highest, as receivers of IPsec guard themselves against replays (RFC 4303,
/// section 3.4.3, and appendix A2).
///
/// Numbers are the publisher's, over all it sends; a receiver gets some of them, and those of
/// different topics may overtake each other. A publisher sends again at most what it had under way
/// when its link broke, a thousand or so, before anything newer: far less than a window. What is
/// older than the window and was not sent again cannot have been received before, since engines
/// deliver once; it is new.
///
/// It takes its 8 kB when it is made, and not when the first is sent again: what had been received
/// before that would then be unknown, and that is just what may come twice. A forged number far
/// ahead of its publisher's does no harm but that what follows is told apart by its flag alone.
///
/// ```
/// use simurgh_cluster::{Seen, Taken};
///
/// let mut seen = Seen::new();
/// assert_eq!(seen.take(7, false), Taken::New);
/// assert_eq!(seen.take(6, false), Taken::New);
/// assert_eq!(seen.take(7, true), Taken::Again);
/// assert_eq!(seen.take(5, true), Taken::New);
/// ```
#[derive(Clone, Debug)]
pub struct Seen {
    /// The highest number received; 0 before the first.
    top: u64,
    /// Of each number from `top` down to 65,535 below it, whether it has been received; at its
    /// remainder.
    bits: Box<[u64; WORDS]>,
}

impl Default for Seen {
    fn default() -> Self {
        Self::new()
    }
}

impl Seen {
    /// Nothing has been received.
    pub fn new() -> Self {
        Self { top: 0, bits: Box::new([0; WORDS]) }
    }

    /// Notes that an envelope has been received; what is known of it.
    pub fn take(&mut self, n: u64, is_resent: bool) -> Taken {
        if n > self.top {
            self.slide_to(n);
        } else if self.top - n >= SEEN_NUMBERS {
            return if is_resent { Taken::TooOld } else { Taken::New };
        }
        let bit = 1 << (n % WORD_BITS);
        let word = self.word(n);
        if *word & bit != 0 {
            return Taken::Again;
        }
        *word |= bit;
        Taken::New
    }

    /// The highest number received; 0 before the first.
    pub const fn top(&self) -> u64 {
        self.top
    }

    /// Bytes of heap.
    pub const fn heap_bytes(&self) -> usize {
        size_of::<[u64; WORDS]>()
    }

    /// Forgets the numbers whose places those up to `top` take.
    fn slide_to(&mut self, top: u64) {
        let (from, slid) = (self.top + 1, top - self.top);
        self.top = top;
        if slid >= SEEN_NUMBERS {
            self.bits.fill(0);
            return;
        }
        let (first, last) = (from / WORD_BITS, top / WORD_BITS);
        let behind_first = u64::MAX << (from % WORD_BITS);
        let before_last = u64::MAX >> (WORD_BITS - 1 - top % WORD_BITS);
        if first == last {
            *self.word(from) &= !(behind_first & before_last);
            return;
        }
        *self.word(from) &= !behind_first;
        for between in first + 1..last {
            *self.word(between * WORD_BITS) = 0;
        }
        *self.word(top) &= !before_last;
    }

    fn word(&mut self, n: u64) -> &mut u64 {
        &mut self.bits[(n / WORD_BITS) as usize % WORDS]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The same, remembering everything.
    #[derive(Default)]
    struct Model {
        top: u64,
        received: HashSet<u64>,
    }

    impl Model {
        fn take(&mut self, n: u64, is_resent: bool) -> Taken {
            self.top = self.top.max(n);
            if n + SEEN_NUMBERS <= self.top {
                return if is_resent { Taken::TooOld } else { Taken::New };
            }
            if self.received.insert(n) { Taken::New } else { Taken::Again }
        }
    }

    /// Where the next number is, seen from the last: near, at the window's ends, or far.
    fn steps() -> impl Strategy<Value = i64> {
        let size = SEEN_NUMBERS as i64;
        prop_oneof![
            8 => -70..200i64,
            2 => prop::sample::select(vec![-1, 0, 1, 63, 64, 65, 128]),
            2 => -size - 130..-size + 130,
            2 => size - 130..size + 130,
            1 => -size..size,
            1 => -4 * size..4 * size,
        ]
    }

    proptest! {
        #[test]
        fn knows_what_a_set_of_all_numbers_knows(
            start in prop_oneof![0..10u64, 0..1u64 << 40],
            steps in prop::collection::vec((steps(), any::<bool>()), 1..400),
        ) {
            let (mut seen, mut model) = (Seen::new(), Model::default());
            let mut n = start;
            for (step, is_resent) in steps {
                n = n.saturating_add_signed(step);
                prop_assert_eq!(seen.take(n, is_resent), model.take(n, is_resent), "{}", n);
                prop_assert_eq!(seen.top(), model.top);
            }
        }
    }

    #[test]
    fn what_is_sent_again_after_a_broken_link_is_taken_once() {
        let mut seen = Seen::new();
        // Every third is for this node; the last 500 were lost with the link.
        let mine = || (1..=100_000u64).filter(|n| n % 3 == 0);
        for n in mine().filter(|n| *n <= 99_500) {
            assert_eq!(seen.take(n, false), Taken::New, "{n}");
        }
        for n in mine().filter(|n| *n > 98_976) {
            let expected = if n <= 99_500 { Taken::Again } else { Taken::New };
            assert_eq!(seen.take(n, true), expected, "{n}");
        }
        for n in mine().filter(|n| *n > 40_000) {
            assert_eq!(seen.take(n, true), Taken::Again, "{n}");
        }
    }

    #[test]
    fn a_jump_as_long_as_the_window_forgets_all_of_it() {
        for jump in [SEEN_NUMBERS - 1, SEEN_NUMBERS, SEEN_NUMBERS + 1, u64::MAX - 2000] {
            let mut seen = Seen::new();
            for n in 1..=2000 {
                seen.take(n, false);
            }
            assert_eq!(seen.take(2000 + jump, false), Taken::New);
            let kept = if jump < SEEN_NUMBERS { Taken::Again } else { Taken::TooOld };
            assert_eq!(seen.take(2000, true), kept, "{jump}");
            assert_eq!(seen.take(1999, true), Taken::TooOld, "{jump}");
            assert_eq!(seen.take(1999, false), Taken::New, "none sent it again");
            let others = (2001..2000 + jump).rev().take(SEEN_NUMBERS as usize - 2);
            for n in others {
                assert_eq!(seen.take(n, true), Taken::New, "{n} after {jump}");
            }
        }
    }

    #[test]
    fn a_number_far_ahead_makes_nobody_lose_what_was_sent_once() {
        let mut seen = Seen::new();
        assert_eq!(seen.take(u64::MAX, false), Taken::New);
        assert_eq!((seen.take(1, false), seen.take(2, false)), (Taken::New, Taken::New));
        assert_eq!(seen.take(2, true), Taken::TooOld);
        assert_eq!(seen.take(u64::MAX, true), Taken::Again);
    }

    #[test]
    fn a_peer_costs_8_kilobytes() {
        let bytes = size_of::<Seen>() + Seen::new().heap_bytes();
        assert_eq!(bytes, 8192 + 16);
    }
}
