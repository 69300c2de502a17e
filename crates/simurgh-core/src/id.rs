//! How channels are named.

/// Names a channel across shards; a reused slot never answers to an old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelId {
    /// The shard of its socket.
    pub shard: u16,
    /// Its slot there.
    pub membership: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// Names no membership.
pub(crate) const NO_MEMBERSHIP: u32 = u32::MAX;
