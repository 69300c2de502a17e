//! Topics for code outside of channels: a [`PubSub`] subscribes and broadcasts, from any thread.

mod disconnect;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use simurgh_cluster::NodeId;
use simurgh_core::{Broadcast, BroadcastError, ChannelId, Listener, Publisher};
use simurgh_proto::message::{Payload, events};
use simurgh_shard::cluster_inbox;
use simurgh_shard::mail::Mail;
use simurgh_shard::server::Server;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(crate) use disconnect::carry_out;
pub use disconnect::{DISCONNECT_TIMEOUT, DisconnectError};

/// The most bytes that may wait in a [`Subscription`]; broadcasts beyond are dropped and counted.
pub const SUBSCRIPTION_BYTES_MAX: usize = 16 << 20;

/// Broadcasts on topics and subscribes to them, for code outside of channels: tasks, HTTP handlers,
/// other threads. A cheap clone, which does not keep the server running.
///
/// ```
/// use simurgh::{
///     ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
///     json,
/// };
///
/// # struct Room;
/// # impl ShardChannel for Room {
/// #     fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
/// #         Outcome::NoReply
/// #     }
/// # }
/// let rooms = ChannelRoute::on_shard("room:*", |_, _| Join::ok(Room));
/// let user_socket = UserSocket::new("/socket").channel(rooms);
/// let endpoint = Endpoint::builder().socket(user_socket).start_local()?;
/// let pubsub = endpoint.pubsub();
/// let mut prices = pubsub.subscribe("prices");
/// pubsub.broadcast("prices", "changed", json!({"tea": 3}))?;
/// let heard = prices.blocking_recv()?;
/// assert_eq!((heard.event(), heard.payload()), ("changed", &json!({"tea": 3}).into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PubSub(pub(crate) Arc<Server>);

impl PubSub {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self(server)
    }

    /// Subscribes to all later broadcasts on a topic.
    pub fn subscribe(&self, topic: impl Into<Box<str>>) -> Subscription {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let topic = topic.into();
        // Every shard gets every broadcast, so one is enough; the name selects it.
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        let shards = self.0.mailboxes.len().max(1) as u64;
        let shard = (hasher.finish() % shards) as u16;
        let name = Listener::id(shard, NUMBER.fetch_add(1, Relaxed));
        let (from_shard, mut heard) = unbounded_channel();
        let (to_subscriber, inbox) = unbounded_channel();
        let unread = Arc::new(Unread::default());
        let of_shard = Arc::clone(&unread);
        let hear = move |broadcast: &Arc<Broadcast>| {
            if of_shard.has_room(broadcast.weight()) {
                // Fails if the subscription was dropped; the shard learns that by mail.
                let _ = from_shard.send(Arc::clone(broadcast));
            }
        };
        // The subscriber may wait on another runtime, whose waker a shard must not use: its
        // descriptor is a different one in a shard's table. All shards have our runtime's.
        self.0.spawn(async move {
            while let Some(broadcast) = heard.recv().await {
                if to_subscriber.send(broadcast).is_err() {
                    return;
                }
            }
        });
        let listener = Listener { name, on_broadcast: Box::new(hear) };
        self.post(shard, simurgh_core::Mail::Listen(topic.clone(), listener));
        Subscription { pubsub: self.clone(), topic, name, inbox, unread }
    }

    /// Broadcasts to all members and subscriptions of a topic.
    ///
    /// # Errors
    /// The server is congested, or the payload is too large; no member has received it.
    pub fn broadcast(
        &self,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        self.0.now().broadcast(Broadcast::new(topic, event, payload.into()))
    }

    /// Broadcasts on the topic of a subscription, except to the subscription itself. Errors as for
    /// [`broadcast`](Self::broadcast).
    pub fn broadcast_from(
        &self,
        from: &Subscription,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        let broadcast = Broadcast::new(from.topic(), event, payload.into());
        self.0.now().broadcast(broadcast.but_for(from.name))
    }

    /// Broadcasts to members and subscriptions of a topic on one node, by its
    /// [name](Self::node_name), or by the id of this run of it; Phoenix' `direct_broadcast`. Fails
    /// if this node does not exist, or as [`broadcast`](Self::broadcast).
    pub fn direct(
        &self,
        node: &str,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        if node == self.node_name() || node == NodeId(self.0.id).to_string() {
            return self.broadcast_local(topic, event, payload);
        }
        let broadcast = Broadcast::new(topic, event, payload.into());
        let inbox = self.0.cluster.as_ref().ok_or(BroadcastError::UnknownNode)?;
        let node = inbox.view().find(node).ok_or(BroadcastError::UnknownNode)?;
        self.0.check(&broadcast)?;
        inbox.post(cluster_inbox::Mail::Direct(node, Arc::new(broadcast)));
        Ok(())
    }

    /// The name of this node: in its cluster, or [`Config::node_name`](crate::Config).
    pub fn node_name(&self) -> &str {
        &self.0.config.node_name
    }

    /// As [`broadcast`](Self::broadcast), but only to members and subscriptions on this node.
    pub fn broadcast_local(
        &self,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        self.0.broadcast_local(Broadcast::new(topic, event, payload.into()))
    }

    /// Closes every socket with this id, with 1001, on all nodes;
    /// [`disconnect_everywhere`](Self::disconnect_everywhere) also reports which have done so.
    /// Errors as for [`broadcast`](Self::broadcast).
    pub fn disconnect(&self, socket_id: &str) -> Result<(), BroadcastError> {
        self.broadcast(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT)
    }

    fn post(&self, shard: u16, mail: simurgh_core::Mail) {
        self.0.post_to(shard, Mail::Core(mail));
    }
}

