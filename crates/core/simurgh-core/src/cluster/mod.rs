//! The topics that this node wants from the others of its cluster.
//!
//! A shard reports a topic's first member or listener, and when it has none any more. Socket ids
//! are not reported: `disconnect` is sent to all nodes.

use simurgh_channel::{ChannelId, Listener, Node, ToCluster};

use crate::core::Core;
use crate::registry::{SOCKET_ID, TopicId};

impl<N: Node> Core<N> {
    /// A membership was made; its topic is subscribed to before its client is answered.
    #[inline(always)]
    pub(crate) fn member_added(&mut self, membership: u32) {
        if self.node.cluster().is_some() {
            self.report_topic_begin(membership);
        }
    }

    #[inline(never)]
    fn report_topic_begin(&mut self, membership: u32) {
        let member = self.registry.member(membership).filter(|it| !it.is(SOCKET_ID));
        let topic = member.map(|it| it.topic).and_then(|id| self.registry.topic_mut(id));
        if let Some(topic) = topic
            && !std::mem::replace(&mut topic.deliveries.is_wanted, true)
            && let Some(cluster) = self.node.cluster()
        {
            let wants = self.histories.retention(&topic.name);
            cluster.send(ToCluster::TopicBegins((&*topic.name).into(), self.shard, wants));
        }
    }

    #[inline(always)]
    pub(crate) fn member_removed(&mut self, topic: TopicId) {
        if self.node.cluster().is_some() {
            self.report_topic_end(topic);
        }
    }

    #[inline(never)]
    fn report_topic_end(&mut self, id: TopicId) {
        let topic = self.registry.topic_mut(id).filter(|it| it.len() == 0);
        if let Some(topic) = topic
            && std::mem::take(&mut topic.deliveries.is_wanted)
            && !self.fanout.listens_to(&topic.name)
            && let Some(cluster) = self.node.cluster()
        {
            cluster.send(ToCluster::TopicEnds((&*topic.name).into(), self.shard));
        }
    }

    pub(crate) fn listen(&mut self, topic: Box<str>, listener: Listener) {
        if let Some(cluster) = self.node.cluster() {
            let wants = self.histories.retention(&topic);
            cluster.send(ToCluster::TopicBegins(topic.clone(), self.shard, wants));
        }
        self.fanout.listen(topic, listener);
    }

    pub(crate) fn unlisten(&mut self, topic: Box<str>, name: ChannelId) {
        self.fanout.unlisten(&topic, name);
        let members = self.registry.find(&topic).and_then(|id| self.registry.topic(id));
        if let Some(cluster) = self.node.cluster()
            && !members.is_some_and(|it| it.deliveries.is_wanted)
            && !self.fanout.listens_to(&topic)
        {
            cluster.send(ToCluster::TopicEnds(topic, self.shard));
        }
    }
}

#[cfg(test)]
mod tests;
