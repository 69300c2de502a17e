//! Views of a core for the observer.

use simurgh_channel::{ChannelId, Limit, Node};
use simurgh_data::Key;
use simurgh_proto::message::OwnedRef;

use crate::core::Core;
use crate::fanout::Delivery;
use crate::history::KeptTopics;
use crate::registry::{Membership, POSITIONS, Topic, TopicId};
use crate::socket::Socket;
use simurgh_data::prelude::*;

/// Of a membership with its entry in the topic's table.
pub const SUBSCRIPTION_BYTES: usize =
    size_of::<Membership>() + size_of::<crate::registry::Member>();
/// Of a topic with its places in the tables and a name of usual length.
pub const TOPIC_BYTES: usize = size_of::<Topic<Delivery>>() + 100;

/// A topic, as it is shown.
#[derive(Debug, Clone, Copy)]
pub struct TopicView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its members on this shard.
    pub members: usize,
    /// Deliveries of its broadcasts between the last two visits.
    pub deliveries_before: u32,
}

impl<N: Node> Core<N> {
    /// The topic of this name, if it has members here or something in flight.
    pub fn find_topic(&self, name: &str) -> Option<TopicId> {
        self.channels.registry.find(name)
    }

    /// A topic.
    pub fn topic(&self, id: TopicId) -> Option<TopicView<'_>> {
        self.channels.registry.topic(id).map(view)
    }

    /// The sockets of a topic's members on this shard.
    pub fn members(&self, id: TopicId) -> impl Iterator<Item = Key> {
        let topic = self.channels.registry.topic(id);
        let members = topic.map_or(0, Topic::len);
        (0..members).filter_map(move |at| Some(topic?.member_at(at)?.conn))
    }

    /// Shows `visit` the topics of the next `places` places from `cursor` on, which is 0 again
    /// after the last. With `roll`, counts since the last visit restart.
    pub fn visit_topics(
        &mut self,
        cursor: &mut u32,
        places: usize,
        roll: bool,
        mut visit: impl FnMut(TopicId, TopicView<'_>),
    ) {
        self.channels.registry.topics_mut().visit(cursor, places, |id, topic| {
            if roll {
                topic.deliveries.roll();
            }
            visit(id, view(topic));
        });
    }

    /// The topics whose histories this shard keeps.
    pub fn kept(&self) -> &KeptTopics {
        self.channels.histories.kept()
    }

    /// The topics of the channels that a socket has joined, the last first.
    pub fn topics_of<'a>(&'a self, socket: &'a Socket) -> impl Iterator<Item = Rc<str>> + 'a {
        let joined = self.channels.registry.of(socket.list).filter(|(_, it)| it.is_joined());
        joined.filter_map(|(_, it)| Some(Rc::clone(&self.channels.registry.topic(it.topic)?.name)))
    }

    /// Whether the client of a socket receives positions on one of its topics: then every loss on
    /// the way to it must be noticed.
    pub fn has_positions(&self, socket: &Socket) -> bool {
        self.channels.registry.of(socket.list).any(|(_, it)| it.is(POSITIONS))
    }

    /// The limit that a socket has exceeded last, and how often it has exceeded one, within some
    /// ten seconds.
    pub fn limit_met(&self, key: Key, now_ns: u64) -> Option<(Limit, u32)> {
        self.channels.meters.as_ref()?.noted(key, now_ns)
    }

    /// Whether a topic has channels, and is not only the id of sockets. Looks at a few members.
    pub fn has_channels(&self, id: TopicId) -> bool {
        let Some(topic) = self.channels.registry.topic(id) else { return false };
        let mut first = (0..topic.len().min(4)).filter_map(|at| topic.member_at(at));
        first.any(|it| {
            let membership = self.channels.registry.member(it.membership());
            membership.is_some_and(Membership::is_joined)
        })
    }

    /// The channel of a socket on a topic, if it has joined it.
    pub fn channel_on(&self, key: Key, socket: &Socket, topic: &str) -> Option<ChannelId> {
        let topic = self.channels.registry.find(topic)?;
        let membership = self.channels.registry.joined_in(key, socket.list, topic)?;
        self.channels.registry.channel_id(membership)
    }

    /// The join_ref of a client's messages for a topic that it has joined: null if it joined
    /// without one.
    pub fn join_ref(&self, key: Key, socket: &Socket, topic: &str) -> Option<OwnedRef> {
        let topic = self.channels.registry.find(topic)?;
        let membership = self.channels.registry.joined_in(key, socket.list, topic)?;
        let it = self.channels.registry.member(membership)?;
        Some(if it.has_given_join_ref() { it.join_ref.clone() } else { OwnedRef::NULL })
    }
}

fn view(topic: &Topic<Delivery>) -> TopicView<'_> {
    TopicView {
        name: &topic.name,
        members: topic.len(),
        deliveries_before: topic.deliveries.deliveries_before(),
    }
}
