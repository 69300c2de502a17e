//! Broadcasts on their way through a shard.

mod model;
