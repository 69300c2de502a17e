//! The shards that have members of a topic.

use core::slice;

use simurgh_data::prelude::*;

/// A set of shards' numbers: eight bytes while all are below 64, a bitmap otherwise.
#[derive(Debug)]
pub(super) enum Mask {
    Few(u64),
    Many(Box<Bitmap>),
}

/// Bits of shards, up to the highest that had a member since the bitmap was made.
#[derive(Debug)]
pub(super) struct Bitmap {
    words: Vec<u64>,
}

/// The numbers of shards, ascending.
#[derive(Clone, Debug)]
pub struct Shards<'a> {
    words: slice::Iter<'a, u64>,
    word: u64,
    base: u16,
}

const fn place(shard: u16) -> (usize, u64) {
    (shard as usize / 64, 1 << (shard % 64))
}

impl Mask {
    pub(super) const EMPTY: Self = Self::Few(0);

    pub(super) fn insert(&mut self, shard: u16) {
        let (at, bit) = place(shard);
        match self {
            Self::Few(word) if at == 0 => *word |= bit,
            Self::Few(word) => {
                let mut words = vec![0; at + 1];
                words[0] = *word;
                words[at] = bit;
                *self = Self::Many(Box::new(Bitmap { words }));
            }
            Self::Many(bitmap) => {
                if bitmap.words.len() <= at {
                    bitmap.words.reserve_exact(at + 1 - bitmap.words.len());
                    bitmap.words.resize(at + 1, 0);
                }
                bitmap.words[at] |= bit;
            }
        }
    }

    pub(super) fn remove(&mut self, shard: u16) {
        let (at, bit) = place(shard);
        match self {
            Self::Few(word) if at == 0 => *word &= !bit,
            Self::Few(_) => {}
            Self::Many(bitmap) => {
                if let Some(word) = bitmap.words.get_mut(at) {
                    *word &= !bit;
                }
                if bitmap.words.iter().all(|word| *word == 0) {
                    *self = Self::EMPTY;
                }
            }
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        // A bitmap without a bit is freed at once.
        matches!(self, Self::Few(0))
    }

    pub(super) fn iter(&self) -> Shards<'_> {
        let mut words = match self {
            Self::Few(word) => slice::from_ref(word).iter(),
            Self::Many(bitmap) => bitmap.words.iter(),
        };
        let word = words.next().copied().unwrap_or_default();
        Shards { words, word, base: 0 }
    }
}

impl Iterator for Shards<'_> {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        while self.word == 0 {
            self.word = *self.words.next()?;
            self.base = self.base.wrapping_add(64);
        }
        let lowest = self.word.trailing_zeros() as u16;
        self.word &= self.word - 1;
        Some(self.base + lowest)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shard_mask_behaves_like_a_set(
            calls in prop::collection::vec(
                (any::<bool>(), prop_oneof![3 => 0..70_u16, 1 => any::<u16>()]), 0..60),
        ) {
            let mut mask = Mask::EMPTY;
            let mut model = BTreeSet::new();
            for (is_added, shard) in calls {
                if is_added {
                    mask.insert(shard);
                    model.insert(shard);
                } else {
                    mask.remove(shard);
                    model.remove(&shard);
                }
                prop_assert!(mask.iter().eq(model.iter().copied()));
                prop_assert_eq!(mask.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn removing_the_last_shard_releases_the_bitmap() {
        let mut mask = Mask::EMPTY;
        mask.insert(65_535);
        assert!(mask.iter().eq([65_535]));
        mask.remove(65_535);
        assert!(matches!(mask, Mask::Few(0)));
    }
}