#[derive(Default)]
struct Unread {
    bytes: AtomicUsize,
    lost: AtomicU64,
}

impl Unread {
    /// Counts a broadcast, if there is room for it. Only its shard calls this.
    fn has_room(&self, weight: usize) -> bool {
        let has_room = self.bytes.load(Relaxed) + weight <= SUBSCRIPTION_BYTES_MAX;
        if has_room {
            self.bytes.fetch_add(weight, Relaxed);
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
        has_room
    }
}

/// Receives the broadcasts of a topic until it is dropped.
pub struct Subscription {
    pubsub: PubSub,
    topic: Box<str>,
    name: ChannelId,
    inbox: UnboundedReceiver<Arc<Broadcast>>,
    unread: Arc<Unread>,
}

/// Why no broadcast was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// There is none now; only from [`Subscription::try_recv`].
    #[error("no message has arrived")]
    Empty,
    /// This many broadcasts were dropped because [`SUBSCRIPTION_BYTES_MAX`] bytes waited. They were
    /// the newest at that time; the next one received is newer.
    #[error("{0} broadcasts were lost because too many waited")]
    Lagged(u64),
    /// The server has ended.
    #[error("the server has stopped")]
    Ended,
}

impl Subscription {
    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Waits for the next broadcast. Fails if some were lost (once for each time), or the server
    /// has stopped.
    pub async fn recv(&mut self) -> Result<Arc<Broadcast>, RecvError> {
        match self.try_recv() {
            Err(RecvError::Empty) => {}
            known => return known,
        }
        let heard = self.inbox.recv().await;
        heard.map(|it| self.taken(it)).ok_or(RecvError::Ended)
    }

    /// Waits for the next broadcast, blocking the thread. Errors as for [`recv`](Self::recv).
    ///
    /// # Panics
    /// On a thread of an asynchronous runtime.
    pub fn blocking_recv(&mut self) -> Result<Arc<Broadcast>, RecvError> {
        match self.try_recv() {
            Err(RecvError::Empty) => {}
            known => return known,
        }
        let heard = self.inbox.blocking_recv();
        heard.map(|it| self.taken(it)).ok_or(RecvError::Ended)
    }

    /// Returns the next broadcast, if there is one now. Otherwise errors as for
    /// [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Arc<Broadcast>, RecvError> {
        match self.inbox.try_recv() {
            Ok(heard) => Ok(self.taken(heard)),
            Err(error) => match (self.unread.lost.swap(0, Relaxed), error) {
                (0, TryRecvError::Empty) => Err(RecvError::Empty),
                (0, TryRecvError::Disconnected) => Err(RecvError::Ended),
                (lost, _) => Err(RecvError::Lagged(lost)),
            },
        }
    }

    fn taken(&self, heard: Arc<Broadcast>) -> Arc<Broadcast> {
        self.unread.bytes.fetch_sub(heard.weight(), Relaxed);
        heard
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mail = simurgh_core::Mail::Unlisten(std::mem::take(&mut self.topic), self.name);
        self.pubsub.post(self.name.shard, mail);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("topic", &self.topic).finish_non_exhaustive()
    }
}
