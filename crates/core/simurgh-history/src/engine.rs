//! The contract between a node and an engine that keeps topics for several nodes.

use alloc::boxed::Box;

use thiserror::Error;

/// How much of a topic an engine keeps, as the topic's pattern declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The most broadcasts, the newest; one at least.
    pub count: u32,
    /// The most bytes of them, the newest; one broadcast at least.
    pub bytes: usize,
    /// Milliseconds after which the engine removes a broadcast, the same on all nodes; 0: never.
    pub age_ms: u64,
}

/// Where the engine has kept a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// The epoch of its numbers.
    pub epoch: u64,
    /// Its index among several with this number.
    pub seq: u64,
    /// Which one it is of several with this number.
    pub index: u16,
    /// Whether one with the same id had been kept before, here: it is not delivered again.
    pub is_duplicate: bool,
}

/// Why a broadcast may not be kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotKept {
    /// The engine has not answered in time: it may be kept, or not.
    #[error("the engine has not confirmed it in time")]
    Unconfirmed,
    /// The engine does not keep it, and will not, with its reason.
    #[error("not stored: {0}")]
    Refused(Box<str>),
    /// It is not kept: too much waits for the engine.
    #[error("too much waits to be stored")]
    Full,
    /// There is no link to the engine, and the broadcast was delivered on this node only, as the
    /// server is configured to do.
    #[error("there is no link: it was delivered on this node only")]
    LocalOnly,
}
