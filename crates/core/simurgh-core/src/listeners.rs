//! Code outside of channels that hears the broadcasts of topics.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::broadcast::Broadcast;
use crate::id::{ChannelId, LISTENS};

/// Takes a broadcast.
pub type OnBroadcast = dyn Fn(&Arc<Broadcast>) + Send;

/// Somebody outside of all channels who hears a topic.
pub struct Listener {
    /// Its name, and what it broadcasts itself with: [`Listener::id`].
    pub name: ChannelId,
    /// Where it hears; must not block.
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

/// Those of a shard, by topic. A topic with none has no entry.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<Box<str>, Vec<Listener>>);

impl Listeners {
    pub(crate) fn add(&mut self, topic: Box<str>, listener: Listener) {
        self.0.entry(topic).or_default().push(listener);
    }

    pub(crate) fn remove(&mut self, topic: &str, name: ChannelId) {
        let Some(all) = self.0.get_mut(topic) else { return };
        all.retain(|it| it.name != name);
        if all.is_empty() {
            self.0.remove(topic);
        }
    }

    /// Whether somebody hears a topic.
    pub(crate) fn has(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    #[cfg(test)]
    pub(crate) fn topics(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has all of the topic hear this, but who has broadcast it for others.
    pub(crate) fn hear(&self, broadcast: &Arc<Broadcast>) {
        let all = self.0.get(broadcast.topic()).into_iter().flatten();
        for listener in all.filter(|it| broadcast.except != Some(it.name)) {
            (listener.on_broadcast)(broadcast);
        }
    }
}
