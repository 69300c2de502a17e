//! What a node and an engine that keeps topics for several nodes agree on.

/// How much of a topic an engine is to keep, as the topic's pattern declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The most broadcasts, the newest; one at least.
    pub count: u32,
    /// The most bytes of them, the newest; one broadcast at least.
    pub bytes: usize,
    /// After how many milliseconds the engine removes a broadcast; 0, if it does not by age. Where
    /// several nodes publish, all must have the same.
    pub age_ms: u64,
}

/// Where the engine has kept a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// The epoch of its numbers.
    pub epoch: u64,
    /// Its number.
    pub seq: u64,
    /// Which one it is of several with this number.
    pub index: u16,
    /// One with the same id had been kept before, here: it is not delivered again.
    pub is_duplicate: bool,
}
