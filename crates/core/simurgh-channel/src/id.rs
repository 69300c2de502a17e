//! Names of channels.

/// Names a channel across shards. An old name never reaches the channel in a reused slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId {
    /// The shard of its socket.
    pub shard: u16,
    /// Its slot there.
    pub membership: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// In place of a membership: none.
pub const NO_MEMBERSHIP: u32 = u32::MAX;
/// In place of a membership for a listener outside of channels. It differs from [`NO_MEMBERSHIP`],
/// or listeners would not get what a join function broadcasts from itself.
pub const LISTENS: u32 = NO_MEMBERSHIP - 1;
/// Excluded from a broadcast in place of a member: then it is only for members that receive
/// positions. So broadcasts to everybody need no test for it.
pub const NOBODY_PLAIN: ChannelId =
    ChannelId { shard: u16::MAX, membership: NO_MEMBERSHIP - 2, generation: 0 };
