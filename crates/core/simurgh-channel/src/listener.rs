//! Code outside of channels that receives the broadcasts of topics.

use crate::broadcast::Broadcast;
use crate::id::{ChannelId, LISTENS};
use simurgh_data::prelude::*;

/// Receives a broadcast; must not block.
pub type OnBroadcast = dyn Fn(&Arc<Broadcast>) + Send;

/// Code outside of all channels that receives the broadcasts of a topic.
#[derive(derive_more::Debug)]
pub struct Listener {
    /// Its name, by which its own broadcasts can exclude it: [`Listener::id`].
    pub name: ChannelId,
    /// Receives the broadcasts.
    #[debug(skip)]
    pub on_broadcast: Box<OnBroadcast>,
}

impl Listener {
    /// The name of a listener on a shard; `number` is used once.
    pub fn id(shard: u16, number: u32) -> ChannelId {
        ChannelId { shard, membership: LISTENS, generation: number }
    }
}
