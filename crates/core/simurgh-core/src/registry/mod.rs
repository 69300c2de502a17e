//! The members of topics: owns topics, memberships and each socket's list of them, and counts them.
//!
//! ```text
//!   socket's List ──► Membership ⇄ Membership ⇄ …      one slab for all sockets of a shard
//!                         │ topic, at
//!                         ▼
//!   name ──► Topic: [ Member | Member | ▼cursor Member ]  a table for each topic
//! ```
//!
//! A membership knows its place in its topic's table and its neighbours in its socket's list, so
//! leaving walks nothing. All changes are commands of [`Registry`]. What the fan-out needs for a
//! topic is its `D`, which is opaque here.

mod client_keys;
mod list;
mod members;
mod topics;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Broadcast, ChannelId, NO_MEMBERSHIP, ShardChannel};
use simurgh_data::Key;

use client_keys::ClientKeys;
pub(crate) use list::List;
use members::Memberships;
pub(crate) use members::{
    BEHIND, CATCHING_UP, COUNTED, DELIVERING, HAS_RELAYS, HOLDS, Holds, Membership, POSITIONS,
    RELAY, SOCKET_ID, Subscriber, TRACKS, VIA_CHANNEL, WITHOUT_JOIN_REF,
};
pub use topics::TopicId;
use topics::Topics;
use topics::{APART, PLACED};

use simurgh_data::prelude::*;
pub(crate) use topics::{Deliveries, Member, Topic};

pub(crate) struct Registry<D> {
    topics: Topics<D>,
    members: Memberships,
    /// Ids with which clients have joined; `None` until the first.
    clients: Option<Box<ClientKeys>>,
    shard: u16,
    metrics: Arc<ShardMetrics>,
    ended: u64,
}

pub(crate) struct Left {
    pub(crate) membership: u32,
    pub(crate) has_positions: bool,
    pub(crate) channel: Option<Box<dyn ShardChannel>>,
    pub(crate) topic: TopicId,
    pub(crate) counted: Option<Rc<str>>,
    pub(crate) was_behind: bool,
}

