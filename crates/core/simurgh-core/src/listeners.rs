//! The listeners of a shard.

use alloc::collections::BTreeMap;

use simurgh_channel::{Broadcast, ChannelId, Listener};

use crate::prelude::*;

/// By topic. A topic without listeners has no entry.
#[derive(Default)]
pub(crate) struct Listeners(BTreeMap<Box<str>, Vec<Listener>>);

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

    /// Passes a broadcast to all listeners of its topic except the excluded one.
    pub(crate) fn deliver(&self, broadcast: &Arc<Broadcast>) {
        let all = self.0.get(broadcast.topic()).into_iter().flatten();
        for listener in all.filter(|it| broadcast.except != Some(it.name)) {
            (listener.on_broadcast)(broadcast);
        }
    }
}
