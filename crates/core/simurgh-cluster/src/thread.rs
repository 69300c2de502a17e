//! The cluster thread of a node: it takes the mail of the node's shards and applications, what the
//! broker sends, and time, in turns. The server and the simulator drive the same.

use alloc::collections::BTreeMap;
use core::fmt::Display;
use core::task::{Context, Poll};

use simurgh_channel::{Broadcast, StoreRequest, ToCluster};
use simurgh_history::NotKept;
use simurgh_proto::message::events;

use crate::adapter::Adapter;
use crate::cluster::{Cluster, LinkState, LocalNode};
use crate::disconnects::{DisconnectNumber, DisconnectOutcome, TooManyDisconnects};
use crate::envelope::{Item, ItemPayload};
use crate::history::StoreItem;
use crate::node_id::NodeId;
use crate::peers::Peers;
use crate::time::Time;
use simurgh_data::prelude::*;

/// Rounds of mail, broker and time in one turn, before other work of the same thread runs.
const ROUNDS_MAX: usize = 16;
/// The longest time between two turns.
pub const TURN_INTERVAL_NS: u64 = 1_000_000_000;
/// How long a node that says good-bye waits for the broker to take its last messages.
pub const FLUSH_NS: u64 = 5_000_000_000;

/// Receives the outcome of a disconnect, with the nodes that are known then; `None` if too many
/// disconnects are open.
pub type DisconnectReply = Box<dyn FnOnce(&Peers, Option<DisconnectOutcome>) + Send>;

/// The node of a [`NodeThread`]: its shards and applications, and its clock.
pub trait ThreadNode: LocalNode + Sized {
    /// A message of the node's shards or applications.
    type Mail;
    /// Learns that a topic is subscribed to.
    type Awaiting;

    /// The time now.
    fn time(&self) -> Time;

    /// Takes all mail, and leaves `empty` in its place.
    fn take_mail(&mut self, empty: Vec<Self::Mail>) -> Vec<Self::Mail>;

    /// Handles one mail.
    fn handle<A: Adapter + ?Sized>(thread: &mut NodeThread<A, Self>, mail: Self::Mail, time: Time);

    /// A topic is subscribed to.
    fn subscribed(&mut self, awaiting: Self::Awaiting);

    /// Delivers a broadcast to the members on this node only.
    fn broadcast_here(&mut self, broadcast: Broadcast);

    /// A broadcast does not reach the other nodes, for this reason.
    fn undelivered(&mut self, broadcast: &Broadcast, error: &dyn Display);
}

/// The cluster thread of a node.
pub struct NodeThread<A: ?Sized, N: ThreadNode> {
    /// The node's part in the cluster.
    pub cluster: Cluster<A>,
    /// The node.
    pub local: N,
    waiting: BTreeMap<DisconnectNumber, DisconnectReply>,
    /// Joins that wait until their topics are subscribed to, by number.
    awaits: BTreeMap<u64, N::Awaiting>,
    last_await: u64,
    mail: Vec<N::Mail>,
    /// Buffer for frames of broadcasts that are not encoded yet.
    frame: Vec<u8>,
    bye_ns: Option<u64>,
    is_local_when_away: bool,
}

impl<A: Adapter + ?Sized, N: ThreadNode> NodeThread<A, N> {
    /// The thread of a node that was just started. If it `is_local_when_away`, broadcasts to be
    /// kept reach only local members while there is no link.
    pub fn new(cluster: Cluster<A>, local: N, is_local_when_away: bool) -> Self {
        Self {
            cluster,
            local,
            waiting: BTreeMap::new(),
            awaits: BTreeMap::new(),
            last_await: 0,
            mail: Vec::new(),
            frame: Vec::new(),
            bye_ns: None,
            is_local_when_away,
        }
    }