impl<D: Deliveries> Registry<D> {
    pub(crate) fn new(metrics: Arc<ShardMetrics>, shard: u16, seed: u64) -> Self {
        let (topics, members) = (Topics::new(seed), Memberships::default());
        Self { topics, members, clients: None, shard, metrics, ended: 0 }
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<TopicId> {
        self.topics.find(name)
    }

    #[inline]
    pub(crate) fn topic(&self, id: TopicId) -> Option<&Topic<D>> {
        self.topics.get(id)
    }

    /// The table of topics, for display and to free memory.
    pub(crate) fn topics_mut(&mut self) -> &mut Topics<D> {
        &mut self.topics
    }

    #[inline]
    pub(crate) fn topic_mut(&mut self, id: TopicId) -> Option<&mut Topic<D>> {
        self.topics.get_mut(id)
    }

    #[inline]
    pub(crate) fn topic_and_members(
        &mut self,
        id: TopicId,
    ) -> Option<(&mut Topic<D>, Members<'_>)> {
        let Self { topics, members, clients, shard, .. } = self;
        let members = Members { members, clients: clients.as_deref(), shard: *shard };
        Some((topics.get_mut(id)?, members))
    }

    #[inline]
    pub(crate) fn member(&self, id: u32) -> Option<&Membership> {
        self.members.get(id)
    }

    pub(crate) fn id_of(&self, membership: u32, generation: u32) -> ChannelId {
        ChannelId { shard: self.shard, membership, generation }
    }

    pub(crate) fn channel_id(&self, membership: u32) -> Option<ChannelId> {
        Some(self.id_of(membership, self.member(membership)?.generation))
    }

    /// The membership of a channel that has not ended.
    pub(crate) fn live(&self, channel: ChannelId) -> Option<u32> {
        let it = self.member(channel.membership)?;
        (it.generation == channel.generation && channel.shard == self.shard)
            .then_some(channel.membership)
    }

    /// The channels of a socket.
    pub(crate) fn channels_of(&self, list: List) -> Vec<ChannelId> {
        let all = self.of(list).filter(|(_, it)| it.is_joined());
        all.map(|(membership, it)| self.id_of(membership, it.generation)).collect()
    }

    /// Bytes of the names of all topics that a socket has joined.
    pub(crate) fn topic_bytes(&self, list: List) -> usize {
        let joined = self.of(list).filter(|(_, it)| it.is_joined());
        joined.filter_map(|(_, it)| Some(self.topic(it.topic)?.name.len())).sum()
    }

    /// The number of a member's client; 0: none.
    pub(crate) fn client(&self, membership: u32) -> u64 {
        self.clients.as_ref().map_or(0, |clients| clients.get(membership))
    }

    pub(crate) fn set_client(&mut self, membership: u32, client: u64) {
        self.clients.get_or_insert_default().set(membership, client);
    }

    /// Pages of memory for the numbers of clients.
    pub(crate) fn client_pages(&self) -> usize {
        self.clients.as_ref().map_or(0, |clients| clients.pages())
    }

    /// Whether a broadcast is from a member's own client, and not for it.
    pub(crate) fn is_of_client(&self, membership: u32, broadcast: &Broadcast) -> bool {
        let sender = broadcast.kept.as_ref().map_or(0, |mark| mark.sender);
        sender != 0 && self.client(membership) == sender
    }

    pub(crate) fn step(&self, id: u32) -> Option<(TopicId, u32)> {
        self.members.get(id).map(|it| (it.topic, it.next))
    }

    pub(crate) fn of(&self, list: List) -> impl Iterator<Item = (u32, &Membership)> {
        let at = |id: u32| Some((id, self.members.get(id)?));
        core::iter::successors(at(list.first()), move |(_, it)| at(it.next))
    }

    /// A socket's channel in a topic: searched among the socket's memberships or the topic's
    /// members, whichever are fewer, since a socket may have ten thousand.
    pub(crate) fn joined_in(&self, key: Key, list: List, topic: TopicId) -> Option<u32> {
        let table = self.topics.get(topic)?;
        if table.len() >= usize::from(list.channels()) {
            let is_it = |it: &Membership| it.is_joined() && it.topic == topic;
            return self.of(list).find(|(_, it)| is_it(it)).map(|(id, _)| id);
        }
        let mut all = (0..table.len()).filter_map(|at| table.member_at(at));
        let is_it = |member: &&Member| {
            let membership = || self.members.get(member.membership());
            member.conn == key && membership().is_some_and(Membership::is_joined)
        };
        all.find(is_it).map(|member| member.membership())
    }

    pub(crate) fn relay(&self, list: List, channel: u32, topic: &str) -> Option<u32> {
        let topic = self.find(topic)?;
        let is_it = |it: &Membership| it.topic == topic && it.relay_for() == Some(channel);
        self.of(list).find(|(_, it)| is_it(it)).map(|(id, _)| id)
    }

    /// Adds a membership to its topic's table and its socket's list. Returns it if no memory is
    /// left.
    pub(crate) fn subscribe(
        &mut self,
        list: &mut List,
        key: Key,
        topic: &str,
        subscriber: Subscriber,
    ) -> Result<u32, Holds> {
        let Subscriber { holds, join_ref, via_channel, flags } = subscriber;
        let mut kind = if via_channel { APART } else { 0 };
        kind |= if flags & POSITIONS != 0 { PLACED } else { 0 };
        let flags = if via_channel { flags | VIA_CHANNEL } else { flags };
        let topic_id = self.topics.open(topic);
        let Some(topic) = self.topics.get_mut(topic_id) else { return Err(holds) };
        let new = Membership {
            holds,
            join_ref,
            conn: key,
            topic: topic_id,
            at: topic.len() as u32,
            next: NO_MEMBERSHIP,
            previous: NO_MEMBERSHIP,
            generation: 0,
            flags,
        };
        let is_joined = new.is_joined();
        let id = match self.members.insert(new) {
            Ok(id) => id,
            Err(refused) => {
                self.topics.close_if_empty(topic_id);
                return Err(refused.holds);
            }
        };
        if topic.push(Member::new(key, id, kind, topic.deliveries.head())).is_err() {
            let holds = self.members.get_mut(id).map(|it| core::mem::take(&mut it.holds));
            self.members.remove(id);
            self.topics.close_if_empty(topic_id);
            return Err(holds.unwrap_or_default());
        }
        self.link(list, id);
        if is_joined {
            list.one_more();
            self.metrics.channels.set(self.metrics.channels.value() + 1);
        }
        self.metrics.subscriptions.add(1);
        self.metrics.topics.set(self.topics.len() as u64);
        Ok(id)
    }

    /// Takes a membership out of its topic, its socket's list and the slab. Its topic stays until
    /// [`close_if_empty`](Self::close_if_empty).
    pub(crate) fn leave(&mut self, list: &mut List, id: u32) -> Option<Left> {
        self.unlink(list, id);
        let it = self.members.get_mut(id)?;
        let channel = it.take_channel();
        let (topic, at) = (it.topic, it.at as usize);
        let (is_joined, is_counted) = (it.is_joined(), it.is(COUNTED));
        let has_positions = it.is(POSITIONS);
        let was_behind = it.is(BEHIND);
        let mut left =
            Left { membership: id, channel, topic, counted: None, was_behind, has_positions };
        if let Some(topic) = self.topics.get_mut(topic) {
            left.counted = is_counted.then(|| Rc::clone(&topic.name));
            topic.remove(at, |member, to| {
                if let Some(it) = self.members.get_mut(member.membership()) {
                    it.at = to;
                }
            });
        }
        self.members.remove(id);
        if let Some(clients) = self.clients.as_mut().filter(|_| has_positions) {
            clients.set(id, 0);
        }
        self.ended += 1;
        let metrics = &self.metrics;
        metrics.subscriptions.set(metrics.subscriptions.value().saturating_sub(1));
        if is_joined {
            list.one_less();
            metrics.channels.set(metrics.channels.value().saturating_sub(1));
        }
        metrics.channels_hibernating.set(self.members.hibernating() as u64);
        Some(left)
    }

    pub(crate) fn close_if_empty(&mut self, topic: TopicId) {
        if self.topics.close_if_empty(topic) {
            self.metrics.topics.set(self.topics.len() as u64);
        }
    }

    fn link(&mut self, list: &mut List, id: u32) {
        let before = list.first();
        list.begin_with(id);
        if let Some(it) = self.members.get_mut(before) {
            it.previous = id;
        }
        if let Some(it) = self.members.get_mut(id) {
            (it.previous, it.next) = (NO_MEMBERSHIP, before);
        }
    }

    fn unlink(&mut self, list: &mut List, id: u32) {
        let Some((previous, next)) = self.members.get(id).map(|it| (it.previous, it.next)) else {
            return;
        };
        match self.members.get_mut(previous) {
            Some(it) => it.next = next,
            None => list.begin_with(next),
        }
        if let Some(it) = self.members.get_mut(next) {
            it.previous = previous;
        }
    }

    /// Sets or clears a flag. Returns whether that is a change.
    pub(crate) fn mark(&mut self, id: u32, flag: u16, on: bool) -> bool {
        let Some(it) = self.members.get_mut(id).filter(|it| it.is(flag) != on) else {
            return false;
        };
        it.flags ^= flag;
        true
    }

    /// Has a member wait for what it has missed, or no longer: then it gets broadcasts from the
    /// log's head on.
    pub(crate) fn catches_up(&mut self, id: u32, on: bool) {
        self.mark(id, CATCHING_UP, on);
        let Some(it) = self.members.get(id) else { return };
        let (at, is_through) = (it.at as usize, it.is(VIA_CHANNEL));
        if let Some(topic) = self.topics.get_mut(it.topic) {
            let head = topic.deliveries.head();
            topic.set_apart(at, on || is_through);
            if let Some(cursor) = topic.cursor_at(at) {
                *cursor = head;
            }
        }
    }

    pub(crate) fn wake(&mut self, id: u32) -> Option<Box<dyn ShardChannel>> {
        let channel = self.members.wake(id);
        self.metrics.channels_hibernating.set(self.members.hibernating() as u64);
        channel
    }

    pub(crate) fn put_back(&mut self, id: u32, channel: Box<dyn ShardChannel>) {
        if let Some(it) = self.members.get_mut(id) {
            it.holds = Holds::Channel(channel);
        }
    }

    /// Hibernates the channel, and returns it, if nothing has happened on it since the last call.
    pub(crate) fn send_to_sleep(&mut self, id: u32) -> Option<&mut dyn ShardChannel> {
        let Self { members, metrics, .. } = self;
        let hibernating = members.hibernating() as u64;
        let channel = members.send_to_sleep(id)?;
        metrics.channels_hibernating.set(hibernating + 1);
        Some(channel)
    }

    pub(crate) fn awake(&self) -> usize {
        self.members.awake()
    }

    pub(crate) fn end(&self) -> u32 {
        self.members.end()
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }
}

/// The members of all topics, while one of the topics is changed.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    members: &'a Memberships,
    clients: Option<&'a ClientKeys>,
    shard: u16,
}

impl Members<'_> {
    /// Whether a broadcast excludes this membership: its slot may have a new member by now.
    #[inline]
    pub(crate) fn is_excluded(self, broadcast: &Broadcast, membership: u32) -> bool {
        broadcast.except.is_some_and(|channel| {
            channel.membership == membership
                && channel.shard == self.shard
                && self
                    .members
                    .get(membership)
                    .is_some_and(|it| it.generation == channel.generation)
        })
    }

    /// The number of a member's client; 0: none.
    pub(crate) fn client(self, membership: u32) -> u64 {
        self.clients.map_or(0, |clients| clients.get(membership))
    }

    pub(crate) fn have_clients(self) -> bool {
        self.clients.is_some()
    }
}

#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/model.rs"]
pub(crate) mod model;
#[cfg(test)]
mod tests;
