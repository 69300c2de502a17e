//! How channels are named.

/// Names a channel across shards; a reused slot never answers to an old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
/// Names a listener outside of channels, where a channel has its membership: another than that of
/// nobody, or what a join function broadcasts from itself would not be for it.
pub(crate) const LISTENS: u32 = NO_MEMBERSHIP - 1;
/// Names nobody: what is not for this one is not for members who are told no positions. So the
/// paths of broadcasts look for it only where somebody is left out.
pub(crate) const NOBODY_PLAIN: ChannelId =
    ChannelId { shard: u16::MAX, membership: NO_MEMBERSHIP - 2, generation: 0 };
