//! The listeners of a shard, and the topics that this node wants from the others of its cluster.
//!
//! A shard reports a topic's first member or listener, and when it has none any more. Socket ids
//! are not reported: `disconnect` is sent to all nodes.

use alloc::collections::BTreeMap;

use simurgh_channel::{Broadcast, ChannelId, Listener, Node, ToCluster};
use simurgh_history::Retention;

use super::delivery::Registry;
use super::state::Fanout;
use crate::registry::{SOCKET_ID, TopicId};
use simurgh_data::prelude::*;

/// By topic. A topic without listeners has no entry.
#[derive(Default)]
pub(super) struct Listeners(BTreeMap<Box<str>, Vec<Listener>>);

impl Listeners {
    pub(super) fn add(&mut self, topic: Box<str>, listener: Listener) {
        self.0.entry(topic).or_default().push(listener);
    }

    pub(super) fn remove(&mut self, topic: &str, name: ChannelId) {
        let Some(all) = self.0.get_mut(topic) else { return };
        all.retain(|it| it.name != name);
        if all.is_empty() {
            self.0.remove(topic);
        }
    }

    pub(super) fn has(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    #[cfg(test)]
    pub(super) fn topics(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passes a broadcast to all listeners of its topic except the excluded one.
    pub(super) fn deliver(&self, broadcast: &Arc<Broadcast>) {
        let all = self.0.get(broadcast.topic()).into_iter().flatten();
        for listener in all.filter(|it| broadcast.except != Some(it.name)) {
            (listener.on_broadcast)(broadcast);
        }
    }
}

impl<N: Node> Fanout<N> {
    /// A membership was made; its topic is subscribed to before its client is answered. `wants`:
    /// what of a topic this node keeps.
    #[inline(always)]
    pub(crate) fn member_added(
        &self,
        registry: &mut Registry,
        membership: u32,
        wants: impl FnOnce(&str) -> Option<Retention>,
    ) {
        let Some(cluster) = self.node.cluster() else { return };
        let member = registry.member(membership).filter(|it| !it.is(SOCKET_ID));
        let topic = member.map(|it| it.topic).and_then(|id| registry.topic_mut(id));
        if let Some(topic) = topic
            && !core::mem::replace(&mut topic.deliveries.is_wanted, true)
        {
            let wants = wants(&topic.name);
            cluster.send(ToCluster::TopicBegins((&*topic.name).into(), self.shard, wants));
        }
    }

    #[inline(always)]
    pub(super) fn member_removed(&self, registry: &mut Registry, id: TopicId) {
        let Some(cluster) = self.node.cluster() else { return };
        let topic = registry.topic_mut(id).filter(|it| it.len() == 0);
        if let Some(topic) = topic
            && core::mem::take(&mut topic.deliveries.is_wanted)
            && !self.listens_to(&topic.name)
        {
            cluster.send(ToCluster::TopicEnds((&*topic.name).into(), self.shard));
        }
    }

    pub(crate) fn listen(&mut self, topic: Box<str>, listener: Listener, wants: Option<Retention>) {
        if let Some(cluster) = self.node.cluster() {
            cluster.send(ToCluster::TopicBegins(topic.clone(), self.shard, wants));
        }
        self.listeners.get_or_insert_default().add(topic, listener);
    }

    pub(crate) fn unlisten(&mut self, registry: &Registry, topic: Box<str>, name: ChannelId) {
        if let Some(listeners) = &mut self.listeners {
            listeners.remove(&topic, name);
        }
        self.listeners.take_if(|it| it.is_empty());
        let members = registry.find(&topic).and_then(|id| registry.topic(id));
        if let Some(cluster) = self.node.cluster()
            && !members.is_some_and(|it| it.deliveries.is_wanted)
            && !self.listens_to(&topic)
        {
            cluster.send(ToCluster::TopicEnds(topic, self.shard));
        }
    }
}

#[cfg(test)]
mod tests;
