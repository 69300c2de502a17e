//! Code outside of channels that receives the broadcasts of topics.

use std::fmt;
use std::sync::Arc;

use crate::broadcast::Broadcast;
use crate::id::{ChannelId, LISTENS};

/// Receives a broadcast; must not block.
pub type OnBroadcast = dyn Fn(&Arc<Broadcast>) + Send;

/// Code outside of all channels that receives the broadcasts of a topic.
pub struct Listener {
    /// Its name, by which its own broadcasts can exclude it: [`Listener::id`].
    pub name: ChannelId,
    /// Receives the broadcasts.
    pub on_broadcast: Box<OnBroadcast>,
}

impl Listener {
    /// The name of a listener on a shard; `number` is used once.
    pub fn id(shard: u16, number: u32) -> ChannelId {
        ChannelId { shard, membership: LISTENS, generation: number }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.name).finish()
    }
}
