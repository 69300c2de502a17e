//! Keys of connections.

/// Identifies one connection of one shard for its lifetime. A slot is reused with another
/// generation, so an old key never finds a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Index of the record.
    pub slot: u32,
    /// How often the slot was used before.
    pub generation: u32,
}
