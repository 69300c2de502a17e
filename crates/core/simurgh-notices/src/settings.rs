//! Settings of stays and their delivery.

use simurgh_data::prelude::*;
use simurgh_proto::topic::Pattern;

use crate::key::{Kind, MILLISECOND, SECOND};
use crate::record::Notice;

/// A hook, as far as notices need it.
#[derive(Clone, Debug)]
pub struct HookRule {
    /// Its name.
    pub name: Arc<str>,
    /// The types that it wants, as a sum of [`HookRule::bit`]s.
    pub types: u8,
    /// The topics of notices about members and topics; empty: all.
    pub topics: Vec<Pattern>,
    /// The most notices of a batch.
    pub batch: usize,
    /// How long the first notice of a batch waits for others.
    pub batch_ns: u64,
    /// A notice that is not accepted for so long is a dead letter.
    pub retry_for_ms: u64,
}

impl HookRule {
    /// A hook that wants these types for all topics, in batches of 100 and 200 ms, for 24 h.
    pub fn new(name: &str, types: u8) -> Self {
        let (batch, batch_ns, retry_for_ms) = (100, 200 * MILLISECOND, 24 * 3_600_000);
        Self { name: name.into(), types, topics: Vec::new(), batch, batch_ns, retry_for_ms }
    }

    /// The bit of a type.
    pub const fn bit(kind: Kind, is_end: bool) -> u8 {
        1 << ((kind as u8 - 1) * 2 + is_end as u8)
    }

    /// Whether it wants a notice.
    pub fn wants(&self, notice: &Notice) -> bool {
        let key = &notice.stay.key;
        let is_of_type = self.types & Self::bit(key.kind(), notice.end.is_some()) != 0;
        is_of_type && self.is_about(key.kind(), key.topic()) && !key.is_hidden()
    }

    fn is_about(&self, kind: Kind, topic: &str) -> bool {
        kind == Kind::User
            || self.topics.is_empty()
            || self.topics.iter().any(|pattern| pattern.matches(topic))
    }
}

/// The settings that all partitions of a node share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hooks.
    pub hooks: Vec<HookRule>,
    /// A stay ends so long after its last membership, if there is no new one.
    pub grace_ns: u64,
    /// The same after a restart of the server or the cluster, if that is longer.
    pub restart_grace_ns: u64,
    /// The most bytes of notices of a partition in memory that hooks have not accepted. Each hook
    /// has an equal share.
    pub window_bytes: usize,
    /// The most dead letters of a hook in a partition; the oldest are deleted.
    pub dead_max: usize,
    /// The least number of records that a compaction of the log removes, divisible by 4.
    pub compacted: usize,
    /// Whether the log survives this node: it is in the broker or in files.
    pub is_durable: bool,
}

impl Settings {
    /// Whether some hook wants notices of this kind; of users with any topic.
    pub fn wants(&self, kind: Kind, topic: &str) -> bool {
        let types = HookRule::bit(kind, false) | HookRule::bit(kind, true);
        self.hooks.iter().any(|hook| hook.types & types != 0 && hook.is_about(kind, topic))
    }
}

impl Default for Settings {
    /// No hooks; 5 s; 15 s; 4 MiB; 625; 1,000; in memory.
    fn default() -> Self {
        Self {
            hooks: Vec::new(),
            grace_ns: 5 * SECOND,
            restart_grace_ns: 15 * SECOND,
            window_bytes: 4 << 20,
            dead_max: 625,
            compacted: 1_000,
            is_durable: false,
        }
    }
}