    /// Does all pending work; ready when the node has sent its last message.
    pub fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let poll = self.rounds(context);
        while let Some((number, outcome)) = self.cluster.poll_outcome() {
            if let Some(reply) = self.waiting.remove(&number) {
                reply(self.cluster.peers(), Some(outcome));
            }
        }
        while let Some(number) = self.cluster.poll_awaited() {
            if let Some(awaiting) = self.awaits.remove(&number) {
                self.local.subscribed(awaiting);
            }
        }
        poll
    }

    fn rounds(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..=ROUNDS_MAX {
            let time = self.local.time();
            // Received before the mail, and handled after it: a client that learned of its
            // membership before another node's message is a member when that is delivered.
            let has_more = self.cluster.receive(context);
            let has_mail = self.take_mail(time);
            self.cluster.handle_events(time, &mut self.local);
            self.cluster.tick(time, &mut self.local);
            let has_said = self.cluster.settle(time);
            if self.bye_ns.is_some_and(|until| self.cluster.is_flushed() || until <= time.ns) {
                return Poll::Ready(());
            }
            // The adapter writes messages when it is polled for events.
            if !has_mail && !has_more && !has_said {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_mail(&mut self, time: Time) -> bool {
        let mut mail = self.local.take_mail(core::mem::take(&mut self.mail));
        let has_mail = !mail.is_empty();
        for mail in mail.drain(..) {
            N::handle(self, mail, time);
        }
        self.mail = mail;
        has_mail
    }

    /// The latest time of the next turn, unless the waker is woken before.
    pub fn next_ns(&self) -> u64 {
        let soon = self.local.time().ns.saturating_add(TURN_INTERVAL_NS);
        self.cluster.next_ns().map_or(soon, |next_ns| next_ns.min(soon))
    }

    /// Handles a message of one of the node's cores.
    pub fn handle_core(&mut self, what: ToCluster, time: Time) {
        let Self { cluster, local, .. } = self;
        match what {
            ToCluster::Broadcast(it) if it.event() == events::DISCONNECT => {
                if let Err(error) = self.disconnect(it.topic(), None, time) {
                    self.local.undelivered(&it, &error);
                }
            }
            ToCluster::Broadcast(broadcast) => self.publish(&broadcast, None, time),
            ToCluster::TopicBegins(topic, shard, wanted) => {
                cluster.topic_begins(&topic, shard, wanted, time);
            }
            ToCluster::TopicEnds(topic, shard) => cluster.topic_ends(&topic, shard, time),
            ToCluster::Presence(topic, what) => cluster.presence(&topic, what, time, local),
            ToCluster::Store(request) => self.store(*request, time),
            ToCluster::Follow(topic, wanted) => cluster.follow(&topic, wanted, time, local),
            ToCluster::CheckTopic(topic) => cluster.check_topic(&topic),
            ToCluster::Forget(topic, number) => cluster.forget(&topic, number, time, local),
        }
    }

    /// Publishes a broadcast on all other nodes, or on one of them.
    pub fn publish(&mut self, broadcast: &Broadcast, node: Option<NodeId>, time: Time) {
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let (topic, item) = (broadcast.topic(), Item::new(broadcast.event(), payload));
        let published = match node {
            Some(node) => self.cluster.direct(node, topic, &item, time),
            None => self.cluster.broadcast(topic, &item, time),
        };
        if let Err(error) = published {
            self.local.undelivered(broadcast, &error);
        }
    }

    /// Has the broker keep a broadcast. [`LocalNode::stored`] gets the outcome.
    fn store(&mut self, request: StoreRequest, time: Time) {
        let StoreRequest { number, broadcast, sender, id, age } = request;
        if self.is_local_when_away && self.cluster.state().0 == LinkState::Away {
            let topic: Box<str> = broadcast.topic().into();
            self.local.broadcast_here(broadcast);
            return self.local.stored(&topic, number, Err(NotKept::LocalOnly));
        }
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let exclusion = (sender != 0).then_some(sender);
        let except = broadcast.except();
        let item = Item { except, exclusion, ..Item::new(broadcast.event(), payload) };
        let stored = StoreItem { number, item, id: id.as_deref(), age };
        self.cluster.store(broadcast.topic(), stored, time, &mut self.local);
    }

    /// Closes all sockets with an id on all other nodes.
    ///
    /// # Errors
    /// Too many disconnects are open.
    pub fn disconnect(
        &mut self,
        socket_id: &str,
        reply: Option<DisconnectReply>,
        time: Time,
    ) -> Result<(), TooManyDisconnects> {
        let started = self.cluster.disconnect(socket_id, time);
        self.report_later(started, reply)
    }

    /// Has an order carried out on all other nodes.
    ///
    /// # Errors
    /// Too many disconnects or orders are open.
    pub fn order(
        &mut self,
        order: &[u8],
        reply: DisconnectReply,
        time: Time,
    ) -> Result<(), TooManyDisconnects> {
        let started = self.cluster.order(order, time);
        self.report_later(started, Some(reply))
    }

    fn report_later(
        &mut self,
        started: Result<DisconnectNumber, TooManyDisconnects>,
        reply: Option<DisconnectReply>,
    ) -> Result<(), TooManyDisconnects> {
        match (started, reply) {
            (Ok(number), Some(reply)) => drop(self.waiting.insert(number, reply)),
            (Ok(_), None) => {}
            (Err(error), reply) => {
                if let Some(reply) = reply {
                    reply(self.cluster.peers(), None);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Subscribes to a topic before its member is let in, which waits for it.
    pub fn await_topic(&mut self, topic: &str, awaiting: N::Awaiting, time: Time) {
        self.last_await += 1;
        self.awaits.insert(self.last_await, awaiting);
        self.cluster.await_topic(topic, self.last_await, time);
    }

    /// Says good-bye to the other nodes; then the thread ends.
    pub fn bye(&mut self, time: Time) {
        self.cluster.bye(time);
        self.bye_ns.get_or_insert(time.ns.saturating_add(FLUSH_NS));
    }
}
