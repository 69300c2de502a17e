//! Code outside of channels that gets the broadcasts of topics.

use std::fmt;
use std::sync::Arc;

use crate::broadcast::Broadcast;
use crate::id::{ChannelId, LISTENS};

/// Takes a broadcast; must not block.
pub type OnBroadcast = dyn Fn(&Arc<Broadcast>) + Send;

/// Code outside of all channels that gets the broadcasts of a topic.
pub struct Listener {
    /// Its name, by which its own broadcasts can leave it out: [`Listener::id`].
    pub name: ChannelId,
    /// Takes the broadcasts.
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
