//! Hash tables: seeded for what clients name, plain for numbers of our own.

use core::hash::{BuildHasher, BuildHasherDefault};

use siphasher::sip::SipHasher13;

/// For keys that clients do not choose, so that they cannot make them collide.
pub(crate) type HashMap<K, V, S = BuildHasherDefault<SipHasher13>> = hashbrown::HashMap<K, V, S>;
pub(crate) type HashSet<K, S = BuildHasherDefault<SipHasher13>> = hashbrown::HashSet<K, S>;

/// A seeded hasher: without the seed no client can choose names that collide.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SeededState(u64);

impl SeededState {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl BuildHasher for SeededState {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, 0)
    }
}
