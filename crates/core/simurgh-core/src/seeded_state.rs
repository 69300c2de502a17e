//! Hashes of what clients name.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

/// A seeded hasher: without the seed no client can choose names that collide.
#[derive(Debug, Default)]
pub(crate) struct SeededState(DefaultHasher);

impl SeededState {
    pub(crate) fn new(seed: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        Self(hasher)
    }
}

impl BuildHasher for SeededState {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        self.0.clone()
    }
}
